"""Exceptions of MCP connections, and error messages that state the fix and contain no secrets."""

from __future__ import annotations

import httpx2
from mcp import MCPError
from pydantic import ValidationError

from framework.types.certificates import missing_certificates
from framework.types.errors import ToolError
from framework.types.text import one_line
from framework.types.tool_servers import McpServer

_MAX_CHARS = 300
_MIN_SECRET_CHARS = 6
"""Minimum length of a secret. Shorter values are words such as `debug`."""
UNINFORMATIVE_MESSAGES = {"Server returned an error response", "Not Found"}
"""Messages of the SDK for HTTP errors without details."""


class NotConnected(Exception):
    """There is no connection. The message states the reason."""


class ConnectionLost(NotConnected):
    """The connection ended during a call, whose outcome is unknown."""


class SessionExpired(NotConnected):
    """The server does not know the session any longer: the call was not executed."""


class InputRequested(Exception):
    """The server requested input from a person, a model or the file system, which is not supported."""


class RequestFailed(ToolError):
    """The server was connected but sent no valid answer."""


def describe_error(error: BaseException, server: McpServer, status: int | None = None) -> str:
    """Describe an error of a connection, with a fix and without secrets.

    Args:
        error: the error.
        server: configuration of the server.
        status: status of the last failed HTTP response.
    """
    return mask_secrets(_description(error, server, status), server)


def first_error(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def mask_secrets(text: str, server: McpServer) -> str:
    """Mask the values of the server's variables and headers in a message, and shorten it to one line."""
    for secret in (*server.env.values(), *server.headers.values()):
        for part in {secret.get_secret_value(), *secret.get_secret_value().split()}:
            text = text.replace(part, "***") if len(part) >= _MIN_SECRET_CHARS else text
    return one_line(text, _MAX_CHARS)


def _description(error: BaseException, server: McpServer, status: int | None) -> str:
    match error:
        case FileNotFoundError() if server.command:
            return f"no program {server.command[0]!r}: install it, or correct `command`"
        case PermissionError() if server.command:
            return f"cannot execute {server.command[0]!r}: correct `command`"
        case httpx2.ConnectError() if "CERTIFICATE_VERIFY_FAILED" in str(error) and (missing := missing_certificates()):
            return f"SSL_CERT_FILE names a file that does not exist ({missing}): correct or unset it"
        case httpx2.ConnectError() | httpx2.ConnectTimeout():
            return f"cannot connect to its `url`: {error}"
        case ValidationError():
            return "its response is not valid MCP"
        case MCPError() if status and error.message in UNINFORMATIVE_MESSAGES:
            return f"it responded with HTTP {status}: check {'`headers`' if status in {401, 403} else '`url`'}"
        case MCPError():
            return error.message
    return f"{type(error).__name__}: {error}"
