"""When what lies on disk may go live: not while it is being written, and what gives rights later than what takes them.

Pure logic: it is told what was seen and when, and looks at no clock and no file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from framework.config.files.snapshot import Snapshot

_MIN_PATIENCE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class GracePeriods:
    """How long files must have been the same, in seconds, before they go live."""

    quiet: float = 0.1
    """Whatever they say."""
    removal: float = 0.5
    """When a file or an agent is gone: programs also save by deleting and writing anew."""
    widening: float = 1.0
    """When an agent may do more: the first half of a file can say less about what is forbidden than the whole."""

    @property
    def patience(self) -> float:
        """After how long files that never stop changing are taken as they are; at least twice the longest grace."""
        return max(_MIN_PATIENCE_SECONDS, 2 * self.quiet, 2 * self.removal, 2 * self.widening)


@dataclass(frozen=True, slots=True)
class Readiness:
    """What to do with what was seen last."""

    wait: float = 0.0
    """Not yet: look again in so many seconds. 0: it may go live."""
    hold: frozenset[str] = field(default=frozenset())
    """Files that go live only as they were before."""


class Debouncer:
    """Follows the files from look to look.

    A set of files goes live as a whole, once all of it has been the same for as long as its strongest change demands:
    an edit that both widens and tightens waits as one that widens. Only while files never stop changing, what has been
    the same for long enough goes live without the rest.
    """

    def __init__(self, graces: GracePeriods, live: str) -> None:
        """Args: `live`, the digest of what is live."""
        self._graces = graces
        self._live = self._handled_digest = live
        self._handled: Snapshot | None = None
        """What was dealt with last, once that is known."""
        self._seen: Snapshot | None = None
        self._since = self._changed = 0.0
        self._touched: dict[str, float] = {}
        """When each file was last seen to be another than before, of those that are not settled."""

    @property
    def pending(self) -> bool:
        """Something was seen that is neither live nor refused."""
        return self._seen is not None and self._seen.digest != self._handled_digest

    @property
    def touched(self) -> frozenset[str] | None:
        """The files that may be others than those that were dealt with last; None while these are not known."""
        return None if self._handled is None else frozenset(self._touched)

    def observe(self, seen: Snapshot, live: str, ended: float) -> None:
        """Tell what a look at the files showed.

        Args:
            seen: the files.
            live: the digest of what is live by now, for other reasons maybe.
            ended: when the look ended, in seconds.
        """
        was_pending = self.pending
        if live != self._live:
            self._live = self._handled_digest = live
        before, self._seen = self._seen, seen
        if before is None or before.digest != seen.digest:
            self._changed = ended
            self._touched |= dict.fromkeys(_differences(before, seen), ended)
        if seen.digest == live:
            self._handled, self._touched = seen, {}
        if not was_pending:
            self._since = ended

    def ready_to_build(self, now: float) -> Readiness:
        """Whether what was seen may be looked at more closely: built, to see what it would change."""
        return Readiness(wait=max(0.0, self._capped(self._changed + self._graces.quiet) - now))

    def ready_to_publish(self, now: float, *, widens: bool, removes: bool) -> Readiness:
        """Whether what was seen may go live.

        Args:
            now: when the last look began, in seconds.
            widens: some agent may do more than before.
            removes: some agent is gone.
        """
        gone = self._gone()
        grace = self._graces.quiet
        if removes or gone:
            grace = max(grace, self._graces.removal)
        if widens:
            grace = max(grace, self._graces.widening)
        due = self._changed + grace
        if now >= due:
            return Readiness()
        if self._handled is None:  # nothing is known that files could be held at
            return Readiness(wait=due - now)
        if not self._is_endless(now):
            return Readiness(wait=self._capped(due) - now)
        return Readiness(
            hold=frozenset(path for path in self._touched if self._is_young(path, now, gone, widens=widens))
        )

    def mark_handled(self, snapshot: Snapshot, live: str, now: float) -> None:
        """Tell that a snapshot was dealt with: it is live, would change nothing, or was refused.

        Args:
            snapshot: the one that was seen, or the one with some files held.
            live: the digest of what is live now.
            now: when the last look began, in seconds.
        """
        self._handled, self._handled_digest, self._live = snapshot, snapshot.digest, live
        self._since = now
        differ = _differences(snapshot, self._seen)
        self._touched = {path: at for path, at in self._touched.items() if path in differ}

    def hold_back(self, paths: frozenset[str]) -> Snapshot:
        """What was seen last, with some files as they were when they were dealt with last."""
        assert self._seen is not None, "nothing was seen"
        assert self._handled is not None, "nothing was seen"
        return self._seen.with_earlier(paths, self._handled)

    def _capped(self, due: float) -> float:
        return min(due, self._since + self._graces.patience)

    def _is_endless(self, now: float) -> bool:
        return now >= self._since + self._graces.patience

    def _gone(self) -> frozenset[str]:
        if self._seen is None or self._handled is None:
            return frozenset()
        return frozenset(self._handled.files.keys() - self._seen.files.keys())

    def _is_young(self, path: str, now: float, gone: frozenset[str], *, widens: bool) -> bool:
        grace = self._graces.widening if widens else 0.0
        if path in gone:
            grace = max(grace, self._graces.removal)
        return grace > 0 and now - self._touched[path] < grace


def _differences(before: Snapshot | None, after: Snapshot | None) -> set[str]:
    """The files that are not the same."""
    if before is None or after is None:
        return set()
    names = before.files.keys() | after.files.keys()
    changed = {name for name in names if before.files.get(name) != after.files.get(name)}
    return changed | {problem.path for problem in {*before.problems} ^ {*after.problems}}
