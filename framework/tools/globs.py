"""Matches names against many globs at once: nearly all globs need no regular expression."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase


class Globs:
    """A set of globs, each equal to `fnmatch.fnmatchcase`: `*`, `?` and `[…]` over the whole name.

    `name`, `prefix*`, `*suffix` and `*infix*` are compared as text: all globs of the first three kinds together.
    """

    __slots__ = ("_exact", "_infixes", "_others", "_prefixes", "_suffixes")

    def __init__(self, globs: Iterable[str]) -> None:
        kinds: tuple[list[str], ...] = [], [], [], [], []
        exact, prefixes, suffixes, infixes, others = kinds
        for glob in globs:
            begins, ends, literal = glob.startswith("*"), glob.endswith("*"), glob.strip("*")
            if "*" in literal or "?" in literal or "[" in literal:
                others.append(glob)
            elif ends:
                (infixes if begins and literal else prefixes).append(literal)
            else:
                (suffixes if begins else exact).append(literal)
        self._exact, self._prefixes, self._suffixes = frozenset(exact), tuple(prefixes), tuple(suffixes)
        self._infixes, self._others = tuple(infixes), tuple(others)

    def matching(self, names: Collection[str]) -> set[str]:
        """Return the names that at least one of the globs matches."""
        found: set[str] = set(self._exact.intersection(names)) if self._exact else set()
        if prefixes := self._prefixes:
            found.update([name for name in names if name.startswith(prefixes)])
        if suffixes := self._suffixes:
            found.update([name for name in names if name.endswith(suffixes)])
        if self._infixes or self._others:
            left = [name for name in names if name not in found] if found else names
            everything = "\n".join(left)  # what it does not contain, no name does
            for infix in self._infixes:
                if infix in everything:
                    found.update([name for name in left if infix in name])
            for glob in self._others:
                found.update([name for name in left if fnmatchcase(name, glob)])
        return found
