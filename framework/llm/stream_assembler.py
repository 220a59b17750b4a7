"""Assembles a streamed chat completion from its chunks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from framework.llm.client import Delta
from framework.llm.openai_format import OPAQUE_FIELDS, REASONING_FIELDS, content_text
from framework.llm.provider_client import FinishReasons, merge_finish_reason
from framework.types.text import fix_surrogates

_TEXTS = frozenset(("content", "refusal", *REASONING_FIELDS))
"""Fields of a delta that contain a piece of text. Nearly every delta has one of them only."""
STREAM_END = "[DONE]"
"""The last chunk of a stream that its server has ended."""
_NO_IDS = ("", "null", "none", "undefined")
"""Texts that some servers send in place of a call's id."""
_TEXT_TYPES = ("reasoning.text", "reasoning.summary", "thinking")
_TEXT_KEYS = ("text", "summary", "thinking")
"""Types of entries of opaque lists that arrive in pieces, and the keys of their texts."""
_MAX_PARSED_CHARS = 10_000_000
"""Characters of arguments that are parsed, in total, to find out where a call ends."""


class StreamAssembler:
    """Accumulates a streamed response: accepts chunks, returns deltas. Chunks are untrusted: each field is checked."""

    def __init__(self, reasons: FinishReasons) -> None:
        self._reasons = reasons
        self.chunks = 0
        self.finish_reason = self.model = self.response_id = ""
        self.usage: object = None
        self.is_ended = False
        """Whether the server has ended the stream: the answer is complete, also without a finish reason."""
        self.message: dict[str, Any] = {}
        """The message, if it arrived in one piece."""
        self._texts: dict[str, list[str]] = {}
        self._opaque: dict[str, list[Any]] = {}
        self._calls: list[dict[str, Any]] = []
        self._call_by_index: dict[object, dict[str, Any]] = {}
        self._call_by_id: dict[object, dict[str, Any]] = {}
        self._doubtful: list[dict[str, Any]] = []
        """Calls that began with the name of the call before them only: none, if no arguments follow."""
        self._parsed_chars = 0

    def add_chunk(self, chunk: Any) -> Delta | None:
        """Add a chunk; return its delta, which is empty if nothing can be shown yet, or None if it has no content."""
        if chunk == STREAM_END:
            self.is_ended = True
            return None
        chunk = as_dict(chunk)
        self.chunks += 1
        self.model = str(chunk.get("model") or self.model)
        self.response_id = str(chunk.get("id") or self.response_id)
        usage = chunk.get("usage") or (chunk.get("x_groq") and as_dict(chunk["x_groq"]).get("usage"))
        self.usage = usage or self.usage
        choices = chunk.get("choices")
        self.is_ended = bool(usage) and not choices
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
        """Set a response that was not streamed, so it is complete; its `choices` must be a non-empty list."""
        first = as_dict(body["choices"][0])
        self.chunks = 1
        self.model, self.response_id = str(body.get("model") or ""), str(body.get("id") or "")
        self.usage = body.get("usage") or as_dict(body.get("x_groq")).get("usage")
        self.finish_reason = str(first.get("finish_reason") or "stop")
        self.message = as_dict(first.get("message"))

    def assembled_message(self) -> dict[str, Any]:
        """Return the streamed message in the format of chat completions."""
        texts = {field: "".join(fragments) for field, fragments in self._texts.items()}
        repeated = [call for call in self._doubtful if not call["function"]["arguments"]]
        calls = [call for call in self._calls if not any(call is one for one in repeated)] if repeated else self._calls
        opaque = {field: _joined(values) for field, values in self._opaque.items()}
        return {**texts, **opaque, "tool_calls": calls}

    def _add_texts(self, delta: Mapping[str, Any]) -> tuple[str, str]:
        """Add the pieces of text in a delta; return that of the content, and the longest one of reasoning."""
        text = reasoning = ""
        for field, content in delta.items():
            if field in OPAQUE_FIELDS and content:
                self._opaque.setdefault(field, []).append(content)
            if field not in _TEXTS or not (piece := content_text(content)):
                continue
            self._texts.setdefault(field, []).append(piece)
            if field == "content":
                text = piece
            elif field in REASONING_FIELDS:
                reasoning = max(reasoning, piece, key=len)
        return text, reasoning

    def _add_call_fragment(self, fragment: Mapping[str, Any]) -> None:
        function, custom = as_dict(fragment.get("function")), as_dict(fragment.get("custom"))
        name, given = function.get("name"), function.get("arguments")
        arguments = given if isinstance(given, str) else "" if given is None else json.dumps(given)
        call = self._call_for(fragment, name, arguments)
        if fragment.get("type") == "custom" or custom:
            call["type"], call["custom"] = "custom", call.get("custom") or custom
        known = call["function"]
        for target, fields in ((call, fragment), (known, function)):
            target.update({field: fields[field] for field in OPAQUE_FIELDS if fields.get(field)})
        if not known["name"]:
            known["name"] = name
        elif isinstance(name, str) and not known["arguments"]:  # some servers send it in pieces, some again
            known["name"] = name if name.startswith(known["name"]) else f"{known['name']}{name}"
        if not self._repeats(known["arguments"], arguments):
            text = known.pop("arguments")
            text += arguments  # in place: nothing else refers to it, and a copy each time would be quadratic
            known["arguments"] = text

    def _call_for(self, fragment: Mapping[str, Any], name: object, arguments: str) -> dict[str, Any]:
        """Return the call that a fragment continues, or add a new one."""
        index, call_id = _index_of(fragment), _id_of(fragment)
        call, is_doubtful = self._matching(index, call_id, name), False
        if call is not None and name and self._is_object(known := call["function"]["arguments"]):
            # Complete arguments are followed by another call, unless the fragment repeats something of this one.
            is_same = name == call["function"]["name"]
            is_doubtful = is_same and not arguments and call_id is None
            if is_doubtful or not (is_same and (not arguments or self._repeats(known, arguments))):
                call = None
        if call is None:
            call = {"id": call_id, "type": "function", "function": {"name": None, "arguments": ""}}
            self._calls.append(call)
            self._doubtful += [call] if is_doubtful else []
        call["id"] = call["id"] or call_id
        if index is not None:
            self._call_by_index[index] = call
        if call_id is not None:
            self._call_by_id[call_id] = call
        return call

    def _matching(self, index: object, call_id: object, name: object) -> dict[str, Any] | None:
        """Return the call with the id, or else the index: some servers number every call 0, and omit ids later.

        Of fragments with neither, one with a name begins a call and one without continues the last call.
        """
        if call_id is not None and call_id in self._call_by_id:
            return self._call_by_id[call_id]
        if index is None and call_id is None:
            return self._calls[-1] if self._calls and not name else None
        call = self._call_by_index.get(index)
        is_another = call is not None and name and call_id and call["id"] and call["id"] != call_id
        return None if is_another else call

    def _repeats(self, known: str, arguments: str) -> bool:
        """Return whether a fragment contains the complete arguments of a call once more."""
        if known == arguments:
            return self._is_object(known)
        return self._is_object(arguments) and self._is_object(known) and json.loads(arguments) == json.loads(known)

    def _is_object(self, arguments: str) -> bool:
        """Return whether arguments are a complete JSON object; False once too much was parsed to find out."""
        if self._parsed_chars > _MAX_PARSED_CHARS:
            return False
        text = arguments.strip()
        self._parsed_chars += len(text)
        if not (text.startswith("{") and text.endswith("}")):
            return False
        try:
            return isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            return False


