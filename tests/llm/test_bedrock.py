"""Claude in Amazon Bedrock: addresses, signatures, event streams and errors of AWS."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from framework import Runtime
from framework.llm.client import Delta, ModelRequest
from framework.llm.providers import create_client
from framework.types.errors import ConfigError, ModelError
from framework.types.messages import Message
from framework.types.spec import ModelSettings
from tests.support.aws_events import exception_frame, streamed_in_frames
from tests.support.file_requests import contents, files_in, sample, with_files
from tests.support.formats import ANTHROPIC, each_way, says
from tests.support.media import SAMPLES
from tests.support.projects import agent, write
from tests.support.wire import Answer, WireServer, raw, wire_server

MODEL = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
NAME = f"bedrock/{MODEL}"
REGION = "eu-central-1"
ACCESS, SECRET, SESSION = "AKIDEXAMPLE4711", "geheim-secret-4711", "geheim-session-4711"
USER = Message(role="user", content="hi")
KEYS = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": SESSION}
CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run: aws sso login"


@pytest.fixture(autouse=True)
def no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the credentials of this machine, and use none of a virtual machine's."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_BEARER_TOKEN_BEDROCK", *KEYS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "geheim-anthropic-key")


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def way(answer: Answer, stream: bool) -> Answer:
    return streamed_in_frames(answer) if stream else answer


async def ask_at(
    server: WireServer,
    *,
    message: Message = USER,
    stream: bool = False,
    times: int = 1,
    environ: Mapping[str, str] | None = None,
    **settings: Any,
) -> list[list[Delta]]:
    environ = {"AWS_REGION": REGION} if environ is None else environ
    client = create_client(NAME, base_url=server.url, stream=stream, environ=environ)
    request = ModelRequest(
        messages=(message,), media=contents(message), stream=stream, settings=ModelSettings(**settings)
    )
    try:
        return [[delta async for delta in client.stream(request)] for _ in range(times)]
    finally:
        await client.close()


def ask(answers: Sequence[Answer], **options: Any) -> tuple[list[list[Delta]], WireServer]:
    """Send one request for each answer."""

    async def run() -> tuple[list[list[Delta]], WireServer]:
        async with wire_server(answers) as server:
            return await ask_at(server, times=len(answers), **options), server

    return asyncio.run(run())


def fails(answer: Answer, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        ask([answer], **options)
    assert "geheim" not in str(caught.value)
    assert str(caught.value).startswith(f"{NAME}: ")
    return caught.value


def text(deltas: list[Delta]) -> str:
    reply = deltas[-1].reply
    assert reply is not None
    return reply.message.content


def expected_signature(path: str, body: bytes, headers: Mapping[str, str]) -> str:
    """Return what AWS computes for a request that it received."""
    signed = re.findall(r"SignedHeaders=([^,]+)", headers["Authorization"])[0].split(";")
    given = {name: value for name, value in headers.items() if name.lower() in signed}
    request = AWSRequest("POST", f"http://{headers['Host']}{path}", headers=given, data=body)
    request.context["timestamp"] = headers["X-Amz-Date"]
    signer = SigV4Auth(ReadOnlyCredentials(ACCESS, SECRET, SESSION), "bedrock", REGION)
    return str(signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request))


@each_way
def test_requests_name_the_model_and_are_signed(stream: bool, account: None) -> None:
    answers = [way(says(ANTHROPIC, "one two"), stream), way(says(ANTHROPIC, "three"), stream)]

    (first, second), server = ask(answers, stream=stream)

    assert (text(first), text(second)) == ("one two", "three")
    assert "".join(delta.text for delta in first) == ("one two" if stream else "")
    call = "invoke-with-response-stream" if stream else "invoke"
    assert server.paths == [f"/model/{MODEL}/{call}"] * 2
    assert not {"model", "stream"} & server.requests[0].keys(), "they are in the path"
    for headers in server.headers:
        scope = rf"Credential={ACCESS}/\d+/{REGION}/bedrock/aws4_request"
        signed = "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token"
        assert re.search(rf"{scope}, {signed}, Signature=[0-9a-f]{{64}}$", headers["Authorization"])
        assert headers["X-Amz-Security-Token"] == SESSION
    assert "geheim" not in str(server.headers).replace(SESSION, "")


@each_way
def test_the_signature_covers_the_files(stream: bool, account: None) -> None:
    message = with_files("what is this?", sample("image/png"))

    _, server = ask([way(says(ANTHROPIC, "a picture"), stream)], message=message, stream=stream)

    assert files_in("anthropic", server.requests[0]) == [("image/png", SAMPLES["image/png"])]
    headers, body = server.headers[0], server.bodies[0]
    assert headers["Authorization"].endswith(expected_signature(server.paths[0], body, headers))
    assert not headers["Authorization"].endswith(expected_signature(server.paths[0], body + b" ", headers))


@each_way
def test_a_run_calls_tools_through_an_alias(
    stream: bool, account: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)

    async def main() -> None:
        replies = [says(ANTHROPIC, calls=(("list_dir", {"path": "."}),)), says(ANTHROPIC, "done")]
        async with wire_server([way(reply, stream) for reply in replies]) as server:
            alias = f"{{model: '{NAME}', base_url: '{server.url}', stream: {str(stream).lower()}}}"
            files = {
                "agentsd.yaml": f"models: {{mine: {alias}}}\n",
                "agents.d/a.yaml": agent("a", model="mine", skill_policy="{allow: [list_dir]}"),
            }
            async with Runtime.open(write(tmp_path / "project", files), watch=False) as runtime:
                done = await runtime.run("go")
        assert (done.error, done.output, done.steps) == (None, "done", 2)
        assert "agents.d" in json.dumps(server.requests[1]), "the second request contains the observation"
        assert done.usage.cost_usd, "prices are those of the same model in Anthropic's API"

    asyncio.run(main())


def test_an_api_key_of_bedrock_replaces_the_signature() -> None:
    key = "bedrock-api-key-geheim-4711"
    environ = {"AWS_REGION": REGION, "AWS_BEARER_TOKEN_BEDROCK": key}

    _, server = ask([says(ANTHROPIC, "x")], environ=environ)
    assert server.headers[0]["Authorization"] == f"Bearer {key}"
    assert "X-Amz-Date" not in server.headers[0]

    rejected = raw(403, json.dumps({"Message": f"Bearer {key} has expired"}).encode())
    assert "may use this model" in str(fails(rejected, environ=environ))


def test_profiles_have_credentials_and_a_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("[profile mine]\nregion = us-west-2\n", "utf-8")
    (tmp_path / "credentials").write_text(
        f"[mine]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n", "utf-8"
    )
    monkeypatch.setenv("AWS_PROFILE", "mine")

    _, server = ask([says(ANTHROPIC, "x")], environ={})
    assert "/us-west-2/bedrock/" in server.headers[0]["Authorization"]
    _, server = ask([says(ANTHROPIC, "x")])
    assert f"/{REGION}/bedrock/" in server.headers[0]["Authorization"], "AWS_REGION overrides the profile"


def test_credentials_are_requested_outside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of the credentials runs in the event loop, and could not answer if it were blocked."""
    role = {"AccessKeyId": ACCESS, "SecretAccessKey": SECRET, "Token": SESSION, "Expiration": "2999-01-01T00:00:00Z"}

    async def main() -> WireServer:
        async with wire_server([says(ANTHROPIC, "x"), says(ANTHROPIC, "y")], pages={"/role": role}) as server:
            address = server.url.removesuffix("/v1")
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{address}/role")
            await ask_at(server, times=2)
            return server

    server = asyncio.run(main())
    assert server.pages_read == ["/role"], "the credentials are used again"
    assert {headers["X-Amz-Security-Token"] for headers in server.headers} == {SESSION}


