"""`POST /agent/chat`: answers, limits, users, conversations, idempotency, failures, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from pathlib import Path
from typing import Any, cast

import pytest

from framework import ModelError
from framework.llm.client import ScriptedModel, Turn, calls
from framework.server.mcp import tool_result
from framework.types.plan import PlanDraft, StepDraft
from framework.types.text import one_line
from tests.support.api_keys import KEY, OTHER, key_entry
from tests.support.media import png
from tests.support.projects import agent, write
from tests.support.runs_http import RunClient, client_of
from tests.support.submitted_runs import Gate, project

SECRETS = "my key is sk-abcdefghijklmnop and password: hunter2"


def two_agents(root: Path, **keys: str) -> Path:
    return write(root, {"agents.d/a.yaml": agent("a", **keys), "agents.d/b.yaml": agent("b", **keys)})


def test_a_chat_returns_the_answer_with_ids_and_figures(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(calls(("calculator", {"expression": "1+2"})), "It is 3.", "Still 3.")
        async with client_of(project(tmp_path), model) as client:
            response = await client.http.post("/agent/chat", json={"message": "add"})
            found = response.json()
            assert response.status_code == 200
            assert response.headers["x-agentsd-run-id"] == found["run_id"]
            assert response.headers["x-agentsd-conversation-id"] == found["conversation_id"]
            assert (found["success"], found["response"], found["status"]) == (True, "It is 3.", "completed")
            assert (found["agent"], found["generation"], len(found["digest"])) == ("a", 1, 16)
            (call,) = found["tool_calls"]
            assert (call["tool"], call["arguments"], call["result"]) == ("calculator", {"expression": "1+2"}, 3)
            meta = found["meta"]
            assert (meta["total_tokens"], meta["tool_calls_count"], meta["finish_reason"]) == (20, 1, "final")
            assert found["pending"] == []
            again = await client.post("chat", {"message": "sure?", "conversation_id": found["conversation_id"]})
            assert again["conversation_id"] == found["conversation_id"]
            stored = await client.get(f"conversations/{found['conversation_id']}")
            assert [m["content"] for m in stored["messages"] if m["role"] == "user"] == ["add", "sure?"]

    asyncio.run(main())


def test_messages_and_arguments_are_returned_unmasked(tmp_path: Path) -> None:
    """Masking them would change what the user wrote, and an edited call would be executed with `***`."""

    async def main() -> None:
        model = ScriptedModel(calls(("echo", {"text": SECRETS})), SECRETS)
        async with client_of(project(tmp_path), model) as client:
            found = await client.post("chat", {"message": SECRETS})
            assert found["response"] == SECRETS
            assert found["tool_calls"][0]["arguments"] == {"text": SECRETS}
            stored = await client.get(f"conversations/{found['conversation_id']}")
            assert stored["messages"][0]["content"] == SECRETS
            run = await client.get(f"runs/{found['run_id']}")
            assert run["output"] == SECRETS
            streamed = await client.events(f"runs/{found['run_id']}/events")
            assert any(event.data.get("text") == SECRETS for event in streamed if event.name == "content")

    asyncio.run(main())


def test_a_stream_has_numbered_events_and_ends_with_done(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_of(project(tmp_path), ScriptedModel("one two three")) as client:
            body = {"message": "go", "stream": True}
            async with client.stream("POST", "chat", json=body) as (response, found):
                assert response.status_code == 200
                assert response.headers["content-type"].startswith("text/event-stream")
                assert (response.headers["x-accel-buffering"], response.headers["cache-control"]) == ("no", "no-store")
                received = [event async for event in found]
            assert [event.name for event in received if event.id is not None] == ["route", "content", "done"]
            assert [event.id for event in received if event.id is not None] == [1, 2, 3]
            deltas = [event.data["text"] for event in received if event.id is None]
            assert "".join(deltas) == "one two three"
            assert received[-1].data["output"] == "one two three"
            assert all(event.data["run_id"] == response.headers["x-agentsd-run-id"] for event in received)

    asyncio.run(main())


def test_a_paused_run_is_202_with_its_confirmations(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        async with client_of(project(tmp_path), ScriptedModel(calls(("pay", {}))), gate) as client:
            found = await client.post("chat", {"message": "pay"}, 202)
            assert (found["success"], found["status"], found["meta"]["finish_reason"]) == (
                False,
                "paused",
                "confirmation",
            )
            assert [one["tool"] for one in found["pending"]] == ["pay"]
            assert gate.paid == 0

    asyncio.run(main())


INVALID_BODIES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "message", "message is missing: send message, or messages that end with a user message"),
    ({"message": " "}, "message", "the message is empty"),
    ({"message": 3}, "message", "message: Input should be a valid string"),
    ({"message": "x", "mesage": "y"}, "mesage", "unknown field 'mesage'"),
    ({"message": "x", "agent": "c"}, "agent", "no agent named 'c'; there are: a, b"),
    ({"message": "x", "max_tool_calls": 0}, "max_tool_calls", "greater than or equal to 1"),
    ({"message": "x", "max_tool_calls": "1"}, "max_tool_calls", "valid integer"),
    ({"message": "x", "agent": "a", "max_tool_calls": 99}, "max_tool_calls", "99 is above the limit of agent 'a'"),
    ({"message": "x", "agent": "a", "max_tokens": 60_000}, "max_total_tokens", "at most 50000 is allowed"),
    ({"message": "x", "max_tokens": 1, "max_total_tokens": 1}, "max_tokens", "the same limit: send one of them"),
    ({"message": "x", "conversation_id": "a\nb"}, "conversation_id", "printable characters only"),
    ({"message": "x", "conversation_id": "c" * 201}, "conversation_id", "at most 200 characters"),
    ({"message": "x", "conversation_id": "c", "messages": []}, "messages", "exclude each other"),
    ({"message": "x", "messages": [{"role": "robot", "content": "x"}]}, "messages", "messages: 0.role"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "messages", "the last entry must be a user message"),
    ({"message": "x", "agent": "a", "inputs": {"y": 1}}, "inputs", "unknown input 'y' of agent 'a'"),
    ({"message": "x", "on_disconnect": "die"}, "on_disconnect", "'continue' or 'cancel'"),
    ({"message": "x", "user": ""}, "user", "at least 1 character"),
    ({"message": "x" * 1_000_001}, "message", "the message has 1000001 characters"),
]


def test_an_invalid_request_names_the_field_and_starts_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_of(two_agents(tmp_path), ScriptedModel()) as client:
            for body, param, message in INVALID_BODIES:
                for path in ("chat", "runs"):
                    if path == "runs" and "on_disconnect" in body:
                        continue
                    error = await client.error("POST", path, 404 if param == "agent" else 400, json=body)
                    assert message in error["message"], error
                    assert error["param"] == param, body
                    assert error["type"] == ("not_found_error" if param == "agent" else "invalid_request_error"), body
                assert await client.serving.runs() == [], body

    asyncio.run(main())


def test_a_limit_above_that_of_the_routed_agent_fails_the_run_before_any_model_call(tmp_path: Path) -> None:
    async def main() -> None:
        keywords = {"routing": "{keywords: [pick]}"}
        root = write(tmp_path, {"agents.d/a.yaml": agent("a", **keywords), "agents.d/b.yaml": agent("b")})
        async with client_of(root, ScriptedModel()) as client:
            response = await client.http.post("/agent/chat", json={"message": "pick", "max_tool_calls": 99})
            assert response.status_code == 400
            found = response.json()
            assert "max_tool_calls: 99 is above the limit of agent 'a'" in found["error"]["message"]
            assert (await client.get(f"runs/{found['run_id']}"))["status"] == "failed"

    asyncio.run(main())


def test_lower_limits_apply(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(script=lambda _: calls(("calculator", {"expression": "1"})))
        async with client_of(project(tmp_path), model) as client:
            found = await client.post("chat", {"message": "go", "max_tool_calls": 1})
            assert (found["success"], found["status"]) == (False, "stopped")
            assert found["meta"]["finish_reason"] == "max_tool_calls"
            found = await client.post("chat", {"message": "go", "max_tokens": 25})
            assert found["meta"]["finish_reason"] == "max_total_tokens"

    asyncio.run(main())


def test_messages_are_a_history_of_their_own(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel("green", "red")
        async with client_of(project(tmp_path), model) as client:
            picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(png()).decode()}"}}
            history = [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "hello"},
                {"role": "user", "content": [{"type": "text", "text": "which colour?"}, picture]},
            ]
            found = await client.post("chat", {"messages": history})
            assert (found["response"], found["conversation_id"]) == ("green", None)
            sent = [m for m in model.requests[0].messages if m.role != "system"]
            assert [m.content for m in sent] == ["hi", "hello", "which colour?"]
            assert [part.media_type for part in sent[-1].media] == ["image/png"]
            await client.post("chat", {"messages": history[:2], "message": "and now?"})
            assert [m.content for m in model.requests[1].messages if m.role != "system"] == ["hi", "hello", "and now?"]

    asyncio.run(main())


def test_a_failed_run_has_the_status_of_its_error_and_its_id(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(ModelError("the provider is down: api_key=sk-abcdefghijklmnop"))
        async with client_of(project(tmp_path), model) as client:
            response = await client.http.post("/agent/chat", json={"message": "go"})
            found = response.json()
            assert response.status_code == 502
            assert found["error"] == {
                "code": "model_error",
                "type": "server_error",
                "message": "the provider is down: api_key=***",
                "param": None,
            }
            assert (await client.get(f"runs/{found['run_id']}"))["finish_reason"] == "model_error"

    asyncio.run(main())


def test_an_idempotency_key_returns_the_same_run_and_refuses_another_body(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel("once")
        async with client_of(project(tmp_path), model) as client:
            headers = {"idempotency-key": "k1"}
            first = await client.post("chat", {"message": "go"}, headers=headers)
            again = await client.post("chat", {"message": "go"}, headers=headers)
            assert (again["run_id"], again["response"]) == (first["run_id"], "once")
            refused = await client.error("POST", "chat", 409, json={"message": "other"}, headers=headers)
            assert (refused["code"], refused["type"]) == ("idempotency_conflict", "conflict_error")
            assert len(model.requests) == 1
            headers = {"idempotency-key": "k" * 201}
            long = await client.error("POST", "chat", 400, json={"message": "go"}, headers=headers)
            assert long["param"] == "Idempotency-Key"

    asyncio.run(main())


def test_a_busy_conversation_is_409_with_the_run_and_queue_waits_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        model = ScriptedModel(calls(("hold", {})), "first", "second", "third")
        async with client_of(project(tmp_path), model, gate) as client:
            first = await client.post("runs", {"message": "1", "conversation_id": "c"}, 202)
            await gate.began.wait()
            response = await client.http.post("/agent/chat", json={"message": "2", "conversation_id": "c"})
            assert response.status_code == 409
            assert response.json()["error"]["code"] == "conversation_busy"
            assert response.json()["run_id"] == first["run_id"]
            waiting = [
                asyncio.create_task(client.post("chat", {"message": text, "conversation_id": "c", "queue": True}))
                for text in "2"
            ]
            queued = await client.post("runs", {"message": "3", "conversation_id": "c", "queue": True}, 202)
            assert (await client.get(f"runs/{queued['run_id']}"))["status"] == "queued"
            gate.opened.set()
            assert (await waiting[0])["response"] in ("second", "third")
            async with client.stream("GET", f"runs/{queued['run_id']}/events") as (_, found):
                assert [event.name async for event in found][-1] == "done"

    asyncio.run(main())


def test_the_twenty_first_message_that_waits_is_429_with_retry_after(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        async with client_of(project(tmp_path), ScriptedModel(script=lambda _: calls(("hold", {}))), gate) as client:
            body = {"message": "go", "conversation_id": "c", "queue": True}
            await client.post("runs", body, 202)
            await gate.began.wait()
            for _ in range(20):
                await client.post("runs", body, 202)
            response = await client.http.post("/agent/runs", json=body)
            assert response.status_code == 429
            assert response.json()["error"]["code"] == "queue_full"
            assert int(response.headers["retry-after"]) > 0

    asyncio.run(main())


# --- clients that leave


async def _leave(client: RunClient, body: dict[str, Any], gate: Gate) -> str:
    """Send a chat, and close the connection while its tool waits. Return the run's id."""
    sending = asyncio.create_task(client.http.post("/agent/chat", json=body))
    await gate.began.wait()
    sending.cancel()
    await asyncio.wait([sending])
    return (await client.serving.runs())[0].run_id


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("on_disconnect", "status"), [("continue", "completed"), ("cancel", "cancelled")])
def test_a_run_continues_without_its_client_unless_asked_otherwise(
    tmp_path: Path, stream: bool, on_disconnect: str, status: str
) -> None:
    async def main() -> None:
        gate = Gate()
        async with client_of(project(tmp_path), ScriptedModel(calls(("hold", {})), "done"), gate) as client:
            body = {"message": "go", "stream": stream, "on_disconnect": on_disconnect}
            run_id = await _leave(client, body, gate)
            if on_disconnect == "continue":
                gate.opened.set()
            result = await client.serving.runtime.result(run_id)
            assert result.status == status

    asyncio.run(main())


