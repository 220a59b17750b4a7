from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel, Field, field_validator

from framework.llm.client import ModelReply, ModelRequest
from framework.llm.json_protocol import request_typed_output
from framework.llm.openai.client import OpenAIModel
from framework.types.errors import LimitExceeded, ModelError, Paused
from framework.types.messages import Message, ToolCall, ToolDefinition, Usage
from framework.types.plan import PlanDraft, StepDraft
from framework.types.spec import ModelSettings
from tests.support.wire import Answer, WireServer, calls, cut_stream, says, wire_server

GOOD = {"goal": "tea", "steps": [{"id": "boil", "description": "Boil water."}]}
BAD = {"goal": "tea", "steps": [{"id": "pour it", "description": "Pour."}]}
USER = Message(role="user", content="Make {{ 7 * 6 }} cups of tea {% for x in y %}")
DRAFT = PlanDraft(goal="tea", steps=(StepDraft(id="boil", description="Boil water."),))

T = TypeVar("T", bound=BaseModel)


class Exchange:
    """The sent requests and their usage."""

    def __init__(self, server: WireServer) -> None:
        self.server = server
        self.requests: list[ModelRequest] = []
        self.usage = Usage()


def plan(given: object) -> Answer:
    return calls(("PlanDraft", given))


def ask_server(
    answers: list[Answer], request: ModelRequest | None = None, **options: Any
) -> tuple[PlanDraft | ModelError, Exchange]:
    async def run() -> tuple[PlanDraft | ModelError, Exchange]:
        async with wire_server(answers) as server:
            exchange = Exchange(server)
            model = OpenAIModel("openai", "m", api_key="k", base_url=server.url)

            async def ask(asked: ModelRequest) -> ModelReply:
                exchange.requests.append(asked)
                replies = [delta.reply async for delta in model.stream(asked)]
                assert replies[-1] is not None
                exchange.usage += replies[-1].usage
                return replies[-1]

            try:
                return await request_typed_output(
                    ask, request or ModelRequest(messages=(USER,)), PlanDraft, **options
                ), exchange
            except ModelError as error:
                return error, exchange
            finally:
                await model.close()

    return asyncio.run(run())


def ask_with(ask: Callable[[ModelRequest], Awaitable[ModelReply]], output: type[T]) -> T:
    async def run() -> T:
        return await request_typed_output(ask, ModelRequest(messages=(USER,)), output)

    return asyncio.run(run())


def test_a_typed_plan_is_returned() -> None:
    answer, exchange = ask_server([plan(GOOD)])

    assert answer == DRAFT
    assert type(answer) is PlanDraft
    assert len(exchange.server.requests) == 1


def test_a_retry_explains_the_mistake_and_every_request_is_counted() -> None:
    answer, exchange = ask_server([plan(BAD), plan(GOOD)])

    *_, wrong, correction = exchange.server.requests[1]["messages"]
    assert answer == DRAFT
    assert json.loads(wrong["tool_calls"][0]["function"]["arguments"]) == BAD
    assert correction["role"] == "tool"
    assert "String should match pattern" in correction["content"]
    assert exchange.usage == Usage(prompt_tokens=20, completion_tokens=10, total_tokens=30, cost_usd=None)


def test_a_retry_explains_why_arguments_are_not_json() -> None:
    answer, exchange = ask_server([plan('{"goal": "a", "goal": "b"}'), plan(GOOD)])

    assert answer == DRAFT
    assert "duplicate key 'goal'" in exchange.server.requests[1]["messages"][-1]["content"]


def test_an_answer_in_text_is_retried() -> None:
    answer, exchange = ask_server([says("Sure! First boil water."), plan(GOOD)])

    assert answer == DRAFT
    assert exchange.server.requests[1]["messages"][-1]["role"] == "user"


