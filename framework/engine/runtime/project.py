"""Loads a project: its settings, tools and agents. Commands that run no agent need only this."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from framework.config.agents.compile import BUILTIN_EXECUTORS
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Gate, Generation
from framework.config.settings import ComparisonGate, Settings
from framework.config.snapshot import AGENTS, PROJECT_FOLDERS
from framework.engine.runtime.request import require_type
from framework.llm.client import ModelClient
from framework.llm.providers import OFFLINE, PROVIDERS
from framework.store.types import CaseResult
from framework.tools.builtin import BUILTIN_TOOLS
from framework.tools.declaration import short_repr
from framework.tools.plugins import PluginLifecycle
from framework.tools.tool import Tool
from framework.tools.toolset import index_tools
from framework.types.errors import ConfigError, RequestError, StoreError
from framework.types.frozen import Frozen
from framework.types.problem import Problem

if TYPE_CHECKING:
    from framework.evals.runner import Launch
    from framework.store.store import Store

log = logging.getLogger(__name__)

_GATE_CLOSED = (
    "nothing is served until every case passes (reload.gate: tests); `agentsd test` shows why they fail, "
    "and `agentsd run` and `agentsd chat` use the agents meanwhile"
)


@dataclass(frozen=True, slots=True)
class Project:
    """A loaded project."""

    root: Path
    """The project folder, or the folder of the single agent file."""
    catalog: Catalog

    @property
    def settings(self) -> Settings:
        """Settings of the live generation."""
        return self.catalog.current.settings

    @property
    def base_path(self) -> Path:
        """Base directory of file tools, with symbolic links in its own path resolved."""
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
        gate_start: bool = True,
        keep_holds: bool = False,
    ) -> Project:
        """Load a project folder, or a single agent file. Without `lifecycle`, its agents must not be run.

        Args:
            root: the folder that contains `agents.d/`, or one agent file.
            settings: used instead of `agentsd.yaml` and the environment.
            tools: tools in addition to the built-in ones and those in `plugins/`. A tool with the name of a built-in
                one replaces it.
            models: names that agent files may use, in addition to those in the settings.
            gate: check that can reject an edit, if the settings enable it.
            lifecycle: sets up the plugins.
            connect: connect to the tool servers that the files declare. The catalog must then be closed.
            gate_start: whether `gate` also checks the files at the start.
            keep_holds: keep what a rollback holds back in a file, and start with it.

        Raises:
            ConfigError: the settings or tools are invalid, or no generation can be served.
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
            gate_start=gate_start,
            keep_holds=keep_holds,
        )
        try:
            await catalog.reload("startup")
            if not catalog.current.number:
                strict = started.reload.mode == "strict"
                needed = "strict mode: nothing is served until every file is valid"
                raise ConfigError(needed if strict else _GATE_CLOSED, catalog.problems)
        except BaseException:
            await catalog.close()
            raise
        return cls(folder, catalog)


def _with_builtin(tools: Iterable[Tool]) -> list[Tool]:
    """Return the program's tools and the built-in ones that they do not replace; raises ConfigError."""
    own = list(tools)
    objects: list[object] = [*own]
    if invalid := [one for one in objects if not isinstance(one, Tool)]:
        raise ConfigError(f"tools=[…] accepts functions decorated with @tool: {short_repr(invalid[0])}")
    names = {tool.name for tool in own}
    all_tools = [*(tool for tool in BUILTIN_TOOLS if tool.name not in names), *own]
    index_tools(all_tools)
    return all_tools


def check_arguments(root: object, settings: object, models: object, store: object) -> None:
    """Raise RequestError if an argument of `Runtime.open` has the wrong type."""
    require_type("root", root, str, PathLike)
    for name, value, expected in (("settings", settings, Settings), ("models", models, Mapping)):
        if value is not None:
            require_type(name, value, expected)
    if store is not None and not isinstance(store, str) and not hasattr(store, "load_run"):
        raise RequestError(f"store: expected a store or its URL, got {type(store).__name__}")


def project_folder(root: str | Path) -> Path:
    """Return the folder of a project or of a single agent file; raises RequestError if `root` does not exist."""
    return _locate(root)[1]


def _locate(root: str | Path) -> tuple[Path, Path]:
    """Return the path to load and the project folder."""
    path = Path(root).absolute()  # not resolved: the target of a link to a folder may change
    if not path.exists():
        raise RequestError(f"path does not exist: {root}")
    return (path.resolve(), path.resolve().parent) if path.is_file() else (path, path)


class AgentSummary(Frozen):
    """One agent, as shown in lists."""

    name: str
    description: str
    path: str
    """The agent file, relative to the project root."""
    model: str
    """The agent's model, or the default of the settings."""
    executor: str
    tools: int
    """Number of tools that the agent is offered."""
    stale: bool
    """The file has errors; this is its last good version."""


def summarize_agents(generation: Generation) -> list[AgentSummary]:
    """Return a summary of every agent, sorted by name."""
    return [
        AgentSummary(
            name=agent.name,
            description=agent.spec.description,
            path=agent.path,
            model=agent.spec.model or generation.settings.model,
            executor=agent.spec.executor,
            tools=len(agent.toolset.offered),
            stale=bool(agent.stale),
        )
        for _, agent in sorted(generation.agents.items())
    ]


class GateResults:
    """Saves what the gate finds. The results of the start wait until the store is open."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._waiting: list[CaseResult] = []

    async def open(self, store: Store) -> None:
        """Save results in a store from now on."""
        self._store = store
        await self.save([])

    async def save(self, results: Sequence[CaseResult]) -> None:
        """Save results. If that fails, it is logged: the gate decides without it."""
        self._waiting += results
        if self._store is None:
            return
        waiting, self._waiting = self._waiting, []
        try:
            await self._store.case_results.add(waiting)
        except StoreError as error:
            log.warning("cannot save the results of cases: %s", error)


def case_gate(launch: Launch, models: Mapping[str, ModelClient], saved: GateResults) -> Gate:
    """Return what runs the gates: a candidate's case files must be valid, and each gate must let it pass.

    What runs the cases is imported with the first candidate, because most projects have no gate.

    Args:
        launch: opens a runtime on a generation.
        models: the clients of the program, which stay open.
        saved: takes the results.
    """

    async def run_cases(
        candidate: Generation, live: Generation, gates: Sequence[Literal["tests"] | ComparisonGate]
    ) -> tuple[Problem, ...]:
        from framework.evals.comparison import comparison_problems
        from framework.evals.runner import case_problems

        problems, results = [*_unread_folders(candidate)], list[CaseResult]()
        for gate in gates if not problems else ():
            if isinstance(gate, ComparisonGate):
                problems += await comparison_problems(candidate, live, gate, launch, models, results.append)
            else:
                problems += await case_problems(candidate, launch, results.append)
        await saved.save(results)
        return tuple(dict.fromkeys(problems))

    return run_cases


def _unread_folders(candidate: Generation) -> Iterator[Problem]:
    """Yield the folders of agents that cannot be read: nobody knows which cases are in them."""
    for problem in candidate.errors:
        is_file = problem.path.endswith(PROJECT_FOLDERS[AGENTS])
        if not is_file and (problem.path == AGENTS or problem.path.startswith(AGENTS + "/")):
            yield problem
