"""Plugin files: each is executed as a fresh module, from the bytes of the snapshot, never from a cache on disk."""

from __future__ import annotations

import linecache
import re
import sys
import traceback
import weakref
from dataclasses import dataclass
from itertools import count
from pathlib import PurePosixPath
from types import CodeType, ModuleType
from typing import Any

from pydantic import BaseModel

from framework.tools.tool import Tool
from framework.types.errors import ConfigError
from framework.types.problem import Problem

PLUGIN_PACKAGE = "_agentsd_plugins"
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")


class PluginError(ConfigError):
    """A plugin file that cannot be used."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message, [problem])
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Plugin:
    """A loaded plugin file. It lives as long as somebody holds it; so does its module in `sys.modules`."""

    path: str
    module: ModuleType
    tools: tuple[Tool, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """The module's loader: tracebacks ask it for the source that ran, not for what the file says by then."""

    text: str

    def get_source(self, _: str) -> str:
        return self.text


class _Alias(ModuleType):
    """Stands in `sys.modules` for a module that it does not keep alive, and leaves together with it."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module.__name__)
        self._module = weakref.ref(module)
        weakref.finalize(module, sys.modules.pop, module.__name__, None).atexit = False

    def __getattribute__(self, name: str) -> Any:
        module = super().__getattribute__("__dict__").get("_module", lambda: None)()
        return super().__getattribute__(name) if module is None or name == "__class__" else getattr(module, name)


class PluginLoader:
    """Loads plugin files; the number in a module's name tells one load of a file from the next."""

    def __init__(self) -> None:
        self._loads = count(1)

    def load(self, path: str, source: bytes) -> Plugin:
        """Execute a plugin file (`plugins/NAME.py`); its tools are named `NAME.FUNCTION`.

        Raises:
            PluginError: with the line of the file at fault.
        """
        stem, number = PurePosixPath(path).stem, next(self._loads)
        filename = f"{path}@{number}"
        text, code = _compile(path, filename, source)
        module = ModuleType(f"{PLUGIN_PACKAGE}.{stem}_{number}")
        module.__file__ = filename
        module.__dict__["__loader__"] = _Source(text)
        module.__package__ = ""
        # Dataclasses, pydantic and typing look names up in the module of a class, some only when it is first used.
        sys.modules[module.__name__] = _Alias(module)
        if problem := _execute(code, module, path):
            raise PluginError(problem)
        return Plugin(path, module, tuple(_tools(path, stem, module)))


def _compile(path: str, filename: str, source: bytes) -> tuple[str, CodeType]:
    try:
        text = source.decode("utf-8-sig")
        return text, compile(text, filename, "exec", dont_inherit=True)
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        message = f"not UTF-8: byte 0x{source[error.start]:02x}"
        raise PluginError(Problem(path=path, line=line, message=message)) from None
    except SyntaxError as error:
        excerpt = error.text.rstrip("\n") if error.text else None
        problem = Problem(path=path, line=error.lineno, column=error.offset or None, message=error.msg, excerpt=excerpt)
        raise PluginError(problem) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise PluginError(
            Problem(path=path, message=f"cannot be compiled: {str(error) or type(error).__name__}")
        ) from None


def _execute(code: CodeType, module: ModuleType, path: str) -> Problem | None:
    try:
        exec(code, module.__dict__)
    except BaseException as error:  # noqa: BLE001 - even sys.exit() at import must not take the process along
        return _import_problem(path, code.co_filename, error)
    _finish_models(module)
    return None


def _finish_models(module: ModuleType) -> None:
    """Resolve forward references now: a call of this load may come when its module has left `sys.modules`."""
    for value in list(vars(module).values()):
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__:
            value.model_rebuild(raise_errors=False, _types_namespace=vars(module))


def _tools(path: str, stem: str, module: ModuleType) -> list[Tool]:
    made_here = {
        id(value): value.named(f"{stem}.{value.name}", "plugin")
        for value in vars(module).values()
        if isinstance(value, Tool) and value.function.__module__ == module.__name__
    }
    for tool in made_here.values():
        if not _TOOL_NAME.match(tool.name):
            message = f"the tool {tool.name!r}: only letters, digits, '_', '-' and '.' can be part of its name"
            raise PluginError(Problem(path=path, message=message))
    return list(made_here.values())


def _import_problem(path: str, filename: str, error: BaseException) -> Problem:
    trace = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in reversed(trace) if frame.filename == filename), None)
    linecache.cache.pop(filename, None)
    if isinstance(error, SystemExit):
        message = "calls sys.exit() while it is loaded"
    elif isinstance(error, ConfigError):
        message = error.message
    else:
        message = f"{type(error).__name__} while it is loaded: {error}"
    return Problem(
        path=path, line=frame.lineno if frame else None, message=message, excerpt=frame.line if frame else None
    )
