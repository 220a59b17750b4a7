"""Applies the fixes of problems to files, and shows the changes."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import unified_diff
from itertools import groupby
from pathlib import Path

import click

from framework.config.files.editing import replace_file
from framework.config.yaml.fixes import apply_fixes
from framework.types.errors import RequestError
from framework.types.problem import Problem
from framework.types.text import visible

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def fix_files(root: Path, problems: Iterable[Problem], *, quiet: bool) -> list[str]:
    """Apply the fixes of problems to their files below a root; return the paths of the changed files.

    Raises:
        RequestError: a file cannot be written.
    """
    fixable = sorted((problem for problem in problems if problem.fix), key=lambda problem: problem.path)
    changed = []
    for path, found in groupby(fixable, key=lambda problem: problem.path):
        file = root / path
        try:
            before = file.read_bytes()
            after = apply_fixes(path, before, found)
            if after != before:
                replace_file(file.resolve(), after)
        except OSError as error:
            raise RequestError(f"{path} cannot be fixed: {error.strerror}") from None
        if after != before:
            changed.append(path)
            if not quiet:
                _show(path, before, after)
    return changed


def _show(path: str, before: bytes, after: bytes) -> None:
    old, new = (source.decode("utf-8-sig").splitlines() for source in (before, after))
    for line in unified_diff(old, new, path, path, "before", "fixed", n=1, lineterm=""):
        click.secho(visible(line).replace("\\t", "  "), fg=_STYLES.get(line[:1]))
