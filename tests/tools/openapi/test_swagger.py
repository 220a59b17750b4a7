"""Operations of Swagger 2.0 documents are those of OpenAPI 3, with the bytes that independent clients send."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from framework.tools.openapi.document import read_api_document
from framework.tools.openapi.operations import (
    Operation,
    Operations,
    encode_body,
    encode_path,
    encode_query,
    read_operations,
)
from framework.tools.openapi.source import ApiServer, build_api
from framework.types.tool_servers import OpenApi
from tests.support.cases import each

ITEMS = ["a b", "c,d", "e&f"]
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"


def entry(**keys: Any) -> OpenApi:
    return OpenApi.model_validate({"document": "openapi/a.json", "base_url": "https://api.example.com"} | keys)


def document(paths: Any, **keys: Any) -> dict[str, Any]:
    return {"swagger": "2.0", "paths": paths} | keys


def read(source: Mapping[str, Any], **keys: Any) -> Operations:
    return read_operations(read_api_document(json.dumps(source, indent=1).encode()), "a", entry(**keys))


def operation_of(*parameters: Any, path: str = "/x", root: Mapping[str, Any] | None = None, **keys: Any) -> Operation:
    found = read(document({path: {"post": {"parameters": [*parameters], **keys}}}, **(root or {})))
    assert not found.faults
    return found.found[0]


def parameter(place: str, kind: str = "string", name: str = "p", **keys: Any) -> dict[str, Any]:
    return {"name": name, "in": place, "type": kind, **keys}


def array(place: str, **keys: Any) -> dict[str, Any]:
    return parameter(place, "array", items={"type": "string"}, **keys)


# The table of `collectionFormat` in the Swagger specification: values separated by comma, space, tab or pipe, and
# `multi` as several parameters; csv is the default.
FORMATS = [(None, ","), ("csv", ","), ("ssv", " "), ("tsv", "\t"), ("pipes", "|")]


@each(("name", "delimiter"), FORMATS)
def test_a_list_is_joined_as_its_collection_format_says(name: str | None, delimiter: str) -> None:
    declared = {"collectionFormat": name} if name else {}
    joined = delimiter.join(ITEMS)
    query = encode_query(operation_of(array("query", **declared)), {"p": ITEMS})
    assert httpx2.QueryParams(query) == httpx2.QueryParams({"p": joined})
    path = encode_path(operation_of(array("path", **declared), path="/a/{p}/b"), {"p": ITEMS})
    assert httpx2.URL(f"https://example.com{path}").path == f"/a/{joined}/b"
    body, _ = encode_body(operation_of(array("formData", **declared)).body, {"body": {"p": ITEMS}})
    assert body == httpx2.Request("POST", "https://example.com", data={"p": joined}).read()
    parts, content_type = encode_body(
        operation_of(array("formData", **declared), consumes=[MULTIPART]).body, {"body": {"p": ITEMS, "gone": None}}
    )
    assert (parts, content_type) == multipart(content_type, {"p": joined})


def test_multi_repeats_the_parameter() -> None:
    declared = {"collectionFormat": "multi"}
    query = encode_query(operation_of(array("query", **declared)), {"p": ITEMS})
    assert httpx2.QueryParams(query) == httpx2.QueryParams([("p", item) for item in ITEMS])
    body, _ = encode_body(operation_of(array("formData", **declared)).body, {"body": {"p": ITEMS}})
    assert body == httpx2.Request("POST", "https://example.com", data={"p": ITEMS}).read()
    parts, content_type = encode_body(
        operation_of(array("formData", **declared), consumes=[MULTIPART]).body, {"body": {"p": ITEMS}}
    )
    assert (parts, content_type) == multipart(content_type, {"p": ITEMS})


def multipart(content_type: str, data: Mapping[str, Any], files: Any = ()) -> tuple[bytes, str]:
    """Return the body and type that httpx2 sends, with the boundary of another body."""
    parts = [
        (name, (None, item)) for name, value in data.items() for item in ([value] if isinstance(value, str) else value)
    ]
    request = httpx2.Request(
        "POST", "https://example.com", files=[*parts, *files], headers={"content-type": content_type}
    )
    return request.read(), request.headers["content-type"]


def test_form_fields_are_one_body_whose_type_the_fields_and_consumes_decide() -> None:
    fields = [
        parameter("formData", name="name", required=True, description="Who."),
        parameter("formData", "integer", name="n", maximum=9, default=3),
    ]
    operation = operation_of(*fields)
    assert operation.schema["required"] == ["body"]
    assert operation.schema["properties"]["body"] == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Who."},
            "n": {"type": "integer", "maximum": 9, "default": 3},
        },
        "required": ["name"],
    }
    value = {"name": "J. Doe & Co", "n": 3}
    body, content_type = encode_body(operation.body, {"body": value})
    independent = httpx2.Request("POST", "https://example.com", data={"name": "J. Doe & Co", "n": "3"})
    assert (body, content_type) == (independent.read(), independent.headers["content-type"])
    types = {(): FORM, (FORM, MULTIPART): FORM, (MULTIPART,): MULTIPART, ("application/json",): FORM}
    for consumes, expected in types.items():
        operation = operation_of(*fields, consumes=[*consumes], root={"consumes": ["application/json"]})
        assert operation.body
        assert operation.body.media_type == expected
    operation = operation_of(*fields, root={"consumes": [MULTIPART]})
    assert operation.body
    assert operation.body.media_type == MULTIPART


def test_a_file_makes_the_form_multipart() -> None:
    operation = operation_of(
        parameter("formData", "file", name="file"), parameter("formData", name="to"), consumes=[FORM]
    )
    body, content_type = encode_body(operation.body, {"body": {"to": "ü", "file": "id\r\n1"}})
    file = ("file", ("file.bin", b"id\r\n1", "application/octet-stream"))
    assert (body, content_type) == multipart(content_type, {"to": "ü"}, [file])
    assert "base64" in operation.schema["properties"]["body"]["properties"]["file"]["description"]
    assert "required" not in operation.schema


def test_a_body_has_the_types_of_consumes() -> None:
    def sent(**keys: Any) -> tuple[bytes | None, str]:
        body = {"name": "any", "in": "body", "required": True, "schema": {"type": "object"}, "description": "All."}
        operation = operation_of(body, **keys)
        assert operation.schema["required"] == ["body"]
        assert operation.schema["properties"]["body"]["description"] == "All."
        return encode_body(operation.body, {"body": {"a": "ü"}})

    json_body = '{"a":"ü"}'.encode()
    assert sent() == sent(consumes=["application/xml", "application/json"]) == (json_body, "application/json")
    assert sent(consumes=["application/merge-patch+json"])[1] == "application/merge-patch+json"
    assert sent(root={"consumes": [FORM]}) == (b"a=%C3%BC", FORM)
    xml = {"parameters": [{"name": "any", "in": "body", "schema": {}}], "consumes": ["application/xml"]}
    (fault,) = read(document({"/x": {"post": xml}})).faults
    assert "its body has no supported type: application/xml" in fault.message


def test_references_to_definitions_and_parameters_stay_references() -> None:
    root = {
        "definitions": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/definitions/Node"}}}},
        "parameters": {
            "limit": parameter("query", "integer", name="limit"),
            "node": {"name": "node", "in": "body", "schema": {"$ref": "#/definitions/Node"}},
        },
    }
    item = {
        "parameters": [{"$ref": "#/parameters/limit"}, parameter("query", name="q")],
        "post": {"parameters": [{"$ref": "#/parameters/node"}, parameter("query", "boolean", name="q")]},
    }
    (operation,) = read(document({"/x": item}, **root)).found
    reference = {"$ref": "#/$defs/Node"}
    assert operation.schema["properties"] == {
        "limit": {"type": "integer"},
        "q": {"type": "boolean"},
        "body": reference,
    }
    assert operation.schema["$defs"] == {"Node": {"type": "object", "properties": {"next": reference}}}
    (tool,) = build_api("a", entry(), json.dumps(document({"/x": item}, **root)).encode()).tools
    assert tool.bind({"body": {"next": {"next": {}}}})


@pytest.mark.hostile(10)
def test_headers_and_keys_are_never_the_models() -> None:
    definitions = {
        "key": {"type": "apiKey", "in": "query", "name": "api_key"},
        "head": {"type": "apiKey", "in": "header", "name": "X-Key"},
        "basic": {"type": "basic"},
    }
    parameters = [
        parameter("query", name="api_key", required=True),
        parameter("header", name="X-Key", required=True),
        parameter("header", name="X-Version", required=True, enum=["7"]),
        parameter("query", name="q"),
    ]
    operation = operation_of(*parameters, root={"securityDefinitions": definitions})
    assert list(operation.schema["properties"]) == ["q"]
    assert operation.headers == {"X-Version": "7"}
    found = read(document({"/x": {"get": {"parameters": [parameter("header", name="token", required=True)]}}}))
    assert "it needs the header token: set it with `headers`" in found.faults[0].message


@pytest.mark.hostile(8)
def test_the_server_of_the_document_is_never_used() -> None:
    source = document({"/x": {"get": {}}}, host="169.254.169.254", basePath="/latest", schemes=["http"])
    found = read(source)
    server = ApiServer("https://api.example.com/v1", entry(), found.paths)
    url = server.url(found.found[0], {})
    assert (url.host, url.target) == ("api.example.com", "/v1/x")


BODY = {"name": "b", "in": "body", "schema": {}}
FAULTY: list[tuple[Any, str]] = [
    ([BODY, {**BODY, "name": "c"}], "two parameters are its body"),
    ([BODY, parameter("formData")], "it has a body and form fields"),
    ([parameter("nowhere")], "a parameter without a valid `name` and `in`: 'p'"),
    ([parameter("cookie")], "a parameter without a valid `name` and `in`: 'p'"),
    ([{"in": "query", "type": "string"}], "a parameter without a valid `name` and `in`: 'None'"),
    ([{"name": "p", "in": "query"}], "the parameter 'p' has no valid `type`"),
    ([{"name": "p", "in": "formData"}], "the parameter 'p' has no valid `type`"),
    ([parameter("query", "object")], "the parameter 'p' has no valid `type`"),
    ([parameter("query", "file")], "the parameter 'p' has no valid `type`"),
    ([array("query", collectionFormat="json")], "the parameter 'p' has no valid `collectionFormat`"),
    ([array("query", collectionFormat=[])], "the parameter 'p' has no valid `collectionFormat`"),
    ([array("path", collectionFormat="multi")], "the parameter 'p' has no valid `collectionFormat`"),
    ([parameter("query", "array", items={"type": "array"})], "the parameter 'p' is a list of lists"),
    ([{"$ref": "#/parameters/loop"}], "references that lead to each other"),
    ([{"$ref": "#/parameters/none"}], "refers to nothing"),
    ([{"$ref": "file:///etc/passwd"}], "is not within the document"),
    ([{**BODY, "schema": {"$ref": "models.json#/Pet"}}], "is not within the document"),
    ([7], "expected an object"),
]


@pytest.mark.hostile(len(FAULTY))
@each(("parameters", "message"), FAULTY)
def test_an_invalid_operation_is_a_fault_at_its_line_and_the_others_work(parameters: Any, message: str) -> None:
    loop = {"loop": {"$ref": "#/parameters/loop"}}
    source = document({"/bad/{p}": {"post": {"parameters": parameters}}, "/good": {"get": {}}}, parameters=loop)
    text = json.dumps(source, indent=1)
    built = build_api("a", entry(), text.encode())
    assert [tool.name for tool in built.tools] == ["a.GET_good"]
    (fault,) = built.faults
    assert fault.message.startswith("POST /bad/{p} is not available: ")
    assert message in fault.message
    assert '"post"' in text.splitlines()[(fault.line or 0) - 1]


ODD: list[Any] = [None, 1, "x", [], {}, [1], {"a": 1}, True]


@each("key", ["parameters", "consumes", "definitions", "securityDefinitions", "host", "type", "items", "schema"])
@each("value", ODD, ids=repr)
def test_any_value_of_a_key_is_an_operation_or_a_fault(key: str, value: Any) -> None:
    odd = {**array("formData"), key: value}
    body = {**BODY, key: value}
    for operation in ({"parameters": [odd], key: value}, {"parameters": [body]}, {key: value}):
        source = document({"/x": {"post": operation, key: value}, "/good": {"get": {}}}, **{key: value})
        built = build_api("a", entry(), json.dumps(source).encode())
        assert any("GET_good" in tool.name for tool in built.tools)
