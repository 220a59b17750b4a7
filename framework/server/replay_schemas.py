"""The response bodies of the routes that show what a run ran on, and what it would do now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from framework.config.generations.generation import Generation
from framework.config.templates.prompts import PROMPTS_FOLDER
from framework.replay.player import Difference, DifferenceKind
from framework.server.schemas import ResponseModel
from framework.types.redact import redact
from framework.types.state import RunState


class RunFile(ResponseModel):
    """A file that a run ran on, compared with the live one."""

    path: str
    """Relative to the project's folder."""
    kind: Literal["agent", "template"]
    change: Literal["same", "changed", "removed", "added"]
    """What has happened to the file since the run began."""
    text: str | None = None
    """The file as the run used it; missing if it was added since."""
    live: str | None = None
    """The live file, if it differs."""

    @classmethod
    def of(cls, path: str, text: str | None, live: str | None) -> RunFile:
        """Compare a file of a run with the live one; None stands for a file that does not exist."""
        change: Literal["same", "changed", "removed", "added"] = "same"
        if text != live:
            change = "added" if text is None else "removed" if live is None else "changed"
        kind: Literal["agent", "template"] = "template" if path.startswith(f"{PROMPTS_FOLDER}/") else "agent"
        return cls(path=path, kind=kind, change=change, text=text, live=live if change != "same" else None)


class RunFiles(ResponseModel):
    """The files of a run's agent and of its sub-agents, with their templates."""

    run_id: str
    generation: int
    digest: str
    """Digest of the configuration that the run used."""
    live_generation: int
    live_digest: str
    stored: bool
    """Whether the run's files are known. A store in memory keeps none, so they are known while they are live."""
    files: tuple[RunFile, ...]

    @classmethod
    def of(
        cls, state: RunState, own: Mapping[str, str] | None, live: Mapping[str, str], current: Generation
    ) -> RunFiles:
        """Compare the files of a run, if they are stored, with the live ones."""
        paths = sorted({*own, *live}) if own is not None else ()
        return cls(
            run_id=state.run_id,
            generation=state.generation,
            digest=state.digest,
            live_generation=current.number,
            live_digest=current.digest,
            stored=own is not None,
            files=tuple(RunFile.of(path, (own or {}).get(path), live.get(path)) for path in paths),
        )


class RunTestCase(ResponseModel):
    """A run as a test case, as `agentsd runs export --as-test` writes it."""

    run_id: str
    path: str
    """File of the agent's cases, relative to the project's folder. It may exist, with other cases."""
    text: str
    """YAML of a file with this case."""


class ReplayDifference(ResponseModel):
    """One difference between a run and its replay."""

    what: DifferenceKind
    subject: str
    """The agent, call or question that differs; empty for the run as a whole."""
    before: str
    """The recorded value; empty if there was none."""
    after: str
    """The value under the live files; empty if there is none."""

    @classmethod
    def of(cls, found: Difference) -> ReplayDifference:
        """Return a difference. Prompts are configuration, so secrets in them are redacted."""
        before, after = found.before, found.after
        if found.what == "prompt":
            before, after = redact(before), redact(after)
        return cls(what=found.what, subject=found.subject, before=before, after=after)


class ReplayResult(ResponseModel):
    """What would be different if a run took place under the live files."""

    run_id: str
    generation: int
    """The live generation."""
    digest: str
    differences: tuple[ReplayDifference, ...]

    @classmethod
    def of(cls, state: RunState, current: Generation, found: Sequence[Difference]) -> ReplayResult:
        """Return the differences of a run under the files of a generation."""
        return cls(
            run_id=state.run_id,
            generation=current.number,
            digest=current.digest,
            differences=tuple(map(ReplayDifference.of, found)),
        )
