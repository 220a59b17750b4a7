"""Places that file tools neither read (hidden files) nor write (files that decide what runs).

A file written by an agent must not become an agent, a prompt, a tool, a hook or part of a build. In agentsd.yaml,
`tools.unprotected` opens single places and `tools.write_below` limits writing to a few folders.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from fnmatch import fnmatchcase

from framework.tools.base_folder import is_inside
from framework.tools.files.safe_open import is_hidden, quoted, relative_parts
from framework.tools.tool import ToolContext
from framework.types.errors import ToolError

_AUTOLOADED_STEMS = ("conftest", "sitecustomize", "usercustomize")
"""Modules that Python or pytest imports automatically, in any form: `conftest.py`, `conftest/`, `sitecustomize.so`."""
_PROTECTED_NAMES = (
    *("agents.d", "prompts", "plugins", "agentsd.yaml", "agentsd.*.yaml", "agentsd.yml"),
    *("*.pth", "*.pyc", "*.pyo", "__pycache__", "*.so", "*.pyd", "*.dylib", "*.dll"),  # loaded instead of a source file
    *("pyproject.toml", "setup.py", "setup.cfg", "tox.ini", "pytest.ini", "noxfile.py"),
    *("makefile", "gnumakefile", "*.mk", "cmakelists.txt", "justfile", "rakefile", "gemfile", "procfile"),
    *("package.json", "package-lock.json", "node_modules", "cargo.toml", "build.rs", "build.gradle*", "pom.xml"),
    *("dockerfile", "dockerfile.*", "*.dockerfile", "docker-compose*", "compose.yaml", "compose.yml"),
    *("jenkinsfile", "vagrantfile", "hooks", "*.git"),
)
"""Names of files and folders that are not written, in addition to hidden ones; a folder includes its content."""


def readable_parts(context: ToolContext, path: str) -> tuple[str, ...]:
    """Split a path that is to be read or listed into parts below the base folder.

    Raises:
        ToolError: the path is outside the base folder, or hidden.
    """
    parts = relative_parts(context.base_path, path)
    hidden = next((name for name in parts if is_hidden(name)), None)
    if hidden is not None and not _is_unprotected(parts, context.unprotected):
        raise ToolError(_refusal(parts, hidden, "hidden files may contain secrets, so they are not read"))
    return parts


def writable_parts(context: ToolContext, path: str) -> tuple[str, ...]:
    """Split a path that is to be written into parts below the base folder.

    Raises:
        ToolError: the path is outside the base folder or `tools.write_below`, is protected, or has invisible
            characters.
    """
    parts = relative_parts(context.base_path, path)
    if any(unicodedata.category(char) == "Cf" for char in path):
        raise ToolError("the path has invisible characters: write it without them")
    protected = next((name for name in parts if is_protected(name)), None)
    if protected is not None and not _is_unprotected(parts, context.unprotected):
        raise ToolError(_refusal(parts, protected, "its content decides what runs, so it is not written"))
    if context.write_below is not None and not any(is_inside(parts, folder) for folder in context.write_below):
        folders = ", ".join(context.write_below) or "none"
        raise ToolError(f"{quoted(parts)} is outside the folders that may be written (tools.write_below): {folders}")
    return parts


def is_protected(name: str) -> bool:
    """Return whether a file or folder of this name is not written, in any spelling that means it on some system."""
    # Names that differ in case or Unicode form are one file on some systems, and look the same to a person.
    normalized = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    if is_hidden(normalized) or normalized.partition(".")[0] in _AUTOLOADED_STEMS:
        return True
    return any(fnmatchcase(normalized, pattern) for pattern in _PROTECTED_NAMES)


def _refusal(parts: Sequence[str], name: str, why: str) -> str:
    place = quoted(parts) if parts[-1] == name else f"{quoted(parts)} (because of {quoted([name])})"
    return f"{place} is protected: {why}. Only the operator can open it, with tools.unprotected in agentsd.yaml"


def _is_unprotected(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(_matches(parts, pattern.strip("/").split("/")) for pattern in patterns)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Match part by part. `**` matches any number of parts; a hidden name needs a pattern that is hidden, too."""
    if not pattern:
        return not parts
    if pattern[0] == "**" and _matches(parts, pattern[1:]):
        return True
    if not parts or (is_hidden(parts[0]) and not is_hidden(pattern[0])):
        return False
    if pattern[0] == "**":
        return _matches(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
