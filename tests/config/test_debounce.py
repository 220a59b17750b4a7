"""Edits take effect after the quiet period that they require, completely and once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.snapshot import Snapshot, build_snapshot
from framework.config.watch import Debouncer, GracePeriods
from tests.support.cases import cases

GRACES = GracePeriods()
RECONCILE = 2.0
HINT = 0.02
SLACK = RECONCILE + GRACES.quiet
"""How late a change without a hint is seen."""

Files = dict[str, bytes]


def version(level: int, number: int = 0) -> bytes:
    """A file; a higher level allows more."""
    return f"{level} {number}".encode()


def widens(before: Files, after: Files) -> set[str]:
    """Return the files that are new, or allow more than before."""
    return {name for name, text in after.items() if int(text.split()[0]) > int(before.get(name, b"-1").split()[0])}


def snapshot(files: Mapping[str, bytes]) -> Snapshot:
    return build_snapshot(dict(files), (), {})


@dataclass
class Disk:
    """Files, their live versions, and a watcher: the loop of the real one without its threads."""

    files: Files
    live: Files = field(init=False)
    looks: list[tuple[float, Files]] = field(default_factory=list)
    """When, and what they showed."""
    went_live: list[tuple[float, Files, Files]] = field(default_factory=list)
    """When, what before, what since."""
    next_look: float = 0.0

    def __post_init__(self) -> None:
        self.live = dict(self.files)
        self.debouncer = Debouncer(GRACES, snapshot(self.live).digest)

    def observe(self, now: float) -> None:
        found, debouncer = snapshot(self.files), self.debouncer
        self.looks.append((now, dict(self.files)))
        debouncer.observe(found, snapshot(self.live).digest, now)
        self.next_look = now + self._pause(found, now)

    def _pause(self, found: Snapshot, now: float) -> float:
        debouncer = self.debouncer
        while debouncer.pending:
            if wait := debouncer.ready_to_build(now).wait:
                return wait
            verdict = debouncer.ready_to_publish(
                now, widens=bool(widens(self.live, self.files)), removes=bool(self.live.keys() - self.files.keys())
            )
            if verdict.wait:
                return verdict.wait
            target = debouncer.hold_back(verdict.hold) if verdict.hold else found
            if target.files != self.live:
                self.went_live.append((now, self.live, dict(target.files)))
                self.live = dict(target.files)
            debouncer.mark_handled(target, snapshot(self.live).digest, now)
        return RECONCILE

    def pass_time(self, until: float) -> None:
        """Scan whenever a scan is due."""
        while self.next_look <= until:
            self.observe(self.next_look)


def edited(disk: Disk, *edits: tuple[float, str, bytes | None], until: float = 0.0) -> list[tuple[float, Files]]:
    """Make edits at times, each noticed immediately; return the published versions with their times."""
    disk.pass_time(0.0)
    for at, name, text in edits:
        disk.pass_time(at)
        if text is None:
            del disk.files[name]
        else:
            disk.files[name] = text
        disk.observe(at)
    disk.pass_time(max(until, edits[-1][0] + 10))
    return [(round(at, 3), after) for at, _, after in disk.went_live]


def test_other_edits_take_effect_after_the_quiet_period() -> None:
    for level in (0, 1):
        disk = Disk({"a": version(1)})
        assert edited(disk, (1.0, "a", version(level, 1))) == [(1.1, {"a": version(level, 1)})]


def test_every_change_restarts_the_quiet_period() -> None:
    disk = Disk({"a": version(1)})
    writes = [(1.0 + gap, "a", version(1, number)) for number, gap in enumerate((0.0, 0.09, 0.18, 0.27), start=1)]
    assert edited(disk, *writes) == [(1.37, {"a": version(1, 4)})]


def test_grants_and_new_files_wait_longer() -> None:
    assert edited(Disk({"a": version(1)}), (1.0, "a", version(2))) == [(2.0, {"a": version(2)})]
    assert edited(Disk({}), (1.0, "a", version(0))) == [(2.0, {"a": version(0)})]


def test_a_removal_waits_for_its_grace_period() -> None:
    assert edited(Disk({"a": version(1), "b": version(1)}), (1.0, "a", None)) == [(1.5, {"b": version(1)})]


@pytest.mark.conformance(12)
def test_a_file_that_is_recreated_in_time_is_not_removed() -> None:
    disk = Disk({"a": version(1)})
    assert edited(disk, (1.0, "a", None), (1.3, "a", version(1, 1))) == [(1.4, {"a": version(1, 1)})]


@pytest.mark.conformance(14)
def test_a_reverted_edit_has_no_effect() -> None:
    assert not edited(Disk({"a": version(1)}), (1.0, "a", version(2)), (1.9, "a", version(1)))
    assert not edited(Disk({"a": version(1)}), (1.0, "a", version(0)), (1.05, "a", version(1)))
    assert not edited(Disk({"a": version(1)}), (1.0, "a", None), (1.4, "a", version(1)))


def test_a_restriction_after_a_grant_does_not_wait() -> None:
    disk = Disk({"a": version(1)})
    assert edited(disk, (1.0, "a", version(2)), (1.5, "a", version(0))) == [(1.6, {"a": version(0)})]


def test_an_edit_that_grants_and_restricts_waits_like_a_grant() -> None:
    disk = Disk({"a": version(1), "b": version(1)})
    both = {"a": version(0), "b": version(2)}
    assert edited(disk, (1.0, "a", both["a"]), (1.05, "b", both["b"])) == [(2.05, both)]


def test_stable_files_take_effect_while_others_keep_changing() -> None:
    disk = Disk({"a": version(1), "b": version(1), "c": version(1)})
    writes = [(1.05 + 0.05 * number, "a", version(2, number)) for number in range(100)]
    went = edited(disk, (1.0, "b", version(0)), (1.02, "c", version(2)), *writes)
    assert went[0] == (3.0, {"a": version(1), "b": version(0), "c": version(2)})
    assert went[-1] == (7.0, {"a": version(2, 99), "b": version(0), "c": version(2)})
    assert len(went) == 2


def test_a_file_that_keeps_changing_takes_effect_periodically_without_grants() -> None:
    writes = [(1.0 + 0.05 * number, "a", version(1, number)) for number in range(1, 100)]
    went = edited(Disk({"a": version(1)}), *writes)
    assert [at for at, _ in went] == pytest.approx([3.05, 5.05, 6.05], abs=0.11)


def test_patience_grows_with_the_grace_periods() -> None:
    assert GracePeriods(widening=5.0).patience == 10.0
    assert GracePeriods().patience == 2.0


def test_files_published_manually_are_not_published_again() -> None:
    disk = Disk({"a": version(1)})
    disk.pass_time(1.0)
    disk.files["a"] = version(2)
    disk.observe(1.0)
    disk.live = dict(disk.files)
    disk.pass_time(10.0)
    assert not disk.went_live


def test_files_reverted_after_a_manual_publication_take_effect() -> None:
    disk = Disk({"a": version(1)})
    disk.pass_time(1.0)
    disk.live = {"a": version(0)}  # on disk too briefly for any scan
    disk.pass_time(10.0)
    assert [after for _, _, after in disk.went_live] == [{"a": version(1)}]


Edit = tuple[float, str, "int | None", bool]
"""Seconds after the edit before, the file, its level (none: deleted), whether the operating system hints at it."""
GAPS = st.sampled_from([0.0, 0.01, 0.03, 0.09, 0.11, 0.3, 0.49, 0.51, 0.9, 1.1, 2.5])
EDITS = st.lists(st.tuples(GAPS, st.sampled_from("abc"), st.integers(0, 3) | st.none(), st.booleans()), max_size=40)
BURST = st.lists(
    st.tuples(st.just(0.06), st.sampled_from("ab"), st.integers(0, 3) | st.none(), st.just(True)),
    min_size=40,
    max_size=120,
)


def followed(edits: Sequence[Edit]) -> Disk:
    """Make the edits; files that were unchanged for long enough must be live."""
    disk, now, changed = Disk({"a": version(1), "b": version(1)}), 0.0, dict.fromkeys("abc", 0.0)
    for number, (gap, name, level, hinted) in enumerate(edits):
        now += gap
        disk.pass_time(now)
        for other, at in changed.items():
            if now - at > GRACES.patience + GRACES.widening + SLACK:
                assert disk.live.get(other) == disk.files.get(other), f"{other} has been the same since {at}"
        before = disk.files.pop(name, None)
        if level is not None:
            disk.files[name] = version(level, number % 3)
        if disk.files.get(name) != before:
            changed[name] = now
        if hinted:
            disk.next_look = min(disk.next_look, now + HINT)
    disk.pass_time(now + GRACES.widening + GRACES.quiet + SLACK)
    return disk


def seen_since(disk: Disk, name: str, text: bytes | None, until: float) -> float:
    """Return the time of the first of the latest scans that all found this version of a file."""
    since = until
    for at, files in reversed([look for look in disk.looks if look[0] <= until]):
        if files.get(name) != text:
            break
        since = at
    return since


@given(EDITS | BURST | st.tuples(EDITS, BURST, EDITS).map(lambda parts: [*parts[0], *parts[1], *parts[2]]))
@cases(60)
def test_grace_periods_hold_for_any_sequence_of_edits(
    edits: list[Edit],
) -> None:
    disk = followed(edits)
    assert disk.live == disk.files
    for at, before, after in disk.went_live:
        assert before != after
        wider, gone = widens(before, after), before.keys() - after.keys()
        for name, grace in {**dict.fromkeys(gone, GRACES.removal), **dict.fromkeys(wider, GRACES.widening)}.items():
            assert at - seen_since(disk, name, after.get(name), at) >= grace - 1e-9, f"{name} at {at}"
