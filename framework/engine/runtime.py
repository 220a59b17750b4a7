"""The embeddable runtime: holds the catalog, starts runs, resumes and cancels them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack
from uuid import uuid4

from pydantic import BaseModel

from framework.config.catalog import Catalog
from framework.config.generation import Generation
from framework.config.settings import Settings
from framework.config.watch import Watcher, watching
from framework.engine.cases import cases_pass
from framework.engine.ending import free_conversation, limit_error
from framework.engine.models import Models
from framework.engine.project import EXECUTORS, Project, folder_of
from framework.engine.request import RunOptions, first_state, kept_decisions
from framework.engine.root import drive_root
from framework.engine.router import Route, route
from framework.engine.run import Run
from framework.engine.run_trace import process_content, spans_of
from framework.engine.services import Services
from framework.engine.stream import Channel, RunStream
from framework.engine.throttle import Throttle
from framework.llm.client import ModelClient
from framework.memory.store import MemoryStore, Store
from framework.telemetry.content import Content
from framework.telemetry.metrics import RunMetrics
from framework.tools.lifetime import Lifetimes
from framework.tools.tool import Tool
from framework.types.errors import AgentNotFound, ConfigError, ConversationBusy, RequestError
from framework.types.messages import ToolCall, ToolResult
from framework.types.state import Confirmation, Decision, RunResult, RunState

log = logging.getLogger(__name__)

TOOL_THREADS = 32


class Runtime:
    """Agents that are files, ready to be run. Make one with `Runtime.open`."""

    def __init__(self, project: Project, store: Store, models: Mapping[str, ModelClient], deps: Any) -> None:
        self.root, self.catalog, self.store = project.root, project.catalog, store
        self.watcher: Watcher | None = None
        """What keeps the catalog at what the files say, if anything does."""
        self._models = Models(models)
        self._deps = deps
        self._threads = ThreadPoolExecutor(TOOL_THREADS, thread_name_prefix="agentsd-tool")
        self._throttle = Throttle()
        self._meters = RunMetrics()
        self._running: dict[str, asyncio.Task[RunResult]] = {}
        self._pinned: dict[str, Generation] = {}

    @property
    def settings(self) -> Settings:
        """What holds for runs that begin now."""
        return self.catalog.current.settings

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        root: str | Path = ".",
        *,
        settings: Settings | None = None,
        tools: Iterable[Tool] = (),
        models: Mapping[str, ModelClient] | None = None,
        store: Store | None = None,
        deps: Any = None,
        watch: bool = True,
    ) -> AsyncIterator[Runtime]:
        """Load a project folder, or a single agent file, and watch it while the context is open.

        Args:
            root: the folder that has `agents.d/`, or one agent file.
            settings: instead of `agentsd.yaml` and the environment.
            tools: besides the built-in ones and those of `plugins/`.
            models: clients by the name under which agent files may use them.
            store: where runs and conversations are kept; in memory by default.
            deps: the program's own objects, passed to tools as `context.deps`.
            watch: reload when files change.

        Raises:
            ConfigError: the settings cannot be used. Broken agents do not raise: see `catalog.current.problems`.
        """
        clients = dict(models or {})
        gate = cases_pass(partial(cls.over, folder_of(root), deps))
        project = await Project.read(
            root, settings, tools=tools, models=clients.keys(), gate=gate, lifetimes=Lifetimes(deps), connect=True
        )
        runtime = cls(project, store or MemoryStore(), clients, deps)
        try:
            async with (
                watching(project.catalog, project.settings.reload) if watch else nullcontext() as runtime.watcher
            ):
                yield runtime
        finally:
            await runtime._close()

    @classmethod
    @asynccontextmanager
    async def over(
        cls, root: Path, deps: Any, generation: Generation, models: Mapping[str, ModelClient]
    ) -> AsyncIterator[Runtime]:
        """A runtime on one generation as it is, with a store of its own: no file is read, nothing goes live."""
        catalog = Catalog(root, tools=(), executors=(), models=())
        catalog.serve(generation)
        runtime = cls(Project(root, catalog), MemoryStore(), models, deps)
        try:
            yield runtime
        finally:
            await runtime._close()

    async def run(self, message: str, *, raise_on_limit: bool = False, **options: Unpack[RunOptions]) -> RunResult:
        """Run to the end, to a pause, or to a limit.

        Raises:
            RequestError: the run could not be started as asked (AgentNotFound, ConversationBusy).
            LimitExceeded: with `raise_on_limit`, instead of a result that says `stopped`; carries that result.
        """
        async with self._start(message, options, listening=False) as stream:
            result = await stream.result()
        if raise_on_limit and result.stopped_by:
            raise limit_error(result)
        return result

    @asynccontextmanager
    async def stream(self, message: str, **options: Unpack[RunOptions]) -> AsyncIterator[RunStream]:
        """Run, and hand out the events as they happen; leaving the context early cancels the run."""
        async with self._start(message, options, listening=True) as stream:
            yield stream

    @classmethod
    def run_sync(cls, root: str | Path, message: str, **options: Unpack[RunOptions]) -> RunResult:
        """Open, run once, close: for programs without an event loop."""

        async def once() -> RunResult:
            async with cls.open(root, watch=False) as runtime:
                return await runtime.run(message, **options)

        return asyncio.run(once())

    async def resume(self, run_id: str, decisions: Mapping[str, Decision]) -> RunResult:
        """Go on with a run that is paused, or that a crash has left. What is not decided pauses it again.

        Raises:
            RunNotFound: there is no such run.
            RequestError: it has ended or goes on already, or a decision answers nothing that was asked.
            ConfigError: the plugins it began with cannot be set up again.
        """
        async with self.resume_stream(run_id, decisions) as stream:
            return await stream.result()

    @asynccontextmanager
    async def resume_stream(self, run_id: str, decisions: Mapping[str, Decision]) -> AsyncIterator[RunStream]:
        """As `resume`, with the events as they happen."""
        with await self.catalog.lease_again(self._pinned.get(run_id, self.catalog.current)) as generation:
            state = await self.store.load_run(run_id)
            if state.status not in ("paused", "running") or run_id in self._running:
                raise RequestError(f"the run {run_id} is {state.status}: it waits for no decision")
            asked = {confirmation.id for confirmation in state.pending}
            if unknown := sorted(decisions.keys() - asked):
                raise RequestError(
                    f"nothing named {', '.join(unknown)} is asked; asked: {', '.join(sorted(asked)) or 'nothing'}"
                )
            state.decisions.update(kept_decisions(decisions))
            state.pending = []
            async with self._launch(state, generation, None, listening=True) as stream:
                yield stream

    async def pending(self, run_id: str) -> tuple[Confirmation, ...]:
        """What a paused run waits for; raises RunNotFound."""
        return tuple((await self.store.load_run(run_id)).pending)

    async def cancel(self, run_id: str) -> None:
        """Stop a run that goes on or waits; raises RunNotFound."""
        state = await self.store.load_run(run_id)
        if task := self._running.get(run_id):
            task.cancel()
        elif state.status == "paused":
            self._pinned.pop(run_id, None)
            state.status, state.finish_reason, state.pending = "cancelled", "cancelled", []
            await self.store.save_run(state)
            await free_conversation(self.store, state)

    async def call_tool(self, agent: str, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call one tool as an agent would, under its policy and without a model.

        Raises:
            AgentNotFound: there is no such agent.
            RequestError: the call needs a human's approval.
        """
        call = ToolCall(id=f"call_{uuid4().hex}", tool=name, arguments=dict(arguments))
        with self.catalog.lease() as generation:
            chosen = self._route("", generation, agent, None)
            state = first_state(f"call {name}", chosen.agent, generation, generation.settings.locale, {})
            channel = Channel()
            channel.close()
            run = Run(state, chosen.agent, self._services(state, generation, channel, listening=False))
            asked = await run.call_tool(call)
        if asked:
            raise RequestError(f"{name} needs approval: {asked[0].reason or asked[0].rule}")
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
    async def _start(self, message: str, options: RunOptions, *, listening: bool) -> AsyncIterator[RunStream]:
        with self.catalog.lease() as generation:
            conversation = await self.store.conversation(options.get("conversation") or "")
            if conversation.id and conversation.open_run:
                await self._refuse_busy(conversation.id, conversation.open_run)
            chosen = self._route(message, generation, options.get("agent"), conversation.agent)
            state = first_state(message, chosen.agent, generation, generation.settings.locale, options)
            if conversation.id:
                state.history, state.session = list(conversation.messages), dict(conversation.session)
                await self.store.save_conversation(conversation.opened_by(state.run_id))
            output_type = options.get("output_type")
            async with self._launch(state, generation, chosen, output_type, listening=listening) as stream:
                yield stream

    def _route(self, message: str, generation: Generation, explicit: str | None, last: str | None) -> Route:
        default = generation.settings.routing.default_agent
        if not generation.agents and generation.errors:
            raise ConfigError("no agent can be used", generation.errors)
        try:
            return route(message, generation.agents, explicit=explicit, last=last, default=default)
        except AgentNotFound as missing:
            raise AgentNotFound(missing.name, missing.known, generation.errors) from None

    @asynccontextmanager
    async def _launch(
        self,
        state: RunState,
        generation: Generation,
        chosen: Route | None,
        output_type: type[BaseModel] | None = None,
        *,
        listening: bool,
    ) -> AsyncIterator[RunStream]:
        channel = Channel()
        agent = chosen.agent if chosen else route("", generation.agents, explicit=state.agent).agent
        services = self._services(state, generation, channel, listening=listening)
        run = Run(state, agent, replace(services, output_type=output_type))
        self._pinned[state.run_id] = generation
        task = asyncio.create_task(self._drive(run, chosen), name=state.run_id)
        self._running[state.run_id] = task
        stream = RunStream(state.run_id, channel, task)
        try:
            yield stream
        finally:
            await stream.leave()

    async def _drive(self, run: Run, chosen: Route | None) -> RunResult:
        try:
            return await drive_root(run, chosen)
        finally:
            del self._running[run.state.run_id]
            if run.state.status != "paused":
                self._pinned.pop(run.state.run_id, None)

    def _services(self, state: RunState, generation: Generation, channel: Channel, *, listening: bool) -> Services:
        settings = generation.settings
        base_path = Path(state.base_path) if state.base_path else self.root / settings.tools.base_path
        return Services(
            root=state,
            generation=generation,
            current_agent=lambda name: self.catalog.current.agents.get(name),
            executors=EXECUTORS,
            model=partial(self._models.of, settings),
            health=self._models.health,
            store=self.store,
            channel=channel,
            spans=(spans := spans_of(state, generation, keep=False)),
            content=process_content(settings) if spans.recording else Content(),
            meters=self._meters.recording(),
            threads=self._threads,
            throttle=self._throttle,
            base_path=base_path.resolve(),
            tools=lambda: settings.tools.narrowed_by(self.catalog.current.settings.tools),
            deps=self._deps,
            listening=listening,
        )

    async def _refuse_busy(self, conversation_id: str, run_id: str) -> None:
        pending = await self.pending(run_id)
        waits = f" and waits for {', '.join(p.tool or p.kind for p in pending)}" if pending else " and goes on"
        raise ConversationBusy(f"the conversation {conversation_id!r} has the run {run_id} open{waits}")

    async def _close(self) -> None:
        for task in list(self._running.values()):
            task.cancel()
        if self._running:
            await asyncio.wait(list(self._running.values()))
        await self.catalog.close()
        await self._models.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
