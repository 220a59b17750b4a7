"""Tools of other servers: HTTP hosts that list their tools, agents that are called by A2A, and the shared connections.

Generations that declare the same server share one connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from framework.tools.http import HttpClient, HttpFailed, HttpReply, WebUrl
from framework.tools.logins import LoginStore
from framework.tools.mcp.source import McpSource
from framework.tools.openapi.source import ApiSource
from framework.tools.tool import HostedOutput, Tool, ToolContext
from framework.tools.tool_source import (
    OnChange,
    RefreshedSource,
    RemoteCall,
    ToolSource,
    configured_base,
    external_tool,
    request_in_span,
)
from framework.types.errors import ConfigError, ToolError
from framework.types.installation import install_command
from framework.types.redact import redact
from framework.types.text import shorten
from framework.types.tool_servers import A2aAgent, McpServer, OpenApi, Skill, SkillHost

if TYPE_CHECKING:
    from framework.tools.a2a_client import Card, RemoteAgent

_MAX_SKILLS = 200
_MAX_DESCRIPTION_CHARS = 500
_MAX_ERROR_CHARS = 500
_MAX_META_CHARS = 4096
"""Size, as JSON, of what a host says of a call."""
_TRACE_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)


class SkillError(ToolError):
    """A skill failed, or its host sent an invalid result. The message has its reason."""

    code = "skill_failed"


class SkillResult(BaseModel):
    """The host's response to a call."""

    model_config = ConfigDict(strict=True)

    success: bool
    output: Any = None
    error: str | None = None
    trace_id: str | None = None
    """Id of the trace in which the host recorded the call."""
    meta: dict[str, Any] = {}

    @property
    def about(self) -> dict[str, Any]:
        """What the host says of the call: `trace_id` and `meta`. One that is too large is left out."""
        trace_id = self.trace_id if _TRACE_ID.fullmatch(self.trace_id or "") else None
        is_short = len(json.dumps(self.meta, ensure_ascii=False)) <= _MAX_META_CHARS
        found = {"trace_id": trace_id, "meta": self.meta if is_short else None}
        return {key: value for key, value in found.items() if value}


class ListedSkill(BaseModel):
    """A skill in the host's list. The manifest takes precedence over the description, docstring and document."""

    model_config = ConfigDict(strict=True)

    id: str
    description: str | None = None
    docstring: str | None = None
    document: str | None = None
    parameters: dict[str, Any] = {}
    manifest: dict[str, Any] = {}

    @property
    def summary(self) -> str:
        """The first paragraph of the first non-empty description."""
        texts = (self.manifest.get("description"), self.description, self.docstring, self.document)
        best = next((text.strip() for text in texts if isinstance(text, str) and text.strip()), "")
        paragraph = " ".join(best.split("\n\n")[0].split()).lstrip("# ")
        return shorten(paragraph, _MAX_DESCRIPTION_CHARS)

    @property
    def arguments(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        own = self.manifest.get("parameters")
        return own if isinstance(own, dict) and own else self.parameters


def parse_listing(reply: HttpReply) -> tuple[dict[str, Skill], list[str]]:
    """Return the skills that a host lists, by id, and the faults of invalid ones.

    Raises:
        HttpFailed: the response is not a list of skills.
    """
    if reply.status != 200:
        raise HttpFailed(f"{reply.url} responded with HTTP {reply.status} instead of its list of skills")
    data = _json(reply)
    listed = data.get("skills") if isinstance(data, dict) else data
    if not isinstance(listed, list):
        raise HttpFailed(f'{reply.url} responded without a list of skills: expected {{"skills": […]}}')
    skills: dict[str, Skill] = {}
    faults: list[str] = []
    for entry in listed[:_MAX_SKILLS]:
        try:
            offered = ListedSkill.model_validate(entry)
            skill = Skill(id=offered.id, description=offered.summary or None, parameters=offered.arguments)
        except ValidationError as error:
            name = entry.get("id") if isinstance(entry, dict) else None
            faults.append(f"invalid skill {str(name)[:80]!r}: {_first(error)}")
            continue
        if skill.id in skills:
            faults.append(f"skill {skill.id!r} is listed twice: using the first")
        skills.setdefault(skill.id, skill)
    if len(listed) > _MAX_SKILLS:
        faults.append(f"the host lists {len(listed)} skills: only the first {_MAX_SKILLS} are used")
    return skills, faults


def parse_result(skill_id: str, reply: HttpReply) -> SkillResult:
    """Return the result of a call that succeeded. Raise SkillError if it failed or the response is invalid."""
    try:
        result = SkillResult.model_validate(_json(reply))
    except (HttpFailed, ValidationError) as error:
        why = error.message if isinstance(error, HttpFailed) else _first(error)
        advice = "; the host may have removed it" if reply.status == 404 else ""
        raise SkillError(
            f"skill {skill_id!r} responded with HTTP {reply.status} and no result: {why}{advice}"
        ) from None
    if result.success and reply.status < 300:
        return result
    message = (result.error or f"the skill failed without an error message (HTTP {reply.status})")[:_MAX_ERROR_CHARS]
    trace = f" (trace of the host: {result.trace_id[:64]})" if result.trace_id else ""
    raise SkillError(f"{message}{trace}")


def _json(reply: HttpReply) -> Any:
    if reply.truncated:
        raise HttpFailed(f"the response is larger than {len(reply.body)} bytes")
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError):
        raise HttpFailed(f"the response is not JSON; its content type is {reply.content_type or 'missing'}") from None


