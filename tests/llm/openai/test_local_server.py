"""What local servers say about themselves: recorded answers of each, and answers that make no sense."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework import RunResult, Runtime
from framework.llm.capabilities import Capabilities
from framework.llm.http_client import is_local
from framework.llm.openai.client import OpenAIModel, ask_server
from framework.llm.providers import PROVIDERS
from tests.support.cases import cases, each
from tests.support.projects import agent, write
from tests.support.wire import Answer, WireServer, says, wire_server

ROOT = "http://127.0.0.1:1"
Pages = Mapping[str, Any]
"""Path and query -> JSON."""
LLAMA_CPP: Pages = {
    "/v1/models": {
        "object": "list",
        "data": [{"id": "qwen", "owned_by": "llamacpp", "meta": {"n_ctx": 2048, "n_ctx_train": 131072}}],
    },
    "/props?model=m&autoload=false": {
        "default_generation_settings": {"params": {}, "n_ctx": 8192},
        "total_slots": 4,
        "modalities": {"vision": False, "audio": True},
    },
}
LM_STUDIO: Pages = {
    "/v1/models": {"data": [{"id": "m", "object": "model", "owned_by": "organization_owner"}, {"id": "other"}]},
    "/api/v1/models": {
        "models": [
            {"type": "embedding", "key": "text-embedding", "loaded_instances": [], "max_context_length": 2048},
            {
                "type": "llm",
                "key": "m",
                "loaded_instances": [{"id": "m", "config": {"context_length": 4096}}],
                "max_context_length": 32768,
                "capabilities": {"vision": True, "trained_for_tool_use": False},
            },
        ]
    },
}
OLLAMA: Pages = {
    "/v1/models": {"object": "list", "data": [{"id": "m:latest", "owned_by": "library"}, {"id": "x"}]},
    "/api/show": {
        "parameters": 'stop  "<|im_end|>"\nnum_ctx                        16384\ntemperature 1',
        "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40960},
        "capabilities": ["completion", "vision"],
    },
    "/api/ps": {"models": [{"name": "m:latest", "model": "m:latest", "context_length": 8192}]},
}


def found(pages: Pages, model: str = "m", base_url: str = f"{ROOT}/v1") -> Capabilities | None:
    async def fetch(url: str, body: dict[str, Any] | None) -> object:
        assert (body is not None) is url.endswith("/api/show")
        return pages.get(url.removeprefix(ROOT))

    return asyncio.run(ask_server(fetch, base_url, model))


@each("base_url", [f"{ROOT}/v1", f"{ROOT}/v1/"])
@each(
    ("pages", "can"),
    [
        (LLAMA_CPP, Capabilities(context_window=8192, json_schema=True, images=False, audio=True)),
        (
            {"/v1/models": LLAMA_CPP["/v1/models"]},  # an older version, or one that requires a key for /props
            Capabilities(context_window=2048, json_schema=True),
        ),
        (
            {"/v1/models": {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 32768}]}},
            Capabilities(context_window=32768, json_schema=True),
        ),
        (
            {"/v1/models": {"data": [{"id": "m", "owned_by": "somebody", "max_model_len": 32768}]}},
            Capabilities(context_window=32768),
        ),
        (LM_STUDIO, Capabilities(context_window=4096, json_schema=True, images=True)),
        (OLLAMA, Capabilities(context_window=8192, json_schema=True, tools=False, images=True)),
        (
            {**OLLAMA, "/api/ps": {"models": []}},  # not loaded yet
            Capabilities(context_window=16384, json_schema=True, tools=False, images=True),
        ),
        (
            {"/api/show": {"model_info": {"qwen3.context_length": 40960}}},
            Capabilities(json_schema=True),
        ),
        ({"/v1/models": {"data": [{"id": "m"}]}}, None),
        ({}, None),
    ],
)
def test_each_server_says_what_it_can_do(pages: Pages, can: Capabilities | None, base_url: str) -> None:
    assert found(pages, base_url=base_url) == can


@pytest.mark.parametrize(
    ("model", "window"),
    [("a", 10), ("b", 20), ("b-alias", 20), ("c", None)],
)
def test_a_server_of_several_models_is_asked_about_this_one(model: str, window: int | None) -> None:
    entries = [{"id": "a", "max_model_len": 10}, {"id": "b", "aliases": ["b-alias"], "max_model_len": 20}]
    can = found({"/v1/models": {"data": entries}}, model) or Capabilities()
    assert can.context_window == window


FIELDS = (
    *("data", "id", "owned_by", "meta", "n_ctx", "max_model_len", "models", "key", "loaded_instances", "config"),
    *("context_length", "model_info", "parameters", "capabilities", "name", "default_generation_settings"),
    *("modalities", "vision", "aliases", "loaded_context_length"),
)
JUNK = st.recursive(
    st.sampled_from([None, True, 0, -1, 1.5, 10**30, "", "m", "num_ctx 99999999999", "llamacpp"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=8,
)


@cases(100)
@given(pages=st.dictionaries(st.sampled_from([*LLAMA_CPP, *LM_STUDIO, *OLLAMA]), JUNK))
def test_answers_that_make_no_sense_say_nothing(pages: Pages) -> None:
    can = found(pages)
    assert can is None or can.context_window is None or can.context_window > 0


@each(
    ("url", "local"),
    [
        ("http://127.0.0.1:8080/v1", True),
        ("http://[::1]:8080/v1", True),
        ("http://192.168.1.20:1234/v1", True),
        ("http://10.0.0.5/v1", True),
        ("http://100.100.1.2:8080/v1", True),
        ("http://localhost:8080/v1", True),
        ("http://llama:8080/v1", True),
        ("http://gpu.local:8080/v1", True),
        ("http://host.docker.internal:11434/v1", True),
        ("https://8.8.8.8/v1", False),
        ("https://models.example.com/v1", False),
        ("https://local.example.com/v1", False),
        (None, False),
        *((provider.base_url, provider.name == "ollama") for provider in PROVIDERS),
    ],
)
def test_only_servers_on_this_machine_or_a_private_network_are_local(url: str | None, local: bool) -> None:
    assert is_local(url) is local


# --- in runs

SCHEMA = "{type: object, properties: {city: {type: string}}, required: [city]}"
PLAIN = {"skill_policy": "{allow: []}", "output_schema": SCHEMA}
TRIP = '{"city": "Oslo"}'


def project(root: Path, url: str, *, can: str = "{}", **keys: str) -> Path:
    text = agent("one", **{"model": "local", **PLAIN, **keys})
    aliases = f"models: {{local: {{model: openai/m, base_url: '{url}', capabilities: {can}}}}}\n"
    rules = "model_calls: {max_retries: 0}\n"
    return write(root, {"agents.d/one.yaml": text, "agentsd.yaml": aliases + rules})


def runs_on(
    root: Path, pages: Pages, answers: list[Answer], *, message: str = "go", **keys: str
) -> tuple[list[RunResult], WireServer]:
    async def main() -> tuple[list[RunResult], WireServer]:
        async with (
            wire_server(answers, pages) as server,
            Runtime.open(project(root, server.url, **keys), watch=False) as runtime,
        ):
            return [await runtime.run(message) for _ in answers], server

    return asyncio.run(main())


def test_the_server_is_asked_once_and_its_grammar_is_used(tmp_path: Path) -> None:
    results, server = runs_on(tmp_path, LLAMA_CPP, [says(TRIP)] * 3)

    assert [result.data for result in results] == [{"city": "Oslo"}] * 3
    assert server.pages_read == ["/v1/models", "/props?model=m&autoload=false"]
    assert {body["response_format"]["type"] for body in server.requests} == {"json_schema"}
    assert {headers.get("Authorization") for headers in server.headers} == {"Bearer none"}


def test_concurrent_first_runs_ask_once(tmp_path: Path) -> None:
    async def main() -> WireServer:
        async with wire_server(lambda _: says(TRIP), LLAMA_CPP) as server:
            async with (
                Runtime.open(project(tmp_path, server.url), watch=False) as runtime,
                asyncio.TaskGroup() as group,
            ):
                for _ in range(5):
                    group.create_task(runtime.run("go"))
            return server

    assert len(asyncio.run(main()).pages_read) == 2


def test_the_context_window_of_the_server_limits_requests(tmp_path: Path) -> None:
    (result,), server = runs_on(tmp_path, LLAMA_CPP, [says(TRIP)], message="x" * 100_000)

    assert (result.status, result.finish_reason) == ("stopped", "context_full")
    assert server.requests == []


@pytest.mark.parametrize(
    ("can", "form"),
    [
        ("{context_window: 100000, json_schema: false}", None),
        ("{context_window: 100000, json_schema: true}", "json_schema"),
    ],
)
def test_declared_capabilities_need_no_answer(tmp_path: Path, can: str, form: str | None) -> None:
    _, server = runs_on(tmp_path, LLAMA_CPP, [says(TRIP)], can=can)

    assert server.pages_read == []
    assert server.requests[0].get("response_format", {}).get("type") == form


def test_what_is_declared_wins_over_the_answer(tmp_path: Path) -> None:
    (result,), server = runs_on(tmp_path, LLAMA_CPP, [says(TRIP)], can="{json_schema: false}", message="x" * 100_000)

    assert result.finish_reason == "context_full", "the window was unknown, and the server told it"
    (result,), server = runs_on(tmp_path, LLAMA_CPP, [says(TRIP)], can="{json_schema: false}")
    assert "response_format" not in server.requests[0]


def test_a_model_without_tools_gets_them_as_text(tmp_path: Path) -> None:
    final = '{"type": "final", "answer": "done"}'
    keys = {"skill_policy": "{allow: [echo]}", "output_schema": "null"}
    (result,), server = runs_on(tmp_path, OLLAMA, [says(final)], **keys)

    assert result.output == "done"
    assert "tools" not in server.requests[0]
    assert "oneOf" in server.requests[0]["response_format"]["json_schema"]["schema"]


def test_a_server_that_says_nothing_is_used_as_before_and_not_asked_by_every_run(tmp_path: Path) -> None:
    results, server = runs_on(tmp_path, {}, [says(TRIP)] * 2)

    assert [result.data for result in results] == [{"city": "Oslo"}] * 2
    assert server.pages_read == ["/v1/models", "/api/v1/models", "/api/show"]
    assert "response_format" not in server.requests[0]


@pytest.mark.parametrize(("status", "asked_again"), [("404 Not Found", False), ("503 Loading", True)])
def test_only_a_server_that_may_answer_later_is_asked_again(status: str, asked_again: bool) -> None:
    async def respond(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        writer.close()

    async def main() -> bool:
        async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            model = OpenAIModel("openai", "m", api_key="", base_url=f"http://127.0.0.1:{port}/v1")
            await model.probe()
            await model.close()
        return model.needs_probe

    assert asyncio.run(main()) is asked_again


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{", b"junk\r\n\r\n", b""]
)
def test_a_broken_answer_changes_nothing(answer: bytes) -> None:
    async def respond(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    assert probed(respond).context_window is None


def test_an_answer_that_is_too_large_is_ignored() -> None:
    page = b'{"data": [{"id": "m", "max_model_len": 100, "x": "' + b"x" * 1_000_000 + b'"}]}'

    async def respond(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(page)}\r\n\r\n"
        writer.write(head.encode() + page)
        await writer.drain()
        writer.close()

    assert probed(respond).context_window is None


def test_a_redirect_is_not_followed() -> None:
    async def respond(reader: StreamReader, writer: StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        paths.append(request.split()[1].decode())
        writer.write(b"HTTP/1.1 307 Moved\r\nlocation: /elsewhere\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    paths: list[str] = []
    probed(respond)
    assert "/elsewhere" not in paths
    assert paths[0] == "/v1/models"


def test_a_server_behind_a_password_is_asked() -> None:
    async def respond(reader: StreamReader, writer: StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        assert b"Basic dXNlcjpwdw==" in request
        page = b'{"data": [{"id": "m", "max_model_len": 4096}]}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(page))
        writer.write(page)
        writer.close()

    assert probed(respond, login="user:pw@").context_window == 4096


def test_an_unreachable_server_fails_the_call_and_not_the_probe() -> None:
    async def main() -> None:
        model = OpenAIModel("openai", "m", api_key="", base_url="http://127.0.0.1:9/v1")
        before = model.info
        await model.probe()
        await model.close()
        assert model.info == before

    asyncio.run(main())


def probed(respond: Callable[[StreamReader, StreamWriter], Any], login: str = "") -> Capabilities:
    """Return what a client knows after it has probed a raw server."""

    async def main() -> Capabilities:
        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            model = OpenAIModel("openai", "m", api_key="", base_url=f"http://{login}127.0.0.1:{port}/v1")
            try:
                await model.probe()
            finally:
                await model.close()
        return model.info.capabilities

    return asyncio.run(main())
