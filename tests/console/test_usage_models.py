"""Scales and series of charts: round values, labels with room, sums that stay what they are."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import cases
from tests.support.node_modules import call

SCALE, CHARTS = "widgets/scale.js", "usage/charts.js"
HOUR = 3_600_000
DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("highest", "options", "expected"),
    [
        (0, {}, [0, 1]),
        (3, {"whole": True}, [0, 1, 2, 3]),
        (10, {"whole": True}, [0, 5, 10]),
        (231, {"whole": True}, [0, 100, 200, 300]),
        (1.2, {}, [0, 0.5, 1, 1.5]),
        (0.31, {}, [0, 0.1, 0.2, 0.3, 0.4]),
        (25_000, {"unit": 1000}, [0, 10_000, 20_000, 30_000]),
        (150_000, {"unit": 60_000}, [0, 60_000, 120_000, 180_000]),
    ],
)
def test_scales_begin_at_zero_and_have_round_values(highest: float, options: Any, expected: list[float]) -> None:
    assert call(SCALE, "ticks", highest, options) == expected


@cases(100)
@given(
    highest=st.floats(1e-6, 1e12, allow_nan=False),
    whole=st.booleans(),
    unit=st.sampled_from([1, 1000, 60_000, 3_600_000]),
)
def test_a_scale_reaches_the_highest_value_with_few_even_steps(highest: float, whole: bool, unit: int) -> None:
    found = call(SCALE, "ticks", highest, {"whole": whole, "unit": unit})
    assert found[0] == 0
    assert found[-1] >= highest * (1 - 1e-6)
    assert 2 <= len(found) <= 6
    steps = [after - before for before, after in itertools.pairwise(found)]
    assert max(steps) == pytest.approx(min(steps))
    assert not whole or all((value / unit) % 1 == 0 for value in found)


@pytest.mark.parametrize(
    ("starts", "room", "expected"),
    [
        ([n * HOUR for n in range(24)], 23, [0, 3, 6, 9]),
        ([n * HOUR for n in range(24)], 8, [0, 12]),
        ([n * 3 * HOUR for n in range(56)], 10, [0, 8, 16, 24]),
        ([n * DAY for n in range(30)], 18, [1, 5, 9, 13]),
        ([n * DAY for n in range(30)], 60, [0, 1, 2, 3]),
        ([5 * HOUR], 400, [0]),
    ],
)
def test_labels_have_room(starts: list[int], room: float, expected: list[int]) -> None:
    midnight = datetime(2026, 11, 1).astimezone().timestamp() * 1000  # Node.js has the same time zone
    times = [midnight + start for start in starts]
    found = call(SCALE, "timeLabels", times, room)
    assert found[:4] == expected[: len(found)]
    assert all((after - before) * room >= 58 for before, after in itertools.pairwise(found))


@pytest.mark.parametrize(("at", "expected"), [(-5, 0), (0, 0), (15, 1.5), (20, 2), (45, 2.5), (99, 3)])
def test_a_time_has_a_place_among_steps_of_any_length(at: float, expected: float) -> None:
    assert call(SCALE, "place", [0, 10, 20], 70, at) == expected


@cases(30)
@given(
    groups=st.lists(st.lists(st.integers(0, 50).map(lambda n: n / 4), min_size=3, max_size=3), max_size=4),
    others=st.lists(st.integers(0, 9), min_size=3, max_size=3),
)
def test_the_bars_of_cost_add_up_to_the_total(groups: list[list[float]], others: list[int]) -> None:
    totals = [sum(group[i] for group in groups) + others[i] for i in range(3)]
    usage = {
        "over_time": [{"cost_usd": total} for total in totals],
        "groups": [{"cost_usd": sum(one), "over_time": {"cost_usd": one}} for one in groups],
    }
    found = call(CHARTS, "costSeries", usage, [f"g{n}" for n in range(len(groups))])
    sums = [sum(one["values"][i] for one in found) for i in range(3)]
    assert sums == pytest.approx(totals)
    assert [one["label"] for one in found if one["label"] != "others"] == [
        f"g{n}" for n, one in enumerate(groups) if any(one)
    ]


def test_reasons_beyond_four_are_shown_together() -> None:
    errors = {f"reason {n}": 9 - n for n in range(6)}
    usage = {"over_time": [{"errors": errors}, {"errors": {}}], "total": {"errors": errors}}
    found = call(CHARTS, "errorSeries", usage)
    assert [(one["label"], one["values"]) for one in found] == [
        *[(f"reason {n}", [9 - n, 0]) for n in range(4)],
        ("others", [9, 0]),
    ]


@pytest.mark.parametrize(
    ("value", "before", "share", "expected"),
    [
        (12, 10, False, 20),
        (0, 4, False, -100),
        (3, 0, False, None),
        (None, 4, False, None),
        (3, None, False, None),
        (0.019, 0.013, True, 0.6),
        (0.5, 0, True, 50),
    ],
)
def test_a_change_needs_something_before(
    value: float | None, before: float | None, share: bool, expected: float | None
) -> None:
    assert call("usage/figures.js", "change", value, before, share) == expected


@pytest.mark.parametrize(("name", "hours"), [("24h", 23), ("7d", 6 * 24), ("90d", 89 * 24)])
def test_a_period_begins_with_an_hour_or_a_day(name: str, hours: int) -> None:
    now = 1_790_000_000_000
    found = call("usage/page.js", "period", name, now)
    since, until = (datetime.fromisoformat(found[end]) for end in ("since", "until"))
    assert until.timestamp() * 1000 == now
    begin = since.astimezone()
    assert (begin.minute, begin.second) == (0, 0)
    assert hours <= (until - since).total_seconds() / 3600 < hours + 26
