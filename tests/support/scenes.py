"""Runs that send every shape of request that the engine can build, with the answers of their model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from framework import RunResult, Runtime, tool
from framework.types.messages import Message
from tests.support.projects import agent, write
from tests.support.wire import Answer, calls, says, wire_server

Body = dict[str, Any]


@tool(risk="low")
def look(name: str) -> str:
    """Look at a name."""
    return f"result of {name}"


@tool(risk="low")
def fail(name: str) -> str:
    """Fail for a name."""
    raise ValueError(f"nothing is called {name}")


def plan_of(*steps: Mapping[str, Any], name: str = "PlanDraft") -> Answer:
    return calls((name, {"goal": "the goal", "steps": list(steps)}))


STEP = {"id": "a", "description": "the first step", "tool": "look", "parameters": {"name": "one"}}
GOAL_STEP = {"id": "b", "description": "the second step", "depends_on": ["a"]}


@dataclass(frozen=True)
class Scene:
    """A run whose requests are collected."""

    answers: Sequence[Answer]
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of the agent, as YAML."""
    messages: Sequence[str] = ("The user's message.",)
    """The messages of one conversation, one run each."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the runs."""


LOOK = calls(("look", {"name": "one"}))
SEARCH = calls(("tool_search", {"words": "look"}))
BOTH = calls(("look", {"name": "one"}), ("look", {"name": "two"}), text="I look at both.")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "title": "Number"}
SCENES: Mapping[str, Scene] = {
    "loop": Scene([LOOK, calls(("fail", {"name": "two"})), says("done")]),
    "calls with long ids in parallel": Scene([BOTH, BOTH, says("done")]),
    "conversation": Scene([BOTH, says("first"), LOOK, says("second")], messages=("First.", "Second.")),
    "unanswered conversation": Scene(
        [LOOK, LOOK, says("second")], {"runtime_policy": "{max_steps: 2}"}, messages=("First.", "Second.")
    ),
    "limits": Scene([LOOK, LOOK, LOOK, LOOK, says("done")], {"runtime_policy": "{max_steps: 5}"}),
    "to-do list": Scene(
        [calls(("todo", {"items": [{"task": "do this", "status": "open"}]})), LOOK, says("done")],
        {"skill_policy": '{allow: ["*"]}'},
    ),
    "tools that are found": Scene(
        [SEARCH, LOOK, says("first"), SEARCH, BOTH, says("second")],
        {"skill_policy": "{allow: [look, fail], defer: [look, fail]}"},
        messages=("First.", "Second."),
    ),
    "plan": Scene([plan_of(STEP, GOAL_STEP), LOOK, says("step done"), says("summary")], {"executor": "plan"}),
    "rejected plan": Scene(
        [plan_of({**STEP, "tool": "unknown_tool"}), plan_of(STEP), says("summary")], {"executor": "plan"}
    ),
    "new plan after a failure": Scene(
        [plan_of({**STEP, "tool": "fail"}), plan_of(STEP), says("summary")], {"executor": "plan"}
    ),
    "typed answer asked again": Scene(
        [says("It is four."), calls(("Answer", {"n": "x"})), calls(("Answer", {"n": 4}))],
        options={"output_schema": SCHEMA},
    ),
    "typed answer after tools": Scene(
        [LOOK, says("It is four."), calls(("Answer", {"n": 4}))],
        options={"output_schema": SCHEMA},
    ),
    "examples": Scene(
        [LOOK, says("done")], {"examples": "[{user: Hi., assistant: Hello.}, {user: Bye., assistant: Bye!}]"}
    ),
    "caller's instructions": Scene([LOOK, says("done")], options={"instructions": "Be brief."}),
    "cut answer": Scene([says("The beginning", finish="length"), says("and the end.")]),
    "unreadable arguments": Scene([calls(("look", "{")), LOOK, says("done")]),
    "unknown tool": Scene([calls(("nothing", {})), LOOK, says("done")]),
    "empty answer": Scene([says(""), says("done")]),
    "text protocol": Scene(
        [says('{"type":"action","tool":"look","args":{"name":"one"}}'), says('{"type":"final","answer":"done"}')],
        {"protocol": "json"},
    ),
    "history of the caller": Scene(
        [LOOK, says("done")],
        options={
            "history": [
                Message(role="system", content="An earlier system message."),
                Message(role="user", content="An earlier question."),
                Message(role="assistant", content="An earlier answer."),
                Message(role="system", content="A later system message."),
                Message(role="user", content="Another question."),
                Message(role="user", content="And one more."),
                Message(role="assistant", content="Another answer."),
            ]
        },
    ),
}


def project_of(scenes: Mapping[str, Scene], alias: str) -> dict[str, str]:
    """Return the files of a project with one agent for each scene, on the model `local` with this alias."""
    files = {"agentsd.yaml": f"models: {{local: {alias}}}\n"}
    for number, scene in enumerate(scenes.values()):
        keys = {"model": "local", "skill_policy": "{allow: [look, fail]}", **scene.keys}
        files[f"agents.d/scene-{number}.yaml"] = agent(f"scene-{number}", **keys)
    return files


async def play(runtime: Runtime, number: int, scene: Scene) -> list[RunResult]:
    """Run the messages of a scene, whose agent has this number, as one conversation."""
    results: list[RunResult] = []
    for text in scene.messages:
        conversation = results[-1].conversation_id if results else None
        results.append(await runtime.run(text, agent=f"scene-{number}", conversation=conversation, **scene.options))
    return results


def requests_of(root: Path, scenes: Mapping[str, Scene], model: str = "unknown-model") -> dict[str, list[Body]]:
    """Run scenes with a model of a server, and return the bodies of the requests of each."""

    async def main() -> dict[str, list[Body]]:
        answers: Iterator[Answer] = iter(())
        found: dict[str, list[Body]] = {}

        def answer(_: Body) -> Answer:
            return next(answers, says("done"))

        async with wire_server(answer) as server:
            files = project_of(scenes, f"{{model: openai/{model}, base_url: '{server.url}'}}")
            async with Runtime.open(write(root, files), tools=[look, fail], watch=False) as runtime:
                for number, (name, scene) in enumerate(scenes.items()):
                    answers, before = iter(scene.answers), len(server.requests)
                    await play(runtime, number, scene)
                    found[name] = server.requests[before:]
        return found

    return asyncio.run(main())


def distinct_requests(requests: Sequence[Body]) -> list[Body]:
    """Return the requests without those whose messages are the beginning of the next one."""
    following = [body["messages"] for body in requests[1:]]
    return [
        body
        for body, then in zip(requests, [*following, []], strict=True)
        if then[: len(body["messages"])] != body["messages"]
    ]
