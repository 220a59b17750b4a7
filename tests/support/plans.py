"""Plan drafts, tools and projects for tests of the plan executor, and functions that run them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from framework import RunResult, Runtime, tool
from framework.llm.client import ModelRequest
from framework.testing import JsonStore, ScriptedModel, Turn, calls
from framework.tools.tool import Tool
from framework.types.events import wire
from framework.types.plan import PlanDraft, StepDraft
from tests.support.projects import agent, write
from tests.support.wire import Answer, wire_server


def draft(*steps: dict[str, Any], goal: str = "get it done") -> PlanDraft:
    """Build a plan draft from steps."""
    return PlanDraft(goal=goal, steps=tuple(StepDraft(**({"description": step["id"]} | step)) for step in steps))


def step(name: str, *after: str, **keys: Any) -> dict[str, Any]:
    """Build a step that calls the tool `work` after the steps `after`."""
    return {"id": name, "tool": "work", "parameters": {"n": name}, "depends_on": after} | keys


def model_step(name: str, *after: str, **keys: Any) -> dict[str, Any]:
    """Build a step without a tool: the model executes it."""
    return {"id": name, "description": f"think about {name}", "depends_on": after} | keys


def tool_step(name: str, tool_name: str, *after: str, **parameters: Any) -> dict[str, Any]:
    """Build a step that calls `tool_name` with the given parameters."""
    return {"id": name, "description": name, "tool": tool_name, "depends_on": after, "parameters": parameters}


@st.composite
def plan_graphs(draw: st.DrawFn) -> tuple[PlanDraft, frozenset[str]]:
    """Draw a plan of steps with random dependencies, and the names of steps that fail."""
    names = [f"s{n}" for n in range(draw(st.integers(1, 6)))]
    steps = [
        step(name, *draw(st.sets(st.sampled_from(names[:index]), max_size=2) if index else st.just(set())))
        for index, name in enumerate(names)
    ]
    return draft(*steps), frozenset(draw(st.sets(st.sampled_from(names), max_size=2)))


class Workshop:
    """A tool that records its calls, and fails for the given steps."""

    def __init__(self, *failing: str) -> None:
        self.log: list[str] = []
        self.failing = set(failing)

    def tools(self) -> list[Tool]:
        @tool(risk="low")
        async def work(n: str) -> str:
            """Works."""
            self.log.append(f"+{n}")
            await asyncio.sleep(0)
            if n in self.failing:
                raise ValueError("broken")
            self.log.append(f"-{n}")
            return f"did {n}"

        @tool(risk="high")
        async def drill(n: str) -> str:
            """Drills, which is dangerous."""
            self.log.append(f"drill {n}")
            return f"drilled {n}"

        return [work, drill]


def plan_project(root: Path, **keys: str) -> Path:
    """Create a project with the agent `p`, which uses the plan executor."""
    return write(root, {"agents.d/p.yaml": agent("p", **({"executor": "plan"} | keys))})


def run_plan(root: Path, shop: Workshop, *turns: Turn) -> tuple[RunResult, list[dict[str, Any]]]:
    """Run a plan with the tools of `shop` and a scripted model; return the result and the wire events."""

    async def main() -> tuple[RunResult, list[dict[str, Any]]]:
        models = {"scripted": ScriptedModel(*turns)}
        async with Runtime.open(root, tools=shop.tools(), models=models, watch=False) as runtime:
            async with runtime.stream("do it") as stream:
                seen = [wire(event) async for event in stream]
            return await stream.result(), seen

    return asyncio.run(main())


def run_plan_with_requests(
    root: Path, tools: list[Tool], *turns: Turn, decide: dict[str, Any] | None = None, store: JsonStore | None = None
) -> tuple[RunResult, list[ModelRequest], list[dict[str, Any]]]:
    """Run a plan to its end; return the result, the model requests and the wire events.

    `decide` maps tools, or kinds of questions, to decisions. Without it, the run may end paused.
    """

    async def main() -> tuple[RunResult, list[ModelRequest], list[dict[str, Any]]]:
        model = ScriptedModel(*turns)
        options: dict[str, Any] = {"tools": tools, "models": {"scripted": model}, "watch": False}
        async with Runtime.open(root, store=store or JsonStore(), **options) as runtime:
            async with runtime.stream("do it") as stream:
                seen = [wire(event) async for event in stream]
            result = await stream.result()
            while result.status == "paused" and decide is not None:
                answers = {question.id: decide[question.tool or question.kind] for question in result.pending}
                async with runtime.resume_stream(result.run_id, answers) as stream:
                    seen += [wire(event) async for event in stream]
                result = await stream.result()
        return result, model.requests, seen

    return asyncio.run(main())


def step_results(seen: list[dict[str, Any]]) -> dict[str, tuple[str, str | None]]:
    """Return the final status and result of each step."""
    return {e["id"]: (e["status"], e.get("result")) for e in seen if e["event"] == "plan_step"}


def step_statuses(result: RunResult) -> dict[str, str]:
    """Return the status of each step of the final plan."""
    assert result.plan is not None
    return {one.id: one.status for one in result.plan.steps}


def repeated_call() -> Turn:
    """Return a turn that calls `work` with the same arguments each time."""
    return calls(("work", {"n": "again"}))


def run_plan_over_http(root: Path, answers: list[Answer]) -> RunResult:
    """Run a plan with an OpenAI model whose HTTP server returns `answers`; step `b` fails."""

    async def main() -> RunResult:
        async with wire_server(answers) as server:
            files = {
                "agents.d/p.yaml": agent("p", model="local", executor="plan"),
                "agentsd.yaml": f"models: {{local: {{model: openai/test, base_url: '{server.url}'}}}}\n",
            }
            shop = Workshop("b")
            async with Runtime.open(write(root, files), tools=shop.tools(), watch=False) as runtime:
                return await runtime.run("go")

    return asyncio.run(main())
