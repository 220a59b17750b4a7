"""`agentsd tools` and `models`: the tools and models of a project, what is assumed of them, and whether that holds."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import click

from framework.cli.location import (
    INPUT_OPTION,
    PROJECT_OPTION,
    arguments_of,
    lenient_settings,
    locate,
    parse_inputs,
    show_problem,
    tenant_option,
    user_option,
)
from framework.cli.project import find_tool, read_project
from framework.cli.show import show_table
from framework.cli.terminal import print_json, prints_on_stderr, say
from framework.config.generations.catalog import Catalog
from framework.config.overlay import SETTINGS_FILE
from framework.config.settings import ModelAlias, Settings
from framework.engine.context.run_context import ModelClients
from framework.engine.runtime.project import Project
from framework.engine.runtime.runtime import Runtime
from framework.engine.tool_call.call import RAISED_AT
from framework.llm.capabilities import Capabilities, Prices, known_rows, known_server
from framework.llm.client import ModelClient, ModelReply, ModelRequest, ProbingClient
from framework.llm.providers import OFFLINE, chosen_api, create_client, uses_gateway
from framework.tools.form import visit_lines
from framework.tools.logins import Account, StoredLogin, account_at, login_servers
from framework.types.errors import EXIT_CANCELLED, EXIT_NEGATIVE, ModelError, RequestError, ToolError
from framework.types.messages import Message, ToolCall, ToolDefinition, ToolResult
from framework.types.spec import ModelSettings
from framework.types.tool_servers import OAuth

if TYPE_CHECKING:
    from framework.tools.mcp.login import BegunLogin

_COLUMNS = ("tool", "risk", "source", "description")
_EXIT_CODES = {"success": 0, "error": EXIT_NEGATIVE, "denied": EXIT_NEGATIVE, "cancelled": EXIT_CANCELLED}


@click.group("tools")
def command() -> None:
    """List a project's tools, or call one."""


@command.command("list")
@PROJECT_OPTION
@click.option("--connect/--offline", default=True, help="Connect to the tool servers, the default, or do not.")
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON, with their schemas.")
def list_tools(project: str, connect: bool, as_json: bool) -> int:
    """List all tools, by name; `agentsd explain AGENT` shows which of them an agent may call."""
    generation = asyncio.run(read_project(locate(project), connect=connect)).catalog.current
    tools = [tool for _, tool in sorted(generation.tools.items())]
    for problem in generation.external.problems:
        show_problem(problem)
    if as_json:
        data: list[dict[str, Any]] = [
            {**tool.definition.model_dump(), "source": tool.source, "risk": tool.risk, "idempotent": tool.idempotent}
            for tool in tools
        ]
        print_json(data)
        return 0
    rows = [(tool, (tool.definition.description.splitlines() or [""])[0]) for tool in tools]
    show_table(_COLUMNS, [(tool.name, tool.risk, tool.source, summary) for tool, summary in rows])
    return 0


@command.command("call")
@click.argument("tool")
@click.argument("arguments", required=False)
@click.option("-a", "--agent", required=True, metavar="AGENT", help="The agent whose policy applies.")
@INPUT_OPTION
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def call(tool: str, arguments: str | None, agent: str, inputs: tuple[str, ...], project: str, as_json: bool) -> int:
    """Call TOOL with ARGUMENTS (a JSON object) as AGENT would, without a model.

    Exit codes: 0 succeeded, 1 failed or denied, 3 needs approval.
    """
    with prints_on_stderr():
        result = asyncio.run(_call(project, agent, tool, arguments_of(arguments), parse_inputs(inputs)))
    if as_json:
        click.echo(result.model_dump_json(indent=2))
    elif result.status == "success":
        text = (
            result.output if isinstance(result.output, str) else json.dumps(result.output, ensure_ascii=False, indent=2)
        )
        say(text)
    else:
        click.secho(f"{result.status}: ", fg="red", nl=False, err=True)
        say(result.error or "", err=True)
        if place := result.metadata.get(RAISED_AT):
            say(f"  raised at {place}", err=True)
    return _EXIT_CODES[result.status]


