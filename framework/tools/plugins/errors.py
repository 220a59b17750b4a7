"""Why a plugin file could not be loaded, as Problems: its own line, and the line of the helper that is at fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from traceback import walk_tb
from typing import Any

from framework.tools.deadline import DeadlineExceededError
from framework.tools.plugins.helper_files import is_helper, is_plugin
from framework.tools.plugins.modules import PLUGIN_PACKAGE, PluginPackage, PluginSourceError
from framework.types.errors import ConfigError
from framework.types.problem import Problem
from framework.types.redact import redact_problem
from framework.types.text import did_you_mean, shorten

_HELPER_HINT = "helpers are files and folders beside a plugin whose names begin with `_`: `from ._name import …`"
_PACKAGE = re.compile(rf"{PLUGIN_PACKAGE}_\d+")
_LOADED = re.compile(r"(.+\.py)@\d+")
"""The file name of a frame of a plugin: its path, and the number of its load."""
_LOCATION = re.compile(r" \([^()]*\)$")

_Frame = tuple[str, int]
"""A file of the load, and a line of it."""


_WHILE_LOADING = "while it is loaded"
_MAX_MESSAGE_CHARS = 2000


def plugin_problems(
    package: PluginPackage, error: BaseException, beside: Collection[str] = (), *, when: str = _WHILE_LOADING
) -> tuple[Problem, ...]:
    """The plugin file's problem, and then, if it is there that something is wrong, its helper's.

    Args:
        package: the package of the file.
        error: what stopped it.
        beside: the paths of all the files there are.
        when: what the file was doing.
    """
    places = _places(package, error)
    try:
        message, hint = _message(package, error, beside, when)
    except BaseException as another:  # noqa: BLE001 - an exception of a plugin runs the plugin's code when it is shown
        message, hint = f"{type(error).__name__} {when}, whose text cannot be shown: {type(another).__name__}", None
    message = _printable(message)
    if isinstance(error, PluginSourceError):
        cause = error.problem
    else:
        file, line = places[-1] if places else (package.path, None)
        cause = Problem(path=file, line=line, message=message, hint=hint, excerpt=_excerpt(package, file, line))
    cause = redact_problem(cause)  # exceptions quote what they like, source lines hold what they hold
    if cause.path == package.path:
        return (cause,)
    own = next((line for file, line in reversed(places) if file == package.path), None)
    told = f"its helper fails: {cause.place}: {cause.message}"
    using = Problem(path=package.path, line=own, message=told, excerpt=_excerpt(package, package.path, own))
    return redact_problem(using), cause


def _printable(text: str) -> str:
    """The text of an exception, cut and encodable, as a Problem can contain it."""
    text = shorten(text, _MAX_MESSAGE_CHARS)
    return text.encode("utf-8", "backslashreplace").decode()


def place_of_error(error: BaseException, function: Callable[..., Any]) -> str:
    """`file:line` of the last frame of a plugin, or of the function's own file, in a traceback; empty if none is."""
    own = getattr(getattr(function, "__code__", None), "co_filename", "")
    found = ""
    for frame, line in walk_tb(error.__traceback__):
        filename = frame.f_code.co_filename
        if loaded := _LOADED.fullmatch(filename):
            found = f"{loaded[1]}:{line}"
        elif filename == own:
            found = f"{filename}:{line}"
    return found


def _places(package: PluginPackage, error: BaseException) -> list[_Frame]:
    """Where it was in the files of the load, the innermost last."""
    if isinstance(error, DeadlineExceededError):
        stack = error.stack
    else:
        stack = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    return [(file, line) for filename, line in stack if (file := package.file_of(filename))]


def _excerpt(package: PluginPackage, file: str, line: int | None) -> str | None:
    lines = package.files[file].decode("utf-8-sig", "replace").split("\n")
    return lines[line - 1].strip() if line and line <= len(lines) else None


def _message(
    package: PluginPackage, error: BaseException, beside: Collection[str], when: str
) -> tuple[str, str | None]:
    if isinstance(error, DeadlineExceededError):
        hint = "what takes time belongs into setup(context), or into the tool" if when == _WHILE_LOADING else None
        return f"{error} {when}", hint
    if isinstance(error, SystemExit):
        return f"calls sys.exit() {when}", None
    if isinstance(error, ConfigError):
        return error.message, None
    if isinstance(error, ImportError) and (told := _import_message(package, error, beside)):
        return told
    return f"{type(error).__name__} {when}: {error}", None


def _import_message(
    package: PluginPackage, error: ImportError, beside: Collection[str]
) -> tuple[str, str | None] | None:
    """What to say of an import that has to do with the files in the folder."""
    name, helpers = error.name or "", sorted(filter(is_helper, beside))
    if _PACKAGE.match(name):
        path = package.place_of(name)
        if path in beside and is_plugin(path):
            return f"{path} is a plugin, and plugins do not import one another", _HELPER_HINT
        if isinstance(error, ModuleNotFoundError):
            return f"there is no helper {path}{did_you_mean(path, helpers)}", _HELPER_HINT
        return _PACKAGE.sub("plugins", _LOCATION.sub("", str(error))), _HELPER_HINT
    top = name.partition(".")[0]
    if any(top in re.split(r"[/.]", helper) for helper in helpers) or "relative import" in str(error):
        return f"{type(error).__name__} {_WHILE_LOADING}: {error}", _HELPER_HINT
    return None
