"""A caller's request as the store contains it until its run begins: the options are JSON data."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any, cast

from pydantic import BaseModel
from pydantic.errors import PydanticUserError

from framework.engine.runtime.request import RunOptions
from framework.engine.runtime.type_check import require_type
from framework.engine.runtime.user_input import UserInput, input_of_stored
from framework.types.errors import RequestError
from framework.types.messages import Message, is_unicode
from framework.types.run_request import MAX_PRIORITY, QUEUE_NAME, QueuePlace, RunRequest
from framework.types.strict_json import MAX_JSON_DEPTH

_FIELDS = ("conversation", "user", "tenant")
"""Options that are fields of a request."""


def check_place(place: QueuePlace) -> None:
    """Check where a caller wants a request to wait; raises RequestError."""
    priority, queue_name = place.priority, place.queue_name
    require_type("priority", priority, int)
    if isinstance(priority, bool) or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        expected = f"expected a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}"
        raise RequestError(f"priority: {expected}, got {priority!r}", param="priority")
    if queue_name is None:
        return
    require_type("queue_name", queue_name, str)
    if not re.fullmatch(QUEUE_NAME, queue_name):
        expected = "expected 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit"
        raise RequestError(f"queue_name: {expected}, got {queue_name!r}", param="queue_name")


async def stored_options(options: RunOptions) -> dict[str, Any]:
    """Return the options of a request as JSON data, except those that are fields of the request.

    `output_type` becomes `output_schema`. Raises RequestError if an option cannot be stored.
    """
    if options.get("history"):  # may be large
        return await asyncio.to_thread(_as_json, options)
    return _as_json(options)


def read_request(request: RunRequest) -> tuple[UserInput, RunOptions]:
    """Return the message and the options of a stored request."""
    fields = {"conversation": request.conversation_id, "user": request.user, "tenant": request.tenant}
    given = {name: value for name, value in fields.items() if value is not None}
    return input_of_stored(request.message), cast(RunOptions, {**request.options, **given})


def _as_json(options: RunOptions) -> dict[str, Any]:
    given: dict[str, Any] = {name: value for name, value in options.items() if name not in _FIELDS}
    output_type: type[BaseModel] | None = given.pop("output_type", None)
    if output_type is not None:
        given["output_schema"] = _schema(output_type)
    return {name: _json_data(value, name) for name, value in given.items()}


def _schema(output_type: type[BaseModel]) -> dict[str, Any]:
    try:
        return output_type.model_json_schema()
    except PydanticUserError as error:
        raise RequestError(f"output_type: {output_type.__name__} has no JSON Schema: {error.message}") from None


def _json_data(value: object, place: str, depth: int = 1) -> Any:
    """Return a value as JSON data; raises RequestError, which names the place of what JSON cannot express."""
    if depth > MAX_JSON_DEPTH:
        raise RequestError(f"{place.partition('.')[0]} nests deeper than {MAX_JSON_DEPTH} levels")
    match value:
        case None | bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case str() if is_unicode(value):
            return value
        case str():
            raise RequestError(f"{place} is not valid Unicode text: it contains an unpaired surrogate")
        case Message():
            return value.model_dump(mode="json")
        case Mapping():
            return {_key(key, place): _json_data(item, f"{place}.{key}", depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [_json_data(item, f"{place}.{number}", depth + 1) for number, item in enumerate(value)]
        case PathLike() if isinstance(path := fspath(value), str):
            return path
    what = value if isinstance(value, float) else type(value).__name__
    raise RequestError(f"{place} cannot be stored: {what}; pass JSON data: texts, numbers, booleans, lists, objects")


def _key(key: object, place: str) -> str:
    if not (isinstance(key, str) and is_unicode(key)):
        raise RequestError(f"{place} cannot be stored: its keys must be texts, not {type(key).__name__}")
    return key
