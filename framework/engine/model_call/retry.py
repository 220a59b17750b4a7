"""Retries and fallbacks: the only place where a failed model call is repeated, or sent to another model.

Clients send a request once, and their SDKs retry nothing, so that attempts never multiply. Each error is handled once:

| the provider                                                            | retried | then a fallback |
|-------------------------------------------------------------------------|---------|-----------------|
| limits the rate, fails (5xx, 408, 409), times out, cannot be reached    | yes     | yes             |
| sends an unusable answer: truncated, empty, not JSON, an HTML page      | yes     | yes             |
| says that the model's function call is unreadable (400, 500)            | yes (+) | yes             |
| sends a function call as text, because its server has no parser for it  | once(-) | yes             |
| lacks the model, rejects the key, requires payment, quota is exhausted  | no      | yes (*)         |
| rejects the request (400, 403, 413, 422)                                | no      | no              |
| refuses the content; max_tokens cut a tool call or left no text         | no      | no              |

(+) With the provider's message as a correction.
(-) With a correction that says how to call.
(*) The run and its sub-runs do not call this model again as long as a fallback remains; other runs do.

A failed attempt leaves nothing in the run but its cost: no message, and no tool call.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count

from framework.config.agents.models import OPT_OUT_HINT, price_hint
from framework.config.settings import ModelCallSettings
from framework.engine.context.model_clients import ModelCaller, NamedClient, Permit
from framework.engine.model_call.attempt import send_attempt
from framework.engine.model_call.files import fallback_request
from framework.engine.model_call.trace import ModelTrace
from framework.llm.capabilities import unsupported_settings
from framework.llm.client import ModelClient, ModelInfo, ModelReply, ModelRequest, other_seed
from framework.types.errors import ConfigError, ModelError
from framework.types.events import ContentReceived
from framework.types.http import backoff
from framework.types.messages import Usage, late_guidance

_MAX_BEGUN_RETRIES = 1
"""How often a model begins an answer again after a part of it had arrived: that part was paid for, and perhaps read."""
_NO_FINISH_REASON = (
    "the server of {model} ended its stream without a finish_reason: the answer is taken as complete; if answers are "
    "cut, set `stream: false` at an alias of the model, or update the server"
)
_UNUSABLE_ANSWERS = ("empty_answer", "bad_call", "text_call")
"""Types of errors after which the same request with the same seed would fail again."""
_POLL_INTERVAL = 0.5
"""Seconds between two checks whether a model has recovered, because another run may find out first."""


async def complete_with_retries(caller: ModelCaller, request: ModelRequest, primary: NamedClient) -> ModelReply:
    """Send a request to a model, retry it, and try the agent's fallbacks in order; return the first reply.

    Args:
        caller: clients, budget and telemetry to use.
        request: the request.
        primary: the model to call first.

    Raises:
        ModelError: every model failed, or one rejected the request itself.
        LimitExceeded: the cost of failed attempts has used up a limit.
        ConfigError: a cost limit applies and the price of a model is unknown, or a setting is not supported.
    """
    return await _ModelCall(caller, request, primary).complete()


class _ModelCall:
    """One request, on its way through the primary model and its fallbacks. Each client is looked up once."""

    def __init__(self, caller: ModelCaller, request: ModelRequest, primary: NamedClient) -> None:
        self._caller, self._context, self._budget = caller, caller.context, caller.budget
        self._request = request
        self._rules: ModelCallSettings = caller.settings.model_calls
        self._breakers = caller.clients.breakers
        self._primary = primary
        self._names = (primary.name, *caller.agent.spec.fallback_models)
        self._clients = {primary.name: primary.client}
        self._cost_limit = self._budget.cost_limit
        self._attempts = 0
        self._message_id: str | None = None
        """Id of the last attempt's message; a warning with this id voids the text shown of that message."""

    async def complete(self) -> ModelReply:
        self._check_prices()
        self._trace = ModelTrace(self._caller, self._request)
        failures: list[ModelError] = []
        failed, names = self._caller.failed_models, self._caller.names_from(self._primary.name)
        with self._trace:
            for position, name in enumerate(names):
                fallback = names[position + 1] if position + 1 < len(names) else None
                is_fallback = name != self._primary.name
                try:
                    client = self._usable_client(name, is_fallback=is_fallback)
                    return await self._call(name, client, is_fallback=is_fallback, is_last=fallback is None)
                except ModelError as error:
                    if not error.unavailable:
                        raise
                    failures.append(error)
                if failures[-1].permanent:
                    failed.add(name)
                if fallback is not None:
                    await self._warn_of_fallback(failures[-1], fallback)
        raise self._exhausted_error(failures)

    async def _warn_of_fallback(self, error: ModelError, fallback: str) -> None:
        duration = " for the rest of the run" if error.permanent else ""
        message = f"{error.message}; falling back to {fallback}{duration}"
        await self._context.warn("model_fallback", message, message_id=self._message_id)

    # --- clients

    def _client(self, name: str) -> ModelClient:
        if name not in self._clients:
            self._clients[name] = self._caller.client(name)
        return self._clients[name]

    def _check_prices(self) -> None:
        """Raise ConfigError if a cost limit needs prices and that of a model is unknown: it could not be enforced."""
        limit = self._cost_limit
        if limit is None or not limit.needs_prices:
            return
        for position, name in enumerate(self._names):
            try:
                client = self._client(name)
            except ConfigError:
                if position:
                    continue  # a fallback without a client is never called
                raise
            if not client.info.has_price:
                hint = price_hint(name, name in self._caller.settings.models)
                problem = f"max_cost_usd ({limit.place}) cannot be enforced: the price of {name} is unknown"
                raise ConfigError(f"{problem}; {hint}" if limit.shared else f"{problem}; {hint}; {OPT_OUT_HINT}")

    async def _warn_of_unknown_cost(self, name: str) -> None:
        """Warn, once a run, that a cost limit does not count a call whose cost is neither reported nor computable."""
        if self._cost_limit is None or not self._budget.claim_warning("cost_unknown"):
            return
        message = f"calls of {name} count as 0 towards max_cost_usd ({self._cost_limit.place}): its price is unknown"
        hint = price_hint(name, name in self._caller.settings.models)
        await self._context.warn("cost_unknown", f"{message}; {hint}")

    def _usable_client(self, name: str, *, is_fallback: bool) -> ModelClient:
        """Return the client for this request; raise ModelError if the next fallback should be tried instead."""
        try:
            client = self._client(name)
        except ConfigError as error:
            if not is_fallback:
                raise
            raise ModelError(error.message, permanent=True) from None
        info, request = client.info, self._request
        if not is_fallback and (
            unsupported := list(unsupported_settings(info.provider, info.name, request.settings, info.capabilities))
        ):
            prefix = "" if name == info.name else f"{name}: "
            raise ConfigError(prefix + "; ".join(f"{one.problem}: {one.hint}" for one in unsupported))
        if request.output is not None and not info.typed:
            raise ModelError(f"{name} does not support the structured output of this request", unavailable=True)
        return client

    # --- attempts

    async def _call(self, name: str, client: ModelClient, *, is_fallback: bool, is_last: bool) -> ModelReply:
        """Call one model until it answers or a retry is pointless."""
        request = self._request
        if is_fallback:
            request = fallback_request(request, name, client.info)
        begun = unusable = 0
        for retries in count():
            permit = await self._acquire_permit(name, is_last=is_last)
            self._context.keep_time()
            if self._attempts:
                await self._budget.admit_retry()
            self._attempts += 1
            self._message_id = await self._begin_message()
            try:
                reply = await send_attempt(
                    self._caller,
                    client,
                    other_seed(request, unusable),
                    self._trace,
                    self._message_id,
                    fallback=is_fallback,
                )
            except ModelError as error:
                self._message_id = error.message_id
                self._record_failure(name, error, permit)
                if error.too_long:
                    self._caller.clients.learn_window(client.info, request, error.window)
                await self._spend(error.usage, client.info, name)
                delay = backoff_seconds(error, retries, self._rules)
                begun += error.has_begun
                unusable += error.error_type in _UNUSABLE_ANSWERS
                if begun > _MAX_BEGUN_RETRIES or not self._should_retry(name, error, retries, delay, is_last=is_last):
                    raise
                self._budget.check_spent()
                if error.correction:
                    messages = (*self._request.messages, late_guidance(error.correction))
                    request = replace(request, messages=messages)
                message = f"{error.message}; retrying in {delay:.1f}s"
                await self._context.warn("model_retry", message, message_id=self._message_id)
                await asyncio.sleep(delay)
            else:
                self._breakers.record_success(name)
                await self._spend(reply.usage, client.info, name)
                if reply.lacks_finish_reason and self._budget.claim_warning("no_finish_reason"):
                    await self._context.warn("no_finish_reason", _NO_FINISH_REASON.format(model=client.info.name))
                return reply
        raise AssertionError("count() never ends")

    async def _spend(self, usage: Usage | None, model: ModelInfo, name: str) -> None:
        """Add the usage of an attempt; if a shared budget pays for it, save it now, so that all runs see it."""
        if usage and usage.cost_usd is None:
            await self._warn_of_unknown_cost(name)
        if usage and self._budget.spend_tokens(usage, model):
            await self._context.save()

    async def _begin_message(self) -> str:
        """Return the id of the message of the next attempt.

        A continued message keeps its id until an attempt fails, which voids it; its beginning is then emitted again.
        """
        message_id, cut = self._context.message_id(self._attempts), self._request.continued
        if cut is None:
            return message_id
        if self._attempts == 1:
            return cut.message_id
        if self._request.stream:
            self._context.emit_text(ContentReceived, message_id, cut.message.content)
        return message_id

    async def _acquire_permit(self, name: str, *, is_last: bool) -> Permit:
        """Wait until the circuit breaker admits a call.

        Raises:
            ModelError: a fallback remains, or the deadline comes before the end of the cooldown.
        """
        has_warned = False
        while (permit := self._breakers.acquire(name)).wait:
            cooldown = f"{name} is in cooldown for {permit.wait:.1f}s: {self._breakers.last_error(name)}"
            if not is_last:
                raise ModelError(cooldown, retryable=True, retry_after=permit.wait)
            if permit.wait >= self._context.time_remaining():
                advice = "that exceeds the run's remaining time: retry later, or set fallback_models"
                raise ModelError(f"{cooldown}; {advice}", retryable=True, retry_after=permit.wait)
            if not has_warned:
                await self._context.warn("model_retry", cooldown)
                has_warned = True
            await asyncio.sleep(min(permit.wait, _POLL_INTERVAL))
        return permit

    def _record_failure(self, name: str, error: ModelError, permit: Permit) -> None:
        """Record the outcome for the circuit breaker: only retryable errors mean that the model is unhealthy.

        An answer that the model itself got wrong does not.
        """
        if not error.retryable or error.correction:
            self._breakers.record_success(name)
            return
        rules = self._rules
        self._breakers.record_failure(name, permit, error.message, after=rules.cooldown_after, cooldown=rules.cooldown)

    def _should_retry(self, name: str, error: ModelError, retries: int, delay: float, *, is_last: bool) -> bool:
        if not error.retryable or retries >= self._rules.max_retries:
            return False
        if not is_last and self._breakers.is_open(name):
            return False
        timeout = self._budget.limits.model_timeout
        if error.retry_after and timeout is not None and error.retry_after > timeout:
            return False
        return delay < self._context.time_remaining()

    def _exhausted_error(self, failures: list[ModelError]) -> ModelError:
        """Return the error for the caller: the last message of each model, without duplicates."""
        messages = "; ".join(dict.fromkeys(error.message for error in failures))
        attempts = f" ({self._attempts} attempts)" if self._attempts > 1 else ""
        exhausted = ModelError(
            messages + attempts,
            retryable=any(error.retryable for error in failures),
            retry_after=failures[-1].retry_after,
            unavailable=True,
            scarce=any(error.scarce for error in failures),
        )
        return exhausted.of_type(failures[-1].error_type).for_message(self._message_id)


def backoff_seconds(error: ModelError, retries: int, rules: ModelCallSettings) -> float:
    """Return the delay before the next attempt: exponential with full jitter, after the provider's `Retry-After`."""
    delay = backoff(retries, base=rules.backoff, cap=rules.max_backoff)
    return delay if error.retry_after is None else error.retry_after + delay
