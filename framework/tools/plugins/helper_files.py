"""Finds the files that a plugin consists of: the file itself and the helpers imported with `from ._name import …`.

A helper is a file whose name, or the name of a folder above it, begins with `_`. Every other file is a plugin.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

INIT_FILE = "__init__.py"


def is_plugin(path: str) -> bool:
    """Return whether the file is a plugin."""
    return path.endswith(".py") and not any(part.startswith("_") for part in PurePosixPath(path).parts)


def is_helper(path: str) -> bool:
    """Return whether the file is a helper, to be imported by plugins."""
    *folders, name = PurePosixPath(path).parts
    return any(folder.startswith("_") for folder in folders) or (name.startswith("_") and name != INIT_FILE)


def plugin_files(path: str, files: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """Return the contents of the plugin file and its helpers by path; None for a helper that does not exist.

    Imports inside functions are included. A file that cannot be parsed imports nothing.
    """
    contents: dict[str, bytes | None] = {path: files[path]}
    queue = [path]
    while queue:
        current = queue.pop()
        for helper in _imported(current, contents[current] or b""):
            if is_helper(helper) and helper not in contents:
                contents[helper] = files.get(helper)
                queue.append(helper)
    return contents


def _imported(path: str, source: bytes) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # loading the file reports the error
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield from _candidates(PurePosixPath(path).parent, node)


def _candidates(folder: PurePosixPath, node: ast.ImportFrom) -> Iterator[str]:
    """Yield the files that a relative import may execute: `from ._a.b import c` may be `_a/b.py` or `_a/b/c.py`."""
    for _ in range(node.level - 1):
        folder = folder.parent
    target = folder.joinpath(*node.module.split(".")) if node.module else folder
    for module in (target, *(target / alias.name for alias in node.names)):
        if module != folder:
            yield f"{module}.py"
        packages = [module, *module.parents]
        yield from (str(package / INIT_FILE) for package in packages[: packages.index(folder)])
