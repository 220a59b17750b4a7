"""Operations of OpenAPI documents: arguments, names and choices; invalid and hostile documents cost little."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from framework.tools.openapi.document import ApiDocumentError, read_api_document
from framework.tools.openapi.operations import Operation, Operations, read_operations
from framework.tools.openapi.source import BuiltApi, build_api
from framework.types.tool_servers import OpenApi
from tests.support.cases import each


def entry(**keys: Any) -> OpenApi:
    return OpenApi.model_validate({"document": "openapi/a.json", "base_url": "https://api.example.com"} | keys)


def read(document: Mapping[str, Any] | str, **keys: Any) -> Operations:
    text = document if isinstance(document, str) else json.dumps(document, indent=1)
    return read_operations(read_api_document(text.encode()), "a", entry(**keys))


def paths(**operations: Any) -> dict[str, Any]:
    """Return a document with one GET operation per keyword."""
    return {"openapi": "3.0.3", "paths": {f"/{name}": {"get": one} for name, one in operations.items()}}


def one(document: Mapping[str, Any], **keys: Any) -> Operation:
    found = read(document, **keys)
    assert (len(found.found), found.faults) == (1, ())
    return found.found[0]


def build(document: Mapping[str, Any], **keys: Any) -> BuiltApi:
    return build_api("a", entry(**keys), json.dumps(document, indent=1).encode())


def body(schema: Any, media_type: str = "application/json") -> dict[str, Any]:
    return {"requestBody": {"content": {media_type: {"schema": schema}}, "required": True}}


def test_arguments_are_the_parameters_of_path_and_query_and_the_body() -> None:
    parameters = [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}},
        {"name": "id", "in": "query", "schema": {"type": "string"}, "description": "Another."},
        {"name": "body", "in": "query", "schema": {"type": "string"}},
        {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
        {"name": "session", "in": "cookie", "schema": {"type": "string"}},
        {"name": "elsewhere", "in": "path", "required": True},
    ]
    item = {"parameters": parameters, "post": body({"type": "object"})}
    operation = one({"openapi": "3.1.0", "paths": {"/x/{id}/{undeclared}": item}})
    assert operation.schema["required"] == ["id", "undeclared", "request_body"]
    assert operation.schema["properties"] == {
        "id": {"type": "integer"},
        "query_id": {"type": "string", "description": "Another."},
        "body": {"type": "string"},
        "undeclared": {"type": "string"},
        "request_body": {"type": "object"},
    }


def test_an_operation_replaces_parameters_of_its_path() -> None:
    item = {
        "parameters": [{"name": "n", "in": "query", "schema": {"type": "integer"}}],
        "get": {"parameters": [{"name": "n", "in": "query", "schema": {"type": "string"}}]},
    }
    assert one({"openapi": "3.0.0", "paths": {"/x": item}}).schema["properties"] == {"n": {"type": "string"}}


@pytest.mark.hostile(10)
def test_header_cookie_and_security_parameters_are_never_the_models() -> None:
    schemes = {"k": {"type": "apiKey", "in": "query", "name": "api_key"}}
    names = [("api_key", "query"), ("Authorization", "header"), ("k", "cookie"), ("fixed", "query"), ("q", "query")]
    parameters = [{"name": name, "in": place, "schema": {"type": "string"}} for name, place in names]
    document = paths(x={"parameters": parameters}) | {"components": {"securitySchemes": schemes}}
    assert list(one(document, query={"fixed": "1"}).schema["properties"]) == ["q"]


def test_required_headers_come_from_the_file_or_have_one_value() -> None:
    def needing(schema: Any) -> dict[str, Any]:
        return paths(x={"parameters": [{"name": "X-Version", "in": "header", "required": True, "schema": schema}]})

    assert one(needing({"type": "string", "enum": ["7"]})).headers == {"X-Version": "7"}
    assert one(needing({"default": 3})).headers == {"X-Version": "3"}
    assert one(needing({"type": "string"}), headers={"x-version": "1"}).headers == {}
    (fault,) = read(needing({"type": "string"})).faults
    assert "it needs the header X-Version: set it with `headers`" in fault.message


def test_schemas_are_those_of_json_schema_2020() -> None:
    schema = {
        "type": "object",
        "required": ["a", "id", "a"],
        "x-own": 1,
        "example": {},
        "properties": {
            "id": {"type": "integer", "readOnly": True},
            "a": {"type": "integer", "minimum": 1, "exclusiveMinimum": True, "nullable": True},
            "b": {"type": "string", "enum": ["x"], "nullable": True},
            "c": {"allOf": [{"type": "string"}], "nullable": True},
            "example": {"type": "string"},
            "d": None,
        },
    }
    (operation,) = read({"openapi": "3.0.0", "paths": {"/x": {"post": body(schema)}}}).found
    assert operation.schema["properties"]["body"] == {
        "type": "object",
        "required": ["a"],
        "properties": {
            "a": {"type": ["integer", "null"], "exclusiveMinimum": 1},
            "b": {"type": ["string", "null"], "enum": ["x", None]},
            "c": {"anyOf": [{"allOf": [{"type": "string"}]}, {"type": "null"}]},
            "example": {"type": "string"},
            "d": {},
        },
    }


def test_a_request_needs_no_read_only_property_of_a_schema_that_it_extends() -> None:
    base = {"type": "object", "required": ["kind", "id"], "properties": {"id": {"readOnly": True}, "kind": {}}}
    cat = {"allOf": [{"$ref": "#/components/schemas/Base"}, {"required": ["id", "lives"]}, True], "required": ["id"]}
    document = {
        "openapi": "3.0.0",
        "paths": {"/x": {"post": body({"$ref": "#/components/schemas/Cat"})}},
        "components": {"schemas": {"Base": base, "Cat": cat}},
    }
    assert read(document).found[0].schema["$defs"] == {
        "Base": {"type": "object", "required": ["kind"], "properties": {"kind": {}}},
        "Cat": {"allOf": [{"$ref": "#/$defs/Base"}, {"required": ["lives"]}, True], "required": []},
    }


def test_a_schema_may_extend_one_that_allows_anything() -> None:
    document = {
        "openapi": "3.1.0",
        "paths": {"/x": {"post": body({"allOf": [{"$ref": "#/components/schemas/Any"}]})}},
        "components": {"schemas": {"Any": True}},
    }
    assert read(document).found[0].schema["$defs"] == {"Any": True}


def test_a_nullable_schema_that_extends_another_one_allows_null() -> None:
    schema = {"type": "object", "nullable": True, "allOf": [{"type": "object"}]}
    (operation,) = read({"openapi": "3.0.0", "paths": {"/x": {"post": body(schema)}}}).found
    plain = {"type": "object", "allOf": [{"type": "object"}]}
    assert operation.schema["properties"]["body"] == {"anyOf": [plain, {"type": "null"}]}


def test_operations_are_chosen_by_id_name_or_method_and_path() -> None:
    document = paths(a={"operationId": "pets/list"}, b={}, c={"operationId": "old", "deprecated": True})
    chosen = {
        ("pets/*",): ["pets_list"],
        ("pets_list",): ["pets_list"],
        ("GET /b",): ["GET_b"],
        ("GET *",): ["pets_list", "GET_b"],
        ("old",): ["old"],
        ("POST *",): [],
    }
    for globs, names in chosen.items():
        assert [operation.name for operation in read(document, operations=globs).found] == names
    assert [fault.message for fault in read(document, operations=["POST *", "*"]).faults] == [
        "no operation matches 'POST *'"
    ]
    assert len(read(document, deprecated=True).found) == 3


def test_extensions_among_the_paths_are_no_paths() -> None:
    document = paths(a={})
    document["paths"] |= {"x-owner": "us", "x-common": {"get": {}}}
    assert one(document).path == "/a"


def test_names_are_short_and_unique() -> None:
    document = paths(a={"operationId": "x" * 90}, b={"operationId": "x" * 91}, c={"operationId": "é"})
    names = [operation.name for operation in read(document).found]
    assert len({*names}) == 3
    assert max(map(len, names)) == 64 - len("a__")
    assert read(document, names={"é": "accent"}).found[2].name == "accent"


@pytest.mark.hostile(8)
def test_two_operations_with_one_name_are_a_fault_at_the_second_line() -> None:
    found = read(paths(a={"operationId": "a/b"}, b={"operationId": "a b"}))
    assert [operation.request for operation in found.found] == ["GET /a"]
    (fault,) = found.faults
    assert fault.message == (
        "GET /b is not available: its tool would be named a_b, as that of GET /a: name it with `names`"
    )
    assert (
        json.dumps(paths(a={"operationId": "a/b"}, b={"operationId": "a b"}), indent=1)
        .splitlines()[(fault.line or 0) - 1]
        .strip()
        .startswith('"get"')
    )


@pytest.mark.hostile(8)
@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("https://evil.example/x.json", "is not within the document"),
        ("file:///etc/passwd", "is not within the document"),
        ("other.yaml#/x", "is not within the document"),
        ("#/components/none", "refers to nothing"),
        ("#/paths/~1a/get/parameters/9", "refers to nothing"),
        ("#", "is not within the document"),
        (7, "is not within the document"),
    ],
)
def test_a_reference_that_cannot_be_followed_is_a_fault_of_its_operation(reference: Any, message: str) -> None:
    bad = {"parameters": [{"name": "q", "in": "query", "schema": {"$ref": reference}}]}
    found = read(paths(bad=bad, good={}))
    assert [operation.path for operation in found.found] == ["/good"]
    assert message in found.faults[0].message


def test_references_lead_through_paths_and_lists_and_cost_their_definition_once() -> None:
    parameters = [{"name": "a", "in": "query", "schema": {"allOf": [{"type": "string"}, {"maxLength": 5}]}}]
    reference = {"$ref": "#/paths/~1a/get/parameters/0/schema/allOf/1"}
    document = paths(
        a={"parameters": parameters}, b={"parameters": [{"name": "b", "in": "query", "schema": reference}]}
    )
    schema = read(document).found[1].schema
    (definition,) = schema["$defs"].values()
    assert definition == {"maxLength": 5}
    assert not build(document).faults


@pytest.mark.hostile(8)
def test_recursive_schemas_are_kept_and_checked() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Node"}, "n": {"type": "integer"}}}
    document = {
        "openapi": "3.1.0",
        "paths": {"/x": {"post": body({"$ref": "#/components/schemas/Node"})}},
        "components": {"schemas": {"Node": node, "Loop": {"$ref": "#/components/schemas/Loop"}}},
    }
    (tool,) = build(document).tools
    assert tool.bind({"body": {"next": {"next": {"n": 1}}}})
    with pytest.raises(Exception, match="n"):
        tool.bind({"body": {"next": {"next": {"n": "x"}}}})
    loop = {"$ref": "#/components/parameters/Loop"}
    parameters = {"parameters": {"Loop": loop}}
    found = read(paths(x={"parameters": [loop]}) | {"components": parameters})
    assert "references that lead to each other" in found.faults[0].message


@pytest.mark.hostile(8)
def test_ten_thousand_operations_with_cycles_load_in_seconds_of_cpu_time() -> None:
    def schema(number: int) -> dict[str, Any]:
        links = [(number * 7 + offset) % 10_000 for offset in (1, 2, 3)]
        return {"type": "object", "properties": {f"p{n}": {"$ref": f"#/components/schemas/S{n}"} for n in links}}

    document = {
        "openapi": "3.0.0",
        "paths": {f"/p{n}": {"post": body({"$ref": f"#/components/schemas/S{n}"})} for n in range(10_000)},
        "components": {"schemas": {f"S{n}": schema(n) for n in range(10_000)}},
    }
    text = json.dumps(document).encode()
    began = time.process_time()
    built = build_api("a", entry(), text)
    used = time.process_time() - began
    assert used < 15, "usually 1 s"
    assert not built.tools, "each refers to all the others"
    assert "its schema has more than 60000 characters" in built.faults[0].message
    assert built.faults[-1].message == "9950 more operations are not available"
    assert len(built.faults) == 51


@pytest.mark.hostile(8)
def test_the_work_for_all_schemas_together_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framework.tools.openapi.document._MAX_WORK", 1_000)
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(90)}}
    document = {"openapi": "3.1.0", "paths": {f"/p{n}": {"post": body(schema)} for n in range(12)}}
    built = build(document)
    assert len(built.tools) == 10
    assert [fault.message.partition(": ")[2] for fault in built.faults] == [
        "the document's schemas are too large together"
    ] * 2


@pytest.mark.hostile(8)
def test_a_large_schema_costs_only_its_own_operation() -> None:
    large = {
        "type": "object",
        "properties": {f"p{n}": {"type": "string", "description": "x" * 200} for n in range(700)},
    }
    built = build({"openapi": "3.1.0", "paths": {"/big": {"post": body(large)}, "/small": {"get": {}}}})
    assert [tool.name for tool in built.tools] == ["a.GET_small"]
    assert "its schema has more than 60000 characters" in built.faults[0].message


def test_patterns_that_the_validator_does_not_know_are_left_to_the_server() -> None:
    schema = {"type": "string", "pattern": "^(?=.*[A-Z]).{8,}$", "maxLength": 9}
    built = build(paths(x={"parameters": [{"name": "p", "in": "query", "schema": schema}]}))
    assert built.faults == ()
    assert built.tools[0].definition.parameters["properties"]["p"] == {"type": "string", "maxLength": 9}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        value = {"type": "array", "items": value}
    return value


@pytest.mark.hostile(8)
def test_deep_schemas_and_documents_are_refused() -> None:
    found = read({"openapi": "3.1.0", "paths": {"/x": {"post": body(nested(40))}, "/y": {"get": {}}}})
    assert [operation.path for operation in found.found] == ["/y"]
    assert "nested too deep" in found.faults[0].message
    for text in ('{"openapi": ' + "[" * 100_000, "openapi: " + "[" * 100_000, "openapi: " + "{a: " * 100_000):
        with pytest.raises(ApiDocumentError, match="nested deeper than 100 levels"):
            read_api_document(text.encode())


@pytest.mark.hostile(8)
def test_aliases_of_yaml_do_not_multiply() -> None:
    levels = "\n".join(f"  l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 30))
    text = f"openapi: 3.0.0\nx-bomb:\n  l0: &l0 [x]\n{levels}\npaths:\n  /x:\n    get: {{}}\n"
    assert [operation.path for operation in read(text).found] == ["/x"]
    schema = "\n".join(
        f"  l{n}: &l{n} {{type: object, properties: {{a: *l{n - 1}, b: *l{n - 1}}}}}" for n in range(1, 29)
    )
    text = (
        f"openapi: 3.0.0\nx-bomb:\n  l0: &l0 {{type: string}}\n{schema}\npaths:\n  /x:\n    get:\n"
        "      parameters: [{name: q, in: query, schema: *l28}]\n"
    )
    found = read(text)
    assert "its schema has more than 10000 parts" in found.faults[0].message
    with pytest.raises(ApiDocumentError, match="inside the value that it names"):
        read("openapi: 3.0.0\npaths: &p {/x: *p}\n")


def test_yaml_is_read_as_yaml_1_2_with_text_keys_and_lines() -> None:
    text = """\
