"""Regular expressions that are compiled when they are first used: some take milliseconds, and most runs need few."""

from __future__ import annotations

import re
from functools import cached_property


class LazyPattern:
    """A regular expression that takes long to compile, and that many processes never use.

    Args:
        text: the expression.
        flags: as for `re.compile`.
    """

    def __init__(self, text: str, flags: int = 0) -> None:
        self._text, self._flags = text, flags

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The compiled expression."""
        return re.compile(self._text, self._flags)
