"""`/mcp` with the MCP SDK's client, in both generations of the protocol."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import MCPError
from mcp.types import ElicitResult

from framework import tool
from framework.llm.client import ModelRequest
from framework.testing import ScriptedModel, calls
from tests.support.api_keys import key_entry
from tests.support.loopback import LOOPBACK
from tests.support.mcp_client import ERAS, Answer, Era, McpUser, accept, http_user, text_of
from tests.support.projects import agent, write
from tests.support.serving import Serving, serving

KEYS = {"ann": "key-of-ann-0123456789", "bob": "key-of-bob-0123456789", "chatter": "key-of-chatter-01234567"}
ENTRIES = [
    key_entry("ann", KEYS["ann"], tenant="a", roles=["chat", "decide"]),
    key_entry("bob", KEYS["bob"], tenant="b", roles=["chat", "decide"], agents=["main"]),
    key_entry("chatter", KEYS["chatter"], tenant="a"),
]
MAIL = {"to": "ann", "count": 1, "tags": ["x"]}
ONE_HOLD = calls(("hold", {}))
each_era = pytest.mark.parametrize("era", ERAS)


@dataclass
class Post:
    """A server whose agents can send mail after approval, and what they sent."""

    serving: Serving
    sent: list[Any] = field(default_factory=list)

    @asynccontextmanager
    async def user(self, era: Era, answer: Answer | None = None, key: str = "") -> AsyncIterator[McpUser]:
        headers = {"authorization": f"Bearer {KEYS[key]}"} if key else {}
        async with http_user(self.serving.url, era, answer, headers) as user:
            yield user


@asynccontextmanager
async def post(root: Path, model: ScriptedModel, *, keys: bool = False, **options: Any) -> AsyncIterator[Post]:
    schema = "{type: object, properties: {city: {type: string}}, required: [city]}"
    inputs = "{tone: {type: string, description: How it is written.}}"
    policy = '{allow: ["*"], ask: [send], deny: [wipe]}'
    write(
        root,
        {
            "agents.d/main.yaml": agent("main", skill_policy=policy, inputs=inputs),
            "agents.d/places.yaml": agent("places", output_schema=schema),
        },
    )
    if keys:
        write(root, {"agentsd.yaml": json.dumps({"server": {"api_keys": ENTRIES}})})
    sent: list[Any] = []

    @tool(risk="medium")
    async def send(to: str, count: int, tags: list[str]) -> str:
        """Send mail.

        Args:
            to: Who gets it.
            count: How many.
            tags: Labels.
        """
        sent.append({"to": to, "count": count, "tags": tags})
        return f"sent to {to}"

    @tool(risk="low")
    async def wipe() -> str:
        """Delete everything."""
        sent.append("wiped")
        return "gone"

    async with serving(root, models={"scripted": model}, tools=[send, wipe], **options) as served:
        yield Post(served, sent)


@each_era
def test_agents_are_tools(tmp_path: Path, era: Era) -> None:
    async def main() -> None:
        async with post(tmp_path, ScriptedModel("Hello.", '{"city": "Rome"}')) as there, there.user(era) as user:
            tools = {tool.name: tool for tool in (await user.client.list_tools()).tools}
            assert tools.keys() == {"main", "places"}
            assert tools["main"].description == "The agent main."
            assert tools["main"].input_schema["required"] == ["message"]
            assert tools["main"].input_schema["properties"].keys() == {"message", "tone", "conversation_id"}
            assert tools["main"].input_schema["properties"]["tone"]["description"] == "How it is written."
            answer = await user.call("main", "hi")
            assert (text_of(answer), answer.is_error) == ("Hello.", False)
            assert answer.meta
            assert answer.meta["agentsd/status"] == "completed"
            place = await user.call("places", "where?")
            assert place.structured_content == {"city": "Rome"}
            assert user.progress == ["main", "places"]

    asyncio.run(main())


@each_era
def test_a_conversation_continues_under_its_id(tmp_path: Path, era: Era) -> None:
    def reply(request: ModelRequest) -> str:
        return " / ".join(message.content for message in request.messages if message.role == "user")

    async def main() -> None:
        async with post(tmp_path, ScriptedModel(script=reply)) as there, there.user(era) as user:
            assert text_of(await user.call("main", "one", conversation_id="c")) == "one"
            assert text_of(await user.call("main", "two", conversation_id="c")) == "one / two"
            assert text_of(await user.call("main", "three")) == "three"

    asyncio.run(main())


@each_era
def test_a_call_that_was_handed_over_is_answered_by_the_other_agent_under_both_policies(
    tmp_path: Path, era: Era
) -> None:
    send = calls(("send", MAIL))
    model = ScriptedModel(calls(("handoff.helper", {})), calls(("wipe", {})), send, "Sent by helper.", send, "Again.")
    policy = "{allow: [send], ask: [send]}"
    files = {
        "agents.d/front.yaml": agent("front", handoffs="[helper]", skill_policy=policy),
        "agents.d/helper.yaml": agent("helper", skill_policy='{allow: ["*"]}'),
    }

    async def main() -> None:
        write(tmp_path, files)
        async with post(tmp_path, model) as there, there.user(era, accept(decision="approve")) as user:
            done = await user.call("front", "write to ann", conversation_id="c")
            assert (text_of(done), len(user.forms), there.sent) == ("Sent by helper.", 1, [MAIL])
            assert done.meta
            assert done.meta["agentsd/agent"] == "helper"
            assert user.progress[:1] == ["front"]
            assert "front hands the conversation over to helper" in user.progress
            assert "wipe: denied" in user.progress
            again = await user.call("front", "write again", conversation_id="c")
            assert (text_of(again), len(user.forms), there.sent) == ("Again.", 1, [MAIL, MAIL])

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answer", "sent", "result"),
    [
        (accept(decision="approve"), [MAIL], "sent to ann"),
        (accept(**{"decision": "approve", "argument.to": "bob", "argument.count": 2.0}),
         [{**MAIL, "to": "bob", "count": 2}], "sent to bob"),
        (accept(decision="reject", reason="not now"), [], "not now"),
        (lambda _: ElicitResult(action="decline"), [], "declined by the user"),
    ],
)  # fmt: skip
@each_era
def test_a_pause_asks_the_person_at_the_client(
    tmp_path: Path, era: Era, answer: Answer, sent: list[Any], result: str
) -> None:
    model = ScriptedModel(calls(("send", MAIL)), "Done.")

    async def main() -> None:
        async with post(tmp_path, model) as there, there.user(era, answer) as user:
            done = await user.call("main", "write to ann")
            assert (text_of(done), done.is_error) == ("Done.", False)
            assert there.sent == sent
            (form,) = user.forms
            assert form.message.startswith('main asks: may it call send?\n  to: "ann"\n  count: 1\n  tags: ["x"]\n')
            assert form.mode == "form"
            fields = form.requested_schema["properties"]
            assert fields.keys() == {"decision", "argument.to", "argument.count", "reason"}
            assert fields["argument.count"] == {
                "type": "integer", "title": "count", "default": 1, "description": "How many."
            }  # fmt: skip

    asyncio.run(main())
    assert result in model.requests[1].messages[-1].content


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        (None, "ann"),
        (lambda _: ElicitResult(action="cancel"), "ann"),
        (lambda _: ElicitResult(action="accept", content={}), "ann"),
        (accept(decision="yes"), "ann"),
        (accept(decision="approve"), "chatter"),
    ],
)
@each_era
def test_without_a_decision_the_run_stays_paused(tmp_path: Path, era: Era, answer: Answer | None, key: str) -> None:
    async def main() -> None:
        async with post(tmp_path, ScriptedModel(calls(("send", MAIL)), "Done."), keys=True) as there:
            async with there.user(era, answer, key) as user:
                paused = await user.call("main", "write to ann")
                assert paused.is_error
                (run,) = await there.serving.runs()
                assert run.status == "paused"
                assert "may it call send?" in text_of(paused)
                assert f"POST /agent/runs/{run.run_id}/decisions" in text_of(paused)
                assert len(user.forms) == (key == "ann" and answer is not None)
            assert there.sent == []

    asyncio.run(main())


@each_era
def test_a_question_is_a_form_with_an_answer(tmp_path: Path, era: Era) -> None:
    question = calls(("ask_user", {"question": "Which one?", "choices": ["red", "blue"]}))
    model = ScriptedModel(question, "You chose blue.")

    async def main() -> None:
        async with post(tmp_path, model) as there, there.user(era, accept(answer="blue")) as user:
            assert text_of(await user.call("main", "choose")) == "You chose blue."
            (form,) = user.forms
            assert form.mode == "form"
            assert form.requested_schema["properties"]["answer"]["enum"] == ["red", "blue"]

    asyncio.run(main())
    assert "blue" in model.requests[1].messages[-1].content


@each_era
def test_errors_say_what_is_wrong(tmp_path: Path, era: Era) -> None:
    async def main() -> None:
        async with post(tmp_path, ScriptedModel(calls(("wipe", {})), "I may not.")) as there, there.user(era) as user:
            cases: list[tuple[dict[str, Any], str]] = [
                ({"tune": "x"}, "did you mean tone?"),
                ({"tone": 5}, "tone"),
                ({}, "empty"),
            ]
            for inputs, expected in cases:
                refused = await user.call("main", "" if not inputs else "hi", **inputs)
                assert refused.is_error
                assert expected in text_of(refused)
            with pytest.raises(MCPError, match="did you mean main"):
                await user.call("mian", "hi")
            assert text_of(await user.call("main", "wipe it")) == "I may not."
            assert there.sent == []

    asyncio.run(main())


@each_era
def test_an_agent_of_another_key_does_not_exist(tmp_path: Path, era: Era) -> None:
    async def main() -> None:
        async with post(tmp_path, ScriptedModel("Hello."), keys=True) as there, there.user(era, key="bob") as user:
            assert [tool.name for tool in (await user.client.list_tools()).tools] == ["main"]
            with pytest.raises(MCPError, match="no agent named 'places'; there are: main"):
                await user.call("places", "hi")
            refused = await user.call("main", "hi", conversation_id=5)
            assert text_of(refused).startswith("conversation_id: expected"), "models write numbers where ids belong"
            assert await there.serving.runs() == []
            assert text_of(await user.call("main", "hi")) == "Hello."
            (run,) = await there.serving.runs()
            assert run.tenant == "b"

    asyncio.run(main())


class Held:
    """A tool that waits, and the events around it."""

    def __init__(self) -> None:
        self.began, self.opened = asyncio.Event(), asyncio.Event()

        @tool(risk="low")
        async def hold() -> str:
            """Wait."""
            self.began.set()
            await self.opened.wait()
            return "held"

        self.tool = hold


@each_era
def test_a_cancelled_call_cancels_its_run(tmp_path: Path, era: Era) -> None:
    async def main() -> None:
        held = Held()
        write(tmp_path, {"agents.d/main.yaml": agent("main")})
        model = ScriptedModel(calls(("hold", {})), "Done.")
        async with (
            serving(tmp_path, models={"scripted": model}, tools=[held.tool]) as served,
            http_user(served.url, era) as user,
        ):
            call = asyncio.ensure_future(user.call("main", "wait"))
            await held.began.wait()
            call.cancel()
            await asyncio.wait([call])
            (run,) = await served.runs()
            assert (await served.runtime.result(run.run_id)).status == "cancelled"

    asyncio.run(main())


def modern_call(number: int, message: str, key: str = "") -> dict[str, Any]:
    """Return the arguments of a request that calls the agent `main`, as clients without a session send it."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "main", "arguments": {"message": message}, "_meta": meta}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "main",
        **({"authorization": f"Bearer {KEYS[key]}"} if key else {}),
    }
    return {"json": {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}, "headers": headers}


