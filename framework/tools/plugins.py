"""Loads plugin files as modules of their own, explains their errors, and sets them up for generations that use them."""

from __future__ import annotations

import ast
import asyncio
import inspect
import linecache
import logging
import re
import sys
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from itertools import count, islice
from pathlib import Path, PurePosixPath
from traceback import walk_tb
from types import CodeType, FrameType, ModuleType
from typing import Any, TypeVar

from framework.tools.declaration import DeclarationError, Extension, check_name, collected_declaration_errors
from framework.tools.threads import DeadlineExceededError, call_within
from framework.tools.tool import Tool
from framework.types.errors import ConfigError, RequestError
from framework.types.problem import Problem
from framework.types.redact import redact_problem
from framework.types.text import did_you_mean, shorten

log = logging.getLogger(__name__)


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

    `when` says what the plugin was doing.
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
    return _importing(package, places[::-1], cause), cause


def _importing(package: PluginPackage, places: Iterable[_Frame], cause: Problem) -> Problem:
    """Return the problem of the plugin file for that of a helper, at the first of these places in the file."""
    own = next((line for file, line in places if file == package.path), None)
    message, excerpt = f"helper failed: {cause.place}: {cause.message}", _excerpt(package, package.path, own)
    return redact_problem(Problem(path=package.path, line=own, message=message, excerpt=excerpt))


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
                yield _importing(package, places, cause)
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


LOAD_SECONDS = 1.0
"""Time limit for a plugin's own code while loading."""
IMPORT_SECONDS = 30.0
"""Time limit that includes imports of installed packages, some of which take seconds the first time, and the work of
`@tool`, which takes about a millisecond a tool."""
_IMPORTING = "<frozen importlib"
_DECLARING = Tool.named.__code__.co_filename
"""The file of `@tool`."""


class PluginError(ConfigError):
    """An invalid plugin file. `problem` is that of the file; `problems` also contains those of its helpers."""

    def __init__(self, problem: Problem, *others: Problem) -> None:
        super().__init__(problem.message, [problem, *others])
        self.problem = problem


