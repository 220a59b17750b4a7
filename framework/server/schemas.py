"""What the server says, as data: the JSON of each route. Secrets are masked on the way out, by `masked`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from framework.config.generations.candidate import Preview, ReloadOutcome
from framework.config.generations.catalog import Catalog
from framework.config.generations.history import HistoryEntry, Trigger
from framework.engine.runtime.agent_summary import AgentSummary
from framework.types.change import Change
from framework.types.problem import Problem
from framework.types.redact import redact_data, redact_problem

_R = TypeVar("_R", bound="ResponseModel")


class ResponseModel(BaseModel):
    """Immutable data; a client passes over what a newer server says besides."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore", hide_input_in_errors=True)


class LiveConfig(ResponseModel):
    """What is live."""

    generation: int
    digest: str
    at: datetime | None
    """When it went live."""
    trigger: Trigger | None
    """Why it did."""
    held: bool
    """A rollback holds back what the files say, until they change once more."""
    agents: tuple[str, ...]
    stale: tuple[str, ...]
    """The agents that are served in their last good version: their files cannot be used now."""
    problems: tuple[Problem, ...]
    """What is wrong with the files as they were last read, whether or not they went live."""

    @classmethod
    def of(cls, catalog: Catalog) -> LiveConfig:
        """What a catalog holds now."""
        current, last = catalog.current, catalog.history.last
        return cls(
            generation=current.number,
            digest=current.digest,
            at=last and last.at,
            trigger=last and last.trigger,
            held=catalog.held,
            agents=tuple(sorted(current.agents)),
            stale=tuple(sorted(name for name, agent in current.agents.items() if agent.stale)),
            problems=redact_problems(catalog.problems),
        )


class PastConfig(ResponseModel):
    """A generation that is live or was."""

    generation: int
    digest: str
    at: datetime
    trigger: Trigger
    live: bool
    changes: tuple[Change, ...]
    """What it changed when it went live."""
    unusable: tuple[str, ...] = ()
    """The files that could not be used; where there was one, their last good version was live."""

    @classmethod
    def of(cls, entry: HistoryEntry, live: int) -> PastConfig:
        """An entry of the history, where a generation of this number is live."""
        return cls(
            generation=entry.number,
            digest=entry.digest,
            at=entry.at,
            trigger=entry.trigger,
            live=entry.number == live,
            changes=redact_changes(entry.changes),
            unusable=entry.unusable,
        )


class ConfigHistory(ResponseModel):
    """The generations that are kept, the live one first."""

    generations: tuple[PastConfig, ...]

    @classmethod
    def of(cls, catalog: Catalog) -> ConfigHistory:
        """What a catalog keeps."""
        live = catalog.current.number
        return cls(generations=tuple(PastConfig.of(entry, live) for entry in catalog.history)[::-1])


class CheckedConfig(ResponseModel):
    """What the files would do if they were read now. Plugins are loaded but not set up, and no case is run."""

    outcome: ReloadOutcome
    """`applied`: all of them can be used; `partial`: some; `rejected`: nothing goes live; `unchanged`."""
    held: bool
    """A rollback holds these files back: nothing goes live before they change once more."""
    digest: str
    agents: tuple[str, ...]
    """Those that would be served."""
    changes: tuple[Change, ...]
    problems: tuple[Problem, ...]

    @classmethod
    def of(cls, preview: Preview) -> CheckedConfig:
        """What was found."""
        candidate = preview.candidate
        return cls(
            outcome=preview.outcome,
            held=preview.held,
            digest=candidate.digest,
            agents=tuple(sorted(candidate.generation.agents)),
            changes=redact_changes(candidate.changes),
            problems=redact_problems(preview.problems),
        )


class Rollback(BaseModel):
    """Which generation is to be live again."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    generation: int = Field(ge=1, strict=True)


class AgentList(ResponseModel):
    """The agents that can be used."""

    generation: int
    agents: tuple[AgentSummary, ...]


class HealthResponse(ResponseModel):
    """The process answers."""

    status: str = "ok"


class ReadinessResponse(ResponseModel):
    """Whether some agent can be served."""

    ready: bool
    generation: int
    agents: int
    problems: tuple[Problem, ...] = ()
    """Only for those who may ask for more."""


def redacted_json(reply: BaseModel) -> dict[str, Any]:
    """A reply as JSON data, without what looks like a secret."""
    told: dict[str, Any] = redact_data(reply.model_dump(mode="json", exclude_none=True))
    return told


def redact_changes(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Changes without secrets, and without any value of a key that is named as secrets are, or below one."""
    return tuple(_masked_change(change) for change in changes)


def redact_problems(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Findings without secrets that somebody wrote into a file."""
    return tuple(redact_problem(problem) for problem in problems)


def _masked_change(change: Change) -> Change:
    before, after = change.before, change.after
    for name in change.key.split("."):
        before, after = redact_data({name: before})[name], redact_data({name: after})[name]
    return change.model_copy(update={"before": before, "after": after})