def _joined(values: Sequence[Any]) -> Any:
    """Return an opaque field that arrived in pieces: lists are joined, and of objects the later values count."""
    if all(isinstance(value, dict) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _joined([value[key] for value in values if key in value]) for key in keys}
    if not all(isinstance(value, list) for value in values):
        return values[-1]
    entries: list[Any] = []
    texts: list[dict[str, list[str]]] = []
    for entry in (one for value in values for one in value):
        pieces = {key: entry[key] for key in _TEXT_KEYS if isinstance(entry, dict) and isinstance(entry.get(key), str)}
        if entries and _continues(entries[-1], entry):
            entries[-1].update({key: value for key, value in entry.items() if value is not None})
        else:
            entries.append(dict(entry) if isinstance(entry, dict) else entry)
            texts.append({})
        for key, piece in pieces.items():
            texts[-1].setdefault(key, []).append(piece)
    for entry, pieces_of in zip(entries, texts, strict=True):
        for key, parts in pieces_of.items():
            entry[key] = "".join(parts)
    return entries


def _continues(last: Any, entry: Any) -> bool:
    """Return whether an entry of a list is the next piece of the text in the entry before it."""
    if not isinstance(last, dict) or not isinstance(entry, dict) or entry.get("type") not in _TEXT_TYPES:
        return False
    return not last.get("signature") and all(last.get(key) == entry.get(key) for key in ("type", "index"))


def _index_of(fragment: Mapping[str, Any]) -> int | str | None:
    """Return the index of a fragment, which some servers send as text."""
    index = index_key(fragment.get("index"))
    return int(index) if isinstance(index, str) and index.isdecimal() and len(index) < 10 else index


def _id_of(fragment: Mapping[str, Any]) -> int | str | None:
    call_id = index_key(fragment.get("id"))
    return None if str(call_id).strip().lower() in _NO_IDS else call_id


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