def test_credentials_that_cannot_be_requested_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/role")
    error = fails(says(ANTHROPIC, "x"))
    assert str(error) == f"{NAME}: the credentials of AWS cannot be loaded (CredentialRetrievalError): {CREDENTIALS}"
    assert error.retryable
    assert not error.permanent


@each_way
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, f"the credentials of AWS are missing: {CREDENTIALS}"),
        ({"AWS_PROFILE": "nobody"}, f"the credentials of AWS cannot be loaded (ProfileNotFound): {CREDENTIALS}"),
        (
            {"AWS_ACCESS_KEY_ID": ACCESS},
            f"the credentials of AWS cannot be loaded (PartialCredentialsError): {CREDENTIALS}",
        ),
    ],
)
def test_missing_credentials_name_the_variables(
    stream: bool, variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    async def main() -> str:
        async with wire_server([]) as server:
            monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
            with pytest.raises(ModelError) as caught:
                await ask_at(server, stream=stream)
            assert (server.requests, server.pages_read) == ([], [])
        assert caught.value.permanent
        return str(caught.value)

    assert asyncio.run(main()) == f"{NAME}: {message}"


def test_a_malformed_profile_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("[default\naws_secret_access_key = geheim\n", "utf-8")
    error = fails(says(ANTHROPIC, "x"))
    assert str(error) == f"{NAME}: the credentials of AWS cannot be loaded (ConfigParseError): {CREDENTIALS}"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "the region of AWS is unknown: set AWS_REGION, such as eu-central-1"),
        (
            "[default]\nregion = example.com/#\n",
            "'example.com/#' is not a region of AWS: set AWS_REGION, such as eu-central-1",
        ),
    ],
)
def test_a_missing_region_names_the_variable(config: str, message: str, account: None, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(config, "utf-8")
    error = fails(says(ANTHROPIC, "x"), environ={})
    assert str(error) == f"{NAME}: {message}"
    assert error.permanent


def test_an_invalid_region_in_the_environment_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError) as caught:
        create_client(NAME, environ={"AWS_REGION": "Frankfurt!"})
    assert str(caught.value) == f"{NAME}: 'Frankfurt!' is not a region of AWS: set AWS_REGION, such as eu-central-1"


