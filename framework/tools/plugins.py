"""Plugin files: each is executed as a fresh module, from the bytes of the snapshot, never from a cache on disk."""

from __future__ import annotations

import linecache
import sys
import traceback
from dataclasses import dataclass
from itertools import count
from pathlib import PurePosixPath
from types import ModuleType

from framework.tools.tool import Tool
from framework.types.errors import ConfigError
from framework.types.problem import Problem

PLUGIN_PACKAGE = "_agentsd_plugins"


class PluginError(ConfigError):
    """A plugin file that cannot be used."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message, [problem])
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Plugin:
    """A loaded plugin file. It lives as long as somebody holds it; `module` is not importable by name."""

    path: str
    module: ModuleType
    tools: tuple[Tool, ...]


class PluginLoader:
    """Loads plugin files; the number in a module's name tells one load of a file from the next."""

    def __init__(self) -> None:
        self._loads = count(1)

    def load(self, path: str, source: bytes) -> Plugin:
        """Execute a plugin file (`plugins/NAME.py`); its tools are named `NAME.FUNCTION`.

        Raises:
            PluginError: with the line of the file at fault.
        """
        stem = PurePosixPath(path).stem
        module = ModuleType(f"{PLUGIN_PACKAGE}.{stem}_{next(self._loads)}")
        filename = f"{path}@{module.__name__.rpartition('_')[2]}"
        module.__file__ = filename
        try:
            text = source.decode("utf-8")
            code = compile(text, filename, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise PluginError(_syntax_problem(path, error)) from None
        # A traceback out of the plugin shows the source that ran, not what the file says by then.
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        sys.modules[module.__name__] = module  # typing.get_type_hints and dataclasses look a function's module up
        try:
            exec(code, module.__dict__)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise anything; it becomes a Problem
            linecache.cache.pop(filename, None)
            raise PluginError(_import_problem(path, filename, error)) from None
        finally:
            sys.modules.pop(module.__name__, None)
        made_here = {
            id(value): value.named(f"{stem}.{value.name}", "plugin")
            for value in vars(module).values()
            if isinstance(value, Tool) and value.function.__module__ == module.__name__
        }
        return Plugin(path, module, tuple(made_here.values()))


def _syntax_problem(path: str, error: SyntaxError | ValueError) -> Problem:
    if isinstance(error, SyntaxError):
        excerpt = error.text.rstrip("\n") if error.text else None
        return Problem(path=path, line=error.lineno, column=error.offset, message=error.msg, excerpt=excerpt)
    return Problem(path=path, message=f"not UTF-8 text: {error}")


def _import_problem(path: str, filename: str, error: BaseException) -> Problem:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == filename]
    line = frames[-1].lineno if frames else None
    if isinstance(error, SystemExit):
        message = "calls sys.exit() while it is loaded"
    elif isinstance(error, ConfigError):
        message = error.message
    else:
        message = f"{type(error).__name__} while it is loaded: {error}"
    excerpt = frames[-1].line if frames else None
    return Problem(path=path, line=line, message=message, excerpt=excerpt)
