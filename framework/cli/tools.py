"""`agentsd tools`: lists the tools of a project, calls one, and accepts changed ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
from framework.engine.runtime.project import Project
from framework.engine.runtime.runtime import Runtime
from framework.engine.tool_call.call import RAISED_AT
from framework.tools.form import visit_lines
from framework.tools.logins import Account, StoredLogin, account_at, login_servers
from framework.tools.tool import Tool
from framework.types.errors import EXIT_CANCELLED, EXIT_NEGATIVE, RequestError, ToolError
from framework.types.messages import ToolResult
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
        rows: list[dict[str, Any]] = [
            {**tool.definition.model_dump(), "source": tool.source, "risk": tool.risk, "idempotent": tool.idempotent}
            for tool in tools
        ]
        print_json(rows)
        return 0
    show_table(_COLUMNS, [(tool.name, tool.risk, tool.source, _summary(tool)) for tool in tools])
    return 0


def _summary(tool: Tool) -> str:
    return (tool.definition.description.splitlines() or [""])[0]


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
"""Time for a person to log in, in seconds."""
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