def test_by_schema_the_text_is_the_answer_and_a_retry_calls_the_tool() -> None:
    request = ModelRequest((USER,), settings=ModelSettings(tool_choice="none", seed=1))
    answer, exchange = ask_server([says(json.dumps(BAD)), plan(GOOD)], request, by_schema=True)

    first, second = exchange.requests
    assert answer == DRAFT
    assert first.json is not None
    assert first.json["properties"].keys() == {"goal", "steps"}
    assert first.tools == ()
    assert first.settings == ModelSettings(seed=1)
    assert json.dumps(first.json, separators=(",", ":")) in first.messages[-1].content, "servers do not show it"
    assert (second.json, second.settings.tool_choice) == (None, "PlanDraft")
    assert second.messages[0] == USER
    assert "String should match pattern" in second.messages[-1].content


@pytest.mark.parametrize("text", ["Sure! First boil water.", '{"goal": "tea"', "[]", ""])
def test_by_schema_a_text_that_is_not_the_answer_is_retried(text: str) -> None:
    answer, exchange = ask_server([says(text), plan(GOOD)], by_schema=True)

    assert answer == DRAFT
    assert len(exchange.requests) == 2


def test_by_schema_a_server_may_call_the_tool_all_the_same() -> None:
    answer, exchange = ask_server([plan(GOOD)], by_schema=True)

    assert (answer, len(exchange.requests)) == (DRAFT, 1)


def test_conversation_and_settings_are_sent_unchanged() -> None:
    earlier = Message(role="assistant", tool_calls=(ToolCall(id="c", tool="docs.search", arguments={"q": "tea"}),))
    conversation = (USER, earlier, Message(role="tool", content="{{ found }}", tool_call_id="c"))
    other_tool = ToolDefinition(name="docs.search", description="Search.", parameters={"type": "object"})
    settings = ModelSettings(temperature=0.3, max_tokens=77, tool_choice="none")

    _, exchange = ask_server(
        [plan(BAD), plan(GOOD)],
        ModelRequest(messages=conversation, tools=(other_tool,), settings=settings, stream=True),
    )

    assert [asked.messages[:3] for asked in exchange.requests] == [conversation, conversation]
    assert all(
        asked.settings == settings.model_copy(update={"tool_choice": "PlanDraft"}) for asked in exchange.requests
    )
    assert all([tool.name for tool in asked.tools] == ["PlanDraft"] for asked in exchange.requests)
    assert not any(asked.stream for asked in exchange.requests)


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_the_final_error_names_the_mistake_without_quoting_the_model(retries: int) -> None:
    secret = {**BAD, "goal": "hunter2"}
    error, exchange = ask_server([plan(secret)] * 5, retries=retries)

    assert isinstance(error, ModelError)
    assert len(exchange.requests) == retries + 1
    assert error.message.startswith("the answer still does not fit PlanDraft: ")
    assert "steps.0.id: String should match pattern" in error.message
    assert "hunter2" not in error.message
    assert not error.retryable


def test_the_final_error_says_why_arguments_are_no_json() -> None:
    error, _ = ask_server([calls(("PlanDraft", '{"goal": "x", "steps": 7E54848}'))] * 3)

    assert isinstance(error, ModelError)
    assert error.message.startswith("the answer still does not fit PlanDraft: the arguments are not one JSON object: ")
    assert "expected ident" not in error.message
    assert "7E54848" in error.message or "number" in error.message


def test_answers_in_text_only_end_as_an_error() -> None:
    error, _ = ask_server([says("I would rather talk.")] * 3)

    assert isinstance(error, ModelError)
    assert error.message == "the model answered in text instead of calling PlanDraft"


@pytest.mark.parametrize("cut", [says("half a", finish="length"), calls(("PlanDraft", GOOD), finish="length")])
def test_an_answer_cut_by_max_tokens_is_not_retried(cut: Answer) -> None:
    error, exchange = ask_server([cut, plan(GOOD)])

    assert isinstance(error, ModelError)
    assert "cut by max_tokens: raise model_settings.max_tokens" in error.message
    assert not error.retryable
    assert len(exchange.requests) == 1


