"""The embeddable runtime: holds the catalog, starts runs, resumes and cancels them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Unpack
from uuid import uuid4

from framework.config.generations.blueprint import Blueprints
from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Generation
from framework.config.settings import Settings
from framework.config.watch import Watcher, watching
from framework.engine.context.stream import RunStream
from framework.engine.executors import EXECUTORS
from framework.engine.runtime import todo_list
from framework.engine.runtime.launcher import Launcher
from framework.engine.runtime.opening import held
from framework.engine.runtime.options import RunOptions, check_request, require_type
from framework.engine.runtime.project import Project, project_folder
from framework.engine.runtime.request import Caller, initial_state
from framework.engine.runtime.result import limit_error
from framework.engine.runtime.resume import RunResumer
from framework.engine.runtime.start import RunStarter, select_agent
from framework.evals.runner import case_gate
from framework.llm.client import ModelClient
from framework.store.memory import MemoryStore
from framework.store.protocol import RunInfo, Store
from framework.store.url import open_store
from framework.tools.plugins.lifecycle import PluginLifecycle
from framework.tools.tool import Tool
from framework.types.errors import ApprovalRequired, RequestError
from framework.types.messages import ToolCall, ToolResult
from framework.types.state import Confirmation, Decision, RunResult
from framework.types.todo import TodoItem

_GRACE_SECONDS = 2.0
"""Seconds."""


class Runtime:
    """Agents that are files, ready to be run. Make one with `Runtime.open`."""

    def __init__(
        self, project: Project, store: Store, models: Mapping[str, ModelClient], deps: Any, *, single_user: bool = False
    ) -> None:
        self.root, self.catalog, self.store = project.root, project.catalog, store
        self.watcher: Watcher | None = None
        """What keeps the catalog at what the files say, if anything does."""
        self.context: object = None  # what `open` gave this from
        self._caller = partial(Caller, single_user=single_user)
        blueprints = Blueprints(EXECUTORS)
        self._launcher = Launcher(project, store, models, deps)
        self._starter = RunStarter(
            store, blueprints, self._launcher.models, partial(self._launcher.ephemeral, traced=False), self._caller
        )
        self._resumer = RunResumer(project.catalog, self._launcher, blueprints)

    @property
    def settings(self) -> Settings:
        """What holds for runs that begin now."""
        return self.catalog.current.settings

    @classmethod
    @held
    @asynccontextmanager
    async def open(
        cls,
        root: str | Path = ".",
        *,
        settings: Settings | None = None,
        tools: Iterable[Tool] = (),
        models: Mapping[str, ModelClient] | None = None,
        store: Store | str | None = None,
        deps: Any = None,
        watch: bool = True,
        grace: float = _GRACE_SECONDS,
        single_user: bool = False,
    ) -> AsyncIterator[Runtime]:
        """Load a project folder, or a single agent file, and watch it while the context is open.

        Args:
            root: the folder that has `agents.d/`, or one agent file.
            settings: instead of `agentsd.yaml` and the environment.
            tools: besides those of `plugins/` and the built-in ones; one with a built-in tool's name replaces it.
            models: clients by the name under which agent files may use them.
            store: where runs and conversations are kept, or its URL, such as `sqlite:///state.db`; missing: in memory.
            deps: the program's own objects, passed to tools as `context.deps`.
            watch: reload when files change.
            grace: seconds that tool calls get to end when the context is left; runs in a durable store are left there
                as they are then, for `resume`.
            single_user: calls without `user` and `tenant` may see what belongs to any; otherwise only what has none.

        Raises:
            RequestError: an argument has the wrong type, or there is nothing at `root`.
            ConfigError: the settings cannot be used. Broken agents do not raise: see `catalog.current.problems`.
            StoreError: the store cannot be opened.
        """
        _check_arguments(root, settings, models, store)
        clients = dict(models or {})
        gate = case_gate(partial(cls.over, project_folder(root), deps))
        project = await Project.read(
            root, settings, tools=tools, models=clients.keys(), gate=gate, lifecycle=PluginLifecycle(deps), connect=True
        )
        opened = isinstance(store, str)
        kept = await open_store(store, project.root) if isinstance(store, str) else store or MemoryStore()
        runtime = cls(project, kept, clients, deps, single_user=single_user)
        try:
            async with (
                watching(project.catalog, project.settings.reload) if watch else nullcontext() as runtime.watcher
            ):
                yield runtime
        finally:
            await runtime._close(grace)
            if opened:
                await runtime.store.close()

    @classmethod
    @asynccontextmanager
    async def over(
        cls, root: Path, deps: Any, generation: Generation, models: Mapping[str, ModelClient]
    ) -> AsyncIterator[Runtime]:
        """A runtime on one generation as it is, with a store of its own: no file is read, nothing goes live."""
        catalog = Catalog(root, tools=(), executors=(), models=())
        catalog.set_live(generation)
        runtime = cls(Project(root, catalog), MemoryStore(), models, deps)
        try:
            yield runtime
        finally:
            await runtime._close(0)

    async def run(
        self, message: str | None = None, *, raise_on_limit: bool = False, **options: Unpack[RunOptions]
    ) -> RunResult:
        """Run to the end, to a pause, or to a limit.

        Args:
            message: what the user says; without it, the last message of `history`.
            raise_on_limit: raise when a limit stops the run.
            options: see `RunOptions`.

        Raises:
            RequestError: an option is unknown or wrong, or the run cannot start (AgentNotFound, ConversationBusy).
            LimitExceeded: with `raise_on_limit`, instead of a result that says `stopped`; carries that result.
        """
        async with self._start(message, options, listening=False) as stream:
            result = await stream.result()
        if raise_on_limit and result.stopped_by:
            raise limit_error(result)
        return result

    @asynccontextmanager
    async def stream(self, message: str | None = None, **options: Unpack[RunOptions]) -> AsyncIterator[RunStream]:
        """Run, and yield the events as they happen; leaving the context early cancels the run. See `run`."""
        async with self._start(message, options, listening=True) as stream:
            yield stream

    @classmethod
    def run_sync(cls, root: str | Path, message: str | None = None, **options: Unpack[RunOptions]) -> RunResult:
        """Open, run once, close: for programs without an event loop. See `run`."""
        check_request(message, options)  # before a project is loaded for it

        async def once() -> RunResult:
            async with cls.open(root, watch=False) as runtime:
                return await runtime.run(message, **options)

        return asyncio.run(once())

    async def resume(
        self, run_id: str, decisions: Mapping[str, Decision], *, user: str | None = None, tenant: str | None = None
    ) -> RunResult:
        """Go on with a run that is paused, or that a crash has left. What is not decided pauses it again.

        Its agent is what its files said when it began, with the plugins that there are now; what was tightened since
        then holds.

        Args:
            run_id: the run.
            decisions: by the id of the confirmation.
            user: who decides: the run's own user.
            tenant: the run's own.

        Raises:
            RunNotFound: there is no such run.
            RequestError: it has ended, or a decision answers nothing that was asked.
            RunBusy: it is already in progress, here or in another process.
            DecisionRefused: a decision was made before, or comes after the question has expired.
            ConfigError: what it began with cannot be set up again.
        """
        async with self.resume_stream(run_id, decisions, user=user, tenant=tenant) as stream:
            return await stream.result()

    @asynccontextmanager
    async def resume_stream(
        self, run_id: str, decisions: Mapping[str, Decision], *, user: str | None = None, tenant: str | None = None
    ) -> AsyncIterator[RunStream]:
        """As `resume`, with the events as they happen."""
        async with self._resumer.stream(run_id, decisions, self._caller(user, tenant)) as stream:
            yield stream

    async def pending(
        self, run_id: str, *, user: str | None = None, tenant: str | None = None
    ) -> tuple[Confirmation, ...]:
        """What a paused run waits for; raises RunNotFound."""
        return tuple((await self._resumer.load(run_id, self._caller(user, tenant))).pending)

    async def todo(
        self, conversation: str, *, user: str | None = None, tenant: str | None = None
    ) -> tuple[TodoItem, ...]:
        """The to-do list of a conversation; raises RequestError if it is unknown or another user's."""
        return await todo_list.load_todo(self.store, conversation, self._caller(user, tenant))

    async def update_todo(
        self,
        conversation: str,
        items: Iterable[TodoItem | Mapping[str, Any]],
        *,
        user: str | None = None,
        tenant: str | None = None,
    ) -> tuple[TodoItem, ...]:
        """Replace the to-do list of a conversation, and return it with ids and times.

        Args:
            conversation: its id.
            items: the whole list. An item with the id, or else the task, of an existing one keeps its id and times.
            user: the conversation's own.
            tenant: the conversation's own.

        Raises:
            RequestError: the conversation is unknown, or an item is not one.
            ConversationBusy: a run of it is in progress or paused, and will write the list itself.
        """
        return await todo_list.replace_todo(self.store, conversation, items, self._caller(user, tenant))

    async def cancel(self, run_id: str, *, user: str | None = None, tenant: str | None = None) -> None:
        """Stop a run that goes on, in whatever process, or that waits; one that has ended stays as it is.

        Raises:
            RunNotFound: there is no such run.
        """
        await self._resumer.cancel(run_id, self._caller(user, tenant))

    async def orphans(self) -> Sequence[RunInfo]:
        """The runs in the store that were under way when their process ended, and that nobody has resumed."""
        return await self._resumer.orphans()

    async def resume_orphans(self) -> list[str]:
        """Go on with them, in the background: for processes whose work that is.

        A run that has ended several processes in a row, without one more step on record, fails instead (`crashed`).

        Returns:
            The ids of the runs that go on.
        """
        return await self._resumer.resume_orphans()

    async def expire(self) -> list[str]:
        """Go on with all runs in the store whose questions have expired; returns their ids."""
        return await self._resumer.expire(time.time())

    async def call_tool(self, agent: str, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call one tool as an agent would, under its policy and without a model.

        Raises:
            AgentNotFound: there is no such agent.
            ApprovalRequired: the call needs a human's approval.
        """
        call = ToolCall(id=f"call_{uuid4().hex}", tool=name, arguments=dict(arguments))
        with self.catalog.lease() as generation:
            chosen = select_agent("", generation, explicit=agent)
            state = initial_state(f"call {name}", chosen.agent, generation, generation.settings.locale, {})
            run = self._launcher.ephemeral(state, chosen.agent, generation)
            asked = await run.call_tool(call)
        if asked:
            raise ApprovalRequired(f"{name} needs approval: {asked[0].reason or asked[0].rule}")
        result = state.calls[call.id].result
        assert result is not None
        return result

    async def reload(self) -> Generation:
        """Read the files now; returns what is live after that."""
        return await self.catalog.reload()

    async def wait_generation(self, number: int) -> Generation:
        """Wait until a generation of at least this number is live."""
        return await self.catalog.wait_generation(number)

    # --- inside

    @asynccontextmanager
    async def _start(self, message: object, given: Mapping[str, Any], *, listening: bool) -> AsyncIterator[RunStream]:
        text, options = check_request(message, given)
        with self.catalog.lease() as generation:
            start = await self._starter.begin(text, options, generation)
            async with self._launcher.launch(start, listening=listening) as stream:
                yield stream

    async def _close(self, grace: float) -> None:
        await self._launcher.close(grace)
        await self._resumer.close()
        await self.catalog.close()


def _check_arguments(root: object, settings: object, models: object, store: object) -> None:
    """Raise RequestError for an argument of `Runtime.open` that has the wrong type."""
    require_type("root", root, str, PathLike)
    for name, value, expected in (("settings", settings, Settings), ("models", models, Mapping)):
        if value is not None:
            require_type(name, value, expected)
    if store is not None and not isinstance(store, str) and not hasattr(store, "load_run"):
        raise RequestError(f"store: expected a store or its URL, got {type(store).__name__}")
