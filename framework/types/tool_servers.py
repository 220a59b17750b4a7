"""Settings of tools: MCP servers, HTTP tool hosts, APIs, and the sandbox of commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, StringConstraints, model_validator

from framework.types.frozen import Duration, Frozen, check_version
from framework.types.http import Method
from framework.types.spec import Risk, SourceName, ToolPattern

SkillId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
ArgumentName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
HttpUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+", max_length=2000)]


class OAuth(Frozen):
    """Login at a server with OAuth."""

    per: Literal["user", "server"] = "server"
    """Whose login it is: `server`: one for all runs; `user`: one for each user of each tenant."""
    scopes: tuple[Annotated[str, StringConstraints(pattern=r"^[\x21\x23-\x5b\x5d-\x7e]{1,200}$")], ...] = ()
    """Scopes to request, in addition to those that the server asks for."""
    client_id: Annotated[str, StringConstraints(min_length=1, max_length=2000)] | None = None
    """Client that is registered at the authorization server, or the `https` URL of its metadata document. Default:
    agentsd registers itself."""
    client_secret: SecretStr | None = None
    """Secret of the client."""
    secret_in: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    """How the secret is sent: in a header, or in the body."""
    private_key: SecretStr | None = None
    """Private key (PEM) with which the client signs instead of sending a secret."""
    algorithm: Literal["RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "EdDSA"] = "RS256"
    """Algorithm of the signature."""
    issuer: HttpUrl | None = None
    """The authorization server. A server that names another one is refused. Required with a secret or a key."""
    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    """`authorization_code`: a person logs in; `client_credentials`: the client itself does, without a person."""
    redirect_port: Annotated[int, Field(ge=1024, le=65535)] = 8976
    """Port of this machine to which a browser returns from `agentsd tools login`."""

    @property
    def metadata_url(self) -> str | None:
        """URL of the client's metadata document, if that is its id."""
        return self.client_id if self.client_id and self.client_id.startswith("https://") else None

    @model_validator(mode="after")
    def _complete(self) -> OAuth:
        if (self.client_secret or self.private_key) and not (self.client_id and self.issuer):
            raise ValueError("`client_secret` and `private_key` require `client_id` and `issuer`")
        if self.client_secret and self.private_key:
            raise ValueError("write either `client_secret` or `private_key`")
        if self.grant == "client_credentials":
            if not (self.client_secret or self.private_key):
                raise ValueError("`grant: client_credentials` requires `client_secret` or `private_key`")
            if self.per == "user":
                raise ValueError("`grant: client_credentials` has no users: write `per: server`")
        elif self.private_key:
            raise ValueError("`private_key` requires `grant: client_credentials`")
        return self


class ServerAuth(Frozen):
    """How requests to a server are authenticated."""

    oauth: OAuth
    """Login with OAuth."""


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
    auth: ServerAuth | None = None
    """Login at `url`. A run that lacks it pauses until someone has logged in."""
    tools: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...], Field(min_length=1)
    ] = ()
    """Globs of the server's tools to use, by their names on the server. Default: all, at most 1000."""
    risk: Risk | None = None
    """Risk of all tools of the server. Default: by the tool's hints, `high` if destructive, `low` if read-only, else
    `medium`."""
    paths: dict[ToolPattern, tuple[ArgumentName, ...]] = {}
    """Arguments that are paths, by tool name on the server or glob, such as `{"*": [path], move: [source]}`. Rules
    compare them in canonical form. Arguments with `format: path` in their schema are included automatically."""
    urls: dict[ToolPattern, tuple[ArgumentName, ...]] = {}
    """Arguments that are URLs, in the same form. Arguments with `format: uri` are included automatically."""
    elicitation: Literal["ask", "decline"] = "decline"
    """What happens when a tool of the server asks a person: `ask`: the run pauses and shows the question; `decline`:
    the server learns that nobody can be asked."""
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
        if self.auth and self.command:
            raise ValueError("`auth` requires `url`")
        if self.auth and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("write either `auth` or the header `Authorization`")
        if self.env and self.url:
            raise ValueError("`env` requires `command`; for a server with `url`, use `headers`")
        return self


