"""The embeddable runtime: opens a project, and starts, resumes and cancels its runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Unpack

from framework.config.generations.catalog import Catalog
from framework.config.generations.generation import Blueprints, Generation
from framework.config.settings import Settings
from framework.config.watch import Watcher, watching
from framework.engine.context.events import RunStream
from framework.engine.plan.executor import EXECUTORS
from framework.engine.run_report import limit_error
from framework.engine.runtime.background import BackgroundWork, EmbeddedSource, WorkerSlots, WorkSource
from framework.engine.runtime.follow import RunFollowers
from framework.engine.runtime.launcher import Launcher
from framework.engine.runtime.presence import Presence, RunReleaser
from framework.engine.runtime.project import GateResults, Project, case_gate, check_arguments, project_folder
from framework.engine.runtime.queue import RunQueue, Submitted
from framework.engine.runtime.request import Caller, CommonOptions, RunOptions, UserMessage, check_request
from framework.engine.runtime.resume import RunResumer
from framework.engine.runtime.start import (
    ForkPoint,
    RunStarter,
    ask_model_only,
    call_one_tool,
    fork_conversation,
    load_conversation,
    load_todo,
    replace_todo,
)
from framework.llm.client import ModelClient
from framework.store import MEMORY_URL, memory_store, open_store
from framework.store.types import Conversation, RunInfo
from framework.tools.plugins import PluginLifecycle
from framework.tools.tool import Tool
from framework.types.budget import BudgetStatus, budget_statuses
from framework.types.errors import ConfigError, ConversationNotFound, RequestError
from framework.types.events import Event
from framework.types.file import File
from framework.types.grant import GrantUsage, Remember, Width
from framework.types.media import MediaPart
from framework.types.messages import ToolResult
from framework.types.plan import TodoItem
from framework.types.report import Status
from framework.types.state import Confirmation, Decision, IdempotencyKey, OutputT, QueuePlace, RunResult

if TYPE_CHECKING:
    from framework.store.store import Store


P = ParamSpec("P")


class _Open(AbstractAsyncContextManager["Runtime"]):
    """Context manager whose runtime holds a reference to it."""

    def __init__(self, context: AbstractAsyncContextManager[Runtime]) -> None:
        self._context = context

    async def __aenter__(self) -> Runtime:
        opened = await self._context.__aenter__()
        opened.context = self._context
        return opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._context.__aexit__(kind, error, traceback)


def hold_context(
    context: Callable[P, AbstractAsyncContextManager[Runtime]],
) -> Callable[P, AbstractAsyncContextManager[Runtime]]:
    """Keep the context manager alive as long as the runtime that it yields.

    A program that calls `__aenter__` itself may drop the context manager. The garbage collector would then close the
    generator behind it while the object is in use.
    """

    @wraps(context)
    def open_object(*args: P.args, **options: P.kwargs) -> AbstractAsyncContextManager[Runtime]:
        return _Open(context(*args, **options))

    return open_object


_GRACE_SECONDS = 2.0
"""How long tool calls in progress may take to end when the runtime closes."""


class Runtime:
    """Runs the agents of a project folder. Create one with `Runtime.open`."""

    def __init__(
        self,
        project: Project,
        store: Store,
        models: Mapping[str, ModelClient],
        deps: Any,
        *,
        work: WorkSource | None = None,
        single_user: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.root, self.catalog, self.store = project.root, project.catalog, store
        self.watcher: Watcher | None = None
        """Reloads the catalog when files change; None without `watch`."""
        self.context: object = None
        """Context manager that yielded this runtime, kept alive by this reference."""
        self._loop = asyncio.get_running_loop()
        self._caller, self._clock = partial(Caller, single_user=single_user), clock or store.now
        self.work = work = work or EmbeddedSource(project.settings.work.concurrency)
        """What delivers runs to this runtime. By default, it looks for them itself once it has submitted one."""
        self.slots, self._background, blueprints = WorkerSlots(work.capacity), BackgroundWork(), Blueprints(EXECUTORS)
        self._launcher = launcher = Launcher(project, store, models, deps, self._clock)
        self._starter = RunStarter(store, blueprints, launcher.models, launcher.meters, self._caller, self._clock)
        self.presence = Presence(self.catalog, launcher, work)
        """What other processes see of this one."""
        releaser, leaves_runs = RunReleaser(store, self.presence), work.is_shared or not work.capacity
        shared = self._background, self.slots, releaser
        self._resumer = RunResumer(self.catalog, launcher, blueprints, *shared, leaves_runs=leaves_runs)
        self._queue = RunQueue(self.catalog, launcher, self._starter, self._resumer, work, *shared)
        self._followers = RunFollowers(launcher, self._resumer)
        work.claim(self._queue)
        if work.is_shared:
            store.offer_through(work)

    @property
    def settings(self) -> Settings:
        """Settings of the live generation, used by runs that start now."""
        return self.catalog.current.settings

    @classmethod
    @hold_context
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
        work: WorkSource | None = None,
        strict: bool = False,
        execute: bool = True,
        gate_start: bool = True,
    ) -> AsyncIterator[Runtime]:
        """Load a project folder, or a single agent file, and watch it while the context is open.

        Args:
            root: the folder that contains `agents.d/`, or one agent file.
            settings: used instead of `agentsd.yaml` and the environment.
            tools: tools in addition to the built-in ones and those in `plugins/`. A tool with the name of a built-in
                one replaces it.
            models: model clients by the name that agent files use.
            store: a store, or its URL, such as `sqlite:///state.db`. Default: a store in memory.
            deps: the program's own objects, passed to tools as `context.deps`.
            watch: reload when files change, and start with what a rollback holds until they do.
            grace: seconds that tool calls get to end when the context closes. Runs in a durable store that have not
                ended by then can be resumed.
            single_user: let calls without `user` and `tenant` access the data of every user and tenant. By default
                they access only data that has neither.
            work: what delivers queued and interrupted runs. Default: this process looks for them itself, once it has
                submitted a run or called `start_queued`.
            execute: execute the runs that are submitted and decided here. False: save them for other processes.
            gate_start: whether `reload.gate` also checks the files at the start. False: start also with files whose
                cases fail, to find out why; edits are still checked.
            strict: raise ConfigError if a file is invalid, instead of serving the other agents.

        Raises:
            RequestError: an argument has the wrong type, or `root` does not exist.
            ConfigError: the settings are invalid; with `strict`, any file. Without it, broken agents do not raise: see
                `catalog.current.problems`.
            StoreError: the store cannot be opened.
        """
        check_arguments(root, settings, models, store)
        if not execute:
            work = _no_work(work, store)
        clients = dict(models or {})
        saved = GateResults()
        gate = case_gate(partial(cls.over, project_folder(root), deps), clients, saved)
        project = await Project.read(
            root,
            settings,
            tools=tools,
            models=clients.keys(),
            gate=gate,
            lifecycle=PluginLifecycle(deps),
            connect=True,
            gate_start=gate_start,
            keep_holds=watch,
        )
        if strict and (errors := project.catalog.current.errors):
            await project.catalog.close()
            raise ConfigError("strict: every file must be valid", errors)
        owns_store = isinstance(store, str)
        lease = project.settings.store.lease
        store = await open_store(store, project.root, lease) if isinstance(store, str) else store or memory_store()
        runtime = cls(project, store, clients, deps, work=work, single_user=single_user)
        try:
            await saved.open(store)
            async with (
                watching(project.catalog, project.settings.reload) if watch else nullcontext() as runtime.watcher
            ):
                yield runtime
        finally:
            await runtime._close(grace)
            if owns_store:
                await runtime.store.close()

    @classmethod
    @asynccontextmanager
    async def over(
        cls, root: Path, deps: Any, generation: Generation, models: Mapping[str, ModelClient]
    ) -> AsyncIterator[Runtime]:
        """Open a runtime on one fixed generation with a separate store in memory. Reads and watches no files."""
        catalog = Catalog(root, tools=(), executors=(), models=(), settings=generation.settings)
        catalog.set_live(generation)
        runtime = cls(Project(root, catalog), memory_store(), models, deps)
        try:
            yield runtime
        finally:
            await runtime._close(0)

    async def run(
        self,
        message: UserMessage | None = None,
        *,
        raise_on_limit: bool = False,
        output_type: type[OutputT] | None = None,
        **options: Unpack[CommonOptions],
    ) -> RunResult[OutputT]:
        """Run an agent until it ends, pauses or reaches a limit.

        Args:
            message: the user's message: a text, or a list of texts and `File`s. Default: the last message of `history`.
            raise_on_limit: raise LimitExceeded when a limit stops the run.
            output_type: a Pydantic model class, whose instance the result has in `parsed`.
            options: see `RunOptions`.

        Raises:
            RequestError: an option is unknown or invalid, or the run cannot start (AgentNotFound, ConversationBusy).
            LimitExceeded: a limit stopped the run and `raise_on_limit` is set. The error carries the result.
        """
        async with self._start(message, options, output_type, listening=False) as stream:
            result = await stream.result()
        if raise_on_limit and result.stopped_by:
            raise limit_error(result)
        return result

    @asynccontextmanager
    async def stream(
        self,
        message: UserMessage | None = None,
        *,
        output_type: type[OutputT] | None = None,
        **options: Unpack[CommonOptions],
    ) -> AsyncIterator[RunStream[OutputT]]:
        """Start a run and yield a stream of its events. Leaving the context early cancels the run. See `run`."""
        async with self._start(message, options, output_type, listening=True) as stream:
            yield stream

    async def submit(
        self,
        message: UserMessage | None = None,
        *,
        queue: bool = False,
        priority: int = 0,
        queue_name: str | None = None,
        idempotency: IdempotencyKey | None = None,
        **options: Unpack[RunOptions],
    ) -> Submitted:
        """Save a request and return at once: its run starts in the background, and does not depend on the caller.

        A durable store keeps the request if this process ends: the next one that calls `start_queued` starts the run.

        Args:
            message: see `run`.
            queue: in a busy conversation, wait for the open run and for those that wait already.
            priority: -100 to 100; of the runs that can start, those with a higher one start first.
            queue_name: queue whose workers execute the run. Default: workers of its agent.
            idempotency: the caller's key for this request. A repetition within 24 hours returns the same run.
            options: see `RunOptions`; they must be JSON data. Without `conversation` and `history`, a conversation is
                created.

        Raises:
            RequestError: the run cannot start, as far as that is known without calling a model (ConversationBusy,
                QueueFull, IdempotencyConflict), or an option cannot be stored. Later problems fail the run.
        """
        self._require_own_loop()
        place = QueuePlace(queue, priority, queue_name)
        return await self._queue.submit(*check_request(message, options), place, idempotency)

    async def start_queued(self) -> Sequence[str]:
        """Start queued runs in the background, and return their ids. One that ends its processes is failed."""
        self._require_own_loop()
        claimed = await self._queue.claim()
        self.work.wake(has_looked=True)
        return claimed

    def follow(
        self,
        run_id: str,
        after: int = 0,
        *,
        user: str | None = None,
        tenant: str | None = None,
        through_pauses: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Yield a run's events, stored and live, wherever it is in progress. Leaving does not affect the run.

        It ends after `RunFinished` of a run that has ended or is paused, and without it when this runtime closes. Texts
        arrive as deltas (`seq` is 0), which start with the text so far, and then whole in a numbered event.

        Args:
            run_id: the id of the run.
            after: number of the last event that the caller has.
            user: the run's user.
            tenant: the run's tenant.
            through_pauses: wait while the run is paused.

        Raises:
            RunNotFound: no such run exists, or it belongs to another user.
        """
        self._require_own_loop()
        return self._followers.follow(run_id, after, self._caller(user, tenant), through_pauses=through_pauses)

    async def result(self, run_id: str, *, user: str | None = None, tenant: str | None = None) -> RunResult:
        """Return the result of a run once it has ended or paused; raises RunNotFound, StoreError, RunSuspended."""
        self._require_own_loop()
        return await self._followers.result(run_id, self._caller(user, tenant))

    @classmethod
    def run_sync(
        cls,
        root: str | Path,
        message: UserMessage | None = None,
        *,
        raise_on_limit: bool = False,
        output_type: type[OutputT] | None = None,
        **options: Unpack[CommonOptions],
    ) -> RunResult[OutputT]:
        """Open a runtime, run once, and close it. For programs without an event loop. See `run`."""
        check_request(message, {**options, "output_type": output_type})  # fails before the project is loaded
        if _running_loop() is not None:
            advice = "write `async with Runtime.open(root) as runtime: await runtime.run(message)`"
            raise RuntimeError(f"an event loop is running here, as in Jupyter, where run_sync cannot wait: {advice}")

        async def once() -> RunResult[OutputT]:
            async with cls.open(root, watch=False) as runtime:
                return await runtime.run(message, raise_on_limit=raise_on_limit, output_type=output_type, **options)

        return asyncio.run(once())

    async def resume(
        self, run_id: str, decisions: Mapping[str, Decision], *, user: str | None = None, tenant: str | None = None
    ) -> RunResult:
        """Resume a run that is paused or was interrupted. Confirmations without a decision pause it again.

        The run uses its agent's files as of its start, and the current plugins. Permissions that were tightened since
        then apply.

        Args:
            run_id: the id of the run.
            decisions: decisions by confirmation id.
            user: the user who decides; must be the run's user.
            tenant: the run's tenant.

        Raises:
            RunNotFound: no such run exists, or it belongs to another user.
            RequestError: the run has ended, or a decision matches no pending confirmation.
            RunBusy: the run is already in progress, in this process or another.
            DecisionRefused: a confirmation was already decided, or has expired.
            ConfigError: the agent that the run started with cannot be set up again.
        """
        async with self.resume_stream(run_id, decisions, user=user, tenant=tenant) as stream:
            return await stream.result()

    @asynccontextmanager
    async def resume_stream(
        self, run_id: str, decisions: Mapping[str, Decision], *, user: str | None = None, tenant: str | None = None
    ) -> AsyncIterator[RunStream]:
        """Resume a run and yield a stream of its events. See `resume`."""
        self._require_own_loop()
        async with self._resumer.stream(run_id, decisions, self._caller(user, tenant)) as stream:
            yield stream

    async def decide(
        self,
        run_id: str,
        decisions: Mapping[str, Decision],
        *,
        user: str | None = None,
        tenant: str | None = None,
        by: str | None = None,
        key: str | None = None,
        execute: bool | None = None,
    ) -> None:
        """Save decisions, and let the run continue in the background: here, or in another process. See `resume`.

        Args:
            run_id: the id of the run.
            decisions: decisions by confirmation id.
            user: the run's user.
            tenant: the run's tenant.
            by: who decides. Default: the user.
            key: name of the entry of `server.api_keys` with which it is decided. An approval that is remembered is void
                once that entry has other rights.
            execute: continue the run in this process. False: only save the decisions; the processes that execute runs
                continue it. Default: whether this process executes runs, because it has started one or looks for those
                that wait (`submit`, `start_queued`). Without effect with a store in memory, which no other process
                sees, and in a process that executes nothing.
        """
        self._require_own_loop()
        await self._resumer.decide(run_id, decisions, self._caller(user, tenant), by, key or "", execute=execute)

    async def preview_grant(
        self,
        run_id: str,
        confirmation_id: str,
        remember: Remember,
        *,
        user: str | None = None,
        tenant: str | None = None,
    ) -> GrantUsage:
        """Return how many calls of the last 30 days an approval would cover if it were remembered.

        Args:
            run_id: the paused run.
            confirmation_id: what it waits for.
            remember: how the approval would be remembered.
            user: the run's user.
            tenant: the run's tenant.

        Raises:
            RunNotFound: no such run exists, or it belongs to another user.
            RequestError: the approval cannot be remembered so.
        """
        return await self._resumer.preview_grant(run_id, confirmation_id, remember, self._caller(user, tenant))

    async def preview_widths(
        self, run_id: str, confirmation_id: str, *, user: str | None = None, tenant: str | None = None
    ) -> Mapping[Width, GrantUsage]:
        """Return how many calls of the last 30 days an approval would cover in each width that is offered.

        Args:
            run_id: the paused run.
            confirmation_id: what it waits for. Nothing is returned if its approval cannot be remembered.
            user: the run's user.
            tenant: the run's tenant.

        Raises:
            RunNotFound: no such run exists, or it belongs to another user.
        """
        return await self._resumer.preview_widths(run_id, confirmation_id, self._caller(user, tenant))

    async def pending(
        self, run_id: str, *, user: str | None = None, tenant: str | None = None
    ) -> tuple[Confirmation, ...]:
        """Return the confirmations that a paused run waits for; raises RunNotFound."""
        return tuple((await self._resumer.load(run_id, self._caller(user, tenant))).pending)

    async def todo(
        self, conversation: str, *, user: str | None = None, tenant: str | None = None
    ) -> tuple[TodoItem, ...]:
        """Return the to-do list of a conversation; raises RequestError if the user has none with this id."""
        return await load_todo(self.store, conversation, self._caller(user, tenant))

    async def update_todo(
        self,
        conversation: str,
        items: Iterable[TodoItem | Mapping[str, Any]],
        *,
        user: str | None = None,
        tenant: str | None = None,
    ) -> tuple[TodoItem, ...]:
        """Replace the to-do list of a conversation by the complete list `items`; return it with ids and times.

        An item with the id, or the task, of an existing one keeps its id and times.

        Raises:
            RequestError: the conversation is unknown, or an item is invalid.
            ConversationBusy: a run of the conversation is in progress or paused, and will write the list itself.
        """
        return await replace_todo(self.store, conversation, items, self._caller(user, tenant))

    async def cancel(self, run_id: str, *, user: str | None = None, tenant: str | None = None) -> Status:
        """Cancel a run, unless it has ended: it may be queued, paused, or in progress anywhere; raises RunNotFound.

        Returns:
            What happened: `cancelled`; `running` or `queued` if its process has accepted the request, so that the run
            ends as `cancelled`, unless it fails; or the status of a run that had ended before.
        """
        self._require_own_loop()
        return await self._resumer.cancel(run_id, self._caller(user, tenant))

    async def fork(
        self,
        conversation: str,
        *,
        before: str | None = None,
        after: str | None = None,
        messages: int | None = None,
        new_id: str | None = None,
        user: str | None = None,
        tenant: str | None = None,
    ) -> Conversation:
        """Start a new conversation with the history of another up to a place, and return it. Nothing is executed.

        Args:
            conversation: id of the conversation to copy.
            before: id of the run whose message and answer are left out, with those after it.
            after: id of the last run that is kept.
            messages: number of messages that are kept; the last one must be an answer.
            new_id: id of the new conversation. Default: a new one.
            user: user of both.
            tenant: tenant of both.

        Raises:
            RequestError: the conversation does not exist, or has no such place.
            ConversationBusy: a conversation with the new id exists.
        """
        origin = await load_conversation(self.store, conversation, self._caller(user, tenant))
        if not origin.is_stored:
            raise ConversationNotFound(f"this user has no conversation {conversation!r}", param="conversation")
        return await fork_conversation(self.store, origin, ForkPoint(before, after, messages), new_id)

    async def budgets(self) -> tuple[BudgetStatus, ...]:
        """Return how much of the budgets of all users is used in their current periods, the fullest first."""
        return budget_statuses(self.settings.budgets, await self.store.budget_uses(), self._clock())

    async def orphans(self) -> Sequence[RunInfo]:
        """Return runs that were in progress when their process ended and have not been resumed, oldest first."""
        return await self._resumer.orphans()

    async def resume_orphans(self) -> list[str]:
        """Resume interrupted runs in the background; return their ids. A program that looks for runs does so itself.

        A run that was resumed three times without saving another step, and of which three processes ended that held no
        other run, is failed instead (`crashed`).
        """
        return await self._resumer.resume_orphans()

    async def expire(self) -> list[str]:
        """Resume, in the background, the paused runs with expired confirmations, and return their ids.

        A process that executes no runs leaves them to those that do, as `decide` does.
        """
        return await self._resumer.expire()

    async def sweep(self) -> Sequence[str]:
        """Resume interrupted runs and those with expired confirmations, and make runs ready that others left.

        Returns the ids of the interrupted ones. A process that looks for runs does it itself, every second.
        """
        return await self._queue.sweep()

    async def call_tool(
        self, agent: str, name: str, arguments: Mapping[str, Any], *, inputs: Mapping[str, Any] | None = None
    ) -> ToolResult:
        """Call one tool under an agent's policy, without a model.

        Raises AgentNotFound, ApprovalRequired, or RequestError for the agent's inputs.
        """
        return await call_one_tool(self.catalog, self._launcher, agent, name, arguments, inputs or {})

    async def ask_model(self, message: str, **options: Unpack[RunOptions]) -> RunResult:
        """Ask an agent's model alone, for auxiliary texts such as titles; raises RequestError.

        The agent's instructions and tools are left out, and nothing is recorded. Limits, budgets and hooks apply.
        """
        return await ask_model_only(self.catalog, self._launcher, message, options)

    async def load_file(self, part: MediaPart) -> File:
        """Return a file of a stored message; raises RequestError if it is not stored, or was deleted with its run."""
        contents = await self.store.load_media([part.digest])
        if part.digest not in contents:
            raise RequestError(f"{part.description} is not stored")
        return File(contents[part.digest], part.media_type, part.name)

    async def reload(self) -> Generation:
        """Reload the files now, and return the live generation."""
        return await self.catalog.reload()

    async def wait_generation(self, number: int) -> Generation:
        """Wait until a generation with at least this number is live, and return it."""
        return await self.catalog.wait_generation(number)

    @asynccontextmanager
    async def _start(
        self, message: object, options: Mapping[str, Any], output_type: type[OutputT] | None, *, listening: bool
    ) -> AsyncIterator[RunStream[OutputT]]:
        self._require_own_loop()
        options = {**options, "output_type": output_type}
        with self.catalog.lease() as generation:
            prepared = await self._starter.start(*check_request(message, options), generation)
            async with self._launcher.launch(prepared, listening=listening) as stream:
                yield stream

    def _require_own_loop(self) -> None:
        """Raise RuntimeError in another event loop: connections and tasks belong to the one that opened it."""
        if self._loop.is_closed() or _running_loop() is not self._loop:
            advice = "open a Runtime in each event loop, such as one in each asyncio.run(), or call Runtime.run_sync"
            raise RuntimeError(f"this Runtime was opened in another event loop: {advice}")

    async def _close(self, grace: float) -> None:
        await self._queue.close()
        await self._followers.close()
        await self._launcher.close(grace)
        self._resumer.close()
        await self._background.close()
        await self.catalog.close()


def _no_work(work: WorkSource | None, store: Store | str | None) -> WorkSource:
    """Return the work source of a process that executes nothing; raises RequestError if no other process can."""
    if work is not None:
        raise RequestError("execute: leave it out together with work: a work source has a capacity of its own")
    if store is None or store == MEMORY_URL or not (isinstance(store, str) or store.durable):
        raise RequestError(
            "execute: nothing would execute the runs, because other processes cannot see a store in memory: "
            "set store to a SQLite file or PostgreSQL"
        )
    return EmbeddedSource(capacity=0)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of this thread, or None if none is running."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