@pytest.mark.parametrize("other", ["ann", "bob"])
@pytest.mark.parametrize("newer_first", [False, True])
def test_closing_a_call_cancels_no_other_with_the_same_number(tmp_path: Path, other: str, newer_first: bool) -> None:
    """Clients without a session number their requests from 1, and know nothing of each other."""

    async def main() -> None:
        began, opened = asyncio.Queue[None](), asyncio.Event()

        @tool(risk="low")
        async def hold() -> str:
            """Wait."""
            began.put_nowait(None)
            await opened.wait()
            return "held"

        write(tmp_path, {"agents.d/main.yaml": agent("main")})
        write(tmp_path, {"agentsd.yaml": json.dumps({"server": {"api_keys": ENTRIES}})})
        model = ScriptedModel(script=lambda asked: "Done." if asked.messages[-1].role == "tool" else ONE_HOLD)
        async with (
            serving(tmp_path, models={"scripted": model}, tools=[hold]) as served,
            httpx2.AsyncClient(base_url=served.url, timeout=30, **LOOPBACK) as http,
        ):
            calling = []
            for key, message in (("ann", "first"), (other, "second")):
                calling.append(asyncio.ensure_future(http.post("/mcp", **modern_call(1, message, key))))
                await began.get()
            runs = {run.message: run.run_id for run in await served.runs()}
            left, kept = ("second", "first") if newer_first else ("first", "second")
            closed = calling.pop(1 if newer_first else 0)
            closed.cancel()
            await asyncio.wait([closed])
            results = [asyncio.ensure_future(served.runtime.result(run_id)) for run_id in (runs[left], runs[kept])]
            await asyncio.wait(results, return_when=asyncio.FIRST_COMPLETED)
            opened.set()
            assert [(await result).status for result in results] == ["cancelled", "completed"]
            assert "Done." in (await calling[0]).text

    asyncio.run(main())