def _first(error: ValidationError) -> str:
    finding = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in finding['loc']) or 'it'}: {finding['msg']}"


_POLL_SECONDS = 30.0


class SkillSource(RefreshedSource):
    """The skills of one host as a source of tools. The list is refreshed periodically, and when the host was down."""

    def __init__(
        self,
        name: str,
        host: SkillHost,
        changed: OnChange,
        *,
        poll_interval: float = _POLL_SECONDS,
        first_retry: float = 1.0,
    ) -> None:
        """Create a source; `start` requests the list of skills.

        A host that is down is tried again after `first_retry` seconds, and then each time after twice as long, up to a
        minute.

        Raises:
            ConfigError: the URL is invalid.
        """
        super().__init__(f"skill.{name}", changed, poll_interval if host.discover else None, first_retry)
        self._host = host
        self._made: dict[str, tuple[Skill, Tool]] = {}
        self._known: dict[str, Skill] = {}
        """Skills from the host's last response, by id."""
        self._base = configured_base(host.url)
        self._client = HttpClient.to(self._base, timeout=host.timeout)

    # --- discovering skills

    async def _look(self) -> bool:
        """Request the list of skills and build the tools. Return whether the host responded."""
        faults: list[str] = []
        answered = True
        if self._host.discover:
            try:
                reply = await self._client.request("GET", self._url("skills"), headers=self._headers(), follow=False)
                self._known, faults = parse_listing(reply)
            except ToolError as error:
                faults.append(error.message)
                answered = False
        self.tools = tuple(self._tools(faults))
        self.faults = tuple(faults)
        return answered

    def _tools(self, faults: list[str]) -> Iterable[Tool]:
        skills = dict(self._known)
        for declared in self._host.skills:
            skills[declared.id] = _merge(declared, skills.get(declared.id))
        made = {}
        for skill in skills.values():
            known = self._made.get(skill.id)
            try:
                made[skill.id] = known if known and known[0] == skill else (skill, self._tool(skill))
            except ConfigError as error:
                faults.append(f"invalid skill {skill.id!r}: {error.message}")
        self._made = made
        return [tool for _, tool in made.values()]

    def _tool(self, skill: Skill) -> Tool:
        call: RemoteCall = partial(self._call, skill.id)
        return external_tool(
            f"{self.name}.{skill.id}",
            skill.description or f"The skill {skill.id} of {self.name.removeprefix('skill.')}.",
            skill.parameters,
            call,
            source="skill",
            risk=skill.risk,
            idempotent=skill.idempotent,
            timeout=skill.timeout,
        )

    # --- calling skills

    async def _call(self, skill_id: str, arguments: dict[str, Any], context: ToolContext) -> Any:
        headers = {**self._headers(), "content-type": "application/json", "idempotency-key": context.idempotency_key}
        body = json.dumps({"arguments": arguments}, ensure_ascii=False).encode("utf-8", "replace")
        url = self._url(f"skills/{skill_id}/invoke")
        try:
            reply = await request_in_span(
                self._client, context, "POST", url, headers=headers, body=body, trace=self._host.trace
            )
        except HttpFailed:
            self._wake.set()
            raise
        if reply.status == 404:
            self._wake.set()
        result = parse_result(skill_id, reply)
        return HostedOutput(result.output, result.about)

    def _url(self, path: str) -> WebUrl:
        return replace(self._base, target=f"{self._base.target.rstrip('/')}/{path}")

    def _headers(self) -> dict[str, str]:
        return {"accept": "application/json"} | {
            name.lower(): value.get_secret_value() for name, value in self._host.headers.items()
        }


