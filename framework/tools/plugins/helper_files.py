"""Which files a plugin file is made of: itself, and the helpers that it and they import with `from ._name import …`.

A helper is a file, or a file in a folder, whose name begins with `_`; every other file in `plugins/` is a plugin.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

INIT_FILE = "__init__.py"


def is_plugin(path: str) -> bool:
    """Is the file loaded by itself, for its tools?"""
    return path.endswith(".py") and not any(part.startswith("_") for part in PurePosixPath(path).parts)


def is_helper(path: str) -> bool:
    """Is the file there to be imported by plugin files?"""
    *folders, name = PurePosixPath(path).parts
    return any(folder.startswith("_") for folder in folders) or (name.startswith("_") and name != INIT_FILE)


def plugin_files(path: str, files: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """Every file that decides what loading a plugin file does, by path; none for one that is imported but not there.

    What is imported inside a function counts as well. A file that cannot be parsed imports nothing.
    """
    found: dict[str, bytes | None] = {path: files[path]}
    left = [path]
    while left:
        here = left.pop()
        for other in _imported(here, found[here] or b""):
            if is_helper(other) and other not in found:
                found[other] = files.get(other)
                left.append(other)
    return found


def _imported(path: str, source: bytes) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # loading it tells why
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield from _candidates(PurePosixPath(path).parent, node)


def _candidates(folder: PurePosixPath, node: ast.ImportFrom) -> Iterator[str]:
    """The files that a relative import may run: `from ._a.b import c` may mean `_a/b.py` or `_a/b/c.py`."""
    for _ in range(node.level - 1):
        folder = folder.parent
    target = folder.joinpath(*node.module.split(".")) if node.module else folder
    for module in (target, *(target / alias.name for alias in node.names)):
        if module != folder:
            yield f"{module}.py"
        packages = [module, *module.parents]
        yield from (str(package / INIT_FILE) for package in packages[: packages.index(folder)])
