"""The version of the installed package."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def installed_version() -> str:
    """Return the version of the installed package, or `0` if it runs from its sources."""
    with suppress(PackageNotFoundError):
        return version("agentsd")
    return "0"