def test_a_client_that_dies_leaves_its_run_running(tmp_path: Path) -> None:
    """A client that begins with a handshake cancels by a notification; only its connection is lost here."""

    async def main() -> None:
        held = Held()
        write(tmp_path, {"agents.d/main.yaml": agent("main")})
        model = ScriptedModel(calls(("hold", {})), "Done.")
        async with serving(tmp_path, models={"scripted": model}, tools=[held.tool]) as served:
            async with httpx2.AsyncClient(base_url=served.url, timeout=30, **LOOPBACK) as http:
                session = await handshake(http)
                body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
                params = {"name": "main", "arguments": {"message": "wait"}}
                async with http.stream("POST", "/mcp", json={**body, "params": params}, headers=session):
                    await held.began.wait()
            held.opened.set()
            (run,) = await served.runs()
            assert (await served.runtime.result(run.run_id)).status == "completed"

    asyncio.run(main())


async def handshake(http: httpx2.AsyncClient, **headers: str) -> dict[str, str]:
    """Begin a session, and return the headers of its requests."""
    http.headers["accept"] = "application/json, text/event-stream"
    client = {"name": "test", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    begun = await http.post("/mcp", json=body, headers=headers)
    assert begun.status_code == 200, begun.text
    assert begun.headers["cache-control"] == "no-store"
    session = {"mcp-session-id": begun.headers["mcp-session-id"], **headers}
    done = await http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
    assert done.status_code == 202
    return session


def http_of(there: Post) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=there.serving.url, timeout=30, **LOOPBACK)


