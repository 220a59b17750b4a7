"""The operations of an OpenAPI document, and their calls as requests."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import blake2b
from mimetypes import guess_extension
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import quote, urlencode

from framework.tools.openapi.document import (
    MAX_DESCRIPTION_LENGTH,
    MAX_SCHEMA_DEPTH,
    ApiDocument,
    ApiDocumentError,
    SchemaCopies,
    as_mapping,
    as_sequence,
    declared_parameters,
)
from framework.tools.openapi.swagger import converted_operation
from framework.types.errors import ToolError
from framework.types.http import Method
from framework.types.messages import WIRE_NAME_LENGTH
from framework.types.text import shorten
from framework.types.tool_servers import OpenApi

MAX_OPERATIONS = 10_000
"""Maximum number of operations of one document that become tools."""
_METHODS: tuple[Method, ...] = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

MAX_FAULTS = 50
"""Maximum number of faults of one document that are reported."""

Place = Literal["path", "query", "header", "cookie"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a request that the model provides."""

    argument: str
    """Name of the tool's argument."""
    name: str
    """Name in the request."""
    place: Place
    style: str
    """Style of lists and objects: form, spaceDelimited, tabDelimited, pipeDelimited, deepObject, simple, label or
    matrix."""
    explode: bool
    is_json: bool = False
    """Whether the value is sent as JSON text."""
    keeps_reserved: bool = False
    """Whether `:`, `/`, `?`, `@` and the like are sent as they are."""


@dataclass(frozen=True, slots=True)
class RequestBody:
    """The body of a request."""

    arguments: Mapping[str, str]
    """The property of the body for each argument; empty if the argument `argument` is the whole body."""
    argument: str
    media_type: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """For a form, the schema of each field without references, as far as its encoding depends on it."""
    encodings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For a form, how fields are encoded, by name."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of an API."""

    name: str
    """Name of its tool, without that of the API."""
    id: str
    """Its operation id, or else method and path."""
    method: Method
    path: str
    """Path below the base URL, with parameters in braces."""
    description: str
    schema: Mapping[str, Any]
    """JSON Schema of the arguments."""
    parameters: tuple[Parameter, ...]
    body: RequestBody | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers with the only value that the document allows."""
    idempotency_header: str | None = None
    """Header for the idempotency key, if the document names one."""

    @property
    def request(self) -> str:
        """Method and path."""
        return f"{self.method} {self.path}"

    @property
    def wire(self) -> str:
        """How calls are sent, as text: a change of it is a change of the tool."""
        body = self.body and (
            self.body.media_type,
            self.body.argument,
            *map(dict, (self.body.arguments, self.body.fields)),
        )
        encodings = dict(self.body.encodings) if self.body else {}
        sent = [(p.argument, p.name, p.place, p.style, p.explode, p.is_json, p.keeps_reserved) for p in self.parameters]
        return json.dumps([self.request, sent, body, encodings, dict(self.headers), self.idempotency_header])


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an operation, or a whole document, is not usable."""

    message: str
    line: int | None = None
    """Line of the document."""


class Operations(NamedTuple):
    """The chosen operations of a document."""

    found: tuple[Operation, ...] = ()
    faults: tuple[Fault, ...] = ()
    paths: tuple[tuple[str, str], ...] = ()
    """Method and path of every operation of the document, chosen or not."""


def read_operations(document: ApiDocument, api_name: str, api: OpenApi) -> Operations:
    """Read the operations that an API's entry chooses. An invalid one is a fault; the others are not affected.

    Raises:
        ApiDocumentError: the document as a whole is not usable.
    """
    _require_version(document)
    reader = _Reader(document, api_name, api)
    for path, item in as_mapping(document.data.get("paths")).items():
        if not path.startswith("x-"):  # an extension
            reader.read_path(path, item)
    return reader.result()


def _require_version(document: ApiDocument) -> None:
    key = "swagger" if "swagger" in document.data else "openapi"
    version = str(document.data.get(key, "missing"))
    if not version.startswith(("2.0",) if key == "swagger" else ("3.0", "3.1", "3.2")):
        known = "Swagger must be 2.0" if key == "swagger" else "OpenAPI must be 3.0 or 3.1"
        line = document.line_of(key) or 1
        raise ApiDocumentError(f"the version of {known}: {shorten(version, 20)!r}", line)
    if not isinstance(document.data.get("paths"), Mapping):
        raise ApiDocumentError("the document has no `paths`", document.line_of("paths") or 1)


