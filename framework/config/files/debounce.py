"""Decides when changed files take effect: after a quiet period that depends on the change.

Pure logic: the caller passes each snapshot and the time; nothing here reads a clock or a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from framework.config.files.snapshot import Snapshot

_MIN_PATIENCE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class GracePeriods:
    """How long files must remain unchanged before they take effect, in seconds."""

    quiet: float = 0.1
    """After any change."""
    removal: float = 0.5
    """When a file or an agent was removed: some programs save a file by deleting and recreating it."""
    widening: float = 1.0
    """When an agent gains permissions: a half-written file may lack the restrictions of the whole file."""

    @property
    def patience(self) -> float:
        """Seconds after which files that never stop changing take effect; at least twice the longest period."""
        return max(_MIN_PATIENCE_SECONDS, 2 * self.quiet, 2 * self.removal, 2 * self.widening)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the observed files may be built or published."""

    wait: float = 0.0
    """Seconds until the next check; 0 if the files are ready."""
    hold: frozenset[str] = field(default=frozenset())
    """Files to publish in their earlier version."""


class Debouncer:
    """Tracks file changes from one scan to the next.

    All pending changes take effect together, once no file has changed for the longest grace period that
    applies: an edit that both grants and restricts permissions waits as one that grants them. If files never stop
    changing, those that were unchanged for long enough take effect without the others.
    """

    def __init__(self, periods: GracePeriods, live: str) -> None:
        """Begin with `live`, the digest of the published files."""
        self._periods = periods
        self._live = self._handled_digest = live
        self._handled: Snapshot | None = None
        """The last published or rejected snapshot, once one is known."""
        self._observed: Snapshot | None = None
        self._pending_since = self._changed_at = 0.0
        self._touched: dict[str, float] = {}
        """When each file last changed, for files that differ from the handled snapshot."""

    @property
    def pending(self) -> bool:
        """Whether the observed files are neither published nor rejected."""
        return self._observed is not None and self._observed.digest != self._handled_digest

    @property
    def touched(self) -> frozenset[str] | None:
        """Files that may differ from the last handled snapshot; None until one is known."""
        return None if self._handled is None else frozenset(self._touched)

    def observe(self, snapshot: Snapshot, live: str, ended: float) -> None:
        """Record the result of a scan.

        Args:
            snapshot: the files that were found.
            live: the digest of the published files, which another caller may have replaced.
            ended: when the scan ended, in seconds.
        """
        was_pending = self.pending
        if live != self._live:
            self._live = self._handled_digest = live
        before, self._observed = self._observed, snapshot
        if before is None or before.digest != snapshot.digest:
            self._changed_at = ended
            self._touched |= dict.fromkeys(_differences(before, snapshot), ended)
        if snapshot.digest == live:
            self._handled, self._touched = snapshot, {}
        if not was_pending:
            self._pending_since = ended

    def ready_to_build(self, now: float) -> Readiness:
        """Return whether the files may be built, which shows whether they grant or remove anything."""
        return Readiness(wait=max(0.0, self._within_patience(self._changed_at + self._periods.quiet) - now))

    def ready_to_publish(self, now: float, *, widens: bool, removes: bool) -> Readiness:
        """Return whether the files may take effect.

        Args:
            now: when the last scan began, in seconds.
            widens: some agent gains permissions.
            removes: some agent is removed.
        """
        removed = self._removed_files()
        grace = self._periods.quiet
        if removes or removed:
            grace = max(grace, self._periods.removal)
        if widens:
            grace = max(grace, self._periods.widening)
        due = self._changed_at + grace
        if now >= due:
            return Readiness()
        if self._handled is None:  # there is no earlier version to hold files at
            return Readiness(wait=due - now)
        if not self.is_out_of_patience(now):
            return Readiness(wait=self._within_patience(due) - now)
        hold = (path for path in self._touched if self._is_in_grace(path, now, removed, widens=widens))
        return Readiness(hold=frozenset(hold))

    def young(self, now: float) -> dict[str, float]:
        """Return the files that may be half-written if they grant permissions, and the seconds until they are not."""
        ends = ((path, at + self._periods.widening - now) for path, at in self._touched.items())
        return {path: seconds for path, seconds in ends if seconds > 0}

    def mark_handled(self, snapshot: Snapshot, live: str, now: float) -> None:
        """Record that a snapshot was published, rejected, or changed nothing.

        Args:
            snapshot: the observed one, or the result of `hold_back`.
            live: the digest of the files that are published now.
            now: when the last scan began, in seconds.
        """
        self._handled, self._handled_digest, self._live = snapshot, snapshot.digest, live
        self._pending_since = now
        different = _differences(snapshot, self._observed)
        self._touched = {path: at for path, at in self._touched.items() if path in different}

    def hold_back(self, paths: frozenset[str]) -> Snapshot:
        """Return the observed snapshot with some files in their last handled version."""
        assert self._observed is not None, "nothing was observed"
        assert self._handled is not None, "nothing was observed"
        return self._observed.with_earlier(paths, self._handled)

    def is_out_of_patience(self, now: float) -> bool:
        """Return whether files have been changing for so long that those which are ready take effect alone."""
        return now >= self._pending_since + self._periods.patience

    def _within_patience(self, due: float) -> float:
        return min(due, self._pending_since + self._periods.patience)

    def _removed_files(self) -> frozenset[str]:
        if self._observed is None or self._handled is None:
            return frozenset()
        before, after = self._handled.files, self._observed.files
        return frozenset(path for path in self._touched if path in before and path not in after)

    def _is_in_grace(self, path: str, now: float, removed: frozenset[str], *, widens: bool) -> bool:
        grace = self._periods.widening if widens else 0.0
        if path in removed:
            grace = max(grace, self._periods.removal)
        return grace > 0 and now - self._touched[path] < grace


def _differences(before: Snapshot | None, after: Snapshot | None) -> set[str]:
    """Return the paths whose content, or problem, differs."""
    if before is None or after is None:
        return set()
    return {*after.changed_files(before), *(problem.path for problem in {*before.problems} ^ {*after.problems})}
