"""In-memory packages: the modules of one load of a plugin file and its helpers.

Modules are created from bytes, never from files, compiled files or a search path. Every load of a plugin file has a
separate package that mirrors the folder: `plugins/shop/orders.py` is the module `_agentsd_plugins_7.shop.orders`, and
`from ._prices import tax` in it imports `_agentsd_plugins_7.shop._prices`, created from the contents that
`plugins/shop/_prices.py` had for that load. The modules leave `sys.modules` when nothing references them any longer.
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
from pathlib import Path, PurePosixPath
from types import CodeType, ModuleType
from typing import Any

from framework.tools.plugins.helper_files import INIT_FILE
from framework.types.problem import Problem

PLUGIN_PACKAGE = "_agentsd_plugins"


class PluginSourceError(Exception):
    """A file is not valid Python. `problem` has the place and the reason."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class _ModuleProxy(ModuleType):
    """A proxy in `sys.modules` with a weak reference to its module. It is removed together with the module."""

    def __init__(self, module: ModuleType, filename: str) -> None:
        """Create a proxy of a module whose frames have this file name."""
        super().__init__(module.__name__)
        super().__setattr__("_module", weakref.ref(module))
        weakref.finalize(module, _forget, module.__name__, filename).atexit = False

    def __getattribute__(self, name: str) -> Any:
        module = super().__getattribute__("__dict__").get("_module", lambda: None)()
        return super().__getattribute__(name) if module is None or name == "__class__" else getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the attribute on the module: Python sets imported modules as attributes of their package."""
        module = super().__getattribute__("__dict__")["_module"]()
        if module is not None:
            setattr(module, name, value)


def _forget(name: str, filename: str) -> None:
    sys.modules.pop(name, None)
    linecache.cache.pop(filename, None)


class _PackagePath(list[str]):
    """The `__path__` of a package. It is empty, so that no other finder finds modules in it."""

    def __init__(self, package: PluginPackage) -> None:
        super().__init__()
        self.package = package


class PluginFinder:
    """A finder in `sys.meta_path` that delegates imports from a plugin package to that package."""

    @staticmethod
    def find_spec(name: str, path: object = None, _: object = None) -> ModuleSpec | None:
        """Return the spec of a module, or None if it does not belong to a plugin package."""
        return path.package.spec(name) if isinstance(path, _PackagePath) else None


class PluginPackage(Loader):
    """The modules of one load of a plugin file and its helpers, and their importlib loader.

    The package and its modules reference each other, so they are garbage-collected together.

    The `__file__` of a module is the path of its file, which may have changed since. The file name of its frames is
    another: the path in the project, and the number of the load.
    """

    def __init__(self, path: str, files: Mapping[str, bytes], numbers: Iterator[int], root: Path) -> None:
        self.path, self.files, self._root = path, files, root
        self.modules: dict[str, ModuleType] = {}
        self.number, self.name = _reserve(numbers)
        self._paths: dict[str, str | None] = {self.name: None}
        """File of each module by its full name; None for a folder without `__init__.py`."""
        for file in files:
            self._add(file)
        top = self.spec(self.name)
        assert top is not None
        self.exec_module(module_from_spec(top))

    def execute(self) -> ModuleType:
        """Execute the plugin file and return its module. Raise PluginSourceError, or any exception of the file."""
        name = next(name for name, file in self._paths.items() if file == self.path)
        import_module(name)
        return self.modules[name]

    def spec(self, name: str) -> ModuleSpec | None:
        """Return the spec of a module of this package, or None if it has no such module."""
        if name not in self._paths:
            return None
        file = self._paths[name]
        is_folder = file is None or file.endswith(INIT_FILE)
        spec = ModuleSpec(name, self, origin=str(self._root / file) if file else None, is_package=is_folder)
        spec.has_location = file is not None
        if is_folder:
            spec.submodule_search_locations = _PackagePath(self)
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Execute a module and put a proxy of it into `sys.modules`."""
        self.modules[module.__name__] = module
        # Dataclasses, pydantic and typing look up names in the module of a class, some only when it is first used.
        file = self._paths[module.__name__]
        filename = f"{file}@{self.number}" if file else ""
        sys.modules[module.__name__] = _ModuleProxy(module, filename)
        if file:
            exec(_compile(file, filename, self.files[file]), module.__dict__)

    def get_source(self, name: str) -> str | None:
        """Return the source of a module, so that tracebacks show it even if the file has changed since."""
        file = self._paths.get(name)
        return self.files[file].decode("utf-8-sig") if file else None

    def file_of(self, filename: str) -> str | None:
        """Return the path for the file name of a frame, or None if it is not of this package."""
        file, _, number = filename.rpartition("@")
        return file if number == str(self.number) and file in self.files else None

    def place_of(self, module: str) -> str:
        """Return the path of the file that a module of this package is created from."""
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
    """Reserve an unused package name. Other runtimes in this process load plugins as well."""
    for number in numbers:
        name = f"{PLUGIN_PACKAGE}_{number}"
        place = ModuleType(name)
        if sys.modules.setdefault(name, place) is place:
            return number, name
    raise AssertionError("`numbers` is infinite")


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
        message = f"cannot compile: {str(error) or type(error).__name__}"
        raise PluginSourceError(Problem(path=path, message=message)) from None