def test_a_session_is_of_one_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with post(tmp_path, ScriptedModel(), keys=True) as there, http_of(there) as http:
            session = await handshake(http, authorization=f"Bearer {KEYS['ann']}")
            asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
            assert (await http.post("/mcp", json=asked, headers=session)).status_code == 200
            stolen = {**session, "authorization": f"Bearer {KEYS['bob']}"}
            assert (await http.post("/mcp", json=asked, headers=stolen)).status_code == 404
            assert (await http.delete("/mcp", headers=stolen)).status_code == 404
            assert (await http.delete("/mcp", headers=session)).status_code == 200
            assert (await http.post("/mcp", json=asked, headers=session)).status_code == 404

    asyncio.run(main())


def test_the_access_rules_of_the_server_apply(tmp_path: Path) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}

    async def main() -> None:
        async with post(tmp_path, ScriptedModel()) as there, http_of(there) as http:
            for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
                refused = await http.post("/mcp", json=body, headers=headers)
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, "access_denied")
            large = await http.post("/mcp", content=b" " * (4 * 1024 * 1024 + 1))
            assert large.status_code == 413
            assert (await http.put("/mcp")).status_code == 405
        async with post(tmp_path, ScriptedModel(), keys=True) as there, http_of(there) as http:
            assert (await http.post("/mcp", json=body)).status_code == 401

    asyncio.run(main())


@pytest.mark.parametrize("headers", [modern_call(1, "")["headers"], {"accept": "application/json, text/event-stream"}])
@pytest.mark.parametrize(
    "body",
    ["[" + "[]," * 1_300_000 + "[]]", "[" * 3_000_000, json.dumps([{}] * 100_000).encode("utf-16").decode("latin-1")],
)
def test_a_body_with_too_many_values_is_never_parsed(tmp_path: Path, body: bytes, headers: dict[str, str]) -> None:
    async def main() -> None:
        async with post(tmp_path, ScriptedModel()) as there, http_of(there) as http:
            await http.get("/mcp", headers=headers)  # loads the SDK
            begun = time.process_time()
            refused = await http.post("/mcp", content=body, headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_request")
            assert time.process_time() - begun < 0.5  # of which most is sending and receiving it

    asyncio.run(main())


def test_clients_learn_of_a_reload(tmp_path: Path) -> None:
    async def main() -> None:
        async with post(tmp_path, ScriptedModel()) as there, there.user("legacy") as old, there.user("auto") as new:
            capabilities = old.client.server_capabilities
            assert capabilities.tools
            assert capabilities.tools.list_changed
            async with new.client.listen(tools_list_changed=True) as changes:
                number = 0
                while not old.told_of_changes.is_set():  # its event stream may not be open yet: nothing says when it is
                    write(tmp_path, {"agents.d/new.yaml": agent("new", description=f"Version {number}.")})
                    await there.serving.runtime.catalog.reload("api")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(1):
                            await old.told_of_changes.wait()
                    number += 1
                await anext(aiter(changes))
            for user in (old, new):
                assert "new" in {tool.name for tool in (await user.client.list_tools(cache_mode="bypass")).tools}

    asyncio.run(main())