# --- keys


def keyed(root: Path, *entries: dict[str, Any]) -> Path:
    """Return a project with two agents and these keys."""
    return write(two_agents(root), {"agentsd.yaml": f"server: {{api_keys: {json.dumps(entries)}}}\n"})


def test_the_user_of_the_key_owns_its_runs(tmp_path: Path) -> None:
    async def main() -> None:
        root = keyed(tmp_path, key_entry("web", KEY, tenant="acme", user="ann"))
        async with client_of(root, ScriptedModel("hi", "hi"), key=KEY) as client:
            found = await client.post("chat", {"message": "x", "agent": "a"})
            (info,) = await client.serving.runs()
            assert (info.run_id, info.user, info.tenant) == (found["run_id"], "ann", "acme")
            await client.post("chat", {"message": "x", "agent": "a", "user": "ann"})
            error = await client.error("POST", "chat", 403, json={"message": "x", "agent": "a", "user": "bob"})
            assert (error["param"], error["type"]) == ("user", "permission_error")

    asyncio.run(main())


def test_each_user_has_a_conversation_with_an_id(tmp_path: Path) -> None:
    async def main() -> None:
        async with client_of(project(tmp_path), ScriptedModel("to ann", "to bob", "to nobody")) as client:
            body = {"message": "x", "conversation_id": "c"}
            for user in ("ann", "bob"):
                assert (await client.post("chat", {**body, "user": user}))["response"] == f"to {user}"
            for method in ("GET", "DELETE"):
                error = await client.error(method, "conversations/c", 400)
                assert (error["param"], "(ann, bob)" in error["message"]) == ("user", True)
            assert (await client.post("chat", body))["response"] == "to nobody"
            assert (await client.get("conversations/c"))["user"] is None
            assert (await client.get("conversations/c?user=bob"))["messages"][1]["content"] == "to bob"
            assert (await client.delete("conversations/c"))["runs"] == 1
            assert (await client.delete("conversations/c?user=bob"))["runs"] == 1
            found = await client.get("conversations/c")
            assert (found["user"], found["turns"]) == ("ann", 1)
            await client.error("GET", "conversations/c?user=bob", 404)

    asyncio.run(main())


