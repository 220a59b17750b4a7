"""Modules made from bytes that are at hand: never from a file, a compiled file or a search path.

Every load of a plugin file has a package of its own that mirrors the folder: `plugins/shop/orders.py` is the module
`_agentsd_plugins_7.shop.orders`, and `from ._prices import tax` in it imports `_agentsd_plugins_7.shop._prices`, made
from what `plugins/shop/_prices.py` was for that load. It leaves `sys.modules` once nobody holds a function of it.
"""

from __future__ import annotations

import linecache
import sys
import weakref
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import PurePosixPath
from types import CodeType, ModuleType
from typing import Any

from framework.tools.plugins.helper_files import INIT_FILE
from framework.types.problem import Problem

PLUGIN_PACKAGE = "_agentsd_plugins"


class PluginSourceError(Exception):
    """A file that is not Python; `problem` says where and why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class _ModuleProxy(ModuleType):
    """Stands in `sys.modules` for a module that it does not keep alive, and leaves together with it."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module.__name__)
        super().__setattr__("_module", weakref.ref(module))
        file = getattr(module, "__file__", None) or ""
        weakref.finalize(module, _forget, module.__name__, file).atexit = False

    def __getattribute__(self, name: str) -> Any:
        module = super().__getattribute__("__dict__").get("_module", lambda: None)()
        return super().__getattribute__(name) if module is None or name == "__class__" else getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Python sets an imported module as an attribute of its package."""
        module = super().__getattribute__("__dict__")["_module"]()
        if module is not None:
            setattr(module, name, value)


def _forget(name: str, file: str) -> None:
    sys.modules.pop(name, None)
    linecache.cache.pop(file, None)


class _PackagePath(list[str]):
    """The `__path__` of a package. It is empty: no other finder finds anything in it."""

    def __init__(self, package: PluginPackage) -> None:
        super().__init__()
        self.package = package


class PluginFinder:
    """Stands in `sys.meta_path`; knows only what is imported from a package of a load, and asks that load."""

    @staticmethod
    def find_spec(name: str, path: object = None, _: object = None) -> ModuleSpec | None:
        """How to make a module; none if it belongs to no load."""
        return path.package.spec(name) if isinstance(path, _PackagePath) else None


class PluginPackage(Loader):
    """One load of a plugin file with its helpers. Its modules hold it and it holds them: they live and go together."""

    def __init__(self, path: str, files: Mapping[str, bytes], numbers: Iterator[int]) -> None:
        self.path, self.files = path, files
        self.modules: dict[str, ModuleType] = {}
        self.number, self.name = _reserve(numbers)
        self._paths: dict[str, str | None] = {self.name: None}
        """The file of each module by its full name; none for a mere folder."""
        for file in files:
            self._add(file)
        root = self.spec(self.name)
        assert root is not None
        self.exec_module(module_from_spec(root))

    def execute(self) -> ModuleType:
        """Run the plugin file; raises SourceError, and whatever it raises itself."""
        name = next(name for name, file in self._paths.items() if file == self.path)
        import_module(name)
        return self.modules[name]

    def spec(self, name: str) -> ModuleSpec | None:
        """How to make a module of this load; none if it has no such module."""
        if name not in self._paths:
            return None
        file = self._paths[name]
        is_folder = file is None or file.endswith(INIT_FILE)
        spec = ModuleSpec(name, self, origin=f"{file}@{self.number}" if file else None, is_package=is_folder)
        spec.has_location = file is not None
        if is_folder:
            spec.submodule_search_locations = _PackagePath(self)
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Run a module; an alias takes its place in `sys.modules`."""
        self.modules[module.__name__] = module
        # Dataclasses, pydantic and typing look names up in the module of a class, some only when it is first used.
        sys.modules[module.__name__] = _ModuleProxy(module)
        if file := self._paths[module.__name__]:
            exec(_compile(file, f"{file}@{self.number}", self.files[file]), module.__dict__)

    def get_source(self, name: str) -> str | None:
        """What a module was made from: tracebacks must not show what its file says by then."""
        file = self._paths.get(name)
        return self.files[file].decode("utf-8-sig") if file else None

    def file_of(self, filename: str) -> str | None:
        """The file that a frame of a traceback runs, if it is one of this load."""
        file, _, number = filename.rpartition("@")
        return file if number == str(self.number) and file in self.files else None

    def place_of(self, module: str) -> str:
        """The file that a module of this load would be made from."""
        return "/".join([self._top, *module.split(".")[1:]]) + ".py"

    @property
    def _top(self) -> str:
        return PurePosixPath(self.path).parts[0]

    def _add(self, file: str) -> None:
        *folders, stem = (part.replace(".", "_") for part in PurePosixPath(file).with_suffix("").parts[1:])
        name = self.name
        for folder in folders:
            name = f"{name}.{folder}"
            self._paths.setdefault(name, None)
        if f"{stem}.py" == INIT_FILE:
            self._paths[name] = file
        elif not (self._paths.get(f"{name}.{stem}") or "").endswith(INIT_FILE):  # a package goes before a module
            self._paths[f"{name}.{stem}"] = file


def _reserve(numbers: Iterator[int]) -> tuple[int, str]:
    """A package's name that nobody has: other runtimes in this process load plugins as well."""
    for number in numbers:
        name = f"{PLUGIN_PACKAGE}_{number}"
        place = ModuleType(name)
        if sys.modules.setdefault(name, place) is place:
            return number, name
    raise AssertionError("numbers end")


def _compile(path: str, filename: str, source: bytes) -> CodeType:
    try:
        return compile(source.decode("utf-8-sig"), filename, "exec", dont_inherit=True)
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        message = f"not UTF-8: byte 0x{source[error.start]:02x}"
        raise PluginSourceError(Problem(path=path, line=line, message=message)) from None
    except SyntaxError as error:
        excerpt = error.text.rstrip("\n") if error.text else None
        problem = Problem(path=path, line=error.lineno, column=error.offset or None, message=error.msg, excerpt=excerpt)
        raise PluginSourceError(problem) from None
    except (ValueError, RecursionError, MemoryError) as error:
        message = f"cannot be compiled: {str(error) or type(error).__name__}"
        raise PluginSourceError(Problem(path=path, message=message)) from None
