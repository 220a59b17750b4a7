"""Claude, through Anthropic's own SDK. Whatever goes wrong there leaves here as one ModelError."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from framework.llm.anthropic.format import (
    content_to_message,
    parse_usage,
    request_to_body,
    thinking_stamp,
    with_answer_tool,
    without_answer_tool,
)
from framework.llm.capabilities import Capabilities
from framework.llm.client import Delta, ModelInfo, ModelReply, ModelRequest, served_model
from framework.llm.http_client import create_http_client, read_unstreamed
from framework.llm.openai_format import tool_names
from framework.llm.provider_errors import ProviderErrors, message_in, parse_retry_after
from framework.llm.reply_check import FinishReasons, ProviderAnswer, merge_finish_reason, to_reply
from framework.llm.stream_assembler import as_dict, index_key
from framework.types.errors import ModelError
from framework.types.text import fix_surrogates

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

T = TypeVar("T")
SDK_TIMEOUT = 600.0
"""Seconds; a net below the deadline that the engine sets."""
_FINISH_REASONS: FinishReasons = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    "pause_turn": "error",
}
_PERMANENT_ERRORS = {
    "authentication_error": 401,
    "billing_error": 402,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "permission_error": 403,
    "request_too_large": 413,
}
"""Errors that an event tells by name, as the statuses they would have had before the answer began."""


class AnthropicModel:
    """A model behind the Messages API. The SDK is loaded with the first question.

    Args:
        model: the name the API knows it by.
        api_key: empty for a server that asks for none.
        base_url: of another server that speaks the same, without `/v1`; None is Anthropic's.
        capabilities: over those known of the model.
    """

    def __init__(
        self, model: str, *, api_key: str, base_url: str | None = None, capabilities: Capabilities | None = None
    ) -> None:
        self._info = replace(served_model("anthropic", model, base_url, capabilities), answer_tool=True)
        self._api_key = api_key
        self._base_url = base_url.rstrip("/").removesuffix("/v1") if base_url else None
        self._failures = ProviderErrors(self._info.name, api_key, base_url)
        self._client: AsyncAnthropic | None = None

    @property
    def info(self) -> ModelInfo:
        """Provider, model and capabilities."""
        return self._info

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Ask; raises ModelError."""
        create: Any = self._connected().messages.create
        request = with_answer_tool(request)
        body = request_to_body(request, self._info)
        answer = MessageAssembler()
        if not request.stream and not self._info.capabilities.stream_only:
            answer.whole = self._checked(await self._guard(create(**body)))
            yield Delta(reply=without_answer_tool(self._reply(answer, body, request)))
            return
        events = await self._guard(create(**body, stream=True))
        try:
            if (message := await self._guard(read_unstreamed(events.response))) is not None:
                answer.whole = self._checked(message)
                reply = without_answer_tool(self._reply(answer, body, request))
                if request.stream:
                    yield Delta(text=reply.message.content)
                yield Delta(reply=reply)
                return
            while (event := await self._guard(anext(events, None))) is not None:
                delta = answer.take(as_dict(event))
                if delta and request.stream:
                    yield delta
        finally:
            await events.close()
        said = self._reply(answer, body, request)
        reply = without_answer_tool(said)
        if request.stream and reply.message.content != said.message.content:
            yield Delta(text=reply.message.content)
        yield Delta(reply=reply)

    async def close(self) -> None:
        """Give connections back."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _connected(self) -> AsyncAnthropic:
        self._client = self._client or self._failures.set_up(self._connect)
        return self._client

    def _connect(self) -> AsyncAnthropic:
        from anthropic import AsyncAnthropic

        # A key always, or the SDK looks for one in the environment and on the disk; its spans would double ours.
        return AsyncAnthropic(
            api_key=self._api_key or "none",
            base_url=self._base_url,
            max_retries=0,
            timeout=SDK_TIMEOUT,
            http_client=create_http_client(SDK_TIMEOUT),
            open_telemetry=False,
        )

    def _checked(self, message: Any) -> dict[str, Any]:
        if isinstance(message, str):
            raise self._failures.page()
        whole = as_dict(message)
        if whole.get("type") == "error":
            raise self._reported(whole)
        if not isinstance(whole.get("content"), list):
            raise self._failures.empty()
        return whole

    def _reply(self, blocks: MessageAssembler, body: Mapping[str, Any], request: ModelRequest) -> ModelReply:
        whole = blocks.whole
        ending = str(whole.get("stop_reason") or "")
        refused = ending == "refusal"
        mark = thinking_stamp(self._info.model, body.get("system", ()), body.get("tools", ()))
        answer = ProviderAnswer(
            message=content_to_message(blocks.content(), tool_names(request.tools), mark=mark),
            finish_reason=ending,
            usage=parse_usage(as_dict(whole.get("usage"))),
            model=str(whole.get("model") or ""),
            response_id=str(whole.get("id") or ""),
            pieces=blocks.events,
            refusal=str(as_dict(whole.get("stop_details")).get("explanation") or "") if refused else None,
        )
        return to_reply(answer, request, self._info, _FINISH_REASONS, self._failures)

    async def _guard(self, call: Awaitable[T]) -> T:
        from anthropic import AnthropicError

        return await self._failures.guard(call, AnthropicError, self._explain)

    def _explain(self, error: Exception) -> ModelError | None:
        import anthropic

        if isinstance(error, anthropic.APIStatusError) and error.status_code >= 300:
            wait = parse_retry_after(error.response.headers)
            return self._failures.status(error.status_code, message_in(_told(error.body)), wait=wait)
        if isinstance(error, anthropic.APIError) and not isinstance(error, anthropic.APIConnectionError):
            return self._reported(error.body)
        return None

    def _reported(self, body: object) -> ModelError:
        told = _told(body)
        kind = told.get("type") if isinstance(told, Mapping) else None
        return self._failures.reported(message_in(told), code=_PERMANENT_ERRORS.get(str(kind)))


class MessageAssembler:
    """An answer under way: takes events, gives deltas. The SDK checks no types, so nothing here trusts one."""

    def __init__(self) -> None:
        self.events = 0
        self.whole: dict[str, Any] = {}
        """The message, of a streamed one all but its content."""
        self._begun: dict[object, dict[str, Any]] = {}
        self._pieces: dict[tuple[object, str], list[str]] = {}

    def take(self, event: Mapping[str, Any]) -> Delta | None:
        """Add an event; gives what of it can be shown already, an empty Delta where that is nothing yet."""
        self.events += 1
        place = index_key(event.get("index"))
        match event.get("type"):
            case "message_start":
                self.whole.update(as_dict(event.get("message")))
            case "content_block_start":
                self._begun[place] = as_dict(event.get("content_block"))
                return Delta()
            case "content_block_delta":
                return self._take_piece(place, as_dict(event.get("delta")))
            case "message_delta":
                told = as_dict(event.get("delta"))
                ending = merge_finish_reason(
                    str(self.whole.get("stop_reason") or ""), told.get("stop_reason"), _FINISH_REASONS
                )
                self.whole.update(told, usage=self._usage(as_dict(event.get("usage"))), stop_reason=ending)
        return None

    def content(self) -> list[dict[str, Any]]:
        """The blocks that have come."""
        if not self._begun:
            whole = self.whole.get("content")
            return [as_dict(block) for block in whole] if isinstance(whole, list) else []
        return [self._block(place, dict(begun)) for place, begun in self._begun.items()]

    def _take_piece(self, place: object, delta: Mapping[str, Any]) -> Delta:
        for field in ("text", "thinking", "signature", "partial_json"):
            if isinstance(piece := delta.get(field), str) and piece:
                self._pieces.setdefault((place, field), []).append(piece)
                if field == "text":
                    return Delta(text=fix_surrogates(piece))
                if field == "thinking":
                    return Delta(reasoning=fix_surrogates(piece))
        return Delta()

    def _block(self, place: object, block: dict[str, Any]) -> dict[str, Any]:
        for field in ("text", "thinking", "signature"):
            if (place, field) in self._pieces:
                block[field] = str(block.get(field) or "") + "".join(self._pieces[place, field])
        if (place, "partial_json") in self._pieces:
            block["input"] = "".join(self._pieces[place, "partial_json"])
        return block

    def _usage(self, later: Mapping[str, Any]) -> dict[str, Any]:
        """The last counts are those of the whole answer; those that do not change come only with the first."""
        return {**as_dict(self.whole.get("usage")), **{key: value for key, value in later.items() if value is not None}}


def _told(body: object) -> object:
    """The error itself, out of what it is wrapped in."""
    return body.get("error", body) if isinstance(body, Mapping) else body