REJECTED = "the request was rejected (403): check that the AWS account may use this model"
CANONICAL = f"The request signature we calculated does not match: host:x\nx-amz-security-token:{SESSION}"


@each_way
@pytest.mark.parametrize(
    ("kind", "quoted", "message"),
    [
        ("AccessDeniedException", "no access to the model", f"{REJECTED}: no access to the model"),
        (None, "denied by a proxy", f"{REJECTED}: denied by a proxy"),
        (
            "ExpiredTokenException:http://internal.amazon.com/coral/",
            "The security token included in the request is expired",
            f"AWS rejected the credentials (ExpiredTokenException): {CREDENTIALS}",
        ),
        (
            "InvalidSignatureException",
            CANONICAL,
            f"AWS rejected the credentials (InvalidSignatureException): {CREDENTIALS}",
        ),
        (None, CANONICAL, f"AWS rejected the credentials (invalid signature): {CREDENTIALS}"),
    ],
)
def test_rejected_requests_say_what_to_check(
    stream: bool, kind: str | None, quoted: str, message: str, account: None
) -> None:
    headers = {"x_amzn_errortype": kind} if kind else {}
    error = fails(raw(403, json.dumps({"message": quoted}).encode(), **headers), stream=stream)
    assert str(error) == f"{NAME}: {message}"
    assert not error.retryable


def test_repaired_credentials_need_no_restart(tmp_path: Path) -> None:
    def store(access: str) -> None:
        lines = ("[default]", f"aws_access_key_id = {access}", f"aws_secret_access_key = {SECRET}")
        (tmp_path / "credentials").write_text("\n".join(lines), "utf-8")

    def answer(_: object) -> Answer:
        store("AKREPAIRED")
        return next(answers)

    async def main() -> None:
        request = ModelRequest(messages=(USER,))
        async with wire_server(answer) as server:
            client = create_client(NAME, base_url=server.url, stream=False, environ={"AWS_REGION": REGION})
            with pytest.raises(ModelError, match="ExpiredToken"):
                [_ async for _ in client.stream(request)]
            [_ async for _ in client.stream(request)]
            await client.close()
        keys = [headers["Authorization"].partition("Credential=")[2][:10] for headers in server.headers]
        assert keys == ["AKFIRSTONE", "AKREPAIRED"]

    expired = raw(403, b'{"message": "expired"}', x_amzn_errortype="ExpiredTokenException")
    answers = iter([expired, says(ANTHROPIC, "x")])
    store("AKFIRSTONE")
    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [("throttlingException", True), ("modelStreamErrorException", True), ("validationException", False)],
)
def test_errors_within_a_stream_are_reported(kind: str, retryable: bool, account: None) -> None:
    whole = streamed_in_frames(says(ANTHROPIC, "x"))
    broken = replace(whole, body=exception_frame(kind, "slow down"))
    error = fails(broken, stream=True)
    assert str(error) == f"{NAME}: the provider reported an error: slow down"
    assert error.retryable == retryable


def test_incomplete_and_corrupt_streams_are_errors(account: None) -> None:
    whole = streamed_in_frames(says(ANTHROPIC, "one two"))
    for body in (whole.body[:-200], whole.body[:-200] + bytes(200), b"no frames at all, but text"):
        assert fails(replace(whole, body=body), stream=True).retryable


def test_sampling_options_use_a_version_of_the_api_that_accepts_them(account: None) -> None:
    _, server = ask([says(ANTHROPIC, "x")], temperature=0.2)
    assert (server.requests[0]["temperature"], server.requests[0]["anthropic_version"]) == (0.2, "bedrock-2023-05-31")

    _, server = ask([says(ANTHROPIC, "x")])
    assert "temperature" not in server.requests[0]
    assert server.requests[0]["anthropic_version"] != "bedrock-2023-05-31"


def test_settings_that_the_api_of_claude_lacks_are_rejected_in_bedrock_too(tmp_path: Path) -> None:
    async def main() -> list[str]:
        files = {"agents.d/a.yaml": agent("a", model=f"'{NAME}'", model_settings="{seed: 7}")}
        async with Runtime.open(write(tmp_path, files), watch=False) as runtime:
            return [problem.message for problem in runtime.catalog.current.problems]

    assert asyncio.run(main()) == [f"{NAME} does not support seed"]
