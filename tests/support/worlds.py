"""Nested agents for pause and crash tests, which follow a script and count every tool call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hypothesis import strategies as st

from framework import ModelError, Tool, tool
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn
from framework.types.messages import ToolCall
from tests.support.projects import agent, write

LEVELS = ("root", "middle", "leaf")
"""Each agent may call the next."""

Kind = Literal["safe", "risky", "agent"]


@dataclass(frozen=True)
class Call:
    """One call in a turn; a call of an agent has that agent's turns."""

    kind: Kind
    turns: tuple[tuple[Call, ...], ...] = ()


Turns = tuple[tuple[Call, ...], ...]


def turns_of(depth: int) -> st.SearchStrategy[Turns]:
    """Generate the turns of an agent; calls of agents contain their own turns."""
    plain = st.sampled_from([Call("safe"), Call("risky")])
    call = plain if depth == 0 else plain | turns_of(depth - 1).map(lambda turns: Call("agent", turns))
    return st.lists(st.lists(call, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple)


@dataclass
class World:
    """The script, and the calls that were executed."""

    turns: Turns
    ran: Counter[str] = field(default_factory=Counter)
    faults: Sequence[bool] = (False,)
    """Cycle of flags: whether the n-th model call fails."""
    model_calls: int = 0

    def tools(self) -> list[Tool]:
        """`safe` may be repeated after a crash, `risky` may not."""

        @tool(risk="low", idempotent=True)
        async def safe(n: str) -> str:
            """Do something idempotent."""
            self.ran[n] += 1
            await asyncio.sleep(0)
            return f"did {n}"

        @tool(risk="low")
        async def risky(n: str) -> str:
            """Do something that must not be done twice."""
            self.ran[n] += 1
            await asyncio.sleep(0)
            return f"did {n}"

        return [safe, risky]

    def model(self) -> ScriptedModel:
        """Return a model that replies by the request's node and its number of turns so far."""
        return ScriptedModel(script=self._turn)

    def names(self) -> set[str]:
        """Calls of plain tools in the script."""
        return set(_names("0", self.turns))

    def names_of(self, kind: Kind) -> set[str]:
        """Calls of one tool."""
        return {name for name, made in _names("0", self.turns).items() if made == kind}

    def _turn(self, request: ModelRequest) -> Turn:
        self.model_calls += 1
        if self.faults[self.model_calls % len(self.faults)]:
            return ModelError("down for a moment", retryable=True)
        start = max(i for i, message in enumerate(request.messages) if message.role == "user")
        node = request.messages[start].content
        turns = _find(self.turns, node.split(".")[1:])
        done = sum(message.role == "assistant" for message in request.messages[start:])
        if done >= len(turns):
            return f"end of {node}"
        level = LEVELS[node.count(".") // 2 + 1] if node.count(".") // 2 + 1 < len(LEVELS) else ""
        return tuple(
            ToolCall(
                id=f"{done}-{index}", tool=_tool(call, level), arguments=_arguments(call, f"{node}.{done}.{index}")
            )
            for index, call in enumerate(turns[done])
        )


def _tool(call: Call, level: str) -> str:
    return f"agent.{level}" if call.kind == "agent" else call.kind


def _arguments(call: Call, name: str) -> dict[str, Any]:
    return {"message": name} if call.kind == "agent" else {"n": name}


def _find(turns: Turns, path: list[str]) -> Turns:
    while path:
        turns, path = turns[int(path[0])][int(path[1])].turns, path[2:]
    return turns


def _names(node: str, turns: Turns) -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for i, turn in enumerate(turns):
        for j, call in enumerate(turn):
            name = f"{node}.{i}.{j}"
            found |= _names(name, call.turns) if call.kind == "agent" else {name: call.kind}
    return found


def project(root: Path, *, ask: bool, executor: str = "react") -> Path:
    """Three nested agents. With `ask`, every `risky` call needs approval. Failed model calls are retried after 1 ms."""
    policy = '{ask: [risky], allow: ["*"]}' if ask else '{allow: ["*"]}'
    limits = "{max_steps: null, max_tool_calls: null, max_total_tokens: null, max_repeated_calls: null, timeout: null}"
    for level, below in zip(LEVELS, (*LEVELS[1:], ""), strict=True):
        subs = f"[{below}]" if below else "[]"
        text = agent(level, skill_policy=policy, runtime_policy=limits, sub_agents=subs, executor=executor)
        write(root, {f"agents.d/{level}.yaml": text})
    settings = "model_calls: {max_retries: 20, backoff: 1ms, max_backoff: 1ms, cooldown_after: 1000}\n"
    return write(root, {"agentsd.yaml": settings})
