"""Options of an alias reach the server in every API: fields, headers, settings, and keys in files and variables."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from framework import Runtime
from framework.config.settings import Settings
from framework.llm.capabilities import known_capabilities
from framework.llm.client import ModelInfo, ModelRequest
from framework.types.errors import ConfigError, ModelError
from framework.types.messages import Message
from framework.types.spec import ModelSettings
from tests.support.formats import ANTHROPIC, FORMATS, GEMINI, OPENAI, RESPONSES, Format, says
from tests.support.openai_requests import SEARCH
from tests.support.peers import Peer
from tests.support.projects import agent, write
from tests.support.wire import Answer, WireServer, wire_server

ANY = Peer("a server with options of its own", "openai/m", (), error=str)
ASK = (Message(role="user", content="hi"),)
TOKEN = "-".join(("tk", "4711", "geheimer", "wert"))
OPTIONS: dict[str, Any] = {"extra_body": {"own": {"a": [1]}}, "headers": {"X-Team": TOKEN}}
VALUES = {
    "verbosity": "low",
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "stop": ["END"],
    "parallel_tool_calls": False,
    "presence_penalty": 0.5,
}
EVERY_API = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.id)


def send(form: Format, settings: ModelSettings, tools: tuple[Any, ...] = (), **options: Any) -> dict[str, Any]:
    """Return the body of a request with these settings and options."""

    async def run() -> dict[str, Any]:
        async with wire_server([says(form, "ok")], peer=ANY) as server:
            model = form.model(server.url, **options)
            async for _ in model.stream(ModelRequest(messages=ASK, settings=settings, tools=tools)):
                pass
            await model.close()
            return server.requests[0]

    return asyncio.run(run())


@EVERY_API
@pytest.mark.parametrize("stream", [False, True])
def test_fields_and_headers_are_added_to_each_request(form: Format, stream: bool) -> None:
    async def run() -> WireServer:
        async with wire_server([says(form, "ok"), says(form, "ok")], peer=ANY) as server:
            model = form.model(server.url, stream=stream, **OPTIONS)
            for _ in range(2):
                async for _ in model.stream(ModelRequest(messages=ASK)):
                    pass
            await model.close()
            return server

    server = asyncio.run(run())

    assert [body["own"] for body in server.requests] == [{"a": [1]}] * 2
    received = [{name.lower(): value for name, value in headers.items()} for headers in server.headers]
    assert [headers["x-team"] for headers in received] == [TOKEN] * 2


@EVERY_API
@pytest.mark.parametrize(
    ("login", "options"),
    [
        ("", {"headers": {"X-Team": f"Bearer {TOKEN}"}, "extra_body": {"own": {"a": [f"Bearer {TOKEN}-long"]}}}),
        (f"user:{TOKEN.replace('-', '%2D')}@", {}),
    ],
)
def test_an_error_that_repeats_an_option_is_masked(form: Format, login: str, options: dict[str, Any]) -> None:
    async def run() -> ModelError:
        said = f"unknown team {TOKEN} with Bearer {TOKEN}-long" if options else f"user and {TOKEN} do not match"
        async with wire_server([form.failed(400, said)]) as server:
            model = form.model(server.url.replace("://", f"://{login}"), **options)
            with pytest.raises(ModelError) as caught:
                async for _ in model.stream(ModelRequest(messages=ASK)):
                    pass
            await model.close()
            return caught.value

    assert TOKEN not in str(asyncio.run(run()))


@pytest.mark.parametrize("form", [OPENAI, RESPONSES], ids=lambda form: form.id)
def test_a_request_with_own_headers_follows_no_redirect(form: Format) -> None:
    async def run() -> tuple[ModelError, int]:
        async with wire_server([says(form, "stolen")]) as other:
            moved = Answer(status=307, headers=(("Location", f"{other.url}/elsewhere"),))
            async with wire_server([moved]) as server:
                model = form.model(server.url, headers={"X-Team": TOKEN})
                with pytest.raises(ModelError) as caught:
                    async for _ in model.stream(ModelRequest(messages=ASK)):
                        pass
                await model.close()
            return caught.value, len(other.requests)

    error, sent = asyncio.run(run())
    assert ("redirects (307)" in error.message, sent) == (True, 0)


ALL = ModelSettings(
    top_k=20,
    min_p=0,
    frequency_penalty=0.5,
    presence_penalty=-1.5,
    parallel_tool_calls=False,
    verbosity="low",
    service_tier="flex",
)


def test_settings_have_the_names_of_each_api() -> None:
    chat = send(OPENAI, ALL, (SEARCH,))
    names = ("top_k", "min_p", "frequency_penalty", "presence_penalty", "parallel_tool_calls", "verbosity")
    assert [chat[name] for name in (*names, "service_tier")] == [20, 0, 0.5, -1.5, False, "low", "flex"]
    assert "parallel_tool_calls" not in send(OPENAI, ALL)

    response = send(RESPONSES, ALL, (SEARCH,), extra_body={"text": {"format": {"type": "text"}}})
    assert response["text"] == {"verbosity": "low", "format": {"type": "text"}}
    assert (response["parallel_tool_calls"], response["service_tier"]) == (False, "flex")
    assert not {"top_k", "min_p", "frequency_penalty", "presence_penalty"} & response.keys()

    claude = send(ANTHROPIC, ALL, (SEARCH,))
    assert claude["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert (claude["top_k"], claude["service_tier"]) == (20, "flex")

    config = send(GEMINI, ALL)["generationConfig"]
    assert (config["topK"], config["frequencyPenalty"], config["presencePenalty"]) == (20, 0.5, -1.5)


@pytest.mark.parametrize(
    ("name", "base_url", "refused"),
    [
        ("openai/x", None, ("top_k", "min_p")),
        ("openai/x", "https://api.openai.com/v1", ("top_k", "min_p")),
        ("openai/x", "https://mine.openai.azure.com", ("top_k", "min_p")),
        ("openai/x", "http://127.0.0.1:8000/v1", None),
        ("openai/x", "https://openrouter.ai/api/v1", None),
        ("openai/x", "https://api.deepseek.com", known_capabilities("deepseek/x").refused_settings),
        ("openai/x", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", None),
        ("groq/x", "http://127.0.0.1:8000/v1", None),
        ("anthropic/x", "http://127.0.0.1:8000", known_capabilities("anthropic/x").refused_settings),
    ],
)
def test_the_server_behind_a_base_url_decides_which_settings_are_refused(
    name: str, base_url: str | None, refused: tuple[str, ...] | None
) -> None:
    assert known_capabilities(name, base_url).refused_settings == refused


def test_rows_of_a_provider_apply_to_its_server_under_another_name() -> None:
    at_mistral = known_capabilities("openai/open-nemo", "https://api.mistral.ai/v1")
    assert (at_mistral.call_ids, at_mistral.repeated_roles) == ("short", False)
    assert known_capabilities("openai/open-nemo", "http://127.0.0.1:1/v1").call_ids is None
    at_groq = known_capabilities("openai/openai/gpt-oss-120b", "https://api.groq.com/openai/v1")
    assert at_groq.prices == known_capabilities("groq/openai/gpt-oss-120b").prices


@pytest.mark.parametrize(
    ("model", "setting", "refused"),
    [
        ("openai/gpt-4o", "verbosity", True),
        ("openai/gpt-5", "temperature", True),
        ("openai/gpt-5-mini-2025-08-07", "stop", True),
        ("openai/gpt-5", "verbosity", False),
        ("openai/gpt-5-chat-latest", "temperature", False),
        ("openai/gpt-5.4", "temperature", False),
        ("openai/gpt-6.1-sol", "top_p", True),
        ("openai/o3", "parallel_tool_calls", True),
        ("anthropic/claude-sonnet-5-5", "temperature", True),
        ("anthropic/claude-opus-4-8", "top_k", True),
        ("anthropic/claude-opus-4-6", "top_k", False),
        ("anthropic/claude-sonnet-4-6", "temperature", False),
        ("gemini/gemini-3.1-pro-preview", "presence_penalty", True),
        ("gemini/gemini-2.0-flash", "presence_penalty", False),
        ("mistral/mistral-large-4", "presence_penalty", False),
    ],
)
def test_settings_that_a_family_of_models_refuses_are_known(model: str, setting: str, refused: bool) -> None:
    provider, _, name = model.partition("/")
    info = ModelInfo(provider, name, capabilities=known_capabilities(model))
    unsupported = info.unsupported_settings(ModelSettings.model_validate({setting: VALUES[setting]}))
    assert [one.name for one in unsupported] == ([setting] if refused else [])


@EVERY_API
def test_a_fallback_model_is_called_without_settings_that_its_server_refuses(tmp_path: Path, form: Format) -> None:
    async def run() -> dict[str, Any]:
        async with wire_server([OPENAI.failed(404, "gone"), says(form, "ok")], peer=ANY) as server:
            refusing = ", capabilities: {refused_settings: [temperature]}"
            models = f"models: {{a: {OPENAI.alias(server.url)}, b: {form.alias(server.url, refusing)}}}\n"
            one = agent("one", model="a", fallback_models="[b]", model_settings="{temperature: 0.5, top_p: 0.1}")
            root = write(tmp_path, {"agents.d/one.yaml": one, "agentsd.yaml": models})
            async with Runtime.open(root, watch=False) as runtime:
                await runtime.run("hi", agent="one")
            return server.requests[-1]

    body = asyncio.run(run())
    body = body.get("generationConfig", body)
    assert ("temperature" in body, body.get("topP", body.get("top_p"))) == (False, 0.1)


# --- keys that change


async def keys_of_two_runs(root: Path, alias: str, change: Any, server: WireServer) -> list[str]:
    """Return the headers with the keys of a run before and after a change."""
    write(root, {"agents.d/one.yaml": agent("one", model="m"), "agentsd.yaml": f"models: {{m: {alias}}}\n"})
    async with Runtime.open(root, watch=False) as runtime:
        assert (await runtime.run("hi", agent="one")).status == "completed"
        change()
        assert (await runtime.run("hi", agent="one")).status == "completed"
    return [headers["Authorization"] for headers in server.headers]


def test_a_key_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file, newer = tmp_path / "key", tmp_path / "newer"
    file.write_text(" first\n")
    newer.write_text("second")

    async def run() -> list[str]:
        async with wire_server([says(OPENAI, "ok")] * 2) as server:
            alias = f"{{model: openai/m, base_url: '{server.url}', api_key: '${{file:{file}}}'}}"
            return await keys_of_two_runs(tmp_path / "project", alias, lambda: newer.rename(file), server)

    assert asyncio.run(run()) == ["Bearer first", "Bearer second"]


def test_a_key_in_the_environment_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "first")

    async def run() -> list[str]:
        async with wire_server([says(OPENAI, "ok")] * 2) as server:
            alias = f"{{model: openai/m, base_url: '{server.url}'}}"
            change = lambda: monkeypatch.setenv("OPENAI_API_KEY", "second")  # noqa: E731
            return await keys_of_two_runs(tmp_path, alias, change, server)

    assert asyncio.run(run()) == ["Bearer first", "Bearer second"]


def test_a_key_file_that_disappears_fails_the_next_call_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("first")
    alias = f"{{model: openai/m, base_url: 'http://127.0.0.1:9', api_key: '${{file:{file}}}'}}"
    write(tmp_path, {"agents.d/one.yaml": agent("one", model="m"), "agentsd.yaml": f"models: {{m: {alias}}}\n"})

    async def run() -> str:
        async with Runtime.open(tmp_path, watch=False) as runtime:
            file.unlink()
            return str((await runtime.run("hi", agent="one")).error)

    message = asyncio.run(run())
    assert f"the API key of openai/m: the key file {file} cannot be read: No such file or directory" in message


# --- mistakes in the file


def refused(root: Path, text: str) -> tuple[int | None, str]:
    """Return the line and the message of the only problem, none of whose texts shows the token."""
    (root / "agentsd.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        Settings.load(root)
    (problem,) = caught.value.problems
    assert TOKEN not in problem.model_dump_json()
    return problem.line, problem.message


@pytest.mark.parametrize(
    ("option", "message"),
    [
        *(
            (f"extra_body: {{{field}: {TOKEN}}}", f"the field {field} is written by agentsd: remove it")
            for field in ("messages", "model", "tools", "stream", "Input", "systemInstruction", "n")
        ),
        (f"extra_body: [{TOKEN}]", "expected an object with the fields to add to each request"),
        (f'headers: {{X-Team: "{TOKEN}\\nX-Admin: 1"}}', "the header X-Team contains a line break or another"),
        (f"headers: {{X-Team: {TOKEN}é}}", "the header X-Team contains a line break or another character"),
        (f"headers: {{'X Team': {TOKEN}}}", "'X Team' is not the name of a header"),
        ("headers: {X-Team: 4711}", "the header X-Team needs a text as its value; put numbers in quotes"),
        (f"headers: {{content-length: {TOKEN}}}", "the header content-length is written by the HTTP client"),
        (f"headers: {{X-Team: {TOKEN}, x-team: b}}", "two headers differ only in case"),
        (f"headers: {{Authorization: {TOKEN}}}", "both api_key and the header Authorization are set"),
    ],
)
def test_an_invalid_option_is_an_error_at_its_line(tmp_path: Path, option: str, message: str) -> None:
    found = refused(tmp_path, f"models:\n  m:\n    model: openai/m\n    api_key: k\n    {option}\n")
    assert found[0] == 5
    assert message in found[1]


def test_options_of_the_offline_model_are_an_error(tmp_path: Path) -> None:
    text = "models:\n  m:\n    model: offline\n    extra_body: {a: 1}\n"
    assert refused(tmp_path, text) == (4, "the offline model sends no requests: remove it")


def test_a_key_file_that_contains_no_key_is_an_error_at_its_line(tmp_path: Path) -> None:
    fifo, large, empty, binary = (tmp_path / name for name in ("fifo", "large", "empty", "binary"))
    os.mkfifo(fifo)
    large.write_bytes(b"k" * 10_000_000)
    empty.write_text(" \n")
    binary.write_bytes(b"a\xff")
    problems = {
        str(tmp_path / "missing"): "cannot be read: No such file or directory",
        str(fifo): "is not a regular file",
        str(tmp_path): "cannot be read: Is a directory",
        str(large): "is larger than 64 KB, so it contains no key",
        str(empty): "is empty",
        str(binary): "contains more than one line, or characters that no key contains",
        "secrets/key": "is not an absolute path: write ${file:/run/secrets/NAME}",
    }
    for path, message in problems.items():
        line, found = refused(tmp_path, f"models:\n  m:\n    model: openai/m\n    api_key: '${{file:{path}}}'\n")
        assert (line, message in found) == (4, True), found


def test_a_file_elsewhere_than_at_an_api_key_is_an_error(tmp_path: Path) -> None:
    found = refused(tmp_path, "models:\n  m:\n    model: openai/m\n    headers: {X-Team: '${file:/run/secrets/x}'}\n")
    assert found == (4, "files are read for the api_key of a model's alias only")


def test_options_are_masked_in_diffs_and_texts(tmp_path: Path) -> None:
    from framework.config.agents.diff import diff_settings
    from framework.config.editing import readable_text

    text = f"models: {{m: {{model: openai/m, headers: {{X-Team: {TOKEN}}}, extra_body: {{own: {TOKEN}}}}}}}\n"
    (tmp_path / "agentsd.yaml").write_text(text)
    settings = Settings.load(tmp_path)

    changes = list(diff_settings(Settings(), settings)) + list(diff_settings(settings, Settings()))

    assert changes
    assert TOKEN not in repr(changes) + repr(settings) + settings.model_dump_json()
    assert TOKEN not in (readable_text("agentsd.yaml", text.encode()).text or "")
