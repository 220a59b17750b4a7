"""One model turn: what is asked, how the answer comes in, and how it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from framework.engine.results import trace_answer
from framework.llm.client import ModelClient, ModelReply, ModelRequest
from framework.memory.window import last_messages
from framework.telemetry import names
from framework.telemetry.spans import fail
from framework.types.errors import ModelError
from framework.types.events import ContentReceived, Thought, Warned
from framework.types.messages import Message

if TYPE_CHECKING:
    from framework.engine.run import Run


def preamble(run: Run) -> tuple[Message, ...]:
    """Instructions, guidance and examples; raises PromptError."""
    spec, state = run.agent.spec, run.state
    instructions = run.agent.instructions(state.locale, state.inputs, state.user)
    guidance = run.agent.render("react.j2", state.locale, limits=run.budget.limits.model_dump())
    system = Message(role="system", content="\n\n".join((instructions, guidance, *(state.background or ()))))
    turns = [(("user", example.user), ("assistant", example.assistant)) for example in spec.examples]
    return system, *(Message(role=role, content=text) for turn in turns for role, text in turn)


def request_of(run: Run, instructions: Sequence[Message], **options: Any) -> ModelRequest:
    """The whole conversation as a request, with instructions that are never stored at its end."""
    history = last_messages(run.state.history, run.agent.spec.conversation.window)
    messages = (*run.preamble, *history, *run.state.messages, *instructions)
    return ModelRequest(messages, settings=run.state.model_settings, **options)


async def ask(run: Run, request: ModelRequest) -> ModelReply:
    """Every model call of a run goes through here, re-asks for a typed answer included.

    Raises:
        LimitExceeded: before the call, if a limit is used up.
        ModelError: the provider failed or was too slow.
    """
    run.keep_time()
    run.budget.spend_step()
    client = run.services.model(run.agent)
    model = client.info.model or client.info.provider
    attributes = {
        names.OPERATION: "chat",
        names.PROVIDER: client.info.provider,
        names.REQUEST_MODEL: model,
        names.SERVER_ADDRESS: client.info.server_address,
        names.REQUEST_STREAM: request.stream or None,
    }
    with run.span(f"chat {model}", "LLM", attributes) as span:
        try:
            async with asyncio.timeout(run.budget.limits.model_timeout):
                reply = await _receive(run, client, request)
        except TimeoutError:
            fail(span, "timeout")
            allowed = run.budget.limits.model_timeout
            raise ModelError(f"{client.info.name} did not answer within {allowed:g}s", retryable=True) from None
        except ModelError as error:
            fail(span, error.code)
            raise
        except asyncio.CancelledError:
            fail(span, "cancelled")
            raise
        span.set_attributes(_reply_attributes(reply))
    run.budget.spend_tokens(reply.usage)
    for code, message in run.budget.near():
        await run.emit(Warned, code=code, message=message)
    return reply


async def _receive(run: Run, client: ModelClient, request: ModelRequest) -> ModelReply:
    root = run.services.root
    head = {"run_id": root.run_id, "seq": 0, "generation": root.generation, "path": run.state.path}
    async for delta in client.stream(request):
        if delta.reply is not None:
            return delta.reply
        if delta.text and request.stream:
            await run.services.channel.put(ContentReceived(**head, message_id=message_id(run), text=delta.text))
    raise ModelError(f"{client.info.name} broke off in the middle of its answer", retryable=True)


async def tell(run: Run, message: Message) -> None:
    """An answer as an event: thinking where it led to tool calls, content where it is the final one."""
    reasoning = message.reasoning.text if message.reasoning else ""
    if thought := "\n".join(part for part in (reasoning, message.content if message.tool_calls else "") if part):
        await run.emit(Thought, message_id=message_id(run), text=thought)
    if message.content and not message.tool_calls and not (run.services.listening or run.is_guarded):
        await run.emit(ContentReceived, message_id=message_id(run), text=message.content)
    if not message.tool_calls:
        trace_answer(run, message)


def message_id(run: Run) -> str:
    """Names a model turn within its run."""
    return ".".join(("msg", *run.state.path, str(run.state.steps)))


def _reply_attributes(reply: ModelReply) -> dict[str, Any]:
    return {
        names.RESPONSE_MODEL: reply.model,
        names.RESPONSE_ID: reply.response_id,
        names.FINISH_REASONS: (reply.finish_reason,),
        names.INPUT_TOKENS: reply.usage.prompt_tokens,
        names.OUTPUT_TOKENS: reply.usage.completion_tokens,
        names.CACHED_TOKENS: reply.usage.cached_tokens,
    }