class PluginHangsError(PluginError):
    """A plugin file whose own code does not finish in time."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Plugin:
    """A loaded plugin file. Its modules stay in `sys.modules` while it or one of its functions is referenced."""

    path: str
    package: PluginPackage = field(repr=False)
    module: ModuleType
    tools: tuple[Tool, ...]
    extensions: tuple[Extension, ...]
    files: Mapping[str, bytes | None] = field(repr=False)
    """Contents of the file and its helpers, by path; None for a helper that did not exist."""
    setup: Callable[..., Any] | None = None
    """`setup(context)`, called before the first use."""
    teardown: Callable[..., Any] | None = None
    """`teardown(context)`, called after the last use."""

    @property
    def name(self) -> str:
        """Name of the file without its suffix, the prefix of its tools."""
        return PurePosixPath(self.path).stem


def plugins_of(functions: Iterable[Callable[..., Any]]) -> list[Plugin]:
    """Return the plugins that define these functions, without duplicates."""
    modules = (sys.modules.get(str(getattr(function, "__module__", ""))) for function in functions)
    plugins = (getattr(module, "__plugin__", None) for module in modules)
    return list(dict.fromkeys(plugin for plugin in plugins if isinstance(plugin, Plugin)))


class PluginLoader:
    """Loads plugin files. In tracebacks, a number after the file name distinguishes loads of the same file."""

    def __init__(
        self,
        load_seconds: float = LOAD_SECONDS,
        import_seconds: float = IMPORT_SECONDS,
        on_tick: Callable[[], None] = lambda: None,
        root: Path = Path(),
    ) -> None:
        """Create a loader.

        Args:
            load_seconds: time limit for a plugin's own code.
            import_seconds: time limit that includes imports of installed packages.
            on_tick: called repeatedly while a file is loaded.
            root: the project's folder. A module's `__file__` is below it.
        """
        self._root = root.absolute()
        self._load_seconds, self._import_seconds, self._on_tick = load_seconds, import_seconds, on_tick
        self._numbers = count(1)
        if PluginFinder not in sys.meta_path:
            sys.meta_path.append(PluginFinder)

    def load(self, path: str, source: bytes, files: Mapping[str, bytes] | None = None) -> Plugin:
        """Execute a plugin file (`plugins/NAME.py`); its tools are named `NAME.FUNCTION`, or `FUNCTION`.

        `files` are the contents of the folder by path, for the helpers that the file imports.

        Raises:
            PluginError: the file is invalid or raised an exception; PluginHangsError if it does not finish.
        """
        folder_files = {**(files or {}), path: source}
        made_from = plugin_files(path, folder_files)
        package = PluginPackage(
            path, {name: text for name, text in made_from.items() if text is not None}, self._numbers, self._root
        )
        try:
            make = partial(_plugin, package, made_from)
            loading = call_within(
                self._load_seconds, make, is_exempt=partial(self._is_exempt, package), max_seconds=self._import_seconds
            )
            failure = loading.exception()
        except DeadlineExceededError as error:
            raise PluginHangsError(*plugin_problems(package, error, folder_files)) from None
        if isinstance(failure, PluginError):
            raise failure
        if failure is not None:  # testing its truth value would run the plugin's code
            raise PluginError(*plugin_problems(package, failure, folder_files)) from None
        return loading.result()

    def _is_exempt(self, package: PluginPackage, frame: FrameType | None) -> bool:
        self._on_tick()
        return _is_importing(package, frame)


def _plugin(package: PluginPackage, made_from: Mapping[str, bytes | None]) -> Plugin:
    """Execute the file and collect its definitions, which may execute code of the plugin again."""
    with collected_declaration_errors() as invalid:
        try:
            module = package.execute()
        except BaseException as error:
            if not invalid:
                raise
            problems = *declaration_problems(package, invalid), *plugin_problems(package, error, made_from)
            raise PluginError(*problems) from None
    if invalid:
        raise PluginError(*declaration_problems(package, invalid))
    setup, teardown = (_lifetime_function(package.path, module, name) for name in ("setup", "teardown"))
    tools, extensions = tuple(_tools(package.path, module)), tuple(_extensions(package.path, module))
    plugin = Plugin(package.path, package, module, tools, extensions, made_from, setup, teardown)
    module.__dict__["__plugin__"] = plugin
    return plugin


def _tools(path: str, module: ModuleType) -> list[Tool]:
    stem = PurePosixPath(path).stem
    made_here = {
        id(value): value.named(f"{stem}.{value.name}" if value.prefix else value.name, "plugin")
        for value in vars(module).values()
        if isinstance(value, Tool) and _module_of(value) == module.__name__
    }
    for tool in made_here.values():
        check_name(tool.name)
    return list(made_here.values())


def _extensions(path: str, module: ModuleType) -> Iterator[Extension]:
    stem = PurePosixPath(path).stem
    for value in vars(module).values():
        if isinstance(value, Extension) and _module_of(value) == module.__name__:
            yield value.named(f"{stem}.{value.name}")


def _module_of(registered: Tool | Extension) -> object:
    """Return the name of the module that defines a tool or extension. Imported ones are not registered."""
    return getattr(registered.function, "__module__", None)


def _lifetime_function(path: str, module: ModuleType, name: str) -> Callable[..., Any] | None:
    function = vars(module).get(name)
    package = module.__name__.partition(".")[0]
    if not inspect.isfunction(function) or function.__module__.partition(".")[0] != package:
        return None
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        message = f"{name}() must accept one argument, a PluginContext"
        line = function.__code__.co_firstlineno if function.__module__ == module.__name__ else None
        raise PluginError(Problem(path=path, line=line, message=message)) from None
    return function


def _is_importing(package: PluginPackage, frame: FrameType | None) -> bool:
    """Return whether a frame is of the import of an installed package, or of `@tool`, not of the plugin's own code."""
    while frame is not None and not package.file_of(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_IMPORTING) or frame.f_code.co_filename == _DECLARING:
            return True
        frame = frame.f_back
    return False


T = TypeVar("T")

_TIMEOUT_SECONDS = 10.0
"""Time limit for a `setup` or a `teardown`, in seconds."""


@dataclass(frozen=True, slots=True)
class PluginContext:
    """The argument of a plugin's `setup(context)` and `teardown(context)`."""

    plugin: str
    """Name of the plugin: that of its file, which is also the prefix of its tools."""
    deps: Any = None
    """Objects of the embedding program, passed to `Runtime.open(deps=…)`."""


