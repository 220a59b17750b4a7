"""A streamed answer, put together from its chunks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from framework.llm.client import Delta
from framework.llm.openai_format import REASONING_FIELDS, content_text
from framework.llm.reply_check import FinishReasons, merge_finish_reason
from framework.types.text import fix_surrogates


class StreamAssembler:
    """An answer under way: takes chunks, gives deltas. Nobody has checked their types, so nothing here trusts one."""

    def __init__(self, endings: FinishReasons) -> None:
        self._endings = endings
        self.chunks = 0
        self.finish = self.model = self.response_id = ""
        self.usage: object = None
        self.message: dict[str, Any] = {}
        """The message, where it came whole."""
        self._texts: dict[str, list[str]] = {}
        self._calls: list[dict[str, Any]] = []
        self._places: dict[object, dict[str, Any]] = {}

    def take(self, chunk: Any) -> Delta | None:
        """Add a chunk; gives what of it can be shown already, an empty Delta where that is nothing yet."""
        chunk = as_dict(chunk)
        self.chunks += 1
        self.model = str(chunk.get("model") or self.model)
        self.response_id = str(chunk.get("id") or self.response_id)
        self.usage = chunk.get("usage") or self.usage
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return None
        first = as_dict(choices[0])
        self.finish = merge_finish_reason(self.finish, first.get("finish_reason"), self._endings)
        delta = as_dict(first.get("delta"))
        found = delta.get("tool_calls")
        pieces = found if isinstance(found, list) else []
        for piece in pieces:
            self._take_call(as_dict(piece))
        self._take_text("refusal", delta)
        reasoning = max((self._take_text(field, delta) for field in REASONING_FIELDS), key=len)
        text = self._take_text("content", delta)
        return (
            Delta(text=fix_surrogates(text), reasoning=fix_surrogates(reasoning))
            if text or reasoning or pieces
            else None
        )

    def take_whole(self, body: Mapping[str, Any]) -> None:
        """Take an answer that came in one piece; its `choices` must be a list with something in it."""
        first = as_dict(body["choices"][0])
        self.chunks = 1
        self.model, self.response_id = str(body.get("model") or ""), str(body.get("id") or "")
        self.usage = body.get("usage")
        self.finish = str(first.get("finish_reason") or "")
        self.message = as_dict(first.get("message"))

    def assembled(self) -> dict[str, Any]:
        """The whole message in the wire's form."""
        texts = {field: "".join(pieces) for field, pieces in self._texts.items()}
        return {**texts, "tool_calls": self._calls}

    def _take_text(self, field: str, delta: Mapping[str, Any]) -> str:
        text = content_text(delta.get(field))
        if text:
            self._texts.setdefault(field, []).append(text)
        return text

    def _take_call(self, piece: Mapping[str, Any]) -> None:
        call = self._call_of(piece)
        function, custom = as_dict(piece.get("function")), as_dict(piece.get("custom"))
        if piece.get("type") == "custom" or custom:
            call["type"], call["custom"] = "custom", call.get("custom") or custom
        call["function"]["name"] = call["function"]["name"] or function.get("name")
        arguments = function.get("arguments") or ""
        call["function"]["arguments"] += arguments if isinstance(arguments, str) else json.dumps(arguments)

    def _call_of(self, piece: Mapping[str, Any]) -> dict[str, Any]:
        """Find the call a piece goes on with, or begin it.

        By index, else by id; of pieces with neither, one with a name begins a call and one without continues the last.
        """
        call_id, named = piece.get("id"), bool(as_dict(piece.get("function")).get("name"))
        key = index_key(piece.get("index"))
        key = index_key(call_id) if key is None else key
        known = self._places.get(key) if key is not None else None
        if known is None and key is None and not named and self._calls:
            return self._calls[-1]
        # Some servers number every call 0: another id and a name tell that it is another call.
        if known is not None and not (named and call_id and known["id"] != call_id):
            return known
        call: dict[str, Any] = {"id": call_id, "type": "function", "function": {"name": None, "arguments": ""}}
        self._calls.append(call)
        if key is not None:
            self._places[key] = call
        return call


def index_key(value: object) -> int | str | None:
    """Where a piece belongs, by its index or id; None where the server sends neither a number nor a text."""
    return value if isinstance(value, (int, str)) else None


def as_dict(value: Any) -> dict[str, Any]:
    """An SDK object or a mapping as a dict; anything else is an empty one."""
    if isinstance(value, dict):
        return value
    if hasattr(value, "to_dict"):
        value = value.to_dict(warnings=False)
    return dict(value) if isinstance(value, Mapping) else {}
