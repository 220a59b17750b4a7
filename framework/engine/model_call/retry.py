"""Asking again: the one place where a model call that failed is made anew, or goes to another model.

Clients ask once and their SDKs retry nothing, so that attempts never multiply. What is done about an error:

| the provider                                                        | the same model again | a fallback after that |
|---------------------------------------------------------------------|----------------------|-----------------------|
| limits the rate, fails (5xx, 408, 409), is too slow, not reached    | yes                  | yes                   |
| sends no usable answer: cut off, empty, no JSON, a page             | yes                  | yes                   |
| has no such model, refuses the key, wants to be paid, quota used up | no                   | yes                   |
| refuses the request (400, 403, 413, 422)                            | no                   | no                    |
| refuses the content; max_tokens cut a call or left no text          | no                   | no                    |

An attempt that failed leaves nothing behind but its cost: no message, no call of a tool.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import count

from framework.config.agents.prices import price_hint
from framework.config.settings import ModelCallSettings
from framework.engine.context.circuit_breaker import Permit
from framework.engine.context.run_context import RunContext
from framework.engine.model_call.attempt import message_id, send_attempt
from framework.engine.model_call.trace import ModelTrace, model_trace
from framework.llm.capabilities import unsupported_settings
from framework.llm.client import ModelClient, ModelReply, ModelRequest
from framework.types.backoff import backoff
from framework.types.errors import ConfigError, ModelError
from framework.types.state import RunState

_POLL_INTERVAL = 0.5
"""Seconds: a run that waits for a model looks so often whether another run has found it well again."""


async def complete_with_retries(run: RunContext, request: ModelRequest, model: str | None = None) -> ModelReply:
    """Ask the agent's model, or the one that is named instead, as often as it makes sense, then the agent's fallbacks.

    Raises:
        ModelError: none of them answered; or one did with an error that is no other model's business.
        LimitExceeded: attempts that failed have used up what there was.
        ConfigError: the agent's own model has no key, or a cost limit is in force and a model has no price.
    """
    spec = run.agent.spec
    models = (model or spec.model or run.services.generation.settings.model, *spec.fallback_models)
    _check_prices(run, models)
    failures: list[ModelError] = []
    attempts = _Attempts(run.state)
    with model_trace(run, request) as trace:
        for place, name in enumerate(models):
            instead = models[place + 1] if place + 1 < len(models) else None
            try:
                client = _client(run, name, request, fallback=place > 0)
                asked = _Asked(run, name, client, request, trace, attempts, fallback=place > 0, alone=instead is None)
                return await asked.reply()
            except ModelError as error:
                if not error.unavailable:
                    raise
                failures.append(error)
            if instead is not None:
                await run.warn(
                    "model_fallback", f"{failures[-1].message}; asking {instead} instead", message_id=attempts.last
                )
    raise _exhausted_error(failures, attempts)


def _check_prices(run: RunContext, models: Sequence[str]) -> None:
    """Raise ConfigError if a cost limit is in force and a model's price is unknown: it would never reach the limit."""
    if (limit := run.budget.cost_limit) is None:
        return
    for place, name in enumerate(models):
        try:
            client = run.services.model(run.agent, name)
        except ConfigError:
            if place:
                continue  # a fallback that cannot be used costs nothing
            raise
        if not client.info.has_price:
            hint = price_hint(name, name in run.services.generation.settings.models)
            raise ConfigError(f"max_cost_usd ({limit}) cannot be enforced: the price of {name} is unknown; {hint}")


def primary_client(run: RunContext, model: str | None = None) -> ModelClient:
    """The model that is asked first; raises ConfigError when it has no key."""
    return run.services.model(run.agent, model or run.agent.spec.model or run.services.generation.settings.model)


def _client(run: RunContext, name: str, request: ModelRequest, *, fallback: bool) -> ModelClient:
    """The client of that name; a fallback that cannot be used is one model less, not the end."""
    try:
        client = run.services.model(run.agent, name)
    except ConfigError as error:
        if not fallback:
            raise
        raise ModelError(error.message, unavailable=True) from None
    info = client.info
    if not fallback and (unknown := unsupported_settings(info.provider, request.settings)):
        raise ConfigError(f"{name}: {info.provider} knows no {', '.join(unknown)}: take it out of model_settings")
    if request.output is not None and not info.typed:
        raise ModelError(f"{name} cannot give the typed answer that was asked for", unavailable=True)
    return client


