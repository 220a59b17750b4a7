"""Client for OpenAI's Responses API, and servers that offer it. Every failure is raised as a ModelError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from framework.llm.capabilities import Capabilities, with_cost
from framework.llm.client import Delta, ModelReply, ModelRequest
from framework.llm.openai.exchange import OpenAIExchange
from framework.llm.openai.responses_format import (
    RESPONSE_MEDIA_TYPES,
    RESPONSE_STATUSES,
    function_choice,
    is_commentary,
    items_to_message,
    message_to_items,
    refusal_in,
    response_status,
    response_usage,
    settings_to_fields,
    tool_to_function,
)
from framework.llm.openai_format import PARAGRAPH, content_text
from framework.llm.reply_check import ProviderResponse, merge_finish_reason, to_reply
from framework.llm.request_cache import encode_json, json_object
from framework.llm.stream_assembler import as_dict, as_list
from framework.types.errors import ModelError
from framework.types.messages import ToolDefinition
from framework.types.text import fix_surrogates


class ResponsesAssembler:
    """Accumulates a response, streamed or not: accepts events, returns deltas. Events are untrusted.

    Texts are shown as they arrive; the reply consists of items that the server has declared complete.

    Args:
        error: creates the error for an `error` event.
    """

    def __init__(self, error: Callable[[Mapping[str, Any]], ModelError]) -> None:
        self.events = 0
        self.status = ""
        self.response: dict[str, Any] = {}
        """The response as last reported."""
        self._error = error
        self._done: dict[int, dict[str, Any]] = {}
        self._began: object = None
        """Id of the response that began last."""
        self._commentary: list[object] = []
        """Positions of messages that are shown as thoughts."""
        self._shown: dict[str, object] = {}
        """Kind of text -> position of the part that was shown last."""

    def add_chunk(self, chunk: Any) -> Delta | None:
        """Add an event; return its delta, which is empty if nothing can be shown yet, or None if it has no content.

        Raises:
            ModelError: the event reports an error.
        """
        if not (event := as_dict(chunk)):
            return None
        self.events += 1
        match event.get("type"):
            case "response.output_text.delta":
                return self._text(event.get("output_index"), event.get("delta"))
            case "response.output_item.added" if is_commentary(as_dict(event.get("item"))):
                self._commentary.append(event.get("output_index"))
                return Delta()
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                part = event.get("output_index"), event.get("summary_index"), event.get("content_index")
                return Delta(reasoning=self._fragment("reasoning", part, event.get("delta")))
            case "response.output_item.added" | "response.function_call_arguments.delta" | "response.refusal.delta":
                return Delta()
            case "response.output_item.done":
                return self._add_item(event.get("output_index"), as_dict(event.get("item")))
            case "response.completed" | "response.incomplete" | "response.failed" as kind:
                self.set_response(as_dict(event.get("response")), kind.removeprefix("response."))
            case "response.created":
                self._begin(as_dict(event.get("response")).get("id"))
            case "error":
                raise self._error(event)
        return None

    def set_response(self, response: Mapping[str, Any], announced: str = "") -> None:
        """Set the response at its end; `announced` is the status in the name of its event."""
        self.events += 1
        self.response = dict(response)
        self.status = merge_finish_reason(self.status, response_status(response, announced), RESPONSE_STATUSES)

    def items(self) -> list[dict[str, Any]]:
        """Return the complete items, from their own events or from the response; some servers send only one of them."""
        final = [as_dict(item) for item in as_list(self.response.get("output"))]
        return final if len(final) > len(self._done) else [self._done[index] for index in sorted(self._done)]

    def _add_item(self, index: object, item: dict[str, Any]) -> Delta:
        self._done[index if isinstance(index, int) else len(self._done)] = item
        if item.get("type") != "message" or index in self._shown.values():
            return Delta()
        self._commentary += [index] if is_commentary(item) else []
        return self._text(index, content_text(item.get("content")))

    def _begin(self, response_id: object) -> None:
        """Note the response that begins; raise ModelError if another one has begun to answer."""
        if self._began not in (None, response_id) and (self._shown or self._done):
            raise self._error({"message": "a second answer began within the first one"})
        self._began = response_id

    def _text(self, index: object, fragment: object) -> Delta:
        """Return the delta for a fragment of a message, which is a thought if it is commentary."""
        if index in self._commentary:
            return Delta(reasoning=self._fragment("reasoning", index, fragment))
        return Delta(text=self._fragment("text", index, fragment))

    def _fragment(self, kind: str, part: object, fragment: object) -> str:
        """Return a fragment as it is shown, with an empty line before it if it begins another part."""
        if not isinstance(fragment, str) or not fragment:
            return ""
        is_next = self._shown.setdefault(kind, part) != part
        self._shown[kind] = part
        return (PARAGRAPH if is_next else "") + fix_surrogates(fragment)


class ResponsesModel(OpenAIExchange[ResponsesAssembler]):
    """A model behind the Responses API. The server keeps nothing: each request contains the conversation."""

    api = "responses"
    media_types = RESPONSE_MEDIA_TYPES

    def _tool(self, definition: ToolDefinition) -> dict[str, Any]:
        return tool_to_function(definition)

    def _body(self, request: ModelRequest, settings: dict[str, Any], *, streamed: bool) -> bytes:
        tools = self._toolsets.get(request.tools)
        provider, source, base64 = self._info.provider, self._info.source, request.scratch.files.base64
        encoded = request.scratch.messages_for(f"{provider}/{source}")

        def encode(position: int) -> bytes:
            message = request.messages[position]
            items = message_to_items(message, tools.wire_names, provider=provider, source=source, base64=base64)
            return encode_json(items)[1:-1]

        fields = {"input": encoded.chunks(request.messages, encode)}
        if request.tools:
            fields["tools"] = (tools.json,)
        return json_object({**settings, "stream": True} if streamed else settings, **fields)

    def _settings(self, request: ModelRequest) -> dict[str, Any]:
        names, supported = self._toolsets.get(request.tools).wire_names, self._info.capabilities
        body: dict[str, Any] = {"model": self._info.model, "store": False, **settings_to_fields(request.settings)}
        if supported.thinking != "none":  # models that do not think reject both
            body["include"] = ["reasoning.encrypted_content"]
            if (level := supported.reasoning_level(request.settings.reasoning)) is not None:
                body["reasoning"] = {"effort": level}
        may_set_format = supported.json_with_tools or not request.tools
        if request.json is not None and may_set_format and (form := _text_format(request.json, supported)):
            body["text"] = {**body.get("text", {}), **form}
        if request.tools:
            body["tool_choice"] = function_choice(self._tool_choice(request, names), names)
            if request.settings.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = request.settings.parallel_tool_calls
        return body

    def _parse_body(self, body: Any, request: ModelRequest) -> ModelReply:
        if isinstance(body, str):
            raise self._errors.web_page()
        body = body if isinstance(body, dict) else {}
        if not isinstance(body.get("output"), list):
            error = body.get("error")
            raise self._body_error(error) if error else self._errors.empty_answer()
        assembler = self._assembler()
        assembler.set_response(body, "" if body.get("status") else "completed")
        return self._reply(assembler, request)

    def _assembler(self) -> ResponsesAssembler:
        return ResponsesAssembler(self._body_error)

    def _reply(self, assembler: ResponsesAssembler, request: ModelRequest) -> ModelReply:
        received, items = assembler.response, assembler.items()
        usage = response_usage(as_dict(received.get("usage")))
        if assembler.status == "failed":
            error = self._body_error(received.get("error"))
            error.usage = with_cost(usage, self._info.capabilities) if usage.total_tokens else None
            raise error
        response = ProviderResponse(
            message=items_to_message(
                items,
                self._toolsets.get(request.tools).tool_names,
                provider=self._info.provider,
                source=self._info.source,
            ),
            finish_reason=assembler.status,
            usage=usage,
            model=str(received.get("model") or ""),
            response_id=str(received.get("id") or ""),
            chunks=assembler.events,
            refusal=refusal_in(items),
        )
        return to_reply(response, request, self._info, RESPONSE_STATUSES, self._errors)


def _text_format(schema: Mapping[str, Any], supported: Capabilities) -> dict[str, Any]:
    """Return the strictest `format` of a text that the model supports, if any."""
    if schema and supported.json_schema:
        named = {"name": "answer", "schema": schema, "strict": False}  # strict forbids optional fields
        return {"format": {"type": "json_schema", **named}}
    return {"format": {"type": "json_object"}} if supported.json_object else {}