def test_a_broken_connection_is_not_retried_by_instructor() -> None:
    error, exchange = ask_server([cut_stream(), plan(GOOD)])

    assert isinstance(error, ModelError)
    assert error.retryable
    assert len(exchange.requests) == 1


@pytest.mark.parametrize(
    "raised",
    [
        LimitExceeded("max_total_tokens", used=5, allowed=4),
        ModelError("down", retryable=True),
        ValueError("a mistake in the gateway"),
        KeyError("another"),
        Paused(()),
        asyncio.CancelledError(),
    ],
    ids=lambda raised: type(raised).__name__,
)
def test_errors_of_the_request_function_are_unchanged_and_not_retried(raised: BaseException) -> None:
    asked = []

    async def ask(request: ModelRequest) -> ModelReply:
        asked.append(request)
        raise raised

    with pytest.raises(type(raised)) as caught:
        ask_with(ask, PlanDraft)

    assert caught.value is raised or isinstance(raised, asyncio.CancelledError)
    assert len(asked) == 1


def test_a_limit_reached_by_a_retry_is_raised_unchanged() -> None:
    limit = LimitExceeded("max_steps", used=2, allowed=1)
    replies = [ModelReply(_calling("PlanDraft", BAD), "tool_calls", Usage())]

    async def ask(request: ModelRequest) -> ModelReply:
        if not replies:
            raise limit
        return replies.pop()

    with pytest.raises(LimitExceeded) as caught:
        ask_with(ask, PlanDraft)

    assert caught.value is limit


def test_a_validation_error_of_the_request_function_is_not_retried() -> None:
    asked = []

    async def ask(request: ModelRequest) -> ModelReply:
        asked.append(request)
        PlanDraft.model_validate({})
        raise AssertionError

    with pytest.raises(ValueError, match="steps"):
        ask_with(ask, PlanDraft)

    assert len(asked) == 1


class Choice(BaseModel):
    """Choose an agent."""

    agent: str = Field(alias="chosenAgent")
    confidence: float = Field(ge=0, le=1)


class Broken(BaseModel):
    """A type whose validator raises an unexpected error."""

    word: str

    @field_validator("word")
    @classmethod
    def _check(cls, value: str) -> str:
        raise RuntimeError(f"no check for {len(value)} letters")


def _calling(name: str, arguments: dict[str, Any]) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id="c", tool=name, arguments=arguments),))


def _answering(name: str, arguments: dict[str, Any]) -> Callable[[ModelRequest], Awaitable[ModelReply]]:
    async def ask(request: ModelRequest) -> ModelReply:
        return ModelReply(_calling(name, arguments), "tool_calls", Usage())

    return ask


def test_a_type_with_aliases_is_read_by_them() -> None:
    choice = ask_with(_answering("Choice", {"chosenAgent": "billing", "confidence": 1}), Choice)

    assert (choice.agent, choice.confidence) == ("billing", 1.0)


def test_an_error_in_the_types_validator_is_raised_unchanged() -> None:
    with pytest.raises(RuntimeError, match="no check for 3 letters"):
        ask_with(_answering("Broken", {"word": "abc"}), Broken)


@pytest.fixture
def instructor_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("instructor")
    level = logger.level
    logger.setLevel(logging.NOTSET)
    yield logger
    logger.setLevel(level)


def test_the_models_answer_is_not_logged(instructor_logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ModelError):
        ask_with(_answering("Choice", {"chosenAgent": "hunter2", "confidence": "hunter2"}), Choice)

    assert not [record for record in caplog.records if record.name.startswith("instructor")]


def test_a_log_level_set_by_the_program_is_kept(instructor_logger: logging.Logger) -> None:
    instructor_logger.setLevel(logging.WARNING)

    ask_with(_answering("Choice", {"chosenAgent": "a", "confidence": 1}), Choice)

    assert instructor_logger.level == logging.WARNING
