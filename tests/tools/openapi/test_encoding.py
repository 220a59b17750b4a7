"""Requests have the bytes that independent clients and the tables of the specifications have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from email import message_from_bytes
from typing import Any
from urllib.parse import unquote

import httpx2
import pytest

from framework.tools.openapi.document import read_api_document
from framework.tools.openapi.operations import (
    Operation,
    RequestBody,
    encode_body,
    encode_path,
    encode_query,
    read_operations,
)
from framework.types.errors import ToolError
from framework.types.tool_servers import OpenApi
from tests.support.cases import each

ARRAY = ["blue", "black", "brown"]
OBJECT = {"R": 100, "G": 200, "B": 150}

# "Style Examples" of the OpenAPI Specification 3.1.1, section 4.8.12.3, for the parameter `color`. Its table has no
# values for the combinations that are left out here, or says that they are undefined.
STYLE_EXAMPLES: list[tuple[str, bool, Any, str]] = [
    ("matrix", False, "blue", ";color=blue"),
    ("matrix", False, ARRAY, ";color=blue,black,brown"),
    ("matrix", False, OBJECT, ";color=R,100,G,200,B,150"),
    ("matrix", True, "blue", ";color=blue"),
    ("matrix", True, ARRAY, ";color=blue;color=black;color=brown"),
    ("matrix", True, OBJECT, ";R=100;G=200;B=150"),
    ("label", False, "blue", ".blue"),
    ("label", False, ARRAY, ".blue,black,brown"),
    ("label", False, OBJECT, ".R,100,G,200,B,150"),
    ("label", True, "blue", ".blue"),
    ("label", True, ARRAY, ".blue.black.brown"),
    ("label", True, OBJECT, ".R=100.G=200.B=150"),
    ("simple", False, "blue", "blue"),
    ("simple", False, ARRAY, "blue,black,brown"),
    ("simple", False, OBJECT, "R,100,G,200,B,150"),
    ("simple", True, "blue", "blue"),
    ("simple", True, ARRAY, "blue,black,brown"),
    ("simple", True, OBJECT, "R=100,G=200,B=150"),
    ("form", False, "", "color="),
    ("form", False, "blue", "color=blue"),
    ("form", False, ARRAY, "color=blue,black,brown"),
    ("form", False, OBJECT, "color=R,100,G,200,B,150"),
    ("form", True, "", "color="),
    ("form", True, "blue", "color=blue"),
    ("form", True, ARRAY, "color=blue&color=black&color=brown"),
    ("form", True, OBJECT, "R=100&G=200&B=150"),
    ("spaceDelimited", False, ARRAY, "color=blue%20black%20brown"),
    ("spaceDelimited", False, OBJECT, "color=R%20100%20G%20200%20B%20150"),
    ("pipeDelimited", False, ARRAY, "color=blue%7Cblack%7Cbrown"),
    ("pipeDelimited", False, OBJECT, "color=R%7C100%7CG%7C200%7CB%7C150"),
    ("deepObject", True, OBJECT, "color%5BR%5D=100&color%5BG%5D=200&color%5BB%5D=150"),
]


@each(("style", "explode", "value", "expected"), STYLE_EXAMPLES)
def test_each_style_is_that_of_the_specification(style: str, explode: bool, value: Any, expected: str) -> None:
    in_path = style in ("matrix", "label", "simple")
    parameter: Any = {
        "name": "color",
        "in": "path" if in_path else "query",
        "required": in_path,
        "style": style,
        "explode": explode,
        "schema": {},
    }
    operation = operation_of({"parameters": [parameter]}, path="/x{color}y" if in_path else "/x")
    sent = encode_path(operation, {"color": value}) if in_path else encode_query(operation, {"color": value})
    assert sent == (f"/x{expected}y" if in_path else expected)


TEXTS = ["a b", "ü€😀", "a&b=c#d?e+f", "%2F", "~-._", "a/b", "*'()!", '"<>\\^`{|}']


@pytest.mark.parametrize("text", TEXTS)
def test_query_values_arrive_as_they_were(text: str) -> None:
    parameters: Any = [{"name": name, "in": "query", "schema": {}} for name in ("q", "x y")]
    sent = encode_query(operation_of({"parameters": parameters}), {"q": text, "x y": [text, 1, True, 1.5]})
    received = httpx2.URL(f"https://example.com/?{sent}").params
    assert received["q"] == text
    assert received.get_list("x y") == [text, "1", "true", "1.5"]
    assert re.fullmatch(r"[A-Za-z0-9%=&._~-]*", sent), "everything else is escaped"


@pytest.mark.parametrize("text", ["a b", "ü€😀", "a&b=c#d?e+f", "%2F", "~-._", "*'()!"])
def test_path_values_stay_one_segment(text: str) -> None:
    sent = encode_path(operation_of({}, path="/a/{id}/b"), {"id": text})
    segments = sent.split("/")
    assert segments[:2] + segments[3:] == ["", "a", "b"]
    assert unquote(segments[2]) == text
    assert not {"?", "#"} & set(sent)


@pytest.mark.parametrize("value", ["", ".", "..", [], None])
def test_path_values_that_would_be_another_path_are_refused(value: Any) -> None:
    with pytest.raises(ToolError, match="must not be empty"):
        encode_path(operation_of({}, path="/a/{id}"), {"id": value})


def test_reserved_characters_never_add_a_parameter() -> None:
    parameter = {"name": "q", "in": "query", "allowReserved": True, "schema": {}}
    sent = encode_query(operation_of({"parameters": [parameter]}), {"q": "a/b:c?d&admin=1#e+f"})
    assert sent == "q=a/b:c?d%26admin%3D1%23e%2Bf"


def test_nested_objects_and_lists_of_deep_objects() -> None:
    parameter = {"name": "f", "in": "query", "style": "deepObject", "schema": {}}
    value = {"a": {"b": 1}, "tags": ["x", "y"], "items": [{"id": 1}, {"id": 2}], "none": None}
    sent = encode_query(operation_of({"parameters": [parameter]}), {"f": value})
    assert unquote(sent) == "f[a][b]=1&f[tags]=x&f[tags]=y&f[items][0][id]=1&f[items][1][id]=2"


def test_a_parameter_with_content_is_json() -> None:
    parameter = {"name": "filter", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}}
    sent = encode_query(operation_of({"parameters": [parameter]}), {"filter": {"a": [1, "ü"]}})
    assert unquote(sent) == 'filter={"a":[1,"ü"]}'


FORM = {"name": "J. Doe & Co", "tags": ["a b", "c"], "n": 3, "ok": True, "x+y": "~*é\n"}


def test_a_form_is_that_of_an_independent_client() -> None:
    body, content_type = encode_body(body_of("application/x-www-form-urlencoded"), {"body": FORM})
    independent = httpx2.Request("POST", "https://example.com", data=as_texts(FORM))
    assert body == independent.read()
    assert content_type == independent.headers["content-type"]


def test_encodings_of_form_fields() -> None:
    encoding = {
        "meta": {"style": "deepObject"},
        "items": {"style": "deepObject"},
        "csv": {"style": "form", "explode": False},
        "piped": {"style": "pipeDelimited"},
    }
    value = {"meta": {"a": 1}, "items": [{"id": 1}], "csv": [1, 2], "piped": [1, 2], "object": {"a": 1}, "gone": None}
    body, _ = encode_body(body_of("application/x-www-form-urlencoded", encoding=encoding), {"body": value})
    assert unquote((body or b"").decode()) == 'meta[a]=1&items[0][id]=1&csv=1,2&piped=1|2&object={"a":1}'


def test_a_multipart_body_is_that_of_an_independent_client() -> None:
    properties = {"file": {"type": "string", "format": "binary"}}
    body, content_type = encode_body(
        body_of("multipart/form-data", properties), {"body": {"purpose": 'a"b', "n": 1, "file": "id,name\r\n1,ü"}}
    )
    boundary = content_type.partition("boundary=")[2]
    independent = httpx2.Request(
        "POST",
        "https://example.com",
        data={"purpose": 'a"b', "n": "1"},
        files={"file": ("file.bin", "id,name\r\n1,ü".encode(), "application/octet-stream")},
        headers={"content-type": f"multipart/form-data; boundary={boundary}"},
    )
    assert body == independent.read()


@each(("version", "expected"), [("3.0.3", [b"1", b"2"]), ("3.1.0", [b"1,2"])])
def test_styles_of_multipart_fields_are_those_of_the_version(version: str, expected: list[bytes]) -> None:
    files = {"type": "array", "items": {"type": "string", "format": "binary"}}
    content = {
        "schema": {"type": "object", "properties": {"files": files}},
        "encoding": {name: {"style": "form", "explode": False} for name in ("ids", "files", "none")},
    }
    operation = operation_of(
        {"requestBody": {"content": {"multipart/form-data": content}}}, method="post", version=version
    )
    value = {"ids": [1, 2], "gone": None, "none": [], "files": ["a", "data:text/plain;base64,Yg=="]}
    body, content_type = encode_body(operation.body, {"body": value})
    form = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + (body or b""))
    parts = [part.get_payload(decode=True) for part in form.walk() if not part.is_multipart()]
    assert parts == [*expected, b"a", b"b"], "files are never joined, and an empty list has no part"


@pytest.mark.parametrize("value", [{}, {"file": None}, {"files": []}])
def test_a_multipart_form_without_fields_names_its_boundary(value: dict[str, Any]) -> None:
    body, content_type = encode_body(body_of("multipart/form-data"), {"body": value})
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    form = message_from_bytes(head + (body or b""))
    assert form.get_boundary()
    assert body == f"--{form.get_boundary()}--\r\n".encode()


def test_files_of_any_content_and_type() -> None:
    properties = {"files": {"type": "array", "items": {"type": "string", "format": "binary"}}, "meta": {}}
    value = {"files": ["data:text/csv;base64,YSxi", "data:;base64,AP8="], "meta": {"a": 1}}
    body, _ = encode_body(body_of("multipart/form-data", properties), {"body": value})
    assert body
    assert b'name="files"; filename="files.csv"\r\nContent-Type: text/csv\r\n\r\na,b\r\n' in body
    assert b"\r\n\r\n\x00\xff\r\n" in body
    assert b'name="meta"\r\nContent-Type: application/json\r\n\r\n{"a":1}\r\n' in body
    with pytest.raises(ToolError, match="not valid base64"):
        encode_body(body_of("multipart/form-data", properties), {"body": {"files": ["data:text/csv;base64,%"]}})


@pytest.mark.parametrize("name", ['x"\r\nContent-Type: text/html\r\n\r\n', "x\r\ny"])
def test_a_field_name_adds_no_header_to_a_part(name: str) -> None:
    body, _ = encode_body(body_of("multipart/form-data"), {"body": {name: "v"}})
    head = (body or b"").partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert len(head) == 2


def test_json_and_text_bodies() -> None:
    assert encode_body(body_of("application/json"), {"body": {"a": "ü"}}) == ('{"a":"ü"}'.encode(), "application/json")
    patch = "application/json-patch+json"
    assert encode_body(body_of(patch), {"body": [{"op": "add"}]}) == (b'[{"op":"add"}]', patch)
    assert encode_body(body_of("text/plain"), {"body": "ü"}) == ("ü".encode(), "text/plain")
    assert encode_body(body_of("application/octet-stream"), {"body": "data:image/png;base64,AAE="})[0] == b"\0\1"
    assert encode_body(body_of("application/json"), {}) == (None, "")
    assert encode_body(None, {}) == (None, "")


def as_texts(value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: item if isinstance(item, list) else "true" if item is True else str(item) for key, item in value.items()
    }


def body_of(media_type: str, properties: Any = None, encoding: Any = None) -> RequestBody:
    content = {"schema": {"type": "object", "properties": properties or {}}, "encoding": encoding or {}}
    body = operation_of({"requestBody": {"content": {media_type: content}}}, method="post").body
    assert body
    return body


def operation_of(
    operation: Mapping[str, Any], *, path: str = "/x", method: str = "get", version: str = "3.1.0"
) -> Operation:
    document = {"openapi": version, "paths": {path: {method: operation}}}
    api = OpenApi(document="openapi/a.json", base_url="https://api.example.com")
    read = read_operations(read_api_document(json.dumps(document).encode()), "a", api)
    assert not read.faults
    return read.found[0]
