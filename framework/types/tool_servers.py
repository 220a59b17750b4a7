"""Files of tool servers (`plugins/*.yaml`) as typed data: MCP servers and hosts of HTTP skills."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SecretStr, StringConstraints, model_validator

from framework.types.frozen import Duration, Frozen, check_version
from framework.types.spec import Risk, SourceName, ToolPattern

SkillId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
ArgumentName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
HttpUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+", max_length=2000)]


class McpServer(Frozen):
    """A Model Context Protocol (MCP) server. Its tools are named `mcp.<server>.<tool>`."""

    command: tuple[Annotated[str, StringConstraints(min_length=1)], ...] = ()
    """Program and arguments of a server that agentsd starts as a child process and connects to over stdio."""
    url: HttpUrl | None = None
    """URL of a server that agentsd connects to over streamable HTTP."""
    env: dict[str, SecretStr] = {}
    """Environment variables of the child process, in addition to PATH, HOME, user, locale, time zone and TMPDIR."""
    headers: dict[str, SecretStr] = {}
    """HTTP headers sent with every request to `url`."""
    tools: tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...] = ()
    """Globs of the server's tools to use, by their names on the server. Default: all, at most 1000."""
    risk: Risk | None = None
    """Risk of all tools of the server. Default: by the tool's hints, `high` if destructive, `low` if read-only, else
    `medium`."""
    paths: dict[ToolPattern, tuple[ArgumentName, ...]] = {}
    """Arguments that are paths, by tool name on the server or glob, such as `{"*": [path], move: [source]}`. Rules
    compare them in canonical form. Arguments with `format: path` in their schema are included automatically."""
    urls: dict[ToolPattern, tuple[ArgumentName, ...]] = {}
    """Arguments that are URLs, in the same form. Arguments with `format: uri` are included automatically."""
    connect_timeout: Duration = Field(default=15.0, validate_default=False)
    """Time limit for connecting."""
    timeout: Duration = Field(default=30.0, validate_default=False)
    """Time limit for one call."""

    @model_validator(mode="after")
    def _one_transport(self) -> McpServer:
        if bool(self.command) == (self.url is not None):
            raise ValueError("write either `command` or `url`")
        if self.headers and self.command:
            raise ValueError("`headers` requires `url`; for a server with `command`, use `env`")
        if self.env and self.url:
            raise ValueError("`env` requires `command`; for a server with `url`, use `headers`")
        return self


class Skill(Frozen):
    """A skill of a skill host, offered as a tool named `skill.<host>.<id>`."""

    id: SkillId
    """Id of the skill on the host."""
    description: str | None = None
    """Description for the model. Default: the description, docstring or document that the host reports."""
    parameters: dict[str, Any] = {}
    """JSON Schema of the arguments, an object schema."""
    risk: Risk = "medium"
    """Risk of a call."""
    idempotent: bool = False
    """Whether repeating a call has no further effect, so that it can be repeated after a crash."""
    timeout: Duration | None = None
    """Time limit for a call."""


class SkillHost(Frozen):
    """A service whose skills are called over HTTP."""

    url: HttpUrl
    """Base URL of the service, such as `http://127.0.0.1:8900`."""
    headers: dict[str, SecretStr] = {}
    """HTTP headers sent with every request."""
    discover: bool = False
    """Whether to request the list of skills from the host with `GET /skills`."""
    skills: tuple[Skill, ...] = ()
    """Skills declared in this file. They take precedence over discovered skills with the same id."""
    trace: bool = False
    """Whether to send the trace context, so that spans of the service become part of the trace."""
    timeout: Duration = Field(default=30.0, validate_default=False)
    """Time limit for one request."""


class Sources(Frozen):
    """A file of tool servers."""

    version: Annotated[int, Field(ge=1, le=1), BeforeValidator(check_version)]
    """Version of the file format: 1."""
    mcp_servers: dict[SourceName, McpServer] = {}
    """MCP servers, by name."""
    skill_hosts: dict[SourceName, SkillHost] = {}
    """Skill hosts, by name."""