def test_a_key_that_is_limited_to_agents_names_one_and_gets_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        root = keyed(tmp_path, key_entry("one", KEY, agents=["a"]), key_entry("both", OTHER, agents=["a", "b"]))
        async with client_of(root, ScriptedModel("from a"), key=KEY) as client:
            assert (await client.post("chat", {"message": "x"}))["agent"] == "a"
            error = await client.error("POST", "chat", 404, json={"message": "x", "agent": "b"})
            assert (error["code"], error["message"]) == ("agent_not_found", "no agent named 'b'; there are: a")
            client.http.headers["authorization"] = f"Bearer {OTHER}"
            error = await client.error("POST", "chat", 400, json={"message": "x"})
            assert (error["param"], "name one: a, b" in error["message"]) == ("agent", True)

    asyncio.run(main())


def test_equal_idempotency_keys_of_two_keys_are_two_requests(tmp_path: Path) -> None:
    async def main() -> None:
        root = keyed(tmp_path, key_entry("one", KEY, tenant="one"), key_entry("two", OTHER, tenant="two"))
        async with client_of(root, ScriptedModel("first", "second"), key=KEY) as client:
            headers, body = {"idempotency-key": "k"}, {"message": "x", "agent": "a"}
            assert (await client.post("chat", body, headers=headers))["response"] == "first"
            client.http.headers["authorization"] = f"Bearer {OTHER}"
            assert (await client.post("chat", body, headers=headers))["response"] == "second"

    asyncio.run(main())


