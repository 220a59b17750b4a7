"""What a plan will take: counted where it is certain, estimated where only the model can tell."""

from __future__ import annotations

import json

from framework.engine.context.run_context import RunContext
from framework.engine.model_call.retry import first_model
from framework.engine.model_call.turn import cached_preamble
from framework.llm.tokens import estimate_tokens
from framework.types.messages import Usage
from framework.types.plan import Plan
from framework.types.preflight import Estimate

RESULT_TOKENS = 200
"""What a step's result takes in the request for the answer."""
ANSWER_TOKENS = 200
"""What a model writes in a turn."""


def estimate(run: RunContext, plan: Plan) -> Estimate:
    """Of what is still to be done, if every step succeeds and every goal is reached in one turn."""
    left = [step for step in plan.steps if step.status in ("open", "running")]
    free = sum(step.tool is None for step in left)
    context = sum(estimate_tokens(m.content) for m in (*cached_preamble(run), *run.state.history, *run.state.messages))
    prompt = context + RESULT_TOKENS * len(plan.steps)
    if free:
        tools = [definition.model_dump() for definition in run.agent.toolset.definitions]
        own = sum(estimate_tokens(message.content) for message in cached_preamble(run))
        prompt += free * (own + estimate_tokens(json.dumps(tools, ensure_ascii=False)) + RESULT_TOKENS)
    completion = (free + 1) * ANSWER_TOKENS
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
    prices = first_model(run).info.capabilities.prices
    return Estimate(
        tool_calls=len(left) - free,
        model_calls=free + 1,
        tokens=usage.total_tokens,
        cost_usd=prices.cost(usage) if prices else None,
    )