@dataclass(slots=True, eq=False)
class _PluginState:
    leases: int = 0
    is_set_up: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class PluginLease:
    """A lease of plugins, which are set up except for those in `failed`. It must be released."""

    failed: dict[Plugin, tuple[Problem, ...]] = field(default_factory=dict)
    states: list[_PluginState] = field(default_factory=list)
    on_release: Callable[[], None] = lambda: None

    def release(self) -> None:
        """Release the lease. Idempotent. Plugins without leases are torn down in the background."""
        states, self.states = self.states, []
        for state in states:
            state.leases -= 1
        if any(state.leases == 0 for state in states):
            self.on_release()


class PluginLifecycle:
    """Sets up each plugin before its first lease and tears it down after its last, even if a caller is cancelled."""

    def __init__(self, deps: Any = None, *, seconds: float = _TIMEOUT_SECONDS) -> None:
        self._deps, self._seconds = deps, seconds
        self._states: dict[Plugin, _PluginState] = {}
        """Plugins in the order in which they were set up."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def acquire(self, plugins: Iterable[Plugin]) -> PluginLease:
        """Lease plugins; set up those that are not set up yet. Raise RequestError after `close`."""
        stateful = [plugin for plugin in dict.fromkeys(plugins) if plugin.setup or plugin.teardown]
        lease = PluginLease(on_release=self._tear_down_in_background)
        for plugin in stateful:  # count all before the first await, so that no plugin is torn down during it
            state = self._states.setdefault(plugin, _PluginState())
            state.leases += 1
            lease.states.append(state)
        try:
            for plugin, state in zip(stateful, lease.states, strict=True):
                if self._is_closed:
                    raise RequestError("the runtime is closed")
                if not state.is_set_up and (problems := await asyncio.shield(self._spawn(self._set_up(plugin, state)))):
                    lease.failed[plugin] = problems
        except BaseException:
            lease.release()
            raise
        return lease

    async def close(self) -> None:
        """Tear down all plugins, even if they are leased, in reverse order of their setup."""
        self._is_closed = True
        while self._tasks:
            await asyncio.wait(self._tasks)
        for state in self._states.values():
            state.leases = 0
        await self._tear_down_unused()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that continues if its caller is cancelled: a partial `setup` could not be torn down."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _tear_down_in_background(self) -> None:
        self._spawn(self._tear_down_unused())

    async def _set_up(self, plugin: Plugin, state: _PluginState) -> tuple[Problem, ...]:
        async with state.lock:
            error = None if state.is_set_up else await self._call(plugin, plugin.setup)
            state.is_set_up = error is None
        return plugin_problems(plugin.package, error, when="in setup()") if error is not None else ()

    async def _tear_down_unused(self) -> None:
        for plugin, state in reversed(list(self._states.items())):
            if state.leases <= 0:  # negative if a lease is released after `close`
                await self._tear_down(plugin, state)

    async def _tear_down(self, plugin: Plugin, state: _PluginState) -> None:
        async with state.lock:
            if state.is_set_up and state.leases <= 0:
                state.is_set_up = False
                if (error := await self._call(plugin, plugin.teardown)) is not None:
                    problems = plugin_problems(plugin.package, error, when="in teardown()")
                    log.error("%s", "; ".join(map(str, problems)))
        if state.leases <= 0 and self._states.get(plugin) is state:
            del self._states[plugin]

    async def _call(self, plugin: Plugin, function: Callable[..., Any] | None) -> BaseException | None:
        """Call a function of a plugin. Return the exception that it raised, or None."""
        if function is None:
            return None
        call = partial(function, PluginContext(plugin.name, self._deps))
        if inspect.iscoroutinefunction(function):
            return await _in_the_loop(call, self._seconds)
        return await asyncio.to_thread(_in_a_thread, call, self._seconds)


async def _in_the_loop(call: Callable[[], Awaitable[object]], seconds: float) -> BaseException | None:
    work = _error_of(call)
    task = asyncio.create_task(work)
    if (await asyncio.wait([task], timeout=seconds))[0]:
        return task.result()
    inner = getattr(work, "cr_await", None)
    error = DeadlineExceededError(seconds, getattr(inner, "cr_frame", None))  # before `cancel` clears the frame
    task.cancel()
    return error


async def _error_of(call: Callable[[], Awaitable[object]]) -> BaseException | None:
    try:
        await call()
    except BaseException as error:  # noqa: BLE001 - includes sys.exit(), which must not end the process
        return error
    return None


def _in_a_thread(call: Callable[[], object], seconds: float) -> BaseException | None:
    try:
        return call_within(seconds, call, is_exempt=lambda _: False, max_seconds=seconds).exception()
    except DeadlineExceededError as error:
        return error
