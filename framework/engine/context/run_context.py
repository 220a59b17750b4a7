"""One run as its parts see it: its state, agent, rules, events and time.

Model turns, tool calls and traces accept a `RunContext`. `Run` extends it with the methods that executors call.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, Literal

from pydantic import BaseModel

from framework.config.agents.compile import Agent
from framework.config.templates.prompts import PromptError
from framework.engine.context.budget import Budget
from framework.engine.context.event_hub import TextKind
from framework.engine.context.journal import next_event
from framework.engine.context.model_clients import ModelCaller
from framework.engine.context.policy import Policy
from framework.engine.context.services import Services
from framework.llm.request_cache import RequestCache
from framework.telemetry import names
from framework.telemetry.content import Content
from framework.telemetry.spans import NOOP_SPAN, OpenInferenceKind, TraceSpan
from framework.tools.base_folder import BaseFolder
from framework.tools.declaration import Extension
from framework.types.errors import AgentsdError, outcome_for
from framework.types.events import RunEvent, Warned
from framework.types.messages import Message
from framework.types.redact import redact
from framework.types.report import MAX_WARNINGS_PER_CODE, WARNINGS, ErrorInfo, RunWarning, WarningCode
from framework.types.spec import HookPlace
from framework.types.state import Confirmation, Decision, RunState
from framework.types.strict_json import content_digest

log = logging.getLogger("agentsd.runs")

CLOCK_DRIFT = 0.001
"""Seconds: smaller differences between two readings of a deadline are ignored."""


class RunContext(ABC):
    """A root run or a sub-run: the base of `Run` that its parts use."""

    def __init__(self, state: RunState, agent: Agent, services: Services, parent: RunContext | None = None) -> None:
        agent = agent.on_model(services.root.model) if services.root.model else agent
        self.state, self.agent, self.services, self.parent = state, agent, services, parent
        above = parent.budget.chain if parent else ()
        self.budget: Budget = Budget(state, agent, services.current_agent, above, services.ledger)
        parents = (*parent.policy.parents, parent.agent) if parent else ()
        self.policy: Policy = Policy(agent, services.current_agent, parents, BaseFolder(services.base_path))
        self.content: Content = (parent.content if parent else services.content).restricted_to(
            agent.spec.telemetry.content
        )
        """How much content traces of this run include: never more than its callers allow, whose text it contains."""
        self.request_cache = RequestCache()
        """Cache of model clients, shared by all requests of this run."""
        self.outgrown: set[str] = set()
        """Models that are not called again, because the run does not fit into their windows but into a fallback's."""
        self.deadline: asyncio.Timeout | None = None
        """Deadline of the run while it is in progress."""
        self._counted_at = 0.0
        """When the active time was last added to the state, by `perf_counter`."""
        self._answer: BaseModel | None = None
        self.rendered: dict[Literal["preamble", "summary"], tuple[Message, ...]] = {}
        """Messages that are equal in every request of this run, rendered for the first one."""
        self.result_chars: int | None = None
        """Characters of each tool result that requests contain, once the whole results did not fit the model."""

    @property
    def model_caller(self) -> ModelCaller:
        """What calls the models. It is not stored: the cycle of references would keep ended runs until a collection."""
        services = self.services
        return ModelCaller(
            self.agent,
            services.generation.settings,
            services.clients,
            self.budget,
            services.spans,
            services.meters,
            self.content,
            context=self,
            sources=services.generation.external.declared,
            outgrown=self.outgrown,
            failed_models=services.failed_models,
        )

    @abstractmethod
    async def delegate(
        self, key: str, agent: Agent, message: str, inputs: Mapping[str, Any]
    ) -> tuple[tuple[Confirmation, ...], RunState]:
        """Run a sub-agent, or continue its run.

        Args:
            key: identifies the sub-run within this run.
            agent: the sub-agent.
            message: its user message.
            inputs: values of its declared inputs.

        Returns:
            The confirmations it waits for, empty once it has ended, and its state.
        """

    def cut_results(self, chars: int) -> bool:
        """Let further requests contain at most so many characters of each tool result; return whether that is new."""
        if self.result_chars is not None and self.result_chars <= chars:
            return False
        self.result_chars = chars
        return True

    # --- rules in force

    def hooks(self, place: HookPlace) -> Iterator[Extension]:
        """Yield the hooks of the version that the run is pinned to, then those only the live version has."""
        pinned = self.agent.hooks.get(place, ())
        yield from pinned
        current = self.services.current_agent(self.agent.name)
        if current is not None and current is not self.agent:
            known = {hook.name for hook in pinned}
            yield from (hook for hook in current.hooks.get(place, ()) if hook.name not in known)

    @property
    def is_guarded(self) -> bool:
        """Whether `after_run` hooks check the output, so that no part of it is emitted before."""
        current = self.services.current_agent(self.agent.name)  # asked for each token, so `hooks` would take too long
        return bool(self.agent.hooks.get("after_run") or (current and current.hooks.get("after_run")))

    def decision(self, confirmation_id: str) -> Decision | None:
        """Return a person's decision on a confirmation, or None if it is pending."""
        return self.services.root.decisions.get(confirmation_id)

    def confirmation_id(self, prefix: str, texts: Sequence[str], *, mark: str = "~", end: str = "") -> str:
        """Return the id of a confirmation: a decision counts only for the texts whose digests the id contains.

        Args:
            prefix: what the id begins with.
            texts: what the decision applies to; their digests follow the prefix.
            mark: put before each digest.
            end: what the id ends with.
        """
        return f"{prefix}{''.join(mark + content_digest(text) for text in texts)}{end}"

    # --- records, events and spans

    @property
    def system_prompt(self) -> str | None:
        """Text of the system message; None before the first request, without one, or if its template failed."""
        preamble = self.rendered.get("preamble")
        return preamble[0].content if preamble and preamble[0].role == "system" else None

    def span(
        self, name: str, kind: OpenInferenceKind, attributes: Mapping[str, Any], *, client: bool = False
    ) -> TraceSpan:
        """Open a span around a part of the run's work; `client` marks a call of another service."""
        if not self.services.spans.recording:
            return NOOP_SPAN
        return self.services.spans.span(name, kind, {names.AGENT: self.agent.name, **attributes}, client=client)

    async def emit(self, event: type[RunEvent], **payload: Any) -> None:
        """Emit an event to all listeners, after it is persisted."""
        journal, root = self.services.journal, self.services.root
        if journal.has_no_readers:
            root.seq += 1
        else:
            journal.append(next_event(root, event, path=self.state.path, **payload))

    async def warn(self, code: WarningCode, message: str, *, message_id: str | None = None) -> None:
        """Record a warning in the root run's state, log its code, and emit it.

        Args:
            code: a key of `WARNINGS`.
            message: what happened and what to do. It can contain content, so it is not logged.
            message_id: the message whose text is void because its model call failed.
        """
        warnings = self.services.root.warnings
        if sum(warning.code == code for warning in warnings) < MAX_WARNINGS_PER_CODE:
            warnings.append(RunWarning(code=code, message=message, path=self.state.path))
            log.warning("run %s agent=%s: %s: %s", self.state.run_id, self.agent.name, code, WARNINGS[code])
        await self.emit(Warned, code=code, message=message, message_id=message_id)

    def emit_text(self, kind: TextKind, message_id: str, text: str) -> None:
        """Send a piece of a text to readers without persisting it; hooks that check the output hold it back."""
        if not self.is_guarded:
            generation, path = self.services.root.generation, self.state.path
            self.services.hub.add_text(kind, text, generation=generation, path=path, message_id=message_id)

    def message_id(self, attempt: int = 1) -> str:
        """Return the id, in events, of the message that an attempt at the current model turn produces.

        Args:
            attempt: its number within the turn, from 1.
        """
        suffix = f"-{attempt}" if attempt > 1 else ""
        return ".".join(("msg", *self.state.path, str(self.state.steps))) + suffix

    async def save(self) -> None:
        """Persist the state of the whole run; raises StoreError."""
        await self.services.journal.save()

    def record(self, messages: Iterable[Message]) -> None:
        """Append messages that no model turn produced."""
        self.state.messages.extend(messages)

    def keep_answer(self, answer: BaseModel) -> None:
        """Keep the answer as an instance of the caller's type, until the result is built."""
        self._answer = answer

    @property
    def typed_answer(self) -> BaseModel | None:
        """The answer as an instance of the caller's type; None without one, or if hooks changed the output."""
        return self._answer if self.services.output_type and self.state.data is not None else None

    def end(self, finish_reason: str, output: str = "", error: BaseException | None = None) -> None:
        """Set in the state how the run ends."""
        state = self.state
        state.finish_reason, state.output = finish_reason, output
        status = getattr(error, "http_status", 500)
        state.status = outcome_for(finish_reason, status).status
        state.error = state.stopped_by = None
        if error is not None:
            ours = isinstance(error, (AgentsdError, PromptError))
            message = redact(str(error)) if ours else "internal error; see the log"
            state.error = ErrorInfo(code=finish_reason, message=message, retryable=getattr(error, "retryable", False))

    # --- time

    def keep_time(self) -> None:
        """Add the active time of the run and its parents to their state, and apply a timeout that was lowered since.

        The time is persisted with the next step, so that a crash loses little of it.
        """
        if self.parent is not None:
            self.parent.keep_time()
        if self.deadline is None:
            return
        if perf_counter() - self._counted_at > CLOCK_DRIFT:
            self._count_time()
        if self.budget.limits is self.state.limits:  # none was lowered
            return
        left = self.budget.time_left()
        if left is None or self.deadline.expired():
            return
        due, now_due = self.deadline.when(), asyncio.get_running_loop().time() + left
        if due is None or now_due < due - CLOCK_DRIFT:
            self.deadline.reschedule(now_due)

    def time_remaining(self) -> float:
        """Return the seconds until this run, or a run that it is part of, must end; infinite without a timeout."""
        remaining = self.parent.time_remaining() if self.parent else math.inf
        if self.deadline and (due := self.deadline.when()) is not None:
            remaining = min(remaining, due - asyncio.get_running_loop().time())
        return remaining

    def _count_time(self) -> None:
        now = perf_counter()
        self.state.elapsed_ms += (now - self._counted_at) * 1000
        self._counted_at = now