def test_every_surface_shows_the_steps_that_a_completed_plan_left_out(tmp_path: Path) -> None:
    async def main() -> None:
        plan = PlanDraft(
            goal="divide",
            steps=(StepDraft(id="1", description="divide", tool="calculator", parameters={"expression": "1/0"}),),
        )
        model = ScriptedModel(*cast("list[Turn]", [plan, "I could not divide."] * 6))
        root = project(tmp_path, executor="plan", plan="{on_failure: skip}")
        async with client_of(root, model) as client:
            found = await client.post("chat", {"message": "divide"})
            assert (found["status"], found["meta"]["finish_reason"]) == ("completed", "final")
            (step,) = found["incomplete"]
            assert {key: step[key] for key in ("id", "description", "status")} == {
                "id": "1", "description": "divide", "status": "failed"
            }  # fmt: skip
            assert "zero" in step["reason"]
            assert (await client.get(f"runs/{found['run_id']}"))["incomplete"] == [step]
            (done,) = [e.data for e in await client.events(f"runs/{found['run_id']}/events") if e.name == "done"]
            assert done["incomplete"] == [step]
            asked = {"model": "a", "messages": [{"role": "user", "content": "divide"}]}
            completion = (await client.http.post("/v1/chat/completions", json=asked)).json()
            assert completion["agentsd"] == {"incomplete": [step]}
            chunks = (await client.http.post("/v1/chat/completions", json={**asked, "stream": True})).text
            assert json.dumps({"incomplete": [step]}, separators=(",", ":")) in chunks
            response = (await client.http.post("/v1/responses", json={"model": "a", "input": "divide"})).json()
            assert (response["status"], response["agentsd"]) == ("completed", {"incomplete": [step]})
            body = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "divide"}]}
            given: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
            agui = (await client.http.post("/agui/a", json=body | given)).text
            finished = json.loads(agui.strip().splitlines()[-1].removeprefix("data: "))
            assert finished["metadata"]["agentsd"]["incomplete"] == [step]
            result = await client.serving.runtime.result(found["run_id"])
            called = tool_result(result, "")
            assert called.meta is not None
            assert called.meta["agentsd/incomplete"] == [step]
            assert called.content[0].model_dump()["text"] == (
                f"I could not divide.\n\nincomplete: step 1 failed: {one_line(step['reason'], 300)}"
            )

    asyncio.run(main())