def _merge(declared: Skill, known: Skill | None) -> Skill:
    """Return the declared skill, with description and parameters from the host where it declares none."""
    if known is None:
        return declared
    return declared.model_copy(
        update={
            "description": declared.description or known.description,
            "parameters": declared.parameters or known.parameters,
        }
    )


# The tool of an agent is `agent.NAME`, which its card describes.

_A2A_TRACING = "OTEL_INSTRUMENTATION_A2A_SDK_ENABLED"
_MESSAGE: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "message": {
            "type": "string",
            "minLength": 1,
            "description": "The task, complete in itself: the agent sees nothing else.",
        }
    },
    "required": ["message"],
    "additionalProperties": False,
}


class A2aSource(RefreshedSource):
    """One remote agent. Its card is read when the project is loaded, and again from time to time."""

    def __init__(self, name: str, agent: A2aAgent, changed: OnChange) -> None:
        """Create a source; `start` reads the card."""
        super().__init__(f"agent.{name}", changed, agent.refresh)
        self._agent = agent
        self._remote: RemoteAgent | None = None
        self._card: Card | None = None

    async def start(self) -> None:
        """Read the card, and read it again in the background."""
        try:
            remote_type = await asyncio.to_thread(_import_remote)  # takes a second at first
            self._remote = remote_type(self.name, self._agent)
        except ImportError as error:
            self.faults = (f"{self.name} needs the A2A SDK ({error}): {install_command('agentsd[a2a]')}",)
        except ConfigError as error:
            self.faults = (f"{self.name} is unavailable: {error.message}",)
        else:
            await super().start()

    async def abandon(self, continuation: Mapping[str, Any]) -> None:
        """Cancel the task of a call that will not be continued; see `RemoteAgent.abandon`."""
        if self._remote and self._card:
            await self._remote.abandon(self._card, continuation)

    async def _look(self) -> bool:
        """Read the card and build the tool. A tool remains when its agent is down. Return whether there is a card."""
        assert self._remote is not None, "created by `start`"
        try:
            card = await self._remote.card()
            if card != self._card:
                self.tools, self._card = (self._tool(card),), card
            self.faults = ()
        except (ToolError, ConfigError) as error:
            self.faults = (f"{self.name} is unavailable: {error.message}",)
            return False
        return True

    def _tool(self, card: Card) -> Tool:
        return external_tool(
            self.name,
            self._agent.description or card.description or f"The agent {self.name.removeprefix('agent.')}.",
            _MESSAGE,
            self._call,
            source="a2a",
            risk=self._agent.risk,
            idempotent=self._agent.idempotent,
            wire=card.url,
        )

    async def _call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        assert self._remote is not None, "created by `start`"
        assert self._card is not None, "read before the tool was built"
        return await self._remote.call(self._card, arguments["message"], context)


def _import_remote() -> type[RemoteAgent]:
    os.environ.setdefault(_A2A_TRACING, "false")  # spans of the SDK would contain what agents send
    from framework.tools.a2a_client import RemoteAgent

    return RemoteAgent


# --- connections


log = logging.getLogger(__name__)