@command.command("accept")
@click.argument("tools", nargs=-1, required=True)
@PROJECT_OPTION
def accept(tools: tuple[str, ...], project: str) -> int:
    """Accept the current definitions of TOOLS of MCP servers, which have changed since they were accepted."""
    asyncio.run(_accept(project, tools))
    for tool in tools:
        click.echo(f"accepted {tool}")
    return 0


_LOGIN_SECONDS = 600.0
_LOGIN_COLUMNS = ("server", "tenant", "user", "login", "scopes", "expires", "issuer")


@command.command("login")
@click.argument("server")
@user_option("The user whose login it is, if each has one (`per: user`).")
@tenant_option("The tenant of the user.")
@PROJECT_OPTION
def login(server: str, user: str | None, tenant: str | None, project: str) -> int:
    """Log in at SERVER, an MCP server or API with `auth`: prints the address to open in a browser of this machine."""
    stored = asyncio.run(_login(project, server, user, tenant))
    click.echo(f"logged in at {server} ({stored.issuer})")
    return 0


@command.command("logout")
@click.argument("server")
@user_option("The user whose login ends.")
@tenant_option("The tenant of the user.")
@PROJECT_OPTION
def logout(server: str, user: str | None, tenant: str | None, project: str) -> int:
    """Delete the login at SERVER; runs that need it wait for the next one."""
    catalog = asyncio.run(read_project(locate(project), connect=False)).catalog
    account, _ = _account(catalog, server, user, tenant)
    if not catalog.logins.delete(account):
        raise RequestError(f"there is no login at {account.words}")
    click.echo(f"logged out at {account.words}")
    return 0


@command.command("status")
@click.argument("server", required=False)
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON, without tokens.")
def status(server: str | None, project: str, as_json: bool) -> int:
    """List the logins at SERVER, or at all servers, without their tokens."""
    catalog = asyncio.run(read_project(locate(project), connect=False)).catalog
    stored, servers = [*catalog.logins.all()], login_servers(catalog.current.external.configs)
    if server is not None and server not in {one.server for one in stored}:
        _account(catalog, server, None, None)
    rows = [_status(one) for one in stored] + [
        _status(StoredLogin(server=name, url=url)) | _without_login(oauth)
        for name, (url, oauth) in servers.items()
        if name not in {one.server for one in stored}
    ]
    rows = [row for row in rows if server in (None, row["server"])]
    if as_json:
        print_json(rows)
        return 0
    if not rows:
        say("no server of this project has `auth`", err=True)
    show_table(_LOGIN_COLUMNS, [tuple(str(row[name] or "-") for name in _LOGIN_COLUMNS) for row in rows])
    return 0


def _without_login(oauth: OAuth) -> dict[str, Any]:
    """Return what differs at a server where nobody has logged in yet."""
    if oauth.grant == "client_credentials":
        return {"login": "automatic"}
    return {"user": "each"} if oauth.per == "user" else {}


def _status(stored: StoredLogin) -> dict[str, Any]:
    tokens = stored.tokens or {}
    ends = datetime.fromtimestamp(stored.expires_at, UTC) if stored.expires_at else None
    return {
        "server": stored.server,
        "tenant": stored.tenant,
        "user": stored.user,
        "login": "yes" if tokens else "needed",
        "scopes": tokens.get("scope"),
        "expires": "is renewed" if tokens.get("refresh_token") else f"{ends:%Y-%m-%d %H:%M:%S} UTC" if ends else None,
        "issuer": stored.issuer or None,
    }


def _account(catalog: Catalog, server: str, user: str | None, tenant: str | None) -> tuple[Account, OAuth]:
    """Return an account at a server that needs a login; raise RequestError."""
    try:
        return account_at(catalog.current.external.configs, server, tenant, user)
    except ToolError as error:
        raise RequestError(error.message) from None


