"""Random edits while runs are in progress: none fails a run, and no policy gets weaker than a saved one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from framework import AgentNotFound, Runtime, Tool, ToolContext, tool
from framework.engine.context.policy import Policy
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, Turn, calls
from tests.support.cases import FACTOR
from tests.support.projects import agent, write

EDITS = 60 * FACTOR
NAMES, TOOLS = ("one", "two", "boss"), ("t0", "t1", "t2")
TURNS, AT_ONCE = 8, 6
NO_LIMITS = "max_steps: null, max_tool_calls: null, max_total_tokens: null, max_repeated_calls: null, timeout: null"
PLUGIN = 'from framework import tool\n\n@tool(risk={})\ndef f() -> str:\n    """F."""\n    return "{}"\n'
BROKEN_SETTINGS = "model: [\n"


@dataclass
class World:
    """The files, the tools they deny, and denied tools that were called anyway."""

    root: Path
    chance: random.Random
    saved: dict[str, frozenset[str] | None] = field(default_factory=dict)
    """Tools that each agent's file denies; None for an unreadable file. Deleted files are omitted."""
    whole: dict[str, bool] = field(default_factory=dict)
    """Whether each agent's file is valid, apart from shared files."""
    good: dict[str, frozenset[str]] = field(default_factory=dict)
    """Tools that the last valid version of each agent denies."""
    include = settings = True
    """Whether the include and the settings, which all agents use, are valid."""
    epoch: int = 0
    next_epoch: asyncio.Event = field(default_factory=asyncio.Event)
    closing: bool = False
    denied_since: dict[tuple[str, str], int] = field(default_factory=dict)
    called: int = 0
    wrong: list[str] = field(default_factory=list)
    runtime: Runtime | None = None

    def edit(self) -> str:
        """Change the files; return a description for failure messages."""
        kind = self.chance.choices(
            ("policy", "broken", "yaml", "delete", "include", "settings", "plugin"), (40, 20, 8, 8, 12, 10, 1)
        )[0]
        name = self.chance.choice(NAMES)
        match kind:
            case "policy" | "broken":
                denied = frozenset(one for one in TOOLS if self.chance.random() < 0.4)
                extra = self.chance.choice([{"max_stepz": "1"}, {"conversation": "{window: x}"}, {"model": "nobody"}])
                self.write(name, denied, extra if kind == "broken" else {})
            case "yaml":
                write(self.root, {f"agents.d/{name}.yaml": "name: [\n"})
                self.saved[name], self.whole[name] = None, False
            case "delete":
                (self.root / f"agents.d/{name}.yaml").unlink(missing_ok=True)
                self.saved.pop(name, None)
            case "include":
                self.include = not self.include
                write(self.root, {"prompts/_c.j2": "Hello." if self.include else "{{ nothing"})
            case "settings":
                self.settings = not self.settings
                write(self.root, {"agentsd.yaml": "locale: en\n" if self.settings else BROKEN_SETTINGS})
            case "plugin":
                risk = self.chance.choice(["'low'", "'hihg'"])
                write(self.root, {"plugins/p.py": PLUGIN.format(risk, self.chance.random())})
        return f"{kind} {name}"

    def write(self, name: str, denied: frozenset[str], extra: Mapping[str, str]) -> None:
        """Write an agent file."""
        keys = {
            "instructions": f"{{template: {name}.j2}}",
            "skill_policy": f"{{deny: [{', '.join(sorted(denied))}], allow: ['*']}}",
            "runtime_policy": f"{{{NO_LIMITS}}}",
            "sub_agents": "[one]" if name == "boss" else "[]",
            **extra,
        }
        write(self.root, {f"agents.d/{name}.yaml": agent(name, **keys)})
        self.saved[name], self.whole[name] = denied, not extra

    def check(self, runtime: Runtime, done: str) -> None:
        """Compare the active configuration with the saved files."""
        self.epoch, self.runtime = self.epoch + 1, runtime
        live = runtime.catalog.current
        for name in NAMES:
            at = f"edit {self.epoch} ({done}), {name}"
            if name not in self.saved:
                assert name not in live.agents, f"{at}: a deleted agent is live"
            elif self.whole[name] and self.settings and name in live.agents and not live.agents[name].stale:
                self.good[name] = self.saved[name] or frozenset()
            for one in TOOLS:
                denied = one in (self.saved.get(name) or ()) or one in self.good.get(name, ()) or name not in self.saved
                if name in live.agents and name in self.saved:
                    verdict = Policy(live.agents[name], live.agents.get).evaluate(live.tools[one], {"n": 1})
                    assert verdict.kind == "deny" or not denied, f"{at}: {one} is allowed"
                if denied:
                    self.denied_since.setdefault((name, one), self.epoch)
                else:
                    self.denied_since.pop((name, one), None)
        happened, self.next_epoch = self.next_epoch, asyncio.Event()
        happened.set()

    def denies(self, name: str, one: str) -> bool:
        """Return whether the live files deny a tool. They may permit it since an edit that is not checked yet."""
        assert self.runtime
        live = self.runtime.catalog.current
        if name not in live.agents:
            return True
        return Policy(live.agents[name], live.agents.get).evaluate(live.tools[one], {"n": 1}).kind == "deny"

    def tools(self) -> list[Tool]:
        """Return tools that check their caller's policy, and run until the next edit."""

        async def act(name: str, context: ToolContext) -> str:
            since = self.denied_since.get((context.agent, name))
            # The policy may have been evaluated just before an edit.
            if since is not None and self.epoch - since >= 2 and self.denies(context.agent, name):
                self.wrong.append(f"{context.agent} called {name} at {self.epoch}, denied since {since}")
            self.called += 1
            if not self.closing:
                await self.next_epoch.wait()
            return name

        @tool(risk="low")
        async def t0(n: int, context: ToolContext) -> str:
            """Do something."""
            return await act("t0", context)

        @tool(risk="low")
        async def t1(n: int, context: ToolContext) -> str:
            """Do something else."""
            return await act("t1", context)

        @tool(risk="low")
        async def t2(n: int, context: ToolContext) -> str:
            """Do a third thing."""
            return await act("t2", context)

        return [t0, t1, t2]

    def answer(self, request: ModelRequest) -> Turn:
        """Call a tool in each turn; in some, the sub-agent."""
        turn = sum(message.role == "assistant" for message in request.messages)
        if turn >= TURNS:
            return "done"
        delegates = "I am boss." in request.messages[0].content and turn % 3 == 0
        requested = "agent.one" if delegates else self.chance.choice(TOOLS)
        arguments = {"message": f"go {turn}"} if delegates else {"n": turn}
        return calls((requested, arguments), prefix=f"c{turn}")


