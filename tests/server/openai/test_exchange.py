"""`/v1` beside its clients: keys, busy conversations, request ids, and failures of the server after a run began."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.requests import HTTPConnection

from framework import Runtime, tool
from framework.config.api_keys import text_digest
from framework.server import router
from framework.server.identity import Identity
from framework.server.request_handling import CHAT_BODY_BYTES
from framework.store.memory import MemoryStore
from framework.testing import ScriptedModel, Turn, calls
from framework.types.errors import StoreError
from tests.support.loopback import LOOPBACK
from tests.support.projects import agent, write
from tests.support.serving import Serving, now, serving

CHAT = "/chat/completions"
HI: dict[str, Any] = {"model": "one", "messages": [{"role": "user", "content": "hi"}]}
KEY, READER = "k" * 40, "r" * 40


def project(root: Path, **files: str) -> Path:
    one = agent("one", skill_policy='{allow: ["clock.*"]}')
    return write(root, {"agents.d/one.yaml": one, "agents.d/two.yaml": agent("two"), **files})


def keys(**fields: Any) -> str:
    entries = [
        {"name": "web", "sha256": text_digest(KEY).hex(), "roles": ["chat"], **fields},
        {"name": "reader", "sha256": text_digest(READER).hex(), "roles": ["read"]},
    ]
    return json.dumps({"server": {"api_keys": entries}})


def serve(
    root: Path, *script: Turn, use: Callable[[httpx2.AsyncClient, Serving], Awaitable[Any]], **options: Any
) -> Any:
    async def main() -> Any:
        models = {"scripted": ScriptedModel(*script)}
        async with (
            serving(root, **{"models": models, "tools": [now], **options}) as server,
            httpx2.AsyncClient(base_url=server.v1, **LOOPBACK, timeout=20) as client,
        ):
            return await use(client, server)

    return asyncio.run(main())


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_a_key_uses_its_agents_in_its_name(tmp_path: Path) -> None:
    root = project(tmp_path, **{"agentsd.yaml": keys(agents=["one"], tenant="acme", user="ann")})

    async def use(client: httpx2.AsyncClient, server: Serving) -> Any:
        listed = (await client.get("/models", headers=bearer(KEY))).json()["data"]
        answers = [
            await client.post(CHAT, json={**HI, "model": model, "user": "bob"}, headers=bearer(KEY))
            for model in ("one", "auto", "two")
        ]
        others = [await client.post(CHAT, json=HI, headers=headers) for headers in (bearer(READER), {})]
        return [model["id"] for model in listed], answers, others, await server.runs()

    listed, answers, others, runs = serve(root, "hello", "hello", use=use)
    assert listed == ["one"]
    assert [answer.status_code for answer in answers] == [200, 200, 404]
    assert answers[2].json()["error"]["code"] == "model_not_found"
    assert [answer.status_code for answer in others] == [403, 401]
    assert all(answer.headers["x-request-id"].startswith("req_") for answer in others)
    assert {(run.agent, run.user, run.tenant) for run in runs} == {("one", "ann", "acme")}
    assert len(runs) == 2


def test_a_key_with_several_agents_must_name_one(tmp_path: Path) -> None:
    root = project(tmp_path, **{"agentsd.yaml": keys(agents=["one", "two"])})

    async def use(client: httpx2.AsyncClient, _: Serving) -> Any:
        return (await client.post(CHAT, json={**HI, "model": "auto"}, headers=bearer(KEY))).json()["error"]

    error = serve(root, use=use)
    assert error["param"] == "model"
    assert "name one: one, two" in error["message"]


def test_the_result_of_a_call_is_not_lost_in_a_conversation_that_the_server_keeps(tmp_path: Path) -> None:
    called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ended = [*HI["messages"], {"role": "assistant", "tool_calls": [called]}]
    body = {**HI, "messages": [*ended, {"role": "tool", "tool_call_id": "c", "content": "wrong"}]}

    async def use(client: httpx2.AsyncClient, _: Serving) -> Any:
        kept = await client.post(CHAT, json=body, headers={"x-conversation-id": "one"})
        return kept, await client.post(CHAT, json=body)

    kept, sent = serve(project(tmp_path), "hello", use=use)
    assert (kept.status_code, kept.json()["error"]["param"]) == (400, "messages")
    assert "without X-Conversation-Id" in kept.json()["error"]["message"]
    assert sent.status_code == 200


def test_a_key_beyond_its_rate_starts_nothing(tmp_path: Path) -> None:
    root = project(tmp_path, **{"agentsd.yaml": keys(rate="1/h")})

    async def use(client: httpx2.AsyncClient, server: Serving) -> Any:
        title = {"x-openwebui-task": "title_generation"}
        answers = [await client.post(CHAT, json=HI, headers=bearer(KEY)) for _ in range(2)]
        answers.append(await client.post(CHAT, json=HI, headers={**bearer(KEY), **title}))
        return answers, await server.runs()

    (first, second, task), runs = serve(root, "hello", use=use)
    assert (first.status_code, second.status_code, task.status_code, len(runs)) == (200, 429, 429, 1)
    assert second.json()["error"]["type"] == "rate_limit_error"
    assert int(second.headers["retry-after"]) > 0


def test_the_streams_of_a_key_are_limited(tmp_path: Path) -> None:
    settings = {"server": {**json.loads(keys())["server"], "max_streams_per_key": 1}}
    released = asyncio.Event()

    @tool(risk="low", name="clock.wait")
    async def wait() -> str:
        """Wait."""
        await released.wait()
        return "now"

    async def use(client: httpx2.AsyncClient, server: Serving) -> Any:
        streamed = {**HI, "stream": True}
        async with client.stream("POST", CHAT, json=streamed, headers=bearer(KEY)) as first:
            lines = first.aiter_lines()
            assert (await anext(lines)).startswith("data: ")
            second = await client.post(CHAT, json=streamed, headers=bearer(KEY))
            released.set()
            rest = [line async for line in lines]
        third = await client.post(CHAT, json=streamed, headers=bearer(KEY))
        return rest[-2], second, third, await server.runs()

    script: list[Turn] = [calls(("clock.wait", {})), "done", "again"]
    root = project(tmp_path, **{"agentsd.yaml": json.dumps(settings)})
    last, second, third, runs = serve(root, *script, use=use, tools=[wait])
    assert last == "data: [DONE]"
    assert (second.status_code, second.json()["error"]["code"]) == (429, "rate_limited")
    assert third.status_code == 200
    assert len(runs) == 2


def test_a_conversation_with_a_run_in_progress_is_busy(tmp_path: Path) -> None:
    started, released = asyncio.Event(), asyncio.Event()

    @tool(risk="low", name="clock.wait")
    async def wait() -> str:
        """Wait."""
        started.set()
        await released.wait()
        return "now"

    async def use(client: httpx2.AsyncClient, server: Serving) -> Any:
        headers = {"x-conversation-id": "c1"}
        first = asyncio.create_task(client.post(CHAT, json=HI, headers=headers))
        await started.wait()
        second = await client.post(CHAT, json=HI, headers=headers)
        released.set()
        return (await first).json(), second, await server.runs()

    first, second, runs = serve(project(tmp_path), calls(("clock.wait", {})), "done", use=use, tools=[wait])
    assert first["choices"][0]["message"]["content"] == "done"
    assert (second.status_code, second.json()["error"]["code"]) == (409, "conversation_busy")
    assert len(runs) == 1


def test_a_request_keeps_its_id_if_it_is_plain(tmp_path: Path) -> None:
    async def use(client: httpx2.AsyncClient, _: Serving) -> Any:
        sent = ("abc-1.2:3", "a b", "x" * 129, "")
        return [(await client.get("/models", headers={"x-request-id": one})).headers["x-request-id"] for one in sent]

    kept, *others = serve(project(tmp_path), use=use)
    assert kept == "abc-1.2:3"
    assert all(other.startswith("req_") for other in others)


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"{", 400), (b"[]", 400), (b'{"model": 1}', 400), (b"\xff", 400), (b"x" * (CHAT_BODY_BYTES + 1), 413)],
    ids=["half", "list", "fields", "utf-8", "large"],
)
def test_an_invalid_body_is_an_error_of_the_client(tmp_path: Path, content: bytes, status: int) -> None:
    async def use(client: httpx2.AsyncClient, server: Serving) -> Any:
        headers = {"content-type": "application/json"}
        answers = [await client.post(path, content=content, headers=headers) for path in (CHAT, "/responses")]
        return answers, await server.runs()

    answers, runs = serve(project(tmp_path), use=use)
    assert [answer.status_code for answer in answers] == [status, status]
    assert all(answer.json()["error"].keys() >= {"code", "type", "message", "param"} for answer in answers)
    assert runs == []


def test_a_server_that_stops_answers_so_that_clients_do_not_repeat_the_run(tmp_path: Path) -> None:
    started = asyncio.Event()

    @tool(risk="low", name="clock.wait")
    async def wait() -> str:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    async def main() -> Any:
        models = {"scripted": ScriptedModel(calls(("clock.wait", {})))}
        async with httpx2.AsyncClient(**LOOPBACK, timeout=20) as client:
            async with serving(project(tmp_path), drain=0, models=models, tools=[wait]) as server:
                answer = asyncio.create_task(client.post(f"{server.v1}{CHAT}", json=HI))
                await started.wait()
            return await answer

    answer = asyncio.run(main())
    assert (answer.status_code, answer.headers["x-should-retry"]) == (422, "false")
    assert answer.json()["error"]["code"] == "run_suspended"
    assert answer.headers["x-agentsd-run-id"] in answer.json()["error"]["message"]


def test_a_repetition_joins_no_run_of_another_user(tmp_path: Path) -> None:
    """An app may give all of its users one name."""

    def identify(connection: HTTPConnection) -> Identity:
        return Identity("app", tenant=connection.headers["x-tenant"], user="ann")

    async def main() -> list[str]:
        models = {"scripted": ScriptedModel("hello", "hello")}
        async with Runtime.open(project(tmp_path), watch=False, models=models, tools=[now]) as runtime:
            app = FastAPI()
            app.router.routes.extend(router(runtime, identify=identify).routes)  # cheaper than `include_router`
            transport = httpx2.ASGITransport(app, client=("192.0.2.7", 1))
            async with httpx2.AsyncClient(transport=transport, base_url="http://test/v1") as http:
                asked = [("a", "0"), ("a", "1"), ("b", "1")]
                return [
                    (await http.post(CHAT, json=HI, headers={"x-tenant": tenant, "x-stainless-retry-count": attempt}))
                    .headers["x-agentsd-run-id"]
                    for tenant, attempt in asked
                ]  # fmt: skip

    first, repeated, other = asyncio.run(main())
    assert first == repeated
    assert other != first


class FailingStore(MemoryStore):
    """A store that cannot read runs once `fail` is set."""

    error: Exception | None = None

    async def load_run(self, run_id: str) -> Any:
        if self.error:
            raise self.error
        return await super().load_run(run_id)

    async def events(self, run_id: str, after: int = 0) -> Sequence[Mapping[str, Any]]:
        if self.error:
            raise self.error
        return await super().events(run_id, after)


@pytest.mark.parametrize("error", [StoreError("the disk is full"), ValueError("a bug")])
@pytest.mark.parametrize("path", [CHAT, "/responses"])
def test_a_failure_of_the_server_after_the_run_began_is_not_repeated(
    tmp_path: Path, path: str, error: Exception
) -> None:
    """Clients repeat what gets 500; here the run may have had effects."""
    store = FailingStore()

    @tool(risk="low", name="clock.now")
    async def breaks() -> str:
        """The time."""
        store.error = error
        return "noon"

    async def use(client: httpx2.AsyncClient, _: Serving) -> Any:
        body = HI if path == CHAT else {"model": "one", "input": "hi"}
        whole = await client.post(path, json=body)
        store.error = None
        streamed = await client.post(path, json={**body, "stream": True})
        return whole, streamed

    script: list[Turn] = [calls(("clock.now", {})), "done", calls(("clock.now", {})), "done"]
    whole, streamed = serve(project(tmp_path), *script, use=use, store=store, tools=[breaks])
    assert (whole.status_code, whole.headers["x-should-retry"]) == (422, "false")
    assert whole.headers["x-agentsd-run-id"]
    assert whole.json()["error"]["type"] == "server_error"
    assert "a bug" not in whole.text
    assert streamed.status_code == 200
    assert whole.json()["error"]["message"] in streamed.text
