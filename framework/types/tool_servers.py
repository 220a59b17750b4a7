"""A file of tool sources (`plugins/*.yaml`) as typed data: MCP servers, and hosts of HTTP skills."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SecretStr, StringConstraints, model_validator

from framework.types.frozen import Duration, Frozen, check_version
from framework.types.spec import Risk, SourceName, ToolPattern

SkillId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
ArgumentName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
HttpUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+", max_length=2000)]


class McpServer(Frozen):
    """A server that speaks the Model Context Protocol; its tools are `mcp.<server>.<tool>`."""

    command: tuple[Annotated[str, StringConstraints(min_length=1)], ...] = ()
    """Program and arguments of a server that is started here and spoken to over its standard streams."""
    url: HttpUrl | None = None
    """Of a server that is spoken to over streamable HTTP."""
    env: dict[str, SecretStr] = {}
    """The child process gets these variables, and of ours only what finds programs and the home folder."""
    headers: dict[str, SecretStr] = {}
    """Sent with every request to `url`."""
    tools: tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...] = ()
    """Globs over its own names of its tools: the others are not taken. Missing: all, 1000 at most."""
    risk: Risk | None = None
    """Of all its tools; missing: high for what says that it destroys, low for what says that it only reads."""
    paths: dict[ToolPattern, tuple[ArgumentName, ...]] = {}
    """Arguments that are paths, by the server's name of a tool or a glob, such as `{"*": [path], move: [source]}`.
    Rules match them whatever their spelling. Arguments whose schema says `format: path` count anyway."""
    urls: dict[ToolPattern, tuple[ArgumentName, ...]] = {}
    """Arguments that are URLs, likewise; those whose schema says `format: uri` count anyway."""
    connect_timeout: Duration = Field(default=15.0, validate_default=False)
    """How long a connection may take."""
    timeout: Duration = Field(default=30.0, validate_default=False)
    """How long one call may take."""

    @model_validator(mode="after")
    def _one_transport(self) -> McpServer:
        if bool(self.command) == (self.url is not None):
            raise ValueError("give either `command` or `url`")
        if self.headers and self.command:
            raise ValueError("`headers` go with `url`; a started server gets `env`")
        if self.env and self.url:
            raise ValueError("`env` goes with `command`; a server by `url` gets `headers`")
        return self


class Skill(Frozen):
    """One thing that a skill host can do; a tool named `skill.<host>.<id>`."""

    id: SkillId
    """The host's name for it."""
    description: str | None = None
    """What the model is told; missing: the function's docstring, else the document, as the host gives them."""
    parameters: dict[str, Any] = {}
    """JSON Schema of the arguments: an object."""
    risk: Risk = "medium"
    """How much harm a call may do."""
    idempotent: bool = False
    """A repetition does no harm: it may be repeated after a crash."""
    timeout: Duration | None = None
    """How long a call may take."""


class SkillHost(Frozen):
    """A service whose skills are called over HTTP."""

    url: HttpUrl
    """Where it is, such as `http://127.0.0.1:8900`."""
    headers: dict[str, SecretStr] = {}
    """Sent with every request to it."""
    discover: bool = False
    """Ask the host for its skills: `GET /skills`."""
    skills: tuple[Skill, ...] = ()
    """Skills declared here; for one that the host has too, what stands here wins."""
    trace: bool = False
    """Send it the trace's context, so that its spans join ours."""
    timeout: Duration = Field(default=30.0, validate_default=False)
    """How long one request may take."""


class Sources(Frozen):
    """One file of tool sources."""

    version: Annotated[int, Field(ge=1, le=1), BeforeValidator(check_version)]
    """Version of this file format: 1."""
    mcp_servers: dict[SourceName, McpServer] = {}
    """MCP servers by name."""
    skill_hosts: dict[SourceName, SkillHost] = {}
    """Skill hosts by name."""
