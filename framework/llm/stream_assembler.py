"""Assembles a streamed chat completion from its chunks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from framework.llm.client import Delta
from framework.llm.openai_format import REASONING_FIELDS, content_text
from framework.llm.reply_check import FinishReasons, merge_finish_reason
from framework.types.text import fix_surrogates

_TEXTS = frozenset(("content", "refusal", *REASONING_FIELDS))
"""Fields of a delta that contain a piece of text. Nearly every delta has one of them only."""


class StreamAssembler:
    """Accumulates a streamed response: accepts chunks, returns deltas. Chunks are untrusted: each field is checked."""

    def __init__(self, reasons: FinishReasons) -> None:
        self._reasons = reasons
        self.chunks = 0
        self.finish_reason = self.model = self.response_id = ""
        self.usage: object = None
        self.message: dict[str, Any] = {}
        """The message, if it arrived in one piece."""
        self._texts: dict[str, list[str]] = {}
        self._calls: list[dict[str, Any]] = []
        self._call_by_key: dict[object, dict[str, Any]] = {}

    def add_chunk(self, chunk: Any) -> Delta | None:
        """Add a chunk; return its delta, which is empty if nothing can be shown yet, or None if it has no content."""
        chunk = as_dict(chunk)
        self.chunks += 1
        self.model = str(chunk.get("model") or self.model)
        self.response_id = str(chunk.get("id") or self.response_id)
        self.usage = chunk.get("usage") or self.usage
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return None
        first = as_dict(choices[0])
        self.finish_reason = merge_finish_reason(self.finish_reason, first.get("finish_reason"), self._reasons)
        delta = as_dict(first.get("delta"))
        fragments = as_list(delta.get("tool_calls"))
        for fragment in fragments:
            self._add_call_fragment(as_dict(fragment))
        text, reasoning = self._add_texts(delta)
        return (
            Delta(text=fix_surrogates(text), reasoning=fix_surrogates(reasoning))
            if text or reasoning or fragments
            else None
        )

    def set_response(self, body: Mapping[str, Any]) -> None:
        """Set a response that was not streamed; its `choices` must be a non-empty list."""
        first = as_dict(body["choices"][0])
        self.chunks = 1
        self.model, self.response_id = str(body.get("model") or ""), str(body.get("id") or "")
        self.usage = body.get("usage")
        self.finish_reason = str(first.get("finish_reason") or "")
        self.message = as_dict(first.get("message"))

    def assembled_message(self) -> dict[str, Any]:
        """Return the streamed message in the format of chat completions."""
        texts = {field: "".join(fragments) for field, fragments in self._texts.items()}
        return {**texts, "tool_calls": self._calls}

    def _add_texts(self, delta: Mapping[str, Any]) -> tuple[str, str]:
        """Add the pieces of text in a delta; return that of the content, and the longest one of reasoning."""
        text = reasoning = ""
        for field, content in delta.items():
            if field not in _TEXTS or not (piece := content_text(content)):
                continue
            self._texts.setdefault(field, []).append(piece)
            if field == "content":
                text = piece
            elif field in REASONING_FIELDS:
                reasoning = max(reasoning, piece, key=len)
        return text, reasoning

    def _add_call_fragment(self, fragment: Mapping[str, Any]) -> None:
        call = self._call_for(fragment)
        function, custom = as_dict(fragment.get("function")), as_dict(fragment.get("custom"))
        if fragment.get("type") == "custom" or custom:
            call["type"], call["custom"] = "custom", call.get("custom") or custom
        call["function"]["name"] = call["function"]["name"] or function.get("name")
        arguments = function.get("arguments") or ""
        call["function"]["arguments"] += arguments if isinstance(arguments, str) else json.dumps(arguments)

    def _call_for(self, fragment: Mapping[str, Any]) -> dict[str, Any]:
        """Return the call that a fragment continues, or add a new one.

        Fragments are matched by index, or else by id. Of those with neither, one with a name begins a call and one
        without continues the last call.
        """
        call_id, has_name = fragment.get("id"), bool(as_dict(fragment.get("function")).get("name"))
        key = index_key(fragment.get("index"))
        key = index_key(call_id) if key is None else key
        existing = self._call_by_key.get(key) if key is not None else None
        if existing is None and key is None and not has_name and self._calls:
            return self._calls[-1]
        # Some servers number every call 0: a fragment with a name and another id begins another call.
        if existing is not None and not (has_name and call_id and existing["id"] != call_id):
            return existing
        call: dict[str, Any] = {"id": call_id, "type": "function", "function": {"name": None, "arguments": ""}}
        self._calls.append(call)
        if key is not None:
            self._call_by_key[key] = call
        return call


def index_key(value: object) -> int | str | None:
    """Return an index or id as a key, or None if it is neither a number nor a string."""
    return value if isinstance(value, (int, str)) else None


def as_list(value: object) -> list[Any]:
    """Return a list unchanged, and an empty list for any other value."""
    return value if isinstance(value, list) else []


def as_dict(value: Any) -> dict[str, Any]:
    """Return an SDK object or a mapping as a dict, and an empty dict for any other value."""
    if isinstance(value, dict):
        return value
    if hasattr(value, "to_dict"):
        value = value.to_dict(warnings=False)
    return dict(value) if isinstance(value, Mapping) else {}
