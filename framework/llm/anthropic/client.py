"""Client for Claude, through Anthropic's SDK. Every failure is raised as a ModelError."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from framework.llm.anthropic.format import (
    ANTHROPIC_MEDIA_TYPES,
    content_to_message,
    max_files,
    parse_usage,
    request_to_body,
    thinking_stamp,
    with_answer_tool,
    without_answer_tool,
)
from framework.llm.client import Delta, ModelReply, ModelRequest, whole_reply
from framework.llm.http_client import SDK_TIMEOUT, create_http_client, read_unstreamed
from framework.llm.openai_format import PARAGRAPH, tool_names
from framework.llm.provider_client import ProviderClient
from framework.llm.provider_errors import message_in, parse_retry_after
from framework.llm.reply_check import FinishReasons, ProviderResponse, merge_finish_reason, to_reply
from framework.llm.request_cache import merged_fields
from framework.llm.stream_assembler import as_dict, as_list, index_key
from framework.types.errors import ModelError
from framework.types.text import fix_surrogates

if TYPE_CHECKING:
    import httpx2
    from anthropic import AsyncAnthropic

_FINISH_REASONS: FinishReasons = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
    "pause_turn": "error",
}
_OWN_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")
"""Types of blocks that the model writes; others are those of tools that the provider executes."""
_PERMANENT_ERRORS = {
    "authentication_error": 401,
    "billing_error": 402,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "permission_error": 403,
    "request_too_large": 413,
    "validationException": 400,  # of Bedrock
}
"""Error types inside streams, mapped to the HTTP status of the same error before a stream. A retry does not help."""


class AnthropicModel(ProviderClient):
    """A model behind the Messages API, at a `base_url` without `/v1`; the options are those of `ProviderClient`."""

    provider = "anthropic"
    media_types = ANTHROPIC_MEDIA_TYPES
    sampling_version = ""
    """For a server that has the API's version in the body: the last one that accepts `temperature` and `top_p`."""

    def __init__(self, model: str, *, base_url: str | None = None, **options: Any) -> None:
        super().__init__(model, base_url=base_url, **options)
        self._info = replace(self._info, answer_tool=True, max_files=max_files(self._info.capabilities))
        self._base_url = base_url.rstrip("/").removesuffix("/v1") if base_url else None
        self._client: AsyncAnthropic | None = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Send the request and yield the reply's deltas; raise ModelError if it fails."""
        create: Any = (await self._connected()).messages.create
        request = with_answer_tool(request)
        if request.media:
            await request.scratch.files.add(request.media)
        body = self._body(request)
        assembler = MessageAssembler()
        if not self._info.is_streamed(request):
            assembler.response = self._validated(await self._guard(create(**body)))
            for piece in whole_reply(without_answer_tool(self._reply(assembler, body, request)), request):
                yield piece
            return
        events = await self._guard(create(**body, stream=True))
        try:
            if (message := await self._guard(read_unstreamed(events.response))) is not None:
                assembler.response = self._validated(message)
                for piece in whole_reply(without_answer_tool(self._reply(assembler, body, request)), request):
                    yield piece
                return
            while (event := await self._guard(anext(events, None))) is not None:
                delta = assembler.add_event(as_dict(event))
                if assembler.is_spliced:
                    problem = "a second answer began within the first one, as after a failover of a proxy"
                    raise self._errors.error(problem, retryable=True).of_type("incomplete_answer")
                if delta:
                    yield delta
        finally:
            await events.close()
        streamed = self._reply(assembler, body, request)
        reply = without_answer_tool(streamed)
        if request.stream and reply.message.content != streamed.message.content:
            yield Delta(text=reply.message.content)
        yield Delta(reply=reply)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _connected(self) -> AsyncAnthropic:
        self._client = self._client or self._errors.create_client(self._connect)
        return self._client

    def _connect(self) -> AsyncAnthropic:
        # Its spans would duplicate ours.
        return self._create_sdk(
            max_retries=0,
            timeout=SDK_TIMEOUT,
            default_headers=self._headers,
            http_client=create_http_client(SDK_TIMEOUT, auth=self._auth()),
            open_telemetry=False,
        )

    def _auth(self) -> httpx2.Auth | None:
        """Return what signs each request; None for a server that checks a key."""
        return None

    def _create_sdk(self, **options: Any) -> AsyncAnthropic:
        from anthropic import AsyncAnthropic

        # Never without a key: the SDK would search the environment and the disk.
        return AsyncAnthropic(api_key=self._api_key or "none", base_url=self._base_url, **options)

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body = request_to_body(request, self._info)
        if self._extra_body:
            # Objects of the request are merged here; the SDK would replace them.
            own = {name: body[name] for name in self._extra_body if name in body}
            body["extra_body"] = {**body.get("extra_body", {}), **merged_fields(own, self._extra_body)}
        if self.sampling_version and (sampling := body.get("extra_body")):
            body["extra_body"] = {**sampling, "anthropic_version": self.sampling_version}
        return body

    def _validated(self, message: Any) -> dict[str, Any]:
        if isinstance(message, str):
            raise self._errors.web_page()
        response = as_dict(message)
        if response.get("type") == "error":
            raise self._body_error(response)
        if not isinstance(response.get("content"), list):
            raise self._errors.empty_answer()
        return {**response, "stop_reason": response.get("stop_reason") or "end_turn"}  # it is complete

    def _reply(self, assembler: MessageAssembler, body: Mapping[str, Any], request: ModelRequest) -> ModelReply:
        received = assembler.response
        stop_reason = str(received.get("stop_reason") or "")
        stamp = thinking_stamp(self._info.source, body.get("system", ()), body.get("tools", ()))
        refusal = str(as_dict(received.get("stop_details")).get("explanation") or "")
        response = ProviderResponse(
            message=content_to_message(assembler.content(), tool_names(request.tools), stamp=stamp),
            finish_reason=stop_reason,
            usage=parse_usage(as_dict(received.get("usage"))),
            model=str(received.get("model") or ""),
            response_id=str(received.get("id") or ""),
            chunks=assembler.events,
            refusal=refusal if stop_reason == "refusal" else None,
            is_ended=assembler.is_ended,
        )
        return to_reply(response, request, self._info, _FINISH_REASONS, self._errors)

    def _sdk_errors(self) -> tuple[type[Exception], ...]:
        from anthropic import AnthropicError

        return (AnthropicError,)

    def _explain(self, error: Exception) -> ModelError | None:
        import anthropic

        if isinstance(error, anthropic.APIStatusError) and error.status_code >= 300:
            wait = parse_retry_after(error.response.headers)
            return self._errors.from_status(error.status_code, message_in(_unwrapped(error.body)), wait=wait)
        if isinstance(error, anthropic.APIError) and not isinstance(error, anthropic.APIConnectionError):
            return self._body_error(error.body)
        return None

    def _body_error(self, body: object) -> ModelError:
        error = _unwrapped(body)
        error_type = error.get("type") if isinstance(error, Mapping) else None
        return self._errors.from_body(message_in(error), code=_PERMANENT_ERRORS.get(str(error_type)))