class Skill(Frozen):
    """A function of an HTTP tool host, offered as a tool named `skill.<host>.<id>`."""

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


DOCUMENTS_FOLDER = "openapi"
"""Folder of a project with OpenAPI documents."""
_RESERVED_NAMES = ("agent", "client", "mcp", "result", "skill", "tool")
"""Prefixes of the names of other tools."""


def _not_reserved(name: str) -> str:
    if name.partition(".")[0] in _RESERVED_NAMES:
        raise ValueError(f"the names of other tools start with {name.partition('.')[0]!r}: choose another name")
    return name


def _is_document(place: str) -> str:
    folder, *parts = place.split("/")
    is_url = folder in ("http:", "https:") and len(parts) > 1 and parts[0] == "" and parts[1] != ""
    if not is_url and (folder != DOCUMENTS_FOLDER or not parts or any(part in ("", ".", "..") for part in parts)):
        raise ValueError(f"expected a file such as {DOCUMENTS_FOLDER}/billing.yaml, or a URL")
    return place


ApiName = Annotated[SourceName, AfterValidator(_not_reserved)]
HttpToolName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$", max_length=62),
    AfterValidator(_not_reserved),
]
OperationPattern = Annotated[str, StringConstraints(min_length=1, max_length=500)]
OperationName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,61}$")]


class BasicAuth(Frozen):
    """User name and password of HTTP basic authentication."""

    username: str
    """User name."""
    password: SecretStr
    """Password."""


class ApiAuth(Frozen):
    """How requests to an API are authenticated: one of three ways. Use `headers`, `query` or `cookies` for others."""

    bearer: SecretStr | None = None
    """Token sent as `Authorization: Bearer`."""
    basic: BasicAuth | None = None
    """Credentials sent as `Authorization: Basic`."""
    oauth: OAuth | None = None
    """Login with OAuth. A run that lacks it pauses until someone has logged in. HTTP tools whose names start alike, and
    that send requests to the same server, have one login."""

    @model_validator(mode="after")
    def _one_scheme(self) -> ApiAuth:
        if [self.bearer, self.basic, self.oauth].count(None) != 2:
            raise ValueError("write one of `bearer`, `basic` and `oauth`")
        return self


class _ApiRequests(Frozen):
    """What the file adds to each request. The model sees none of it."""

    auth: ApiAuth | None = None
    """Authentication of every request."""
    headers: dict[str, SecretStr] = {}
    """HTTP headers sent with every request."""
    cookies: dict[str, SecretStr] = {}
    """Cookies sent with every request."""
    timeout: Duration = Field(default=30.0, validate_default=False)
    """Time limit for one request."""
    max_bytes: Annotated[int, Field(gt=0, le=100_000_000)] = 1_000_000
    """Maximum size of a response after decompression; the rest is cut off."""


class OpenApi(_ApiRequests):
    """An HTTP API that an OpenAPI document describes. Its tools are named `<api>.<operation>`."""

    document: Annotated[str, StringConstraints(max_length=2000), AfterValidator(_is_document)]
    """The document, OpenAPI 3.0 or 3.1 or Swagger 2.0 as YAML or JSON: a file below `openapi/`, or a URL."""
    base_url: HttpUrl
    """URL that the paths of the document follow, such as `https://api.example.com/v1`. Its `servers` or `host`
    are not used."""
    query: dict[str, SecretStr] = {}
    """Query parameters sent with every request, such as an API key. The model cannot set them."""
    operations: tuple[OperationPattern, ...] = ("*",)
    """Globs of the operations to use, by operation id, tool name or `METHOD /path`. Default: all that are not
    deprecated."""
    names: dict[OperationPattern, OperationName] = {}
    """Names of tools, by operation id or `METHOD /path`. Default: the operation id, or method and path."""
    risk: Risk | dict[OperationPattern, Risk] = {}
    """Risk of all operations, or by glob; the last glob that matches applies. Default: by method, `low` for GET and
    HEAD, `high` for DELETE, else `medium`."""
    idempotent: tuple[OperationPattern, ...] = ()
    """Globs of operations whose repetition has no further effect, in addition to GET, HEAD, PUT and DELETE."""
    deprecated: bool = False
    """Whether to use deprecated operations."""
    refresh: Duration = Field(default=3600.0, validate_default=False)
    """Time between two requests for a document with a URL."""

    @property
    def is_local(self) -> bool:
        """Whether the document is a file of the project."""
        return self.document.startswith(DOCUMENTS_FOLDER + "/")