class _Attempts:
    """Numbers the attempts of one model call, over all models that it goes to."""

    def __init__(self, state: RunState) -> None:
        self.count = 0
        self.last: str | None = None
        """Message id of the last attempt; a warning that carries it voids what was shown of that message."""
        self._state = state

    def begin(self) -> str:
        """Return the message id of the next attempt."""
        self.count += 1
        self.last = message_id(self._state, self.count)
        return self.last


class _Asked:
    """One model that is asked until it answers or there is no point in it any more."""

    def __init__(
        self,
        run: RunContext,
        name: str,
        client: ModelClient,
        request: ModelRequest,
        trace: ModelTrace,
        attempts: _Attempts,
        *,
        fallback: bool,
        alone: bool,
    ) -> None:
        self._run, self._name, self._client, self._request, self._trace = run, name, client, request, trace
        self._attempts, self._fallback, self._alone = attempts, fallback, alone
        self._rules = run.services.generation.settings.model_calls
        self._breakers = run.services.breakers

    async def reply(self) -> ModelReply:
        run = self._run
        for tried in count():
            permit = await self._permit()
            run.keep_time()
            message = self._attempts.begin()
            try:
                reply = await send_attempt(
                    run, self._client, self._request, self._trace, message, fallback=self._fallback
                )
            except ModelError as error:
                if error.usage:
                    run.budget.spend_tokens(error.usage)
                self._note(error, permit)
                wait = backoff_seconds(error, tried, self._rules)
                if not self._is_worth_it(error, tried, wait):
                    raise
                run.budget.check_spent()
                await run.warn("model_retry", f"{error.message}; asking again in {wait:.1f}s", message_id=message)
                await asyncio.sleep(wait)
            else:
                self._breakers.record_success(self._name)
                run.budget.spend_tokens(reply.usage)
                return reply
        raise AssertionError("counted to the end")

    async def _permit(self) -> Permit:
        """Leave to ask; a model that rests is waited for only if there is no other and the run has the time."""
        told = False
        while (permit := self._breakers.acquire(self._name)).wait:
            left_alone = f"{self._name} is left alone for {permit.wait:.1f}s: {self._breakers.last_error(self._name)}"
            if not self._alone:
                raise ModelError(left_alone, retryable=True, retry_after=permit.wait)
            if permit.wait >= _time_left(self._run):
                advice = "that is longer than the run has; try again then, or give the agent `fallback_models`"
                raise ModelError(f"{left_alone}; {advice}", retryable=True, retry_after=permit.wait)
            if not told:
                await self._run.warn("model_retry", left_alone)
                told = True
            await asyncio.sleep(min(permit.wait, _POLL_INTERVAL))
        return permit

    def _note(self, error: ModelError, permit: Permit) -> None:
        """A refusal is an answer, too: only what may pass by itself is a matter of health."""
        if error.retryable:
            rules = self._rules
            self._breakers.record_failure(
                self._name, permit, error.message, after=rules.cooldown_after, cooldown=rules.cooldown
            )
        else:
            self._breakers.record_success(self._name)

    def _is_worth_it(self, error: ModelError, tried: int, wait: float) -> bool:
        if not error.retryable or tried >= self._rules.max_retries:
            return False
        if not self._alone and self._breakers.is_open(self._name):
            return False
        patience = self._run.budget.limits.model_timeout
        if error.retry_after and patience is not None and error.retry_after > patience:
            return False
        return wait < _time_left(self._run)


def backoff_seconds(error: ModelError, tried: int, rules: ModelCallSettings) -> float:
    """Seconds until the next attempt: up to chance, so that many that failed at once do not come back at once."""
    wait = backoff(tried, base=rules.backoff, cap=rules.max_backoff)
    return wait if error.retry_after is None else error.retry_after + wait


def _time_left(run: RunContext | None) -> float:
    """Seconds until the run, or a run that it is part of, must end."""
    left = math.inf
    now = asyncio.get_running_loop().time()
    while run is not None:
        if run.deadline and (due := run.deadline.when()) is not None:
            left = min(left, due - now)
        run = run.parent
    return left


def _exhausted_error(failures: list[ModelError], attempts: _Attempts) -> ModelError:
    """Return the error for the caller: every model's last message, each once."""
    said = "; ".join(dict.fromkeys(error.message for error in failures))
    often = f" ({attempts.count} attempts)" if attempts.count > 1 else ""
    return ModelError(
        said + often,
        retryable=any(error.retryable for error in failures),
        retry_after=failures[-1].retry_after,
        unavailable=True,
    ).for_message(attempts.last)
