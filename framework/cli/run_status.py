"""The status line of a run: spinner, agent, present step, elapsed time, tokens and cost."""

from __future__ import annotations

from time import monotonic

import click
from rich.cells import cell_len, set_cell_size

from framework.types import events
from framework.types.events import Event
from framework.types.text import visible

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPIN_SECONDS = 0.1
CHARS_PER_TOKEN = 4
"""Estimate for text that has arrived but is not counted by the provider yet."""
_SEPARATOR = " · "


class RunStatus:
    """What a run is doing, and what it has used."""

    def __init__(self) -> None:
        self._begun, self._spun_at = monotonic(), 0.0
        self._agent, self._step = "", "starting"
        self._calls: dict[tuple[str, ...], str] = {}
        """Calls in progress, as texts."""
        self._tokens = 0
        self._cost_usd: float | None = 0.0
        self._uncounted_chars = 0

    def note(self, event: Event) -> None:
        """Update the present step."""
        match event:
            case events.Routed(agent=agent):
                self._agent, self._step = agent, "waiting for the model"
            case events.Thought():
                self._step = "thinking"
                self._uncounted_chars += 0 if event.seq else len(event.text)
            case events.ContentReceived():
                self._step = "writing"
                self._uncounted_chars += 0 if event.seq else len(event.text)
            case events.ToolRequested():
                progress = f" {event.progress:.0%}" if event.progress is not None else ""
                self._calls[*event.path, event.id] = f"{event.tool}{progress}"
            case events.ToolFinished():
                self._calls.pop((*event.path, event.id), None)
                self._step = "waiting for the model"
            case events.PlanStepChanged(status="running"):
                self._step = f"step {event.id}"

    def count(self, tokens: int, cost_usd: float | None) -> None:
        """Set what the run has used so far."""
        if tokens != self._tokens:
            self._uncounted_chars = 0
        self._tokens, self._cost_usd = tokens, cost_usd

    def is_due(self) -> bool:
        """Return whether the spinner moves on."""
        return monotonic() - self._spun_at >= SPIN_SECONDS

    def line(self, columns: int) -> str:
        """Return the line, at most this wide. The step is shortened first, then details are left out."""
        self._spun_at = now = monotonic()
        elapsed = now - self._begun
        spinner = SPINNER[int(elapsed / SPIN_SECONDS) % len(SPINNER)]
        details = [_duration(elapsed), *self._used(), "Ctrl-C cancels"]
        *others, last = self._calls.values() or [self._step]
        step = visible(f"{last} (+{len(others)})" if others else last)
        head = f"{spinner} {visible(self._agent)}{_SEPARATOR}{step}" if self._agent else f"{spinner} {step}"
        while len(details) > 1 and cell_len(_SEPARATOR.join((head, *details))) > columns:
            details.pop()
        tail = _SEPARATOR + _SEPARATOR.join(details)
        if cell_len(head) + cell_len(tail) > columns:
            head = set_cell_size(head, max(columns - cell_len(tail) - 1, 1)).rstrip() + "…"
        return click.style(head, fg="cyan") + click.style(tail, dim=True)

    def _used(self) -> list[str]:
        estimated = self._uncounted_chars // CHARS_PER_TOKEN
        tokens = [f"{'~' if estimated else ''}{self._tokens + estimated:,} tokens"] if self._tokens + estimated else []
        if self._cost_usd is None:
            return [*tokens, "cost unknown"]
        return [*tokens, *([f"${self._cost_usd:.4f}"] if self._cost_usd else [])]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
