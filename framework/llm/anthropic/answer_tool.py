"""A typed answer as the arguments of a tool, for providers that hold a model to a tool's schema only."""

from __future__ import annotations

import json
from dataclasses import replace

from framework.llm.client import ModelReply, ModelRequest
from framework.types.messages import ToolDefinition

NAME = "agentsd.answer"
DESCRIPTION = "Give your final answer: call this, and nothing else, once you have all you need."


def with_answer_tool(request: ModelRequest) -> ModelRequest:
    """Return the request with one more tool that takes the answer, where it asks for an answer of a schema.

    The model must call it only if there is no other tool and it is not asked to think, which excludes a forced choice.
    """
    settings = request.settings
    if not request.json or not request.json_by_tool or settings.tool_choice == "none":
        return request
    answer = ToolDefinition(name=NAME, description=DESCRIPTION, parameters=dict(request.json))
    if not request.tools:
        forced = NAME if settings.reasoning is None else None
        settings = settings.model_copy(update={"tool_choice": forced})
    return replace(request, tools=(*request.tools, answer), settings=settings)


def without_answer_tool(reply: ModelReply) -> ModelReply:
    """Return the reply with the arguments of the answer tool as its text; beside calls of other tools it is dropped."""
    message = reply.message
    others = tuple(call for call in message.tool_calls if call.tool != NAME)
    if len(others) == len(message.tool_calls):
        return reply
    answers = [call for call in message.tool_calls if call.tool == NAME and not call.invalid]
    # What the provider keeps of its thinking names the calls that are gone.
    reasoning = message.reasoning.model_copy(update={"data": None}) if message.reasoning else None
    changed = {"tool_calls": others, "reasoning": reasoning}
    if others or not answers:
        return replace(reply, message=message.model_copy(update=changed))
    text = json.dumps(answers[0].arguments, ensure_ascii=False)
    return replace(reply, message=message.model_copy(update={**changed, "content": text}), finish_reason="stop")
