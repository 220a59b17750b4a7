"""The console as `make console` builds it, for the tests that need its libraries."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from hatch_build import BUILT, PACKAGES, NotBuilt, build_console


@cache
def why_not_built() -> str:
    """Build the console if its files have changed, and return why that fails, or an empty text."""
    try:
        build_console()
    except NotBuilt as error:
        return str(error)
    return ""


def built_console() -> Path:
    """Return the folder of the built console; skips the test where it cannot be built."""
    if reason := why_not_built():
        pytest.skip(f"the console is not built: {reason}")
    return BUILT


def packages() -> Path | None:
    """Return the folder of the libraries, or None if they are not installed."""
    return None if why_not_built() else PACKAGES / "node_modules"
