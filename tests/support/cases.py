"""Cases of tests: how many are generated, few in `make test` and many in `make test-long`, and tables of cheap ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import signature
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

FACTOR = int(os.environ.get("TEST_CASES", "1"))


def cases(number: int) -> settings:
    """Hypothesis settings for this many cases, times `TEST_CASES`; a loaded machine is not a finding."""
    return settings(max_examples=number * FACTOR, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def each(
    names: str | Sequence[str], values: Iterable[Any], *, ids: object = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test once for each case, as one test: a test of pytest takes longer than a case that calls a function.

    The test fails with all cases that fail. Cases share its fixtures.

    Args:
        names: the parameters of a case, as for `pytest.mark.parametrize`.
        values: the cases.
        ids: their names, if their values do not say enough.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    rows = [*values]
    labels = [*ids] if isinstance(ids, Iterable) and ids else [f"{row!r:.200}" for row in rows]
    assert rows, "without cases, nothing is tested"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def check(**given: Any) -> None:
            failed: list[BaseException] = []
            for label, row in zip(labels, rows, strict=True):
                try:
                    test(**given, **dict(zip(keys, [row] if len(keys) == 1 else row, strict=True)))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - it is raised below
                    error.add_note(f"in the case {label}")
                    failed.append(error)
            if len(failed) == 1:
                raise failed[0]
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(rows)} cases", failed)

        of_test = signature(test)
        rest = [one for name, one in of_test.parameters.items() if name not in keys]
        check.__signature__ = of_test.replace(parameters=rest)  # type: ignore[attr-defined]  # read by pytest
        return check

    return decorate
