"""`POST /agui/{agent}` with AG-UI's own client: runs, interrupts, errors, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from framework import ModelError, tool
from framework.llm.client import ModelRequest
from framework.server.event_stream import OpenStreams
from framework.testing import JsonStore, ScriptedModel, calls
from tests.support.agui import INSTALLED, AguiClient
from tests.support.api_keys import key_entry
from tests.support.loopback import LOOPBACK
from tests.support.projects import agent, write
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.skipif(not INSTALLED, reason="npm could not install @ag-ui/client")

KEYS = {"ann": "key-of-ann-0123456789", "bob": "key-of-bob-0123456789", "chatter": "key-of-chatter-01234567"}
_ALL = ["chat", "decide", "read"]
ENTRIES = [
    key_entry("ann", KEYS["ann"], tenant="a", roles=_ALL),
    key_entry("bob", KEYS["bob"], tenant="b", roles=_ALL),
    key_entry("chatter", KEYS["chatter"], tenant="a"),
]
SEND, WIPE = "{tool: send, optional: true}", "{tool: wipe, optional: true}"
ASKING = agent("main", skill_policy=f'{{allow: ["*"], ask: [{SEND}], deny: [{WIPE}]}}')
MAIL = {"to": "ann", "text": "hello"}


@dataclass
class Scene:
    """A server with one agent, and a client."""

    serving: Serving
    client: AguiClient
    ran: list[dict[str, Any]] = field(default_factory=list)
    """Arguments of the executed calls of `send`."""

    async def run(self, thread: str, message: str | None = None, *, key: str = "", **command: Any) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {KEYS[key]}"} if key else {}
        url = f"{self.serving.url}/agui/{command.pop('agent', 'main')}"
        return await self.client(thread, url=url, message=message, headers=headers, **command)

    async def post(self, body: Any, agent: str = "main", **headers: str) -> httpx2.Response:
        async with httpx2.AsyncClient(timeout=30, **LOOPBACK) as http:
            return await http.post(f"{self.serving.url}/agui/{agent}", json=body, headers=headers)


@asynccontextmanager
async def scene(root: Path, model: ScriptedModel, *, keys: bool = False, main: str = ASKING) -> AsyncIterator[Scene]:
    write(root, {"agents.d/main.yaml": main})
    if keys:
        write(root, {"agentsd.yaml": json.dumps({"server": {"api_keys": ENTRIES}})})
    ran: list[dict[str, Any]] = []

    @tool(risk="medium")
    async def send(to: str, text: str) -> str:
        """Send a message.

        Args:
            to: Who gets it.
            text: What it says.
        """
        ran.append({"to": to, "text": text})
        return f"sent to {to}"

    @tool(risk="medium")
    async def wipe() -> str:
        """Delete everything."""
        ran.append({"wiped": True})
        return "gone"

    async with serving(
        root, models={"scripted": model}, tools=[send, wipe], store=JsonStore(), single_user=not keys
    ) as served:
        yield Scene(served, AguiClient(), ran)


def test_a_thread_is_a_conversation(tmp_path: Path) -> None:
    def reply(request: ModelRequest) -> str:
        return " / ".join(message.content for message in request.messages if message.role == "user")

    async def main() -> None:
        async with scene(tmp_path, ScriptedModel(script=reply)) as there:
            first = await there.run("t1", "one")
            assert first["error"] is None
            assert first["result"] == "one"
            second = await there.run("t1", "two", parameters={"context": [{"description": "Page", "value": "home"}]})
            assert second["result"] == "one / two"
            assert [message["content"] for message in second["messages"]] == ["one", "one", "two", "one / two"]
            other = await there.run("t2", "three")
            assert other["result"] == "three"

    asyncio.run(main())


def test_context_and_inputs_reach_the_agent(tmp_path: Path) -> None:
    write(tmp_path, {"prompts/be.j2": "Be {{ tone }}."})
    model = ScriptedModel("ok")
    inputs = "{tone: {type: string, required: true}}"

    async def main() -> None:
        async with scene(tmp_path, model, main=agent("main", inputs=inputs, instructions="{template: be.j2}")) as there:
            context = [{"description": "The page", "value": "home"}]
            given = {"context": context, "forwardedProps": {"inputs": {"tone": "kind"}, "theme": "dark"}}
            assert (await there.run("t", "hi", parameters=given))["error"] is None
            missing = await there.run("t", "hi")
            assert missing["error"]["status"] == 400
            assert "tone" in missing["error"]["payload"]["error"]["message"]

    asyncio.run(main())
    system = model.requests[0].messages[0].content
    assert "Be kind." in system
    assert "The page: home" in system


@pytest.mark.parametrize(
    ("payload", "executed", "content"),
    [
        ({"approved": True}, [MAIL], "sent to ann"),
        ({"approved": True, "editedArgs": {"to": "bob", "text": "hi"}}, [{"to": "bob", "text": "hi"}], "sent to bob"),
        ({"approved": False, "reason": "not now"}, [], "not now"),
        ({"type": "respond", "text": "was sent by hand"}, [], "was sent by hand"),
    ],
)
def test_an_approval_is_an_interrupt(tmp_path: Path, payload: Any, executed: list[Any], content: str) -> None:
    async def main() -> None:
        async with scene(tmp_path, ScriptedModel(calls(("send", MAIL)), "Done.")) as there:
            paused = await there.run("t", "write to ann")
            assert paused["error"] is None
            (asked,) = paused["interrupts"]
            assert asked["reason"] == "tool_call"
            assert '  to: "ann"' in asked["message"]
            assert asked["toolCallId"] == paused["messages"][-1]["toolCalls"][0]["id"]
            assert asked["responseSchema"]["properties"]["editedArgs"]["properties"].keys() == {"to", "text"}
            assert there.ran == []
            answer = [{"interruptId": asked["id"], "status": "resolved", "payload": payload}]
            done = await there.run("t", parameters={"resume": answer})
            assert done["error"] is None
            assert there.ran == executed
            assert done["result"] == "Done."
            assert [event["type"] for event in done["events"]].count("TOOL_CALL_START") == 0
            result = next(message for message in done["messages"] if message["role"] == "tool")
            assert content in result["content"]
            assert result["toolCallId"] == asked["toolCallId"]
            assert done["interrupts"] == []
            repeated = await there.run("t", client="another", parameters={"resume": answer})
            assert repeated["error"] is None, "a repeated request leads to the same events"
            assert there.ran == executed

    asyncio.run(main())


def test_a_question_is_an_interrupt(tmp_path: Path) -> None:
    question = calls(("ask_user", {"question": "Which one?", "choices": ["red", "blue"]}))

    async def main() -> None:
        async with scene(tmp_path, ScriptedModel(question, "You chose blue.")) as there:
            (asked,) = (await there.run("t", "choose"))["interrupts"]
            assert asked["reason"] == "input_required"
            assert asked["message"] == "main asks: Which one? (red / blue)"
            assert asked["responseSchema"]["properties"]["answer"]["enum"] == ["red", "blue"]
            wrong = [{"interruptId": asked["id"], "status": "resolved", "payload": {"approved": True}}]
            refused = await there.run("t", client="another", parameters={"resume": wrong})
            assert refused["events"][-1]["code"] == "invalid_resume"
            assert 'send {"answer": TEXT}' in refused["events"][-1]["message"]
            answer = [{"interruptId": asked["id"], "status": "resolved", "payload": {"answer": "blue"}}]
            assert (await there.run("t", parameters={"resume": answer}))["result"] == "You chose blue."

    asyncio.run(main())


def test_all_interrupts_are_answered_at_once_and_by_who_may(tmp_path: Path) -> None:
    twice = calls(("send", MAIL), ("send", {"to": "bob", "text": "hi"}))

    async def main() -> None:
        async with scene(tmp_path, ScriptedModel(twice, "Done.", "Again."), keys=True) as there:
            paused = await there.run("t", "write", key="ann")
            assert paused["error"] is None
            first, second = (
                {"interruptId": one["id"], "status": "resolved", "payload": {"approved": True}}
                for one in paused["interrupts"]
            )
            for answers, expected in [
                ([first], "answer all interrupts of the run at once"),
                ([first, first], "an interrupt is answered twice"),
                ([first, {**second, "interruptId": "run_0/c9"}], "different runs"),
                ([{**first, "interruptId": "run_0/c9"}], "there is no such interrupt"),
                ([first, second, {**first, "interruptId": first["interruptId"] + "9"}], "the run does not wait for"),
            ]:
                refused = await there.run("t", client="other", key="ann", parameters={"resume": answers})
                assert expected in refused["events"][-1]["message"], refused
            stranger = await there.run("t", client="bob", key="bob", parameters={"resume": [first, second]})
            assert stranger["events"][-1]["message"] == "resume: there is no such interrupt"
            elsewhere = await there.run("t2", client="elsewhere", key="ann", parameters={"resume": [first, second]})
            assert "another thread" in elsewhere["events"][-1]["message"]
            chatter = await there.run("t", client="chatter", key="chatter", parameters={"resume": [first, second]})
            assert chatter["error"]["status"] == 403
            busy = await there.run("t", "something else", client="other", key="ann")
            assert busy["events"][-1]["code"] == "conversation_busy"
            own = await there.run("t", "hello", client="own", key="bob")
            assert own["result"] == "Done.", "the thread of another tenant is another conversation"
            assert there.ran == []
            abandoned = [{**second, "status": "cancelled", "payload": None}]
            done = await there.run("t", key="ann", parameters={"resume": [first, *abandoned]})
            assert done["result"] == "Again."
            assert there.ran == [MAIL]

    asyncio.run(main())


def test_a_denied_tool_is_never_called(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, ScriptedModel(calls(("wipe", {})), "I may not.")) as there:
            done = await there.run("t", "wipe it")
            assert done["result"] == "I may not."
            (result,) = [event for event in done["events"] if event["type"] == "TOOL_CALL_RESULT"]
            assert result["metadata"]["agentsd"]["status"] == "denied"
            assert there.ran == []

    asyncio.run(main())


def test_invalid_requests_are_http_errors_that_say_what_to_do(tmp_path: Path) -> None:
    good = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "hi"}]}
    image = {"type": "image", "source": {"type": "url", "value": "https://example.com/a.png"}}
    cases: list[tuple[Any, int, str]] = [
        ({}, 400, "threadId"),
        ([], 400, "must be a JSON object"),
        ({**good, "messages": []}, 400, "there is none"),
        ({**good, "messages": [{"id": "1", "role": "assistant", "content": "hi"}]}, 400, "role 'assistant'"),
        ({**good, "messages": [{"id": "1", "role": "user", "content": [image]}]}, 400, "base64"),
        ({**good, "tools": [{"name": "x", "description": "y"}]}, 400, "tools that the client executes"),
        ({**good, "threadId": "x" * 300}, 400, "at most 200 printable characters"),
        ({**good, "forwardedProps": {"on_disconnect": "die"}}, 400, "on_disconnect"),
        ({**good, "forwardedProps": {"inputs": {"nope": 1}}}, 400, "nope"),
    ]

    async def main() -> None:
        async with scene(tmp_path, ScriptedModel(), keys=True) as there:
            assert (await there.post(good)).status_code == 401
            ann = {"authorization": f"Bearer {KEYS['ann']}"}
            missing = await there.post(good, agent="mian", **ann)
            assert missing.status_code == 404
            assert "did you mean main?" in missing.json()["error"]["message"]
            for body, status, text in cases:
                refused = await there.post(body, **ann)
                assert refused.status_code == status, (body, refused.text)
                assert text in refused.json()["error"]["message"], refused.text
            plain = await there.post(good, **ann, **{"content-type": "text/plain"})
            assert (plain.status_code, "application/json" in plain.text) == (400, True)
            assert await there.serving.runs() == []

    asyncio.run(main())


def test_a_failure_is_a_run_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, ScriptedModel(ModelError("the model is gone", permanent=True))) as there:
            failed = await there.run("t", "hi")
            assert failed["events"][-1]["type"] == "RUN_ERROR"
            assert failed["events"][-1]["code"] == "model_error"
            assert "the model is gone" in failed["events"][-1]["message"]

    asyncio.run(main())


@pytest.mark.parametrize("on_disconnect", [None, "cancel"])
def test_a_client_that_leaves_leaves_the_run_running_unless_it_says_otherwise(
    tmp_path: Path, on_disconnect: str | None
) -> None:
    opened = asyncio.Event()

    def reply(request: ModelRequest) -> Any:
        return "Done." if request.messages[-1].role == "tool" else calls(("hold", {}))

    @tool(risk="low")
    async def hold() -> str:
        """Wait."""
        await opened.wait()
        return "held"

    async def main() -> None:
        write(tmp_path, {"agents.d/main.yaml": ASKING})
        client = AguiClient()
        async with serving(tmp_path, models={"scripted": ScriptedModel(script=reply)}, tools=[hold]) as served:
            props = {"forwardedProps": {"on_disconnect": on_disconnect}} if on_disconnect else {}
            url = f"{served.url}/agui/main"
            left = await client("t", url=url, message="go", abortAt="TOOL_CALL_START", parameters=props)
            run_id = left["events"][0]["metadata"]["agentsd"]["run_id"]
            if on_disconnect:
                result = await served.runtime.result(run_id)
                assert result.status == "cancelled"
            opened.set()
            result = await served.runtime.result(run_id)
            assert result.status == ("cancelled" if on_disconnect else "completed")

    asyncio.run(main())


def test_a_server_that_stops_says_that_the_run_continues(tmp_path: Path) -> None:
    began = asyncio.Event()

    @tool(risk="low")
    async def hold() -> str:
        """Wait."""
        began.set()
        await asyncio.Event().wait()
        return "held"

    async def main() -> None:
        write(tmp_path, {"agents.d/main.yaml": ASKING})
        streams = OpenStreams()
        model = ScriptedModel(calls(("hold", {})))
        async with serving(tmp_path, streams=streams, models={"scripted": model}, tools=[hold]) as served:
            running = asyncio.ensure_future(AguiClient()("t", url=f"{served.url}/agui/main", message="go"))
            await began.wait()
            streams.close()
            ended = (await running)["events"][-1]
            assert (ended["type"], ended["code"]) == ("RUN_ERROR", "run_suspended")
            (run,) = await served.runs()
            assert f"GET /agent/runs/{run.run_id}/events" in ended["message"]
            assert run.status == "running"

    asyncio.run(main())


def test_a_server_without_the_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("ag_ui", "framework.server.agui"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ag_ui", None)

    async def main() -> None:
        async with scene(tmp_path, ScriptedModel()) as there:
            refused = await there.post({})
            assert refused.status_code == 501
            assert "install agentsd with the extra `serve`" in refused.json()["error"]["message"]

    asyncio.run(main())