async def _login(project: str, server: str, user: str | None, tenant: str | None) -> StoredLogin:
    from framework.tools.mcp.login import BegunLogin, Login

    catalog = (await read_project(locate(project), connect=False)).catalog
    account, oauth = _account(catalog, server, user, tenant)
    async with _listening(oauth.redirect_port, fixed=oauth.client_id is not None) as (port, arrived):
        begun = BegunLogin(Login(catalog.logins, account, oauth), f"http://127.0.0.1:{port}/callback")
        try:
            address = await begun.address()
            click.echo("open this address in a browser of this machine, and log in there:", err=True)
            for line in visit_lines(address):
                click.echo(f"  {line}", err=True)
            arriving = asyncio.create_task(_answer(begun, arrived))
            try:
                return await begun.finish(_LOGIN_SECONDS)
            finally:
                arriving.cancel()
        finally:
            begun.close()


async def _answer(begun: BegunLogin, arrived: asyncio.Queue[dict[str, str]]) -> None:
    begun.answer(await arrived.get())


@asynccontextmanager
async def _listening(port: int, *, fixed: bool) -> AsyncIterator[tuple[int, asyncio.Queue[dict[str, str]]]]:
    """Listen for the browser that comes back from a login; yield the port, and a queue for what it brings.

    Another port is used if the given one is taken, unless it is fixed: the authorization server knows it.
    """
    arrived: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode("latin-1").split(" ")
        path, _, query = (line[1] if len(line) > 1 else "").partition("?")
        is_callback = path == "/callback"
        text = "You can close this page: the login continues in the terminal." if is_callback else "Not found."
        head = f"HTTP/1.1 {'200 OK' if is_callback else '404 Not Found'}\r\ncontent-type: text/plain\r\n"
        writer.write(f"{head}content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}".encode())
        await writer.drain()
        writer.close()
        if is_callback:
            arrived.put_nowait(dict(parse_qsl(query)))

    try:
        server = await asyncio.start_server(answer, "127.0.0.1", port, limit=16_384)
    except OSError as error:
        if fixed:
            raise RequestError(
                f"port {port} is taken ({error.strerror}): end its program, or set `redirect_port`"
            ) from None
        server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=16_384)
    async with server:
        yield server.sockets[0].getsockname()[1], arrived


async def _accept(project: str, tools: tuple[str, ...]) -> None:
    location = locate(project)
    read = await Project.read(location.root, lenient_settings(location), connect=True)
    try:
        await read.catalog.accept(tools)
    finally:
        await read.catalog.close()


async def _call(project: str, agent: str, tool: str, arguments: dict[str, Any], inputs: dict[str, Any]) -> ToolResult:
    location = locate(project)
    async with Runtime.open(location.root, settings=lenient_settings(location), watch=False) as runtime:
        find_tool(runtime.catalog.current.agent(agent).toolset.tools, tool)
        return await runtime.call_tool(agent, tool, arguments, inputs=inputs)


