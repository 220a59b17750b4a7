"""Typed answers from any model, through Instructor, asked by way of our own gateway.

Instructor never sees the conversation: it adds the tool to be called and its re-asks, `_Exchange` puts them behind the
messages of the request. So every re-ask is an ordinary question, with its budget, span and events.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from framework.llm.client import ModelReply, ModelRequest
from framework.llm.openai_format import (
    chat_to_message,
    chat_to_tool,
    message_to_chat,
    tool_names,
    usage_to_chat,
    wire_names,
)
from framework.types.errors import ModelError
from framework.types.messages import Message
from framework.types.text import shorten

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

T = TypeVar("T", bound=BaseModel)
Ask = Callable[[ModelRequest], Awaitable[ModelReply]]
_MAX_PROBLEM_CHARS = 400


async def request_typed_output(ask: Ask, request: ModelRequest, output: type[T], *, retries: int = 2) -> T:
    """Ask until the answer fits `output`, at most `retries` times more than once.

    Whatever `ask` raises comes out unchanged and ends the asking.

    Raises:
        ModelError: the answer was cut by max_tokens, or still did not fit after the last re-ask.
    """
    import instructor
    from instructor.core import IncompleteOutputException, InstructorRetryException

    _silence_instructor()
    exchange = _Exchange(ask, request)
    create = cast("Callable[..., Awaitable[T]]", instructor.patch(create=exchange.create, mode=instructor.Mode.TOOLS))
    try:
        await create(response_model=output, messages=[], max_retries=retries)
    except _Escape as escape:
        failure: Exception = escape.error
    except IncompleteOutputException:
        failure = ModelError(f"{output.__name__} was cut by max_tokens: raise model_settings.max_tokens")
    except InstructorRetryException as error:
        failure = _explain(error, output)
    else:
        # Instructor gives a subclass of its own making that carries the raw answer: ours is the plain type.
        return output.model_validate_json(exchange.accepted)
    raise failure


class _Escape(BaseException):
    """Carries an error of `ask` past Instructor, which logs, wraps and may retry every Exception."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Exchange:
    """Stands where Instructor expects a client's `create`."""

    def __init__(self, ask: Ask, request: ModelRequest) -> None:
        self.accepted = ""
        """The last answer's arguments, as JSON text."""
        self._ask = ask
        self._request = request
        self._unreadable: dict[str, str] = {}
        """Call id -> why its arguments could not be read."""

    async def create(self, **kwargs: Any) -> ChatCompletion:
        tools = tuple(chat_to_tool(tool) for tool in kwargs["tools"])
        names = tool_names(tools)
        wire_choice = kwargs["tool_choice"]["function"]["name"]
        settings = self._request.settings.model_copy(update={"tool_choice": names.get(wire_choice, wire_choice)})
        reasks = tuple(self._with_reason(chat_to_message(chat, names)) for chat in kwargs["messages"])
        messages = self._request.messages + reasks
        try:
            reply = await self._ask(ModelRequest(messages=messages, tools=tools, settings=settings))
        except Exception as error:  # noqa: BLE001 - nothing is swallowed: ask_typed raises it again
            raise _Escape(error) from None
        return self._completion(reply, wire_names(tools))

    def _with_reason(self, message: Message) -> Message:
        """Tell what was wrong with arguments that were no JSON: Instructor has seen only our stand-in for them."""
        reason = self._unreadable.get(message.tool_call_id or "")
        return message.model_copy(update={"content": f"{reason}\nCall it again."}) if reason else message

    def _completion(self, reply: ModelReply, names: dict[str, str]) -> ChatCompletion:
        from openai.types.chat import ChatCompletion

        message = message_to_chat(reply.message, names)
        for call, chat in zip(reply.message.tool_calls, message.get("tool_calls", ()), strict=True):
            if call.invalid:
                self._unreadable[call.id] = call.invalid
                chat["function"]["arguments"] = call.invalid  # no JSON, so that Instructor asks again
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


def _explain(error: Exception, output: type[BaseModel]) -> Exception:
    from instructor.core import ResponseParsingError

    cause = error.__cause__
    if isinstance(cause, ValidationError):
        problems = "; ".join(_problem(list(detail["loc"]), detail["msg"]) for detail in cause.errors(include_url=False))
        text = f"the answer still does not fit {output.__name__}: {problems}"
        return ModelError(shorten(text, _MAX_PROBLEM_CHARS))
    if isinstance(cause, ResponseParsingError):
        return ModelError(f"the model did not call {output.__name__}, it answered in text")
    return cause if isinstance(cause, Exception) else error


def _problem(place: list[int | str], message: str) -> str:
    return f"{'.'.join(str(part) for part in place)}: {message}" if place else message


def _silence_instructor() -> None:
    """Keep what models say out of the log, unless the program has set a level for Instructor itself."""
    logger = logging.getLogger("instructor")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