class _Reader:
    def __init__(self, document: ApiDocument, api_name: str, api: OpenApi) -> None:
        self._document, self._api = document, api
        self._max_name = WIRE_NAME_LENGTH - len(api_name) - 2
        self._schemas = SchemaCopies(document)
        self._found: dict[str, Operation] = {}
        self._faults: list[Fault] = []
        self._paths: list[tuple[str, str]] = []
        self._unmatched = dict.fromkeys(
            [*api.operations, *api.names, *(api.risk if isinstance(api.risk, dict) else ())]
        )
        self._unmatched.update(dict.fromkeys(api.idempotent))
        self._secret_names = _security_parameters(document)

    def result(self) -> Operations:
        unmatched = [Fault(f"no operation matches {glob!r}") for glob in self._unmatched if glob != "*"]
        return Operations(tuple(self._found.values()), (*self._faults, *unmatched), tuple(self._paths))

    def read_path(self, path: str, item: Any) -> None:
        try:
            item = self._document.followed(item)
        except ApiDocumentError as error:
            self._fault(f"{path}: {error.message}", path)
            return
        for method in _METHODS:
            if (operation := item.get(method.lower())) is not None:
                self._paths.append((method, path))
                self._read(method, path, item, operation)

    def _read(self, method: Method, path: str, item: Mapping[str, Any], operation: Any) -> None:
        request = f"{method} {path}"
        own_id = as_mapping(operation).get("operationId")
        identity = own_id if isinstance(own_id, str) and own_id else request
        name = self._name(identity, request)
        if not self._is_chosen((identity, name, request), as_mapping(operation)):
            return
        try:
            if name in self._found:
                first = self._found[name].request
                raise ApiDocumentError(f"its tool would be named {name}, as that of {first}: name it with `names`")
            if len(self._found) >= MAX_OPERATIONS:
                raise ApiDocumentError(f"more than {MAX_OPERATIONS} operations: choose some with `operations`")
            if not isinstance(operation, Mapping):
                raise ApiDocumentError("expected an object")
            if "swagger" in self._document.data:
                item, operation = {}, converted_operation(self._document, item, operation)
            self._found[name] = self._operation(name, identity, method, path, item, operation)
        except ApiDocumentError as error:
            self._fault(f"{shorten(request, 200)} is not available: {error.message}", path, method)
        except RecursionError:
            self._fault(f"{shorten(request, 200)} is not available: its schema is nested too deep", path, method)

    def _fault(self, message: str, path: str, method: str = "") -> None:
        keys = ("paths", path, *([method.lower()] if method else []))
        is_shown = len(self._faults) < MAX_FAULTS  # the line of a key is searched in the text
        self._faults.append(Fault(message, self._document.line_of(*keys) if is_shown else None))

    def _is_chosen(self, names: tuple[str, ...], operation: Mapping[str, Any]) -> bool:
        for glob in [glob for glob in self._unmatched if matches(glob, names)]:
            del self._unmatched[glob]
        if operation.get("deprecated") is True and not (self._api.deprecated or set(names) & {*self._api.operations}):
            return False
        return any(matches(glob, names) for glob in self._api.operations)

    def _name(self, identity: str, request: str) -> str:
        given = self._api.names.get(identity) or self._api.names.get(request)
        plain = given or re.sub(r"[^A-Za-z0-9_]+", "_", identity).strip("_") or "operation"
        if len(plain) <= self._max_name:
            return plain
        return f"{plain[: self._max_name - 9]}_{blake2b(plain.encode(), digest_size=4).hexdigest()}"

    def _operation(
        self, name: str, identity: str, method: Method, path: str, item: Mapping[str, Any], operation: Mapping[str, Any]
    ) -> Operation:
        arguments = _Arguments()
        headers: dict[str, str] = {}
        idempotency = None
        for parameter in self._declared(path, item, operation):
            place, own_name = parameter["in"], parameter["name"]
            if place in ("path", "query"):
                if place == "path" or own_name not in self._secret_names["query"] | self._api.query.keys():
                    arguments.add(parameter, self._schema_of(parameter))
            elif place == "header" and own_name.lower() == "idempotency-key":
                idempotency = own_name
            elif (fixed := self._fixed(parameter)) is not None:
                headers[own_name] = fixed
        self._add_body(arguments, operation)
        schema = {"type": "object", "properties": arguments.properties}
        if arguments.required:
            schema["required"] = arguments.required
        return Operation(
            name,
            identity,
            method,
            path,
            _description(method, path, operation),
            self._schemas.copied(schema),
            tuple(arguments.parameters),
            arguments.body,
            headers,
            idempotency,
        )

    def _declared(self, path: str, item: Mapping[str, Any], operation: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the parameters of an operation; those of the path that are not declared are texts."""
        found = declared_parameters(self._document, item, operation, ("path", "query", "header", "cookie"))
        in_path = dict.fromkeys(path_parameters(path))
        missing = [
            {"name": name, "in": "path", "schema": {"type": "string"}}
            for name in in_path
            if ("path", name) not in found
        ]
        return [one for one in found.values() if one["in"] != "path" or one["name"] in in_path] + missing

    def _schema_of(self, parameter: Mapping[str, Any]) -> Mapping[str, Any]:
        content = next(iter(as_mapping(parameter.get("content")).values()), None)
        schema = as_mapping(as_mapping(content).get("schema") if content is not None else parameter.get("schema"))
        about = parameter.get("description")
        if not isinstance(about, str) or not about:
            return schema
        if "$ref" in schema:
            return {"allOf": [schema], "description": about}
        return {**schema, "description": about}

    def _fixed(self, parameter: Mapping[str, Any]) -> str | None:
        """Return the only value that a required header may have; None if it needs none.

        Raises:
            ApiDocumentError: the operator must set it.
        """
        name, place = parameter["name"], parameter["in"]
        given = {key.lower() for key in self._api.headers} if place == "header" else {*self._api.cookies}
        known = name.lower() if place == "header" else name
        if parameter.get("required") is not True or known in given or name in self._secret_names[place]:
            return None
        if place == "header" and known in ("accept", "content-type", "authorization"):
            return None
        schema = self._document.followed(parameter.get("schema") or {})
        choices = as_sequence(schema.get("enum"))
        value = schema.get("default", choices[0] if len(choices) == 1 else schema.get("const"))
        if place == "header" and isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
        raise ApiDocumentError(f"it needs the {place} {name}: set it with `{place}s` in the entry of the API")

    def _add_body(self, arguments: _Arguments, operation: Mapping[str, Any]) -> None:
        if operation.get("requestBody") is None:
            return
        body = self._document.followed(operation["requestBody"])
        content = as_mapping(body.get("content"))
        if not content:
            return
        chosen = choose_media_type(content)
        if chosen is None:
            raise ApiDocumentError(f"its body has no supported type: {shorten(', '.join(map(str, content)), 200)}")
        media = as_mapping(content[chosen])
        schema, kind = as_mapping(media.get("schema")), media_kind(chosen)
        fields: dict[str, Any] = {}
        encodings: Mapping[str, Any] = {}
        if kind in ("form", "multipart"):
            fields = self._field_kinds(schema)
            entries = as_mapping(media.get("encoding")).items()
            has_styles = kind == "form" or not str(self._document.data.get("openapi")).startswith("3.0")
            encodings = {name: _encoding(entry, has_styles) for name, entry in entries}
        elif kind == "text":
            schema = {"type": "string", "description": f"the body, {chosen}"}
        is_required = body.get("required") is True
        arguments.add_body(schema, is_required, RequestBody({}, "", chosen, fields, encodings), body.get("description"))

    def _field_kinds(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the encoding of a form depends on: for each property, `file`, `json` or `text`."""
        kinds: dict[str, Any] = {}
        pending, count = [schema], 0
        while pending and count < MAX_SCHEMA_DEPTH:
            node = self._document.followed(pending.pop())
            count += 1
            pending += [part for key in ("allOf", "anyOf", "oneOf") for part in as_sequence(node.get(key))]
            for name, entry in as_mapping(node.get("properties")).items():
                kinds.setdefault(name, self._kind(entry))
        return kinds

    def _kind(self, entry: Any) -> str:
        node = self._document.followed(entry) if isinstance(entry, Mapping) else {}
        if node.get("type") == "array" and isinstance(node.get("items"), Mapping):
            node = self._document.followed(node["items"])
        is_file = node.get("format") == "binary" or node.get("contentMediaType") == "application/octet-stream"
        return "file" if is_file else "text"


def matches(glob: str, names: Iterable[str]) -> bool:
    """Return whether a glob of an API's entry matches one of an operation's names."""
    return any(fnmatchcase(name, glob) for name in names)


def path_parameters(path: str) -> list[str]:
    """Return the names in braces of a path."""
    return re.findall(r"\{([^{}/]+)\}", path)


def media_kind(media_type: str) -> Literal["json", "form", "multipart", "text"] | None:
    """Return how a body of a media type is encoded; None if it is not supported."""
    plain = media_type.partition(";")[0].strip().lower()
    if plain == "application/json" or plain.endswith("+json") or plain in ("*/*", "application/*"):
        return "json"
    if plain == "application/x-www-form-urlencoded":
        return "form"
    if plain == "multipart/form-data":
        return "multipart"
    return "text" if plain == "application/octet-stream" or plain.startswith("text/") else None


def choose_media_type(content: Mapping[str, Any]) -> str | None:
    """Return the media type of a body to use: JSON if possible, then a form."""
    kinds = {kind: name for name in reversed(list(content)) if (kind := media_kind(name))}
    if "application/json" in content:
        return "application/json"
    return next((kinds[kind] for kind in ("json", "form", "multipart", "text") if kind in kinds), None)


def _encoding(entry: Any, has_styles: bool) -> dict[str, Any]:
    """Return how a field is encoded. In multipart forms, OpenAPI 3.0 ignores styles."""
    known = as_mapping(entry) if has_styles else {"contentType": as_mapping(entry).get("contentType")}
    kept = {key: known[key] for key in ("style", "contentType") if isinstance(known.get(key), str)}
    return kept | {key: known[key] for key in ("explode", "allowReserved") if isinstance(known.get(key), bool)}


def _security_parameters(document: ApiDocument) -> dict[str, set[str]]:
    """Return the names of the parameters that contain API keys, by place."""
    found: dict[str, set[str]] = {"query": set(), "header": set(), "cookie": set()}
    schemes = as_mapping(document.data.get("components")).get("securitySchemes")
    for scheme in as_mapping(schemes or document.data.get("securityDefinitions")).values():
        known = as_mapping(scheme)
        if known.get("type") == "apiKey" and known.get("in") in found and isinstance(known.get("name"), str):
            found[known["in"]].add(known["name"])
    return found


def _description(method: str, path: str, operation: Mapping[str, Any]) -> str:
    """Return the description for the model: what the operation does, its method and path, and more about it."""
    summary, more = operation.get("summary"), operation.get("description")
    texts = [
        shorten(text.strip(), MAX_DESCRIPTION_LENGTH)
        for text in (summary, more)
        if isinstance(text, str) and text.strip()
    ]
    first, rest = texts[:1] or [path], texts[1:] if len(texts) > 1 and texts[1] != texts[0] else []
    return "\n\n".join([*first, f"{method} {path}", *rest])


class _Arguments:
    """The arguments of a tool, collected from the parameters and the body of an operation."""

    def __init__(self) -> None:
        self.properties: dict[str, Any] = {}
        self.required: list[str] = []
        self.parameters: list[Parameter] = []
        self.body: RequestBody | None = None

    def add(self, parameter: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
        """Add a parameter of the path or the query."""
        place, name = cast("Place", parameter["in"]), parameter["name"]
        argument = self._free(name, place)
        style = parameter.get("style")
        style = style if isinstance(style, str) else "simple" if place == "path" else "form"
        if style not in _STYLES[place]:
            raise ApiDocumentError(f"the parameter {shorten(name, 80)!r} has the unknown style {shorten(style, 40)!r}")
        explode = parameter.get("explode")
        explode = explode if isinstance(explode, bool) else style in ("form", "deepObject")
        is_json = bool(as_mapping(parameter.get("content")))
        keeps = parameter.get("allowReserved") is True
        self.parameters.append(Parameter(argument, name, place, style, explode, is_json, keeps))
        self.properties[argument] = schema
        if place == "path" or parameter.get("required") is True:
            self.required.append(argument)

    def add_body(self, schema: Mapping[str, Any], is_required: bool, body: RequestBody, about: object) -> None:
        """Add the body as one argument."""
        argument = self._free("body", "request")
        described = isinstance(about, str) and about and "description" not in schema and "$ref" not in schema
        self.properties[argument] = {**schema, "description": about} if described else schema
        self.body = RequestBody(body.arguments, argument, body.media_type, body.fields, body.encodings)
        if is_required:
            self.required.append(argument)

    def _free(self, name: str, prefix: str) -> str:
        argument = name
        while argument in self.properties:
            argument = f"{prefix}_{argument}"
        return argument


_DELIMITERS = {"spaceDelimited": " ", "tabDelimited": "\t", "pipeDelimited": "|"}
_STYLES: Mapping[str, tuple[str, ...]] = {
    "path": ("simple", "label", "matrix", *_DELIMITERS),
    "query": ("form", "deepObject", *_DELIMITERS),
}


# Lists and objects follow the styles of OpenAPI, which are those of RFC 6570 (URI templates), and percent-encode
# everything outside the unreserved characters. Forms are encoded as browsers encode them.


_RESERVED = ":/?@!$'()*,;"
"""Characters that `allowReserved` keeps. `&`, `=`, `#`, `+`, `[` and `]` would change the query."""
_LITERAL = "/:@!$&'()*+,;=?%~"
"""Characters that a path of the document has as they are."""
_NEVER_IN_PATHS = (".", "..")
_NO_PARTS = "no-parts"
"""Boundary of a multipart form without fields."""


def encode_path(operation: Operation, arguments: Mapping[str, Any]) -> str:
    """Return the path of a call, with its fixed query; raise ToolError for values that a path cannot contain."""
    values = {one.name: one for one in operation.parameters if one.place == "path"}
    rest, mark, fixed = operation.path.partition("#")[0].partition("?")
    pieces = []
    for name in path_parameters(rest):
        before, _, rest = rest.partition(f"{{{name}}}")
        one = values[name]
        pieces += [quote(before, safe=_LITERAL), _in_path(one, arguments.get(one.argument))]
    return "".join([*pieces, quote(rest, safe=_LITERAL), mark, quote(fixed, safe=_LITERAL)])


def encode_query(operation: Operation, arguments: Mapping[str, Any]) -> str:
    """Return the query of a call, without `?`. Arguments that are missing or null are left out."""
    parts: list[str] = []
    for one in operation.parameters:
        if one.place == "query" and (value := arguments.get(one.argument)) is not None:
            parts += _in_query(one, value)
    return "&".join(parts)


def encode_body(body: RequestBody | None, arguments: Mapping[str, Any]) -> tuple[bytes | None, str]:
    """Return the body of a call and its content type; None without a body. Raise ToolError for an invalid file."""
    if body is None:
        return None, ""
    kind, value = media_kind(body.media_type), arguments.get(body.argument)
    if body.arguments:
        value = {key: arguments[name] for name, key in body.arguments.items() if name in arguments}
    elif value is None:
        return None, ""
    if kind in ("form", "multipart") and not isinstance(value, dict):
        raise ToolError(f"{body.argument}: an object is required")
    if kind == "form":
        pairs = _form_fields(body, value)
        return urlencode([*pairs], errors="replace").encode(), "application/x-www-form-urlencoded"
    if kind == "multipart":
        return _multipart(body, value)
    if kind == "text":
        content, media_type = _file_content(value, body.media_type)
        return content, media_type
    media_type = body.media_type if "*" not in body.media_type else "application/json"
    return _json_text(value).encode("utf-8", "replace"), media_type


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else _json_text(value)


def _escaped(value: Any, safe: str = "") -> str:
    return quote(_text(value), safe=safe, errors="replace")


def _in_path(one: Parameter, value: Any) -> str:
    if value is None or value in ("", [], {}) or value in _NEVER_IN_PATHS:
        raise ToolError(f"{one.argument}: a value for the path must not be empty, '.' or '..'")
    if one.is_json:
        return _escaped(_json_text(value))
    prefix, separator = {"label": (".", "."), "matrix": (";", ";")}.get(one.style, ("", ","))
    name = f"{_escaped(one.name)}=" if one.style == "matrix" else ""
    if isinstance(value, Mapping) and one.explode:
        return prefix + separator.join(f"{_escaped(key)}={_escaped(item)}" for key, item in value.items())
    if isinstance(value, list) and one.explode:
        return prefix + separator.join(f"{name}{_escaped(item)}" for item in value)
    return prefix + name + _delimiter(one).join(map(_escaped, _items(value)))


def _delimiter(one: Parameter) -> str:
    return quote(_DELIMITERS.get(one.style, ","), safe=",")


def _items(value: Any) -> list[Any]:
    """Return the items of a list, keys and values of an object in turn, or the value alone."""
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    return value if isinstance(value, list) else [value]


def _in_query(one: Parameter, value: Any) -> Iterator[str]:
    safe = _RESERVED if one.keeps_reserved else ""
    name = _escaped(one.name)
    if one.is_json:
        yield f"{name}={_escaped(_json_text(value), safe)}"
    elif one.style == "deepObject" and isinstance(value, Mapping):
        for key, item in _nested(value):
            yield f"{_escaped(one.name + key)}={_escaped(item, safe)}"
    elif isinstance(value, Mapping) and one.explode:
        yield from (f"{_escaped(key)}={_escaped(item, safe)}" for key, item in value.items() if item is not None)
    elif isinstance(value, list) and one.explode:
        yield from (f"{name}={_escaped(item, safe)}" for item in value)
    elif value not in ([], {}):
        yield f"{name}={_delimiter(one).join(_escaped(item, safe) for item in _items(value))}"


def _nested(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield `[key]` and value of an object's properties: `[a][b]` for nested ones, `[0]` for objects in lists."""
    for key, item in value.items():
        name = f"{prefix}[{key}]"
        if isinstance(item, Mapping):
            yield from _nested(item, name)
        elif isinstance(item, list) and any(isinstance(part, Mapping) for part in item):
            yield from _nested({str(index): part for index, part in enumerate(item)}, name)
        elif isinstance(item, list):
            yield from ((name, part) for part in item)
        elif item is not None:
            yield name, item


def _form_fields(body: RequestBody, value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, item in value.items():
        if item is not None:
            yield from ((key, _text(part)) for key, part in _form_pairs(name, item, body.encodings.get(name, {})))


def _form_pairs(name: str, item: Any, encoding: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Return the fields of one property: lists are repeated, objects are JSON unless a style is declared."""
    style = encoding.get("style")
    if style == "deepObject" and isinstance(item, Mapping | list):
        fields = item if isinstance(item, Mapping) else {str(index): part for index, part in enumerate(item)}
        return [(name + key, part) for key, part in _nested(fields)]
    if style is None or (isinstance(item, list) and encoding.get("explode", style == "form")):
        return [(name, part) for part in (item if isinstance(item, list) else [item])]
    if isinstance(item, Mapping) and encoding.get("explode", style == "form"):
        return list(item.items())
    return [(name, _DELIMITERS.get(style, ",").join(map(_text, _items(item))))]


def _multipart(body: RequestBody, value: Mapping[str, Any]) -> tuple[bytes, str]:
    import httpx2

    def pairs(name: str, item: Any) -> Iterable[tuple[str, Any]]:
        is_file = body.fields.get(name) == "file"  # no text that could be joined
        return _form_pairs(name, item, {} if is_file else body.encodings.get(name, {}))

    given = [pair for name, item in value.items() if item not in (None, []) for pair in pairs(name, item)]
    parts = [_part(name, part, body) for name, part in given if part is not None]
    if not parts:  # httpx2 sends nothing then, and names no boundary, without which servers cannot read the form
        return f"--{_NO_PARTS}--\r\n".encode(), f"multipart/form-data; boundary={_NO_PARTS}"
    request = httpx2.Request("POST", "http://localhost", files=parts)
    return request.read(), request.headers["content-type"]


def _part(name: str, value: Any, body: RequestBody) -> tuple[str, tuple[str | None, bytes, str | None]]:
    plain = name.encode("utf-8", "replace").decode()
    declared = body.encodings.get(name, {}).get("contentType", "").partition(",")[0].strip()
    declared = "" if "*" in declared or "\r" in declared or "\n" in declared else declared
    if body.fields.get(name) == "file":
        content, media_type = _file_content(value, declared or "application/octet-stream")
        return plain, (f"{plain}{guess_extension(media_type) or ''}", content, media_type)
    media_type = declared or ("application/json" if isinstance(value, Mapping | list) else "")
    return plain, (None, _text(value).encode("utf-8", "replace"), media_type or None)


def _file_content(value: Any, media_type: str) -> tuple[bytes, str]:
    """Return the bytes of a file, given as text or as a data URL, and their type."""
    text = _text(value)
    head, comma, data = text.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64") and len(head) < _MAX_DATA_HEAD):
        return text.encode("utf-8", "replace"), media_type
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ToolError("the data: URL is not valid base64") from None
    given = head.removeprefix("data:").removesuffix(";base64").partition(";")[0]
    is_type = given.isascii() and given.isprintable() and given.count("/") == 1 and " " not in given
    return content, given if is_type else media_type


_MAX_DATA_HEAD = 200
