"""The request and response bodies of the routes. `redacted_json` redacts secrets before they are sent."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Preview, ReloadOutcome
from framework.config.generations.history import HistoryEntry, Trigger
from framework.config.overlay import environment_in
from framework.types.problem import Change, Problem
from framework.types.redact import redact_data, redact_problem


class ResponseModel(BaseModel):
    """The base of response bodies. Immutable; clients ignore unknown fields of newer servers.

    `model_validate` reads the attributes of an object, such as a row of the store; times in seconds become dates.
    """

    model_config = ConfigDict(
        frozen=True, defer_build=True, extra="ignore", from_attributes=True, hide_input_in_errors=True
    )

    @classmethod
    def of_parts(cls, source: object, **others: Any) -> Self:
        """Return a body with the attributes of an object that are fields here, and with other values."""
        own = {name: getattr(source, name) for name in cls.model_fields if hasattr(source, name)}
        return cls.model_validate({**own, **others})


class HeldSince(ResponseModel):
    """The rollback that holds back the files."""

    generation: int
    """Number of the generation that was rolled back to, in the process that did it."""
    digest: str
    """The digest of its files."""
    at: datetime
    """The time of the rollback, which may be before the start of the server."""


class LiveConfig(ResponseModel):
    """The live configuration."""

    generation: int
    digest: str
    environment: str | None = None
    """The environment (`AGENTSD_ENV`), whose settings file is laid over `agentsd.yaml`."""
    at: datetime | None = None
    """The time of publication."""
    trigger: Trigger | None = None
    """The cause of the publication."""
    held: bool
    """Whether the current files are ignored because of a rollback, until they change again."""
    hold: HeldSince | None = None
    """That rollback, while `held` is true. It survives restarts of the server."""
    agents: tuple[str, ...]
    stale: tuple[str, ...]
    """The agents whose files are invalid, and whose last good versions are live."""
    problems: tuple[Problem, ...]
    """Errors and warnings of the files that were last read, even if they were rejected."""

    @classmethod
    def of(cls, catalog: Catalog) -> LiveConfig:
        """Return the live configuration of a catalog."""
        current, last, hold = catalog.current, catalog.history.last, catalog.hold if catalog.held else None
        return cls(
            generation=current.number,
            digest=current.digest,
            environment=environment_in(current.files),
            at=last and last.at,
            trigger=last and last.trigger,
            held=catalog.held,
            hold=hold and HeldSince.model_validate(hold),
            agents=tuple(sorted(current.agents)),
            stale=tuple(sorted(name for name, agent in current.agents.items() if agent.stale)),
            problems=redact_problems(catalog.problems),
        )


class PastConfig(ResponseModel):
    """A generation that is or was live."""

    generation: int
    digest: str
    at: datetime
    trigger: Trigger
    live: bool
    changes: tuple[Change, ...]
    """The changes against the generation before it."""
    unusable: tuple[str, ...] = ()
    """The invalid files. Their last good versions, if any, were live."""

    @classmethod
    def of(cls, entry: HistoryEntry, live: int) -> PastConfig:
        """Return a history entry. `live` is the number of the live generation."""
        changes = redact_changes(entry.changes)
        return cls.of_parts(entry, generation=entry.number, live=entry.number == live, changes=changes)


class ConfigHistory(ResponseModel):
    """The generations in the history, the live one first."""

    generations: tuple[PastConfig, ...]
    next: str | None = None
    """`cursor` of the next page; null at the end."""


class CheckedConfig(ResponseModel):
    """The result of a check of the files. Plugins are loaded but not set up, and no test case runs."""

    outcome: ReloadOutcome
    """`applied`: all files are valid; `partial`: some are; `rejected`: nothing would be published; `unchanged`."""
    held: bool
    """Whether the files are ignored because of a rollback, until they change again."""
    digest: str
    agents: tuple[str, ...]
    """The names of the agents that would be live."""
    changes: tuple[Change, ...]
    problems: tuple[Problem, ...]

    @classmethod
    def of(cls, preview: Preview) -> CheckedConfig:
        """Return the result of a preview."""
        candidate = preview.candidate
        return cls(
            outcome=preview.outcome,
            held=preview.held,
            digest=candidate.digest,
            agents=tuple(sorted(candidate.generation.agents)),
            changes=redact_changes(candidate.changes),
            problems=redact_problems(preview.problems),
        )


def check_printable(text: str | None) -> str | None:
    """Return a text without characters such as line breaks; raises ValueError if it has some."""
    if text is not None and not text.isprintable():
        raise ValueError("must contain printable characters only")
    return text


PRINTABLE = AfterValidator(check_printable), Field(json_schema_extra={"pattern": r"^[^\x00-\x1f\x7f]*$"})
"""What makes a text one without such characters. The pattern describes those of ASCII."""
Printable = Annotated[str, *PRINTABLE]


def whole_number(value: object) -> object:
    """Return a number such as 5.0, which JSON does not distinguish from 5, as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Rollback(BaseModel):
    """The generation to publish again."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    generation: Annotated[int, Field(ge=1, strict=True), BeforeValidator(whole_number)]


class HealthResponse(ResponseModel):
    """The response of `/health`."""

    status: str = "ok"


class ReadinessResponse(ResponseModel):
    """Whether the server can do its work."""

    ready: bool
    not_ready: tuple[Literal["agents", "store", "server"], ...] = ()
    """`agents`: none is available; `store`: it cannot save; `server`: it is stopping."""
    generation: int
    agents: int
    problems: tuple[Problem, ...] = ()
    """Empty for clients without access."""


def redacted_json(body: BaseModel) -> dict[str, Any]:
    """Return a response body as JSON data, with secrets redacted."""
    data: dict[str, Any] = redact_data(body.model_dump(mode="json", exclude_none=True))
    return data


def redact_changes(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Redact secrets in changes, and every value at or below a key that is named like a secret."""
    return tuple(_redact_change(change) for change in changes)


def redact_problems(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Redact secrets in problems."""
    return tuple(redact_problem(problem) for problem in problems)


def _redact_change(change: Change) -> Change:
    before, after = change.before, change.after
    for name in change.key.split("."):
        before, after = redact_data({name: before})[name], redact_data({name: after})[name]
    return change.model_copy(update={"before": before, "after": after})


MAX_URL_ID_CHARS = 200
"""Length limit of ids, as for conversations."""
Id = Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL_ID_CHARS), *PRINTABLE]
"""An id that the client chooses."""


class RequestModel(BaseModel):
    """The base of request bodies. Unknown fields are refused, so that a misspelled limit is not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)