SourceConfig = A2aAgent | McpServer | SkillHost | OpenApi
_QUIET_SECONDS = 2.0
"""Time after which servers that have not responded yet are logged, in seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class PooledSource:
    """A tool source in the pool."""

    name: str
    config: SourceConfig
    source: ToolSource
    number: int
    """Number that distinguishes it from other sources with the same name."""
    started: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_started(self) -> bool:
        """Whether the first connection attempt has finished, successfully or not."""
        return self.started.is_set()

    async def start(self) -> None:
        """Connect. Errors are logged, not raised."""
        try:
            await self.source.start()
        except Exception as error:  # noqa: BLE001 - one server must not prevent the others from starting
            log.error("starting %s failed: %s", self.name, redact(f"{type(error).__name__}: {error}"))
        finally:
            self.started.set()


class ConnectionPool:
    """Starts each source when it is first needed, and closes it when no generation uses it any longer."""

    def __init__(self, changed: OnChange, logins: LoginStore | None = None) -> None:
        """Create an empty pool."""
        self._changed, self._logins = changed, logins
        self._opened: list[PooledSource] = []
        self._wanted: list[PooledSource] = []
        self._rejected: dict[str, str] = {}
        self._count = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self, wanted: Mapping[str, SourceConfig], patience: float | None) -> list[PooledSource]:
        """Start the declared sources that are not in the pool, and return every source.

        Args:
            wanted: configurations by name.
            patience: seconds to wait, after the first two, for sources that have not responded. They keep connecting in
                the background. None waits until each has connected or failed.
        """
        self._rejected = {}
        fresh: list[PooledSource] = []
        found = (self._known(name, config) or self._new(name, config, fresh) for name, config in wanted.items())
        self._wanted = [opened for opened in found if opened]
        starting = [self._spawn(opened.start()) for opened in fresh]
        if starting and (await asyncio.wait(starting, timeout=_QUIET_SECONDS))[1]:
            slow = ", ".join(opened.name for opened in fresh if not opened.is_started)
            log.info("waiting for %s to respond", slow)
            await asyncio.wait(starting, timeout=patience)
        return list(self._wanted)

    def is_open(self, wanted: Mapping[str, SourceConfig]) -> bool:
        """Return whether `open` would start no source."""
        return all(name in self._rejected or self._known(name, config) for name, config in wanted.items())

    @property
    def rejected(self) -> Mapping[str, str]:
        """Errors of sources with an invalid configuration, by name."""
        return self._rejected

    def close_unused(self, needed: Collection[PooledSource]) -> None:
        """Close, in the background, every source that is neither in `needed` nor part of the last `open` call."""
        for opened in [one for one in self._opened if one not in needed and one not in self._wanted]:
            self._opened.remove(opened)
            self._spawn(self._close(opened))

    async def close(self) -> None:
        """Close all sources and wait until they are closed."""
        self._wanted = []
        self.close_unused(())
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _known(self, name: str, config: SourceConfig) -> PooledSource | None:
        return next((one for one in self._opened if one.name == name and one.config == config), None)

    def _new(self, name: str, config: SourceConfig, fresh: list[PooledSource]) -> PooledSource | None:
        short = name.partition(".")[2]
        try:
            if isinstance(config, McpServer):
                source: ToolSource = McpSource(short, config, self._changed, self._logins)
            elif isinstance(config, A2aAgent):
                source = A2aSource(short, config, self._changed)
            elif isinstance(config, OpenApi):
                source = ApiSource(name, config, self._changed, self._logins)
            else:
                source = SkillSource(short, config, self._changed)
        except ConfigError as error:
            self._rejected[name] = error.message
            return None
        self._count += 1
        opened = PooledSource(name, config, source, self._count)
        self._opened.append(opened)
        fresh.append(opened)
        return opened

    async def _close(self, opened: PooledSource) -> None:
        try:
            await opened.source.close()
        except Exception as error:  # noqa: BLE001 - nothing uses the source any longer
            log.error("closing %s failed: %s", opened.name, redact(f"{type(error).__name__}: {error}"))

    def _spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
