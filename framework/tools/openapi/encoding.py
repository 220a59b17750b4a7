"""Encodes the arguments of a call as path, query and body of its request.

Lists and objects follow the styles of OpenAPI, which are those of RFC 6570 (URI templates), and percent-encode
everything outside the unreserved characters. Forms are encoded as browsers encode them.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from mimetypes import guess_extension
from typing import Any
from urllib.parse import quote, quote_plus

from framework.tools.openapi.operations import Operation, Parameter, RequestBody, media_kind, path_parameters
from framework.types.errors import ToolError

_RESERVED = ":/?@!$'()*,;"
"""Characters that `allowReserved` keeps. `&`, `=`, `#`, `+`, `[` and `]` would change the query."""
_LITERAL = "/:@!$&'()*+,;=?%~"
"""Characters that a path of the document has as they are."""
_NEVER_IN_PATHS = (".", "..")
_QUOTES = {'"': "%22", "\r": "%0D", "\n": "%0A"}


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
        return "&".join(_form_fields(body, value)).encode(), "application/x-www-form-urlencoded"
    if kind == "multipart":
        boundary = secrets.token_hex(16)
        return _multipart(body, value, boundary), f"multipart/form-data; boundary={boundary}"
    if kind == "text":
        content, media_type = _file_content(value, body.media_type)
        return content, media_type
    media_type = body.media_type if "*" not in body.media_type else "application/json"
    return _json_text(value).encode("utf-8", "replace"), media_type


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _text(value: Any) -> str:
    """Return a value as the text of a parameter."""
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
    prefix, separator = {"simple": ("", ","), "label": (".", "."), "matrix": (";", ";")}[one.style]
    name = f"{_escaped(one.name)}=" if one.style == "matrix" else ""
    if isinstance(value, Mapping) and one.explode:
        return prefix + separator.join(f"{_escaped(key)}={_escaped(item)}" for key, item in value.items())
    if isinstance(value, list) and one.explode:
        return prefix + separator.join(f"{name}{_escaped(item)}" for item in value)
    return prefix + name + ",".join(map(_escaped, _items(value)))


def _items(value: Any) -> list[Any]:
    """Return the items of a list, keys and values of an object in turn, or the value alone."""
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    return value if isinstance(value, list) else [value]


_DELIMITERS = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}


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
        delimiter = _DELIMITERS.get(one.style, ",")
        yield f"{name}={delimiter.join(_escaped(item, safe) for item in _items(value))}"


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


def _form_fields(body: RequestBody, value: Mapping[str, Any]) -> Iterator[str]:
    for name, item in value.items():
        encoding = body.encodings.get(name, {})
        if item is None:
            continue
        for key, part in _form_pairs(name, item, encoding):
            yield f"{quote_plus(key)}={quote_plus(_text(part), errors='replace')}"


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
    delimiter = {"spaceDelimited": " ", "pipeDelimited": "|"}.get(style, ",")
    return [(name, delimiter.join(map(_text, _items(item))))]


def _multipart(body: RequestBody, value: Mapping[str, Any], boundary: str) -> bytes:
    parts: list[bytes] = []
    for name, item in value.items():
        for part in item if isinstance(item, list) else [item]:
            if part is not None:
                head, content = _part(name, part, body)
                parts += [f"--{boundary}\r\n{head}\r\n\r\n".encode(), content, b"\r\n"]
    return b"".join([*parts, f"--{boundary}--\r\n".encode()])


def _part(name: str, value: Any, body: RequestBody) -> tuple[str, bytes]:
    """Return the headers and the content of one part."""
    quoted = "".join(_QUOTES.get(char, char) for char in name).encode("utf-8", "replace").decode()
    head = f'Content-Disposition: form-data; name="{quoted}"'
    declared = body.encodings.get(name, {}).get("contentType", "").partition(",")[0].strip()
    declared = "" if "*" in declared or "\r" in declared or "\n" in declared else declared
    if body.fields.get(name) == "file":
        content, media_type = _file_content(value, declared or "application/octet-stream")
        extension = guess_extension(media_type) or ""
        return f'{head}; filename="{quoted}{extension}"\r\nContent-Type: {media_type}', content
    media_type = declared or ("application/json" if isinstance(value, Mapping | list) else "")
    return head + (f"\r\nContent-Type: {media_type}" if media_type else ""), _text(value).encode("utf-8", "replace")


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
