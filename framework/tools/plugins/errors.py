"""Converts exceptions of plugin code to Problems with the line of the plugin and of the helper that failed."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from traceback import walk_tb
from typing import Any

from framework.tools.deadline import DeadlineExceededError
from framework.tools.declaration import DeclarationError
from framework.tools.plugins.helper_files import is_helper, is_plugin
from framework.tools.plugins.modules import PLUGIN_PACKAGE, PluginPackage, PluginSourceError
from framework.types.errors import ConfigError
from framework.types.problem import Problem
from framework.types.redact import redact_problem
from framework.types.text import did_you_mean, shorten

_HELPER_HINT = "helpers are files and folders next to a plugin whose names begin with `_`: `from ._name import …`"
_PACKAGE = re.compile(rf"{PLUGIN_PACKAGE}_\d+")
_LOADED = re.compile(r"(.+\.py)@\d+")
"""File name in frames of a plugin: its path, and the number of the load."""
_LOCATION = re.compile(r" \([^()]*\)$")

_Frame = tuple[str, int]
"""A file of the package, and a line in it."""

_WHILE_LOADING = "while loading"
_MAX_MESSAGE_CHARS = 2000
_MAX_INVALID_TOOLS = 50
"""Maximum number of tools of one plugin whose invalid declarations are reported."""


def plugin_problems(
    package: PluginPackage, error: BaseException, folder_files: Collection[str] = (), *, when: str = _WHILE_LOADING
) -> tuple[Problem, ...]:
    """Return the problem of the plugin file, followed by that of the helper if the error is in a helper.

    Args:
        package: package of the plugin file.
        error: exception that the plugin raised, or DeadlineExceededError.
        folder_files: paths of all files in the folder.
        when: what the plugin was doing, for the message.
    """
    places = _places(package, error)
    try:
        message, hint = _message(package, error, folder_files, when)
    except BaseException as another:  # noqa: BLE001 - formatting an exception of a plugin runs the plugin's code
        message, hint = f"{type(error).__name__} {when}; its text cannot be shown: {type(another).__name__}", None
    message = _printable(message)
    if isinstance(error, PluginSourceError):
        cause = error.problem
    else:
        file, line = places[-1] if places else (package.path, None)
        cause = Problem(path=file, line=line, message=message, hint=hint, excerpt=_excerpt(package, file, line))
    cause = redact_problem(cause)  # exceptions and source lines can contain secrets
    if cause.path == package.path:
        return (cause,)
    own = next((line for file, line in reversed(places) if file == package.path), None)
    message = f"helper failed: {cause.place}: {cause.message}"
    importing = Problem(path=package.path, line=own, message=message, excerpt=_excerpt(package, package.path, own))
    return redact_problem(importing), cause


def declaration_problems(package: PluginPackage, errors: Iterable[DeclarationError]) -> Iterator[Problem]:
    """Yield a problem for each mistake in the declarations of a plugin's tools, at its option."""
    for error in islice(errors, _MAX_INVALID_TOOLS):
        places = [(file, line) for filename, line in error.stack if (file := package.file_of(filename))]
        file, line = places[0] if places else (package.path, 1)
        source = package.files[file].decode("utf-8-sig", "replace")
        for option, message in error.errors:
            at, column = _option_place(source, line, option) if option else (line, None)
            excerpt, text = source.split("\n")[at - 1], _printable(message)
            cause = redact_problem(Problem(path=file, line=at, column=column, message=text, excerpt=excerpt))
            if file != package.path:
                own = next((line for other, line in places if other == package.path), None)
                message = f"helper failed: {cause.place}: {cause.message}"
                yield Problem(path=package.path, line=own, message=message)
            yield cause


def _option_place(source: str, line: int, option: str) -> tuple[int, int | None]:
    """Return line and column of an option's value in the call at a line, or the line if there is no such option."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or line):
            for value in (keyword.value for keyword in node.keywords if keyword.arg == option):
                before = source.split("\n")[value.lineno - 1].encode()[: value.col_offset]
                return value.lineno, len(before.decode()) + 1
    return line, None


def _printable(text: str) -> str:
    """Shorten the text of an exception and escape characters that cannot be encoded."""
    text = shorten(text, _MAX_MESSAGE_CHARS)
    return text.encode("utf-8", "backslashreplace").decode()


def place_of_error(error: BaseException, function: Callable[..., Any]) -> str:
    """Return `file:line` of the last traceback frame in a plugin or in the function's own file, or an empty string."""
    own = getattr(getattr(function, "__code__", None), "co_filename", "")
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        filename = frame.f_code.co_filename
        if loaded := _LOADED.fullmatch(filename):
            place = f"{loaded[1]}:{line}"
        elif filename == own:
            place = f"{filename}:{line}"
    return place


def _places(package: PluginPackage, error: BaseException) -> list[_Frame]:
    """Return the frames of the error in files of the package, the innermost last."""
    if isinstance(error, DeadlineExceededError):
        stack = error.stack
    else:
        stack = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    return [(file, line) for filename, line in stack if (file := package.file_of(filename))]


def _excerpt(package: PluginPackage, file: str, line: int | None) -> str | None:
    lines = package.files[file].decode("utf-8-sig", "replace").split("\n")
    return lines[line - 1].strip() if line and line <= len(lines) else None


def _message(
    package: PluginPackage, error: BaseException, folder_files: Collection[str], when: str
) -> tuple[str, str | None]:
    if isinstance(error, DeadlineExceededError):
        hint = "move slow code to setup(context) or into the tool" if when == _WHILE_LOADING else None
        return f"{error} {when}", hint
    if isinstance(error, SystemExit):
        return f"calls sys.exit() {when}", None
    if isinstance(error, ConfigError):
        return error.message, None
    if isinstance(error, ImportError) and (import_message := _import_message(package, error, folder_files)):
        return import_message
    return f"{type(error).__name__} {when}: {error}", None


def _import_message(
    package: PluginPackage, error: ImportError, folder_files: Collection[str]
) -> tuple[str, str | None] | None:
    """Return message and hint for a failed import of a plugin or helper, or None for any other import."""
    name, helpers = error.name or "", sorted(filter(is_helper, folder_files))
    if _PACKAGE.match(name):
        path = package.place_of(name)
        if path in folder_files and is_plugin(path):
            return f"{path} is a plugin: plugins cannot import each other", _HELPER_HINT
        if isinstance(error, ModuleNotFoundError):
            return f"no helper {path}{did_you_mean(path, helpers)}", _HELPER_HINT
        return _PACKAGE.sub("plugins", _LOCATION.sub("", str(error))), _HELPER_HINT
    top = name.partition(".")[0]
    if any(top in re.split(r"[/.]", helper) for helper in helpers) or "relative import" in str(error):
        return f"{type(error).__name__} {_WHILE_LOADING}: {error}", _HELPER_HINT
    return None