openapi: 3.0.0
paths:
  /switch:
    get:
      operationId: 'on'
      parameters:
        - {name: on, in: query, schema: {type: string, enum: [on, off, no, 2024-01-01, 0o7, 1e3]}}
      responses: {200: {description: ok}, 404: {description: no}}
  /bad:
    post:
      parameters: [nothing]
"""
    found = read(text)
    (operation,) = found.found
    assert operation.schema["properties"]["on"]["enum"] == ["on", "off", "no", "2024-01-01", "0o7", 1000.0]
    (fault,) = found.faults
    assert (fault.line, fault.message) == (10, "POST /bad is not available: expected an object: 'nothing'")


def test_schemas_of_one_name_in_two_places_are_two_definitions() -> None:
    fields = {name: {"$ref": f"#/{place}/Id"} for name, place in (("a", "components/schemas"), ("b", "definitions"))}
    places = {"components": {"schemas": {"Id": {"type": "string"}}}, "definitions": {"Id": {"type": "integer"}}}
    schema = one(paths(x={"requestBody": body({"properties": fields})["requestBody"]}) | places).schema
    kinds = [
        schema["$defs"][reference["$ref"].removeprefix("#/$defs/")]["type"]
        for reference in schema["properties"]["body"]["properties"].values()
    ]
    assert kinds == ["string", "integer"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('{\n "swagger": "1.2"}', 2, "the version of Swagger must be 2.0: '1.2'"),
        ("a: 1\nswagger: '2.0'\n", 1, "the document has no `paths`"),
        ("openapi: 4.0.0\npaths: {}\n", 1, "the version of OpenAPI must be 3.0 or 3.1: '4.0.0'"),
        ("openapi: 3.0.0\n", 1, "the document has no `paths`"),
        ("openapi: 3.0.0\npaths: [\n", 3, "not YAML"),
        ('{"openapi": "3.0.0",\n"paths": {,}}', 2, "not JSON"),
        ("- 1\n", 1, "not an object"),
        ("", 1, "not an object"),
        ("a: 1\n---\nb: 2\n", 2, "more than one YAML document"),
        ("? [a]\n: 1\n", 1, "a key that is not a text"),
    ],
)
def test_a_document_that_is_no_openapi_document_is_one_fault_with_its_line(text: str, line: int, message: str) -> None:
    built = build_api("a", entry(), text.encode())
    (fault,) = built.faults
    assert (built.tools, built.is_usable, fault.line) == ((), False, line)
    assert message in fault.message


def test_a_document_is_utf_8_of_a_limited_size() -> None:
    for mark in (b"", b"\xef\xbb\xbf"):
        (fault,) = build_api("a", entry(), mark + b"a: 1\nb: \xff").faults
        assert (fault.line, fault.message) == (2, "not UTF-8: byte 0xff")
    assert build_api("a", entry(), b"\xef\xbb\xbf" + json.dumps(paths(x={})).encode()).tools
    assert "the limit is" in build_api("a", entry(), b" " * (32 * 1024 * 1024 + 1)).faults[0].message


ODD: list[Any] = [None, 1, "x", [], {}, [1], {"a": 1}, True]


@each("key", ["parameters", "requestBody", "operationId", "summary", "description", "security"])
@each("value", ODD, ids=repr)
def test_any_value_of_a_key_is_an_operation_or_a_fault(key: str, value: Any) -> None:
    for document in (
        paths(x={key: value}, good={}),
        {"openapi": "3.0.0", "paths": {"/x": value, "/good": {"get": {}}}},
    ):
        built = build(document)
        assert any("GET_good" in tool.name for tool in built.tools)
    content = {"openapi": "3.0.0", "paths": {"/x": {"post": {"requestBody": {"content": value}}}}}
    media = {"openapi": "3.0.0", "paths": {"/x": {"post": {"requestBody": {"content": {"application/json": value}}}}}}
    for odd in (content, media, {"openapi": "3.0.0", "paths": {"/x": {"post": body(value)}}}):
        build(odd)