STRICTEST: Mapping[str, Any] = {
    "late_system": False,
    "repeated_roles": False,
    "parallel_calls": False,
    "call_ids": "short",
    "null_content": False,
}
"""The form of a conversation that every chat template accepts."""
_UNKNOWN = "unknown: strictest form"
_MAX_TOKENS = 1000
_WORD = "KIWI"
_TOOL = ToolDefinition(
    name="get_number",
    description="Return the number of the day.",
    parameters={"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]},
)
_SYSTEM = Message(role="system", content="You are a helpful assistant. Answer in one short sentence.")
_QUESTION = Message(role="user", content="What is the number of Monday? Call get_number.")
_LONG_ID = "call_0123456789abcdefghijklmn"
_NO_CALL = "set `protocol: json` in the agent's file, or see docs/models.md for the server's flags"


@dataclass(frozen=True, slots=True)
class _Probe:
    """A request that deviates from the strictest form in one point."""

    name: str
    messages: tuple[Message, ...]
    field: str = ""
    """The capability that permits the deviation; empty if there is none."""
    permitted: Any = True
    tools: tuple[ToolDefinition, ...] = (_TOOL,)
    word: str = ""
    """A text that the answer contains if the model has read everything."""


def _calling(*ids: str, content: str = "I look it up.") -> tuple[Message, ...]:
    """Return a conversation with a turn of calls and their results."""
    calls = tuple(ToolCall(id=each, tool=_TOOL.name, arguments={"day": "Monday"}) for each in ids)
    results = (Message(role="tool", tool_call_id=each, content="7") for each in ids)
    return (_SYSTEM, _QUESTION, Message(role="assistant", content=content, tool_calls=calls), *results)


_GREETING = Message(role="user", content="Say hello.")
_PROBES = (
    _Probe("plain", (_SYSTEM, _GREETING), tools=()),
    _Probe(
        "late system message",
        (_SYSTEM, _GREETING, Message(role="system", content=f"Answer with the single word {_WORD}.")),
        "late_system",
        tools=(),
        word=_WORD,
    ),
    _Probe("parallel calls", _calling("abcdefgh1", "abcdefgh2"), "parallel_calls"),
    _Probe("long call ids", _calling(_LONG_ID), "call_ids", permitted="any"),
    _Probe("null content", _calling("abcdefgh1", content=""), "null_content"),
    _Probe("tool call", (_SYSTEM, _QUESTION)),
)


@click.group("models")
def models_command() -> None:
    """Show what is assumed of a model, and check it."""


@models_command.command("check")
@click.argument("model")
@PROJECT_OPTION
@click.option("--live", is_flag=True, help="Send up to six small requests, and compare.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def check(model: str, project: str, live: bool, as_json: bool) -> int:
    """Show what agentsd assumes of MODEL, an alias or provider/model, and where each value comes from.

    Without --live nothing is sent. Exit codes: 0, or 1 if the model does not answer or accepts less than assumed.
    """
    settings = locate(project).settings()
    ModelClients({}).require_known(settings, model)
    alias = settings.models.get(model) or ModelAlias.model_construct(model=model)
    if alias.model == OFFLINE:
        raise RequestError("offline is a rule-based stand-in: nothing is assumed of it")
    api = chosen_api(alias.model, base_url=alias.base_url, api=alias.api, capabilities=alias.capabilities)
    assumed = [*_assumptions(model, alias, settings, has_form=api == "chat")]
    outcomes = asyncio.run(_outcomes(alias, dict(row[:2] for row in assumed), has_form=api == "chat")) if live else []
    if as_json:
        rows = [{"name": name, "value": _data(value), "source": source} for name, value, source in assumed]
        data = {"model": alias.model, "server": _server(alias), "assumed": rows, "live": outcomes}
        print_json(data)
    else:
        click.echo(f"{alias.model} at {_server(alias)}")
        show_table(("assumption", "value", "source"), [(name, _text(value), source) for name, value, source in assumed])
        _show_outcomes(outcomes)
    return EXIT_NEGATIVE if any(not outcome["holds"] for outcome in outcomes) else 0


def _server(alias: ModelAlias) -> str:
    provider = alias.model.partition("/")[0]
    if alias.base_url is None:
        return f"the server of {provider}"
    known = known_server(alias.base_url)
    return f"{alias.base_url} (the server of {known})" if known else f"{alias.base_url} (not a known provider's)"


def _assumptions(name: str, alias: ModelAlias, settings: Settings, *, has_form: bool) -> Iterator[tuple[str, Any, str]]:
    """Yield each capability that is known or has a strictest value, with its value and its source."""
    rows = [*known_rows(alias.model, alias.base_url)]
    if has_form or uses_gateway(alias.model, alias.base_url, os.environ):
        rows = [row._replace(known=row.known.model_copy(update={"late_tools": None})) for row in rows]
    own = alias.capabilities if name in settings.models else None
    for field in Capabilities.model_fields:
        if field in STRICTEST and not has_form:
            continue  # only chat templates have a form
        if own is not None and (value := getattr(own, field)) is not None:
            yield field, value, f"{SETTINGS_FILE}: models.{name}.capabilities"
        elif row := next((row for row in reversed(rows) if getattr(row.known, field) is not None), None):
            yield field, getattr(row.known, field), f"{row.source} ({row.as_of}, {row.pattern})"
        elif field in STRICTEST:
            yield field, STRICTEST[field], _UNKNOWN


def _data(value: Any) -> Any:
    return value.model_dump(exclude_none=True) if isinstance(value, Prices) else value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value)
    return json.dumps(_data(value)) if isinstance(value, Prices) else str(value)


# --- requests to the server


async def _outcomes(alias: ModelAlias, assumed: Mapping[str, Any], *, has_form: bool) -> list[dict[str, Any]]:
    """Send the requests and return what each shows; only the first one if that fails."""
    outcomes: list[dict[str, Any]] = await _reported(alias, assumed)
    first = len(outcomes)
    for probe in _PROBES:
        if probe.field and not has_form:
            continue
        outcomes.append(await _outcome(probe, alias, assumed))
        if not outcomes[first]["holds"]:
            break
    return outcomes


async def _reported(alias: ModelAlias, assumed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a local server itself says about the model, such as its context window, compared with the file."""
    client = _client(alias, None)
    known = client.info.capabilities
    try:
        if isinstance(client, ProbingClient):
            await client.probe()
        reported = client.info.capabilities
    finally:
        await client.close()
    outcomes = []
    for field in Capabilities.model_fields:
        value, expected = getattr(reported, field), assumed.get(field)
        if value == getattr(known, field):
            continue
        outcome = {"request": field, "holds": expected is None or expected <= value, "note": f"the server says {value}"}
        if expected not in (None, value):
            outcome["write"] = {field: value}
        outcomes.append(outcome)
    return outcomes


def _client(alias: ModelAlias, capabilities: Capabilities | None) -> ModelClient:
    return create_client(
        alias.model,
        base_url=alias.base_url,
        api_key=alias.key_text,
        api=alias.api,
        capabilities=capabilities,
        stream=alias.stream,
        environ=os.environ,
        **alias.options,
    )


async def _outcome(probe: _Probe, alias: ModelAlias, assumed: Mapping[str, Any]) -> dict[str, Any]:
    form = {**STRICTEST, **({probe.field: probe.permitted} if probe.field else {})}
    capabilities = (alias.capabilities or Capabilities()).model_copy(update=form)
    client = _client(alias, capabilities)
    try:
        reply = await _reply(client, probe)
    except ModelError as error:
        if error.error_type == "empty_answer":
            return _judged(probe, assumed, accepted=True, note="accepted, with an empty answer")
        return _judged(probe, assumed, accepted=False, note=error.message)
    finally:
        await client.close()
    if probe.name == "tool call" and not reply.message.tool_calls:
        return {"request": probe.name, "holds": False, "note": f"the model called no tool: {_NO_CALL}"}
    if probe.word and probe.word not in reply.message.content.upper():
        return _judged(probe, assumed, accepted=False, note="accepted, but the model did not follow it")
    return _judged(probe, assumed, accepted=True, note="accepted")


def _judged(probe: _Probe, assumed: Mapping[str, Any], *, accepted: bool, note: str) -> dict[str, Any]:
    """Return the outcome of a request; with the line to write if it differs from what was assumed."""
    if not probe.field:
        return {"request": probe.name, "holds": accepted, "note": note}
    permitted = assumed[probe.field] == probe.permitted
    outcome: dict[str, Any] = {"request": probe.name, "holds": accepted or not permitted, "note": note}
    if accepted != permitted:
        right = probe.permitted if accepted else STRICTEST[probe.field]
        outcome["write"] = {probe.field: right}
    return outcome


async def _reply(client: ModelClient, probe: _Probe) -> ModelReply:
    request = ModelRequest(messages=probe.messages, tools=probe.tools, settings=ModelSettings(max_tokens=_MAX_TOKENS))
    reply: ModelReply | None = None
    async for delta in client.stream(request):
        reply = delta.reply or reply
    if reply is None:
        raise ModelError("the answer was cut off")
    return reply


def _show_outcomes(outcomes: list[dict[str, Any]]) -> None:
    if not outcomes:
        return
    click.echo()
    for outcome in outcomes:
        state = "does not hold" if not outcome["holds"] else "accepts more" if outcome.get("write", {}) else "holds"
        colour = "red" if not outcome["holds"] else "yellow" if "write" in outcome else "green"
        click.secho(f"{state:14}", fg=colour, nl=False)
        say(f"{outcome['request']}: {outcome['note']}")
    lines = {name: value for outcome in outcomes for name, value in outcome.get("write", {}).items()}
    if lines:
        click.echo("\nWrite at the alias in agentsd.yaml:\n\n    capabilities:")
        for name, value in lines.items():
            click.echo(f"      {name}: {str(value).lower()}")
