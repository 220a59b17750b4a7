"""Claude and Gemini in Vertex AI: addresses, credentials and errors of requests that the SDKs build."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from framework import Runtime
from framework.llm.client import Delta, ModelRequest
from framework.llm.providers import create_client
from framework.types.errors import ConfigError, ModelError
from framework.types.messages import Message
from framework.types.spec import ModelSettings
from tests.support.file_requests import contents, files_in, sample, with_files
from tests.support.formats import ANTHROPIC, GEMINI, Format, each_way, says
from tests.support.media import SAMPLES
from tests.support.projects import agent, write
from tests.support.wire import Answer, WireServer, wire_server

TOKEN = "ya29.geheim-token"
USER = Message(role="user", content="hi")
ENVIRON = {"GOOGLE_CLOUD_PROJECT": "my-project", "GOOGLE_CLOUD_LOCATION": "europe-west1"}
MODELS = {"claude-sonnet-4-5@20250929": ANTHROPIC, "gemini-2.5-flash": GEMINI}
each_model = pytest.mark.parametrize(("model", "form"), MODELS.items(), ids=["claude", "gemini"])
CALLS = {"claude": ("rawPredict", "streamRawPredict"), "gemini": ("generateContent", "streamGenerateContent")}


@cache
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem, pkcs8, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(pem, pkcs8, plain).decode()


@pytest.fixture(autouse=True)
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the credentials of this machine, and use none of a virtual machine's."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "geheim-anthropic-key")
    monkeypatch.setenv("GOOGLE_API_KEY", "geheim-google-key")


@asynccontextmanager
async def issuer(file: Path, status: int = 200) -> AsyncIterator[list[str]]:
    """Issue tokens for the service account in `file`; yield the grant types requested."""
    grants: list[str] = []

    async def issue(request: web.Request) -> web.Response:
        form = await request.post()
        grants.append(str(form["grant_type"]))
        refused = {"error": "invalid_grant", "error_description": "no such account: geheim"}
        issued = {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
        return web.json_response(issued if status == 200 else refused, status=status)

    app = web.Application()
    app.router.add_post("/token", issue)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        account = {
            "type": "service_account",
            "project_id": "another-project",
            "client_email": "a@example.iam.gserviceaccount.com",
            "private_key": private_key(),
            "token_uri": f"http://{host}:{port}/token",
        }
        await asyncio.to_thread(file.write_text, json.dumps(account), "utf-8")
        yield grants
    finally:
        await runner.cleanup()


def ask(
    model: str,
    answers: Sequence[Answer],
    file: Path | None,
    *,
    message: Message = USER,
    stream: bool = False,
    issued: int = 200,
    **settings: Any,
) -> tuple[list[list[Delta]], WireServer, list[str]]:
    """Send one request for each answer with the credentials of a service account, if there is a file for them."""

    async def send(server: WireServer) -> list[list[Delta]]:
        client = create_client(f"vertex/{model}", base_url=server.url, stream=stream, environ=ENVIRON)
        request = ModelRequest(
            messages=(message,), media=contents(message), stream=stream, settings=ModelSettings(**settings)
        )
        try:
            return [[delta async for delta in client.stream(request)] for _ in answers]
        finally:
            await client.close()

    async def run() -> tuple[list[list[Delta]], WireServer, list[str]]:
        async with wire_server(answers) as server:
            if file is None:
                return await send(server), server, []
            async with issuer(file, issued) as grants:
                return await send(server), server, grants

    return asyncio.run(run())


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file with the credentials of a service account, which the environment names."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "account.json"))
    return tmp_path / "account.json"


@each_way
@each_model
def test_requests_name_project_and_location_and_have_a_token(
    model: str, form: Format, stream: bool, account: Path
) -> None:
    answers = [says(form, "one two"), says(form, "three")]

    (first, second), server, grants = ask(model, answers, account, stream=stream)

    assert [(replies[-1].reply and replies[-1].reply.message.content) for replies in (first, second)] == [
        "one two",
        "three",
    ]
    assert "".join(delta.text for delta in first) == ("one two" if stream else "")
    publisher = "anthropic" if form is ANTHROPIC else "google"
    call = CALLS[model.partition("-")[0]][stream]
    path = f"/projects/my-project/locations/europe-west1/publishers/{publisher}/models/{model}:{call}"
    assert [sent.removeprefix("/v1") for sent in server.paths] == [path, path]
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {TOKEN}"}
    assert grants == ["urn:ietf:params:oauth:grant-type:jwt-bearer"], "the token is used again"
    assert "geheim" not in str(server.headers).replace(TOKEN, "")


@each_way
@each_model
def test_files_are_sent(model: str, form: Format, stream: bool, account: Path) -> None:
    message = with_files("what is this?", sample("image/png"))

    _, server, _ = ask(model, [says(form, "a picture")], account, message=message, stream=stream)

    assert files_in(form.name, server.requests[0]) == [("image/png", SAMPLES["image/png"])]


def test_sampling_options_use_a_version_of_the_api_that_accepts_them(account: Path) -> None:
    _, server, _ = ask("claude-sonnet-4-5@20250929", [says(ANTHROPIC, "x")], account, temperature=0.2)

    assert (server.requests[0]["temperature"], server.requests[0]["anthropic_version"]) == (0.2, "vertex-2023-10-16")


@each_model
def test_a_run_calls_tools_through_an_alias(
    model: str, form: Format, account: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)

    async def main() -> None:
        answers = [says(form, calls=(("list_dir", {"path": "."}),)), says(form, "done")]
        async with issuer(account), wire_server(answers) as server:
            files = {
                "agentsd.yaml": f"models: {{mine: {{model: vertex/{model}, base_url: '{server.url}'}}}}\n",
                "agents.d/a.yaml": agent("a", model="mine", skill_policy="{allow: [list_dir]}"),
            }
            async with Runtime.open(write(tmp_path / "project", files), watch=False) as runtime:
                done = await runtime.run("go")
        assert (done.error, done.output, done.steps) == (None, "done", 2)
        assert "agents.d" in json.dumps(server.requests[1]), "the second request contains the observation"
        assert done.usage.cost_usd, "prices are those of the same model in its own API"

    asyncio.run(main())


@each_way
@each_model
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, "the request was rejected (403): check that the Google Cloud account may use this model: denied"),
        (401, "the Google Cloud account was rejected: set a valid one"),
    ],
)
def test_a_rejected_request_names_the_account(
    model: str, form: Format, stream: bool, status: int, message: str, account: Path
) -> None:
    with pytest.raises(ModelError) as caught:
        ask(model, [form.failed(status, "denied")], account, stream=stream)
    assert str(caught.value) == f"vertex/{model}: {message}"
    assert not caught.value.retryable


MISSING = (
    "the credentials of Google Cloud are missing or unreadable: set GOOGLE_APPLICATION_CREDENTIALS "
    "to a file of credentials, or run: gcloud auth application-default login"
)


@each_way
@each_model
@pytest.mark.parametrize("content", [None, "", '{"type": "geheim"}'])
def test_missing_and_unreadable_credentials_name_the_variable(
    model: str, form: Format, stream: bool, content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "bad.json").write_text(content, "utf-8")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "bad.json"))
    with pytest.raises(ModelError) as caught:
        ask(model, [says(form, "x")], None, stream=stream)
    assert str(caught.value) == f"vertex/{model}: {MISSING}"
    assert caught.value.permanent


@each_model
def test_rejected_credentials_are_not_quoted(model: str, form: Format, account: Path) -> None:
    with pytest.raises(ModelError, match="the credentials of Google Cloud were rejected: set GOOGLE_APP") as caught:
        ask(model, [says(form, "x")], account, issued=400)
    assert "geheim" not in str(caught.value)
    assert caught.value.permanent


@pytest.mark.parametrize(
    ("environ", "api_key", "message"),
    [
        ({}, None, "vertex/claude-x needs the project: set GOOGLE_CLOUD_PROJECT"),
        (
            {"GOOGLE_CLOUD_PROJECT": "p", "GOOGLE_CLOUD_LOCATION": "Frankfurt!"},
            None,
            "vertex/claude-x: 'Frankfurt!' is not a location of Vertex AI: "
            "set GOOGLE_CLOUD_LOCATION, such as global or europe-west1",
        ),
        (
            {"GOOGLE_CLOUD_PROJECT": "p"},
            "geheim",
            "vertex/claude-x needs no API key but credentials of Google Cloud: remove api_key from its alias",
        ),
    ],
)
def test_what_is_missing_is_one_line_that_names_it(environ: dict[str, str], api_key: str | None, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_client("vertex/claude-x", api_key=api_key, environ=environ)
    assert str(caught.value) == message


def test_settings_that_the_api_of_claude_lacks_are_rejected_in_vertex_too(tmp_path: Path) -> None:
    async def main() -> list[str]:
        files = {"agents.d/a.yaml": agent("a", model="vertex/claude-sonnet-5", model_settings="{seed: 7}")}
        async with Runtime.open(write(tmp_path, files), watch=False) as runtime:
            return [problem.message for problem in runtime.catalog.current.problems]

    assert asyncio.run(main()) == ["vertex/claude-sonnet-5 does not support seed"]
