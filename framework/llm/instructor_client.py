"""Typed answers from models without support for them, through Instructor.

Instructor never sees the conversation: it adds the tool to call and its retry messages, and `_InstructorAdapter`
appends them to the messages of the request. Every retry is therefore an ordinary model call, with budget, span and
events.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from framework.llm.client import ModelReply, ModelRequest, SendRequest
from framework.llm.openai_format import (
    chat_to_message,
    chat_to_tool,
    message_to_chat,
    parse_call,
    tool_names,
    usage_to_chat,
    wire_names,
)
from framework.types.errors import ModelError
from framework.types.messages import Message, ToolDefinition, late_guidance
from framework.types.text import shorten

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

T = TypeVar("T", bound=BaseModel)
_MAX_PROBLEM_CHARS = 400
_BY_SCHEMA = (
    "Answer with the arguments of {name}: one JSON object and nothing else. It fits this JSON Schema:\n{schema}"
)


async def request_typed_output(
    send: SendRequest, request: ModelRequest, output: type[T], *, retries: int = 2, by_schema: bool = False
) -> T:
    """Return an answer of type `output`: the arguments of a tool that the model must call.

    Errors raised by `send` are re-raised unchanged, and not retried.

    Args:
        send: sends a request to the model.
        request: the conversation and its settings.
        output: a pydantic model class.
        retries: how often an answer that does not fit is retried, at most.
        by_schema: let the server enforce the schema on the first answer's text, instead of calling a tool.

    Raises:
        ModelError: the answer was cut by max_tokens, or did not fit after the last retry.
    """
    import instructor
    from instructor.core import IncompleteOutputException, InstructorRetryException

    _silence_instructor()
    adapter = _InstructorAdapter(send, request, by_schema=by_schema)
    create = cast("Callable[..., Awaitable[T]]", instructor.patch(create=adapter.create, mode=instructor.Mode.TOOLS))
    try:
        await create(response_model=_named(output), messages=[], max_retries=retries)
    except _SendFailed as failed:
        failure: Exception = failed.error
    except IncompleteOutputException:
        failure = ModelError(f"{output.__name__} was cut by max_tokens: raise model_settings.max_tokens")
    except InstructorRetryException as error:
        failure = _explain(error, output, adapter.problem)
    else:
        # Instructor returns a generated subclass that contains the raw response; return the plain type.
        return output.model_validate_json(adapter.accepted)
    raise failure


def _named(output: type[T]) -> type[T]:
    """Return the type with its name as the title of its schema, from which Instructor takes the tool's name."""
    if output.model_config.get("title") is None:
        return output
    return type(
        output.__name__, (output,), {"model_config": ConfigDict(title=output.__name__), "__doc__": output.__doc__}
    )


class _SendFailed(BaseException):
    """Wraps an error of `send`. Not an Exception: Instructor logs, wraps and may retry every Exception."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _InstructorAdapter:
    """Adapter that Instructor calls in place of a client's `create`. It sends every request through `send`."""

    def __init__(self, send: SendRequest, request: ModelRequest, *, by_schema: bool) -> None:
        self.accepted = ""
        """The last answer's arguments, as JSON text."""
        self.problem = ""
        """Why the arguments of the last answer could not be parsed; empty if they could."""
        self._send = send
        self._request = request
        self._by_schema = by_schema
        self._unreadable: dict[str, str] = {}
        """Call id -> why its arguments could not be parsed."""

    async def create(self, **kwargs: Any) -> ChatCompletion:
        tools = tuple(chat_to_tool(tool) for tool in kwargs["tools"])
        names = tool_names(tools)
        retry_messages = tuple(self._with_reason(chat_to_message(chat, names)) for chat in kwargs["messages"])
        try:
            if self._by_schema and not retry_messages:
                reply = await self._ask_by_schema(tools[0])
            else:
                wire_choice = kwargs["tool_choice"]["function"]["name"]
                settings = {"tool_choice": names.get(wire_choice, wire_choice)}
                reply = await self._send(self._with(retry_messages, settings, tools=tools))
        except Exception as error:  # noqa: BLE001 - nothing is swallowed: request_typed_output re-raises it
            raise _SendFailed(error) from None
        return self._completion(reply, wire_names(tools))

    async def _ask_by_schema(self, tool: ToolDefinition) -> ModelReply:
        """Return a reply whose text, constrained by the server, has become the arguments of `tool`.

        The prompt contains the schema, too: such servers only constrain the answer, and do not show it to the model.
        """
        schema = json.dumps(tool.parameters, ensure_ascii=False, separators=(",", ":"))
        instruction = late_guidance(_BY_SCHEMA.format(name=tool.name, schema=schema))
        reply = await self._send(self._with((instruction,), {"tool_choice": None}, json=tool.parameters))
        if reply.message.tool_calls:
            return reply
        call = parse_call("answer", tool.name, reply.message.content)
        return replace(reply, message=reply.message.model_copy(update={"content": "", "tool_calls": (call,)}))

    def _with(self, added: tuple[Message, ...], settings: Mapping[str, Any], **options: Any) -> ModelRequest:
        """Return the request with more messages and other settings; it is not streamed."""
        return ModelRequest(
            self._request.messages + added,
            settings=self._request.settings.model_copy(update=settings),
            media=self._request.media,
            scratch=self._request.scratch,
            **options,
        )

    def _with_reason(self, message: Message) -> Message:
        """Return the message with the reason why arguments are not JSON; Instructor has seen only a placeholder."""
        reason = self._unreadable.get(message.tool_call_id or "")
        return message.model_copy(update={"content": f"{reason}\nCall it again."}) if reason else message

    def _completion(self, reply: ModelReply, names: dict[str, str]) -> ChatCompletion:
        from openai.types.chat import ChatCompletion

        message = message_to_chat(reply.message, names)
        self.problem = next((call.invalid for call in reply.message.tool_calls if call.invalid), "")
        for call, chat in zip(reply.message.tool_calls, message.get("tool_calls", ()), strict=True):
            if call.invalid:
                self._unreadable[call.id] = call.invalid
                chat["function"]["arguments"] = call.invalid  # not JSON, so that Instructor retries
        if reply.message.tool_calls:
            self.accepted = message["tool_calls"][0]["function"]["arguments"]
        choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
        return ChatCompletion.model_validate(
            {
                "id": reply.response_id,
                "object": "chat.completion",
                "created": 0,
                "model": reply.model,
                "choices": [choice],
                "usage": usage_to_chat(reply.usage),
            }
        )


def _explain(error: Exception, output: type[BaseModel], problem: str) -> Exception:
    from instructor.core import ResponseParsingError

    cause = error.__cause__
    if isinstance(cause, ValidationError):
        details = cause.errors(include_url=False)
        # Of arguments that are no JSON, Pydantic has seen a placeholder.
        problem = problem or "; ".join(_problem(list(detail["loc"]), detail["msg"]) for detail in details)
        text = f"the answer still does not fit {output.__name__}: {problem}"
        return ModelError(shorten(text, _MAX_PROBLEM_CHARS))
    if isinstance(cause, ResponseParsingError):
        return ModelError(f"the model answered in text instead of calling {output.__name__}")
    return cause if isinstance(cause, Exception) else error


def _problem(path: list[int | str], message: str) -> str:
    return f"{'.'.join(str(part) for part in path)}: {message}" if path else message


def _silence_instructor() -> None:
    """Keep model output out of the log, unless the program has set a level for Instructor."""
    logger = logging.getLogger("instructor")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