HttpParameters = dict[ArgumentName, dict[str, Any]]


class HttpTool(_ApiRequests):
    """A tool that sends one HTTP request."""

    get: HttpUrl | None = None
    """URL of a GET request. Parameters of the path are in braces: `https://api.example.com/people/{id}`."""
    head: HttpUrl | None = None
    """URL of a HEAD request."""
    post: HttpUrl | None = None
    """URL of a POST request."""
    put: HttpUrl | None = None
    """URL of a PUT request."""
    patch: HttpUrl | None = None
    """URL of a PATCH request."""
    delete: HttpUrl | None = None
    """URL of a DELETE request."""
    description: str = ""
    """Description for the model. Default: method and URL."""
    path: HttpParameters = {}
    """JSON Schemas of path parameters by name. Default: a string. Each is required."""
    query: HttpParameters = {}
    """JSON Schemas of query parameters by name, with `required: true` for those that a call must have."""
    json_body: HttpParameters = Field(default={}, alias="json")
    """JSON Schemas of the properties of a JSON body, in the same form."""
    form: HttpParameters = {}
    """JSON Schemas of the fields of an `application/x-www-form-urlencoded` body."""
    multipart: HttpParameters = {}
    """JSON Schemas of the parts of a `multipart/form-data` body."""
    result: Annotated[str, StringConstraints(max_length=2000)] = ""
    """JMESPath expression that selects the result from a JSON response. Default: all of it."""
    risk: Risk | None = None
    """Risk of a call. Default: by method, `low` for GET and HEAD, `high` for DELETE, else `medium`."""
    idempotent: bool | None = None
    """Whether repeating a call has no further effect. Default: true for GET, HEAD, PUT and DELETE."""

    @property
    def request(self) -> tuple[Method, str]:
        """Method and URL."""
        return next(self._requests())

    @property
    def body(self) -> tuple[str, HttpParameters] | None:
        """Kind of the body, and the schemas of its properties; None without a body."""
        bodies = {"json": self.json_body, "form": self.form, "multipart": self.multipart}
        return next(((kind, fields) for kind, fields in bodies.items() if fields), None)

    def _requests(self) -> Iterator[tuple[Method, str]]:
        for method in ("get", "head", "post", "put", "patch", "delete"):
            if (url := getattr(self, method)) is not None:
                yield cast("Method", method.upper()), url

    @model_validator(mode="after")
    def _one_request(self) -> HttpTool:
        if len(list(self._requests())) != 1:
            raise ValueError("write one URL, with its method as the key: get, head, post, put, patch or delete")
        if len([kind for kind in (self.json_body, self.form, self.multipart) if kind]) > 1:
            raise ValueError("write one of `json`, `form` and `multipart`")
        if self.body and self.request[0] in ("GET", "HEAD"):
            raise ValueError(f"a {self.request[0]} request has no body")
        names = [name for fields in (self.path, self.query, (self.body or ("", {}))[1]) for name in fields]
        if len(names) != len(set(names)):
            raise ValueError("two parameters have the same name")
        return self


