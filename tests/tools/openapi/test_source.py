"""Calls of APIs: what is sent, what responses become, what is refused, and documents that have a URL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from framework.tools.http import HttpFailed, HttpRefused
from framework.tools.openapi.source import ApiError, ApiSource, build_api
from framework.tools.tool import Tool, ToolContext
from framework.types.errors import ConfigError, ToolError
from framework.types.tool_servers import OpenApi
from tests.support.site import Pages, answer, redirect, site

TOKEN = "token-" + "of-the-operator"
ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
DOCUMENT: dict[str, Any] = {
    "openapi": "3.0.0",
    "servers": [{"url": "http://169.254.169.254/latest"}],
    "paths": {
        "/things/{id}": {"get": {"operationId": "get", "parameters": [ID]}, "delete": {"operationId": "remove"}},
        "/things/{id}/secret": {"get": {"operationId": "secret", "parameters": [ID]}},
        "/files/{id}/raw": {"get": {"operationId": "raw", "parameters": [ID]}},
        "/things": {
            "post": {
                "operationId": "add",
                "parameters": [{"name": "Idempotency-Key", "in": "header"}],
                "requestBody": {"content": {"application/json": {"schema": {}}}},
            }
        },
    },
}


def entry(url: str, **keys: Any) -> OpenApi:
    return OpenApi.model_validate({"document": "openapi/a.json", "base_url": url} | keys)


async def call(url: str, name: str, arguments: Mapping[str, Any], **keys: Any) -> Any:
    built = build_api("a", entry(url, **keys), json.dumps(DOCUMENT).encode())
    tool: Tool = next(tool for tool in built.tools if tool.name == f"a.{name}")
    context = ToolContext(run_id="r", call_id="c", agent="a", base_path=Path())
    return await tool.function(**tool.bind(arguments), **{tool.context_parameter or "": context})


def run(pages: Pages, name: str, arguments: Mapping[str, Any], **keys: Any) -> tuple[Any, list[Any]]:
    async def main() -> tuple[Any, list[Any]]:
        async with site(pages) as served:
            try:
                return await call(served.url, name, arguments, **keys), served.requests
            except ToolError as error:
                return error, served.requests

    return asyncio.run(main())


JSON = "content-type: application/json"


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (answer('{"a": 1}', JSON), {"a": 1}),
        (answer("[1]", "content-type: application/vnd.x+json; charset=utf-8"), [1]),
        (answer("plain", "content-type: text/plain"), "plain"),
        (answer('{"a": NaN}', JSON), '{"a": NaN}'),
        (answer(b'\xef\xbb\xbf{"a": 1}', JSON), {"a": 1}),
        (answer("[" * 5000, JSON), "[" * 5000),
        (answer("", status="204 No Content"), "HTTP 204 No Content, without content"),
        (answer(b"\x89PNG\0", "content-type: image/png"), "HTTP 200 OK: image/png, 5 bytes"),
        (answer("x" * 100, "content-type: text/plain"), "x" * 50 + "\n(cut off: the response is larger than 50 bytes)"),
    ],
)
def test_responses_become_data_or_text(response: bytes, expected: Any) -> None:
    limit = 50 if expected != "[" * 5000 else 10_000
    assert run({"/things/7": response}, "get", {"id": "7"}, max_bytes=limit)[0] == expected


def test_errors_have_the_status_and_what_the_server_says() -> None:
    missing = answer('{"message": "no thing 7"}', JSON, status="404 Not Found")
    error, _ = run({"/things/7": missing}, "get", {"id": "7"})
    assert isinstance(error, ApiError)
    assert str(error) == 'GET /things/{id}: HTTP 404 Not Found: {"message": "no thing 7"}'
    busy = answer("", "retry-after: 30", status="429 Too Many Requests")
    assert str(run({"/things/7": busy}, "get", {"id": "7"})[0]).endswith("429 Too Many Requests (retry after: 30)")
    assert len(str(run({"/things/7": answer("x" * 9000, status="500 No")}, "get", {"id": "7"})[0])) < 2100


@pytest.mark.hostile(10)
def test_a_response_that_repeats_a_secret_does_not_show_it_to_the_model() -> None:
    echo = answer(f"you sent Bearer {TOKEN}, k3y-value", status="401 Unauthorized")
    keys = {"auth": {"bearer": TOKEN}, "query": {"key": "k3y-value"}}
    error, requests = run({"/things/7": echo}, "get", {"id": "7"}, **keys)
    assert requests[0].target == "/things/7?key=k3y-value"
    assert TOKEN not in str(error)
    assert "k3y-value" not in str(error)
    assert "you sent" in str(error)


@pytest.mark.parametrize(
    ("name", "response", "shown"),
    [
        ("get", redirect("/things/7?key=k3y%2Fvalue%2B1"), "more than 4 redirects"),
        ("get", answer("no k3y%2Fvalue%2B1, k3y/value%2B1", status="404 Not Found"), "no ***, ***"),
        ("get", answer("no dTprM3kvdmFsdWUrMQ==", status="404 Not Found"), "no ***"),
        ("add", redirect("/b?key=k3y%2Fvalue%2B1"), "HTTP 302 Found, location: /b?key=***"),
    ],
)
def test_a_secret_is_not_shown_in_another_form(name: str, response: bytes, shown: str) -> None:
    keys = {"query": {"key": "k3y/value+1"}, "auth": {"basic": {"username": "u", "password": "k3y/value+1"}}}
    pages = {"/things/7": response, "/things": response}
    found, _ = run(pages, name, {"id": "7"} if name == "get" else {"body": [1]}, **keys)
    assert shown in str(found)
    assert not any(form in str(found) for form in ("k3y", "dTpr"))


@pytest.mark.parametrize(
    ("headers", "response", "expected"),
    [
        ({"accept": "application/json"}, answer(" [1]", JSON), [1]),
        ({"accept": "image/svg"}, answer("<svg/>", "content-type: image/svg"), "HTTP 200 OK: image/svg, 6 bytes"),
        ({"user-agent": "Acme Orders"}, answer('{"Orders": 1}', JSON), {"Orders": 1}),
        ({"authorization": "Token s3cret-of-us"}, answer('{"sent": "s3cret-of-us"}', JSON), {"sent": "***"}),
    ],
)
def test_headers_without_a_secret_hide_nothing(headers: dict[str, str], response: bytes, expected: object) -> None:
    assert run({"/things/7": response}, "get", {"id": "7"}, headers=headers)[0] == expected


def test_each_kind_of_authentication_is_sent() -> None:
    ok = {"/things": answer("ok")}
    keys = {
        "auth": {"basic": {"username": "u", "password": "p"}},
        "cookies": {"a": "1", "b": "2"},
        "headers": {"X": "y"},
    }
    _, (request,) = run(ok, "add", {"body": [1]}, **keys)
    assert request.headers["authorization"] == "Basic dTpw"
    assert (request.headers["cookie"], request.headers["x"]) == ("a=1; b=2", "y")
    assert (request.headers["content-type"], request.body) == ("application/json", b"[1]")
    assert request.headers["idempotency-key"] == "r:c"


@pytest.mark.hostile(23)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("7/secret", "the URL would be one of GET /things/{id}/secret"),
        ("..", "must not be empty, '.' or '..'"),
        ("../admin", "disguised"),
        ("..%2fadmin", "disguised"),
        ("a\\b", "backslash"),
        ("a\0", "zero byte"),
        ("", "must not be empty"),
    ],
)
def test_a_value_for_the_path_reaches_no_other_operation(value: str, message: str) -> None:
    error, requests = run({}, "get", {"id": value})
    assert (message in str(error), requests) == (True, [])


def test_a_slash_that_reaches_no_other_operation_is_sent_as_data() -> None:
    _, (request,) = run({"/files/a%2Fb/raw": answer("x")}, "raw", {"id": "a/b"})
    assert request.target == "/files/a%2Fb/raw"


@pytest.mark.hostile(20)
def test_the_servers_of_the_document_are_never_called() -> None:
    error, _ = run({}, "get", {"id": "7"})
    assert "404" in str(error), "the base URL of the file was called"

    async def main() -> None:
        with pytest.raises(HttpRefused, match="not public"):
            await call("http://169.254.169.254", "get", {"id": "7"})

    asyncio.run(main())


@pytest.mark.hostile(22)
def test_redirects_stay_on_the_server_and_only_reads_follow_them() -> None:
    moved = {"/things/7": redirect("/things/8"), "/things/8": answer("here"), "/things": redirect("/things/8")}
    assert run(moved, "get", {"id": "7"})[0] == "here"
    answer_to_post, requests = run(moved, "add", {"body": 1})
    assert answer_to_post == "HTTP 302 Found, location: /things/8"
    assert len(requests) == 1

    async def main() -> None:
        async with site({}) as other, site({"/things/7": redirect(f"{other.url}/x")}) as served:
            with pytest.raises(HttpRefused, match="which is another server: it is not called"):
                await call(served.url, "get", {"id": "7"}, auth={"bearer": TOKEN})
            assert other.requests == []

    asyncio.run(main())


def test_a_server_that_does_not_respond_is_an_error_within_the_time_limit() -> None:
    async def main() -> None:
        async def never(_: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        async with site({"/things": never}) as served:
            with pytest.raises(HttpFailed, match="whether it took effect is unknown"):
                await call(served.url, "add", {"body": 1}, timeout=0.2)

    asyncio.run(main())


async def until(source: ApiSource, changed: asyncio.Event) -> None:
    async with asyncio.timeout(30):
        await changed.wait()
    changed.clear()


def test_a_document_with_a_url_is_refreshed_and_unchanged_tools_stay_the_same_objects() -> None:
    async def main() -> None:
        pages = {"/openapi.json": answer("", status="503 Busy")}
        async with site(pages) as served:
            changed = asyncio.Event()
            api = entry(served.url, document=f"{served.url}/openapi.json?key=k3y", refresh=0.02)
            source = ApiSource("a", api, changed.set, first_retry=0.01)
            await source.start()
            try:
                assert (source.tools, len(source.faults)) == ((), 1)
                assert "/openapi.json responded with HTTP 503" in source.faults[0]
                pages["/openapi.json"] = answer(json.dumps(DOCUMENT))
                await until(source, changed)
                assert (len(source.tools), source.faults) == (5, ())
                first = {tool.name: tool for tool in source.tools}
                renamed = json.loads(json.dumps(DOCUMENT))
                renamed["paths"]["/things"]["post"]["summary"] = "Add it."
                pages["/openapi.json"] = answer(json.dumps(renamed))
                await until(source, changed)
                second = {tool.name: tool for tool in source.tools}
                assert [name for name in first if first[name] is not second[name]] == ["a.add"]
                assert first["a.add"].contract != second["a.add"].contract
                pages["/openapi.json"] = answer("{")
                await until(source, changed)
                assert (len(source.tools), "not JSON" in source.faults[0]) == (5, True)
            finally:
                await source.close()

    asyncio.run(main())


@pytest.mark.hostile(20)
def test_a_document_at_a_metadata_address_is_never_requested() -> None:
    async def main() -> None:
        source = ApiSource(
            "a", entry("http://127.0.0.1:9", document="http://169.254.169.254/openapi.json"), lambda: None
        )
        await source.start()
        await source.close()
        assert "not public" in source.faults[0]

    asyncio.run(main())
    with pytest.raises(ConfigError):
        ApiSource("a", entry("http://127.1"), lambda: None)
