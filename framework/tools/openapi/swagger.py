"""Operations of Swagger 2.0 documents, in the form that OpenAPI 3 has for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from framework.tools.openapi.document import (
    ApiDocument,
    ApiDocumentError,
    as_mapping,
    as_sequence,
    declared_parameters,
)
from framework.types.text import shorten

_FORM, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
_PLACES = ("path", "query", "header", "formData", "body")
_TYPES = ("string", "number", "integer", "boolean", "array", "file")
_STYLES: Mapping[str, tuple[str, bool]] = {
    "csv": ("form", False),
    "ssv": ("spaceDelimited", False),
    "tsv": ("tabDelimited", False),
    "pipes": ("pipeDelimited", False),
    "multi": ("form", True),
}
"""Style and `explode` for each `collectionFormat`. OpenAPI 3 has none for `tsv`; the encoder knows it."""


def converted_operation(
    document: ApiDocument, item: Mapping[str, Any], operation: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return an operation of a Swagger document, with the parameters of its path, as one of OpenAPI 3.

    References in schemas are kept: those to `definitions` stay valid in the document.

    Raises:
        ApiDocumentError: a parameter is invalid, or the operation has more than one body.
    """
    declared = [*declared_parameters(document, item, operation, _PLACES).values()]
    bodies = [one for one in declared if one["in"] == "body"]
    fields = [one for one in declared if one["in"] == "formData"]
    if len(bodies) > 1:
        raise ApiDocumentError("two parameters are its body")
    if bodies and fields:
        raise ApiDocumentError("it has a body and form fields")
    parameters = [_parameter(one) for one in declared if one["in"] in ("path", "query", "header")]
    kept = {key: value for key, value in operation.items() if key != "requestBody"} | {"parameters": parameters}
    consumes = as_sequence(operation.get("consumes", document.data.get("consumes")))
    media_types = [one for one in consumes if isinstance(one, str)]
    if bodies:
        kept["requestBody"] = _body(bodies[0], media_types)
    elif fields:
        kept["requestBody"] = _form(fields, media_types)
    return kept


def _parameter(declared: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: declared[key] for key in ("name", "in", "required") if key in declared}
    return {**kept, "schema": _schema(declared), **_style(declared)}


def _schema(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter, whose keywords are beside its name."""
    kind, place = declared.get("type"), declared["in"]
    if kind not in _TYPES or (kind == "file" and place != "formData"):
        raise ApiDocumentError(f"the parameter {_name_of(declared)} has no valid `type`")
    if as_mapping(declared.get("items")).get("type") == "array":
        raise ApiDocumentError(f"the parameter {_name_of(declared)} is a list of lists")
    schema = {key: value for key, value in declared.items() if key not in ("name", "in", "required")}
    return schema | {"type": "string", "format": "binary"} if kind == "file" else schema


def _style(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a list is sent; nothing for other values."""
    if declared.get("type") != "array":
        return {}
    style, explode = _STYLES.get(str(declared.get("collectionFormat", "csv")), ("", False))
    if declared["in"] in ("path", "header"):
        style = {"form": "simple"}.get(style, style) if not explode else ""
    if not style:
        raise ApiDocumentError(f"the parameter {_name_of(declared)} has no valid `collectionFormat`")
    return {"style": style, "explode": explode}


def _name_of(declared: Mapping[str, Any]) -> str:
    return repr(shorten(declared["name"], 80))


def _body(declared: Mapping[str, Any], media_types: list[str]) -> dict[str, Any]:
    content = {name: {"schema": declared.get("schema")} for name in media_types or ["application/json"]}
    return {"required": declared.get("required"), "description": declared.get("description"), "content": content}


def _form(fields: Sequence[Mapping[str, Any]], media_types: list[str]) -> dict[str, Any]:
    """Return the body that consists of form fields: multipart if one is a file, or if no other form is accepted."""
    has_file = any(one.get("type") == "file" for one in fields)
    is_multipart = has_file or (_MULTIPART in media_types and _FORM not in media_types)
    required = [one["name"] for one in fields if one.get("required") is True]
    properties = {one["name"]: _schema(one) for one in fields}
    media = {
        "schema": {"type": "object", "properties": properties, "required": required},
        "encoding": {one["name"]: style for one in fields if (style := _style(one))},
    }
    return {"required": bool(required), "content": {_MULTIPART if is_multipart else _FORM: media}}