async def keep_running(world: World, runtime: Runtime, ended: list[str]) -> None:
    """Run agents one after another until there are no more edits."""
    while not world.closing:
        with suppress(AgentNotFound):
            result = await runtime.run("go", agent=world.chance.choice(NAMES))
            ended.append(f"{result.status} {result.finish_reason} {result.error}")
        await asyncio.sleep(0)


async def edit_under_load(root: Path, seed: int) -> tuple[World, list[str]]:
    world, ended = World(root, random.Random(seed)), list[str]()
    files = {f"prompts/{name}.j2": f"{{% include '_c.j2' %}} I am {name}." for name in NAMES}
    write(root, files | {"prompts/_c.j2": "Hello.", "plugins/p.py": PLUGIN.format("'low'", 0)})
    write(root, {"agents.d/rest.yaml": agent("rest")})  # never deleted: a project without agents serves nothing
    for name in NAMES:
        world.write(name, frozenset(), {})
    models = {"scripted": ScriptedModel(script=world.answer)}
    opening = Runtime.open(root, tools=world.tools(), models=models, watch=False)
    async with opening as runtime, asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(keep_running(world, runtime, ended))
        for _ in range(EDITS):
            done = world.edit()
            await runtime.reload()
            world.check(runtime, done)
        world.closing = True
        world.next_epoch.set()
    return world, ended


def test_no_edit_fails_a_run_or_weakens_a_saved_policy(tmp_path: Path) -> None:
    world, ended = asyncio.run(edit_under_load(tmp_path, seed=EDITS))

    assert not world.wrong
    assert set(ended) == {"completed final None"}
    assert world.called > EDITS
    assert len(ended) > EDITS / TURNS
