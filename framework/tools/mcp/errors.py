"""Why a connection to an MCP server failed, in words that say what to do and hold no secrets."""

from __future__ import annotations

import httpx2
from mcp import MCPError
from pydantic import ValidationError

from framework.types.errors import ToolError
from framework.types.text import one_line
from framework.types.tool_servers import McpServer

_MAX_CHARS = 300
_MIN_SECRET_CHARS = 6
"""Shorter values are words like `debug`: nobody keeps them secret."""
UNINFORMATIVE_MESSAGES = {"Server returned an error response", "Not Found"}
"""The SDK's words for an answer of HTTP that says no more."""


class NotConnected(Exception):
    """There is no connection; says why."""


class ConnectionLost(NotConnected):
    """The connection ended during a call: what came of it is unknown."""


class SessionExpired(NotConnected):
    """The server no longer knows the session: the call was not carried out."""


class InputRequested(Exception):
    """A server wants a human's answer, a model's or a folder: no policy allows that."""


class RequestFailed(ToolError):
    """There was a connection, but no answer that can be used."""


def describe_error(error: BaseException, server: McpServer, status: int | None = None) -> str:
    """What to say of an error that ended a connection.

    Args:
        error: what happened.
        server: to whom.
        status: of the last answer over HTTP that said no.
    """
    return mask_secrets(_description(error, server, status), server)


def first_error(error: BaseException) -> BaseException:
    """The first error inside groups of groups: what went wrong first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def mask_secrets(text: str, server: McpServer) -> str:
    """A message without the values of a server's variables and headers, in one line of bearable length."""
    for secret in (*server.env.values(), *server.headers.values()):
        for part in {secret.get_secret_value(), *secret.get_secret_value().split()}:
            text = text.replace(part, "***") if len(part) >= _MIN_SECRET_CHARS else text
    return one_line(text, _MAX_CHARS)


def _description(error: BaseException, server: McpServer, status: int | None) -> str:
    match error:
        case FileNotFoundError() if server.command:
            return f"there is no program {server.command[0]!r}: install it, or correct `command`"
        case PermissionError() if server.command:
            return f"{server.command[0]!r} cannot be executed: correct `command`"
        case httpx2.ConnectError() | httpx2.ConnectTimeout():
            return f"nothing answers at its `url`: {error}"
        case ValidationError():
            return "its answer is not MCP"
        case MCPError() if status and error.message in UNINFORMATIVE_MESSAGES:
            return f"it answers HTTP {status}: check {'`headers`' if status in {401, 403} else '`url`'}"
        case MCPError():
            return error.message
    return f"{type(error).__name__}: {error}"
