"""A project's files, read: what a runtime runs, and all that commands need which run nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from framework.config.agents.extensions import BUILTIN_EXECUTORS
from framework.config.generations.admission import Gate
from framework.config.generations.catalog import Catalog
from framework.config.settings import Settings
from framework.llm.providers import OFFLINE, PROVIDERS
from framework.tools.builtin import BUILTIN_TOOLS
from framework.tools.declaration import short_repr
from framework.tools.plugins.lifecycle import PluginLifecycle
from framework.tools.tool import Tool
from framework.tools.toolset import index_tools
from framework.types.errors import ConfigError, RequestError


@dataclass(frozen=True, slots=True)
class Project:
    """A project that was read."""

    root: Path
    """Its folder, or the folder of its one file."""
    catalog: Catalog

    @property
    def settings(self) -> Settings:
        """What holds now."""
        return self.catalog.current.settings

    @property
    def base_path(self) -> Path:
        """The folder that file tools work below, with links in its own path resolved."""
        return (self.root / self.settings.tools.base_path).resolve()

    @classmethod
    async def read(
        cls,
        root: str | Path,
        settings: Settings | None = None,
        *,
        tools: Iterable[Tool] = (),
        models: Collection[str] = (),
        gate: Gate | None = None,
        lifecycle: PluginLifecycle | None = None,
        connect: bool = False,
    ) -> Project:
        """Read a project folder, or a single agent file. Without `lifecycle` nothing of it may be run.

        Args:
            root: the folder that has `agents.d/`, or one agent file.
            settings: instead of `agentsd.yaml` and the environment.
            tools: besides those of `plugins/` and the built-in ones; one with a built-in tool's name replaces it.
            models: names that agent files may use besides those of the settings.
            gate: what may keep an edit from going live, if the settings want that.
            lifecycle: sets plugins up.
            connect: to the tool servers that its files declare; then it must be closed.

        Raises:
            ConfigError: the settings or tools cannot be used, or nothing may go live.
        """
        path, folder = _locate(root)
        started = settings or Settings.load(folder)
        catalog = Catalog(
            path,
            tools=_with_builtin(tools),
            executors=BUILTIN_EXECUTORS,
            models={OFFLINE, *(f"{provider.name}/" for provider in PROVIDERS), *models},
            settings=started,
            fixed=settings is not None,
            gate=gate,
            lifecycle=lifecycle,
            connect=connect,
        )
        try:
            await catalog.reload("startup")
            if not catalog.current.number:
                strict = started.reload.mode == "strict"
                needed = "strict mode: nothing is served until all files can be used"
                raise ConfigError(needed if strict else "nothing is served until every case passes", catalog.problems)
        except BaseException:
            await catalog.close()
            raise
        return cls(folder, catalog)


def _with_builtin(tools: Iterable[Tool]) -> list[Tool]:
    """A program's own tools, and the built-in ones whose names it does not use itself; raises ConfigError."""
    own = list(tools)
    given: list[object] = [*own]
    if wrong := [one for one in given if not isinstance(one, Tool)]:
        raise ConfigError(f"tools=[…] takes functions with @tool above them: {short_repr(wrong[0])}")
    names = {tool.name for tool in own}
    all_tools = [*(tool for tool in BUILTIN_TOOLS if tool.name not in names), *own]
    index_tools(all_tools)
    return all_tools


def project_folder(root: str | Path) -> Path:
    """The folder of a project, or of one agent file; raises RequestError when nothing is there."""
    return _locate(root)[1]


def _locate(root: str | Path) -> tuple[Path, Path]:
    """What to read, and the folder it stands in."""
    path = Path(root).absolute()  # not resolved: a link to a folder may lead to another one later
    if not path.exists():
        raise RequestError(f"there is no {root}")
    return (path.resolve(), path.resolve().parent) if path.is_file() else (path, path)