class MessageAssembler:
    """Accumulates a streamed response: accepts events, returns deltas. The SDK does not check their types."""

    def __init__(self) -> None:
        self.events = 0
        self.response: dict[str, Any] = {}
        """The response; if it is streamed, without its content."""
        self.is_ended = False
        """Whether the server has ended the stream."""
        self._blocks: dict[object, dict[str, Any]] = {}
        self._fragments: dict[tuple[object, str], list[str]] = {}
        self._thought_in: object = None
        """Index of the block with the last fragment of thinking."""
        self.is_spliced = False
        """Whether another response began within this one: their blocks must not be merged."""
        self._gap: Literal["", "open", "due"] = ""
        """Whether a text was shown, and a paragraph is due before the next one."""

    def add_event(self, event: Mapping[str, Any]) -> Delta | None:
        """Add an event; return its delta, which is empty if nothing can be shown yet, or None if it has no content."""
        self.events += 1
        index = index_key(event.get("index"))
        match event.get("type"):
            case "message_start":
                message = as_dict(event.get("message"))
                self.is_spliced = bool(self._blocks) and message.get("id") != self.response.get("id")
                self.response.update(message)
            case "content_block_start":
                block = self._blocks[index] = as_dict(event.get("content_block"))
                if self._gap and block.get("type") not in _OWN_BLOCKS:
                    self._gap = "due"
                return Delta()
            case "content_block_delta":
                return self._add_fragment(index, as_dict(event.get("delta")))
            case "message_delta":
                change = as_dict(event.get("delta"))
                stop_reason = merge_finish_reason(
                    str(self.response.get("stop_reason") or ""), change.get("stop_reason"), _FINISH_REASONS
                )
                self.response.update(change, usage=self._usage(as_dict(event.get("usage"))), stop_reason=stop_reason)
            case "message_stop":
                self.is_ended = True
        return None

    def content(self) -> list[dict[str, Any]]:
        """Return the blocks received so far."""
        if not self._blocks:
            return [as_dict(block) for block in as_list(self.response.get("content"))]
        return [self._merged(index, dict(block)) for index, block in self._blocks.items()]

    def _add_fragment(self, index: object, delta: Mapping[str, Any]) -> Delta:
        for field in ("text", "thinking", "signature", "partial_json"):
            if isinstance(fragment := delta.get(field), str) and fragment:
                is_next = field == "thinking" and self._thought_in not in (None, index)
                self._fragments.setdefault((index, field), []).append(fragment)
                if field == "text":
                    before, self._gap = PARAGRAPH if self._gap == "due" else "", "open"
                    return Delta(text=before + fix_surrogates(fragment))
                if field == "thinking":
                    self._thought_in = index
                    return Delta(reasoning=("\n" if is_next else "") + fix_surrogates(fragment))
        return Delta()

    def _merged(self, index: object, block: dict[str, Any]) -> dict[str, Any]:
        for field in ("text", "thinking", "signature"):
            if (index, field) in self._fragments:
                block[field] = str(block.get(field) or "") + "".join(self._fragments[index, field])
        if (index, "partial_json") in self._fragments:
            block["input"] = "".join(self._fragments[index, "partial_json"])
        return block

    def _usage(self, later: Mapping[str, Any]) -> dict[str, Any]:
        """Return the token counts: the last event has the final ones, and omits those that have not changed."""
        return {
            **as_dict(self.response.get("usage")),
            **{key: value for key, value in later.items() if value is not None},
        }


def _unwrapped(body: object) -> object:
    """Return the error inside an `error` object, or the body unchanged."""
    return body.get("error", body) if isinstance(body, Mapping) else body
