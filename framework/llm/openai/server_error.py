"""The error that a server reports in a response or in an event of a stream."""

from __future__ import annotations

from collections.abc import Mapping


class ServerError(Exception):
    """A response or an event that reports an error.

    Args:
        message: what the server says, or that there is an error.
        body: the value of `error` in its JSON, the whole JSON without one, or its text.
        status: the HTTP status; None for an event of a stream.
        headers: the header of the response, with names in lower case or in a case-insensitive mapping.
    """

    def __init__(
        self, message: str, body: object, *, status: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.body = body
        self.status = status
        self.headers: Mapping[str, str] = headers or {}

    @property
    def code(self) -> str | None:
        """The server's own code of the error, if there is one."""
        code = self.body.get("code") if isinstance(self.body, Mapping) else None
        return code if isinstance(code, str) else None