class A2aAgent(Frozen):
    """An agent of another server, used as a sub-agent by the protocol A2A. Its tool is named `agent.<name>`."""

    card: HttpUrl
    """URL of the agent's card, such as `https://billing.example.com/.well-known/agent-card.json`."""
    url: HttpUrl | None = None
    """Server that gets the messages, if it is not that of the card. Cards that lead elsewhere are refused."""
    headers: dict[str, SecretStr] = {}
    """HTTP headers sent with every request, such as `authorization`."""
    description: str | None = None
    """Description for the model. Default: that of the card."""
    risk: Risk = "medium"
    """Risk of a call."""
    idempotent: bool = False
    """Whether the agent starts one task only if it gets a message twice, as agentsd does. Then a call whose process
    ended before the task was known is repeated; otherwise a person is asked. A known task always continues."""
    timeout: Duration = Field(default=30.0, validate_default=False)
    """Time limit of one request."""
    task_timeout: Duration = Field(default=600.0, validate_default=False)
    """Time limit of one task, without pauses. `tool_timeout` does not apply, the run's own `timeout` does."""
    max_bytes: Annotated[int, Field(gt=0, le=100_000_000)] = 1_000_000
    """Maximum size of a response after decompression. A larger one is an error."""
    refresh: Duration = Field(default=3600.0, validate_default=False)
    """Time between two requests for the card."""


class Sources(Frozen):
    """A file of tool servers."""

    version: Annotated[int, Field(ge=1, le=1), BeforeValidator(check_version)]
    """Version of the file format: 1."""
    mcp_servers: dict[SourceName, McpServer] = {}
    """MCP servers, by name."""
    skill_hosts: dict[SourceName, SkillHost] = {}
    """HTTP tool hosts, by name."""
    openapi: dict[ApiName, OpenApi] = {}
    """APIs that OpenAPI documents describe, by name."""
    http_tools: dict[HttpToolName, HttpTool] = {}
    """Tools that send one HTTP request each, by name."""
    a2a_agents: dict[SourceName, A2aAgent] = {}
    """Agents of other servers, by the name that agent files list under `agents`."""


FolderName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)]


class SandboxLimits(Frozen):
    """What commands in the sandbox see and use. A text is the program: `sandbox: bubblewrap`."""

    program: Literal["none", "bubblewrap"] = "none"
    """What isolates the commands. `none`: no command is executed. `bubblewrap`: bwrap, on Linux."""
    read: tuple[FolderName, ...] = ()
    """Folders, relative to `base_path`, that commands can read: `docs` is `/project/docs`."""
    write: FolderName | None = None
    """A folder, relative to `base_path`, that commands can also write, and in which they start. Default: none, so that
    nothing is kept."""
    network: bool = False
    """Whether commands have the network of this machine, without the limits of `tools.http`."""
    env: tuple[EnvironmentName, ...] = ()
    """Names of the environment variables that commands get, such as `LANG`."""
    timeout: Duration = Field(default=30.0, validate_default=False)
    """Time limit of a command. Everything that it started ends with it."""
    memory_mb: Annotated[int, Field(ge=16, le=1_000_000)] = 1024
    """Memory of each of its processes, in MB."""
    processes: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Number of its processes and threads."""
    disk_mb: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """Size of `/tmp`, of each file, and by how much a command may let the folder `write` grow, in MB."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """Accept the name of the program alone."""
        return {"program": value} if isinstance(value, str) else value

    @property
    def is_on(self) -> bool:
        """Whether commands are executed."""
        return self.program != "none"

    def narrowed_by(self, other: SandboxLimits) -> SandboxLimits:
        """Return limits that permit only what both permit."""
        return SandboxLimits(
            program=self.program if self.program == other.program else "none",
            read=tuple(folder for folder in self.read if folder in other.read),
            write=self.write if self.write == other.write else None,
            network=self.network and other.network,
            env=tuple(name for name in self.env if name in other.env),
            timeout=min(self.timeout, other.timeout),
            memory_mb=min(self.memory_mb, other.memory_mb),
            processes=min(self.processes, other.processes),
            disk_mb=min(self.disk_mb, other.disk_mb),
        )