@pytest.mark.parametrize(
    ("header", "body", "used"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", {}, "zh-CN"),
        ("en;q=0.5, zh;q=0.9", {}, "zh"),
        ("zh", {"locale": "en"}, "en"),
        ("*, fr;q=0", {}, "de"),
        ("no language!, zh;q=high", {}, "de"),
        ("", {}, "de"),
    ],
)
def test_the_accepted_language_chooses_that_of_the_prompt(
    tmp_path: Path, header: str, body: dict[str, str], used: str
) -> None:
    async def main() -> None:
        root = write(tmp_path, {"agents.d/a.yaml": agent("a", instructions='{template: "a.j2"}'),
                                "prompts/a.j2": "In {{ locale }}.", "agentsd.yaml": "locale: de\n"})  # fmt: skip
        model = ScriptedModel("one", "two", "three")
        async with client_of(root, model) as client:
            headers = {"accept-language": header}
            await client.post("chat", {"message": "hi", **body}, headers=headers)
            asked = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
            await client.http.post("/v1/chat/completions", json=asked, headers=headers)
            whole = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "hi"}]}
            given = {"state": {}, "tools": [], "context": [], "forwardedProps": body}
            await client.http.post("/agui/a", json=whole | given, headers=headers)
        prompts = [request.messages[0].content.split("\n")[0] for request in model.requests]
        other = next(iter([used] if not body else ["zh"]))
        assert prompts == [f"In {used}.", f"In {other}.", f"In {used}."]

    asyncio.run(main())
