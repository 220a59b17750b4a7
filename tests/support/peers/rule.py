"""What a peer is: rules that refuse a request as the provider does, and the form of its errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Body = dict[str, Any]
_MODEL_IN_PATH = re.compile(r"/models?/([^/:]+)")


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as the provider receives it."""

    path: str
    body: Body

    @property
    def model(self) -> str:
        """The model's name, which some APIs have in the path."""
        in_path = _MODEL_IN_PATH.search(self.path)
        return str(self.body.get("model") or (in_path[1] if in_path else ""))

    @property
    def messages(self) -> list[Body]:
        """The messages of chat completions and of Anthropic's API."""
        return list(self.body.get("messages") or ())


class Refused(Exception):  # a decision of the peer, not a failure of it
    """A request is refused: the provider's words, and what its error says besides them."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code


Rule = Callable[[Sent], None]
"""Returns if the provider accepts the request, raises Refused if it does not."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A provider that refuses what the real one refuses."""

    name: str
    model: str
    """`provider/model` of an alias for it."""
    rules: tuple[Rule, ...]
    error: Callable[[Refused], Any]
    """Returns the JSON of an error response."""
    api: str = "openai"
    """The format of its answers, an id of `tests/support/formats.py`."""
    spoken: Callable[[Body], Body] = dict
    """Returns a scripted message with what the provider adds to its own: ids of its form, and what must come back."""

    capabilities: str = ""
    """What is known of it by its host, in YAML, for a server that stands at another one."""

    @property
    def chosen_api(self) -> Literal["responses"] | None:
        """What to set as `api` at an alias of OpenAI's format."""
        return "responses" if self.api == "responses" else None

    def refusal(self, path: str, body: Body) -> tuple[int, bytes, str] | None:
        """Return the status, body and words of the error response to a request; None if it is accepted."""
        sent = Sent(path, body)
        try:
            for rule in self.rules:
                rule(sent)
        except Refused as refused:
            return refused.status, json.dumps(self.error(refused)).encode(), refused.message
        return None


T = TypeVar("T")


def placed(items: Sequence[T] | None, path: str) -> Iterator[tuple[str, T]]:
    """Yield each item with its place, such as `messages[2]`."""
    return ((f"{path}[{place}]", item) for place, item in enumerate(items or ()))


def turns(messages: Sequence[Body]) -> list[list[tuple[int, Body]]]:
    """Return the messages between those of the user, each with its position; the last list is the current turn."""
    split: list[list[tuple[int, Body]]] = [[]]
    for place, message in enumerate(messages):
        if message["role"] == "user":
            split.append([])
        split[-1].append((place, message))
    return split


def nested_schemas(schema: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield a JSON schema and the schemas in it, each with its path."""
    if not isinstance(schema, dict):
        return
    yield at, schema
    for key in ("properties", "$defs", "definitions"):
        for name, inner in (schema.get(key) or {}).items():
            yield from nested_schemas(inner, (*at, key, name))
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for place, inner in enumerate(schema.get(key) or ()):
            yield from nested_schemas(inner, (*at, key, str(place)))
    for key in ("items", "additionalProperties", "not"):
        yield from nested_schemas(schema.get(key), (*at, key))
