"""Recognizes requests that the openai SDK repeats by itself, because no answer arrived: they join the first one's run.

The SDK repeats a request after a timeout or a lost connection, and counts the attempts in a header, but it sends no
idempotency key. Without this, the run would be executed again. Requests are remembered by this process only.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from framework.server.identity import Identity
from framework.server.openai.run_answer import StartedRun
from framework.types.strict_json import bytes_digest

_MAX_REMEMBERED = 1000
"""Number of the latest requests whose repetitions are recognized."""
_ATTEMPT = "x-stainless-retry-count"
"""Header of the SDK with the number of earlier attempts."""
_THREAD_BYTES = 64 * 1024
"""Size of a body from which its digest is computed in a thread, because the event loop would wait for it."""
_IDENTIFYING = ("x-conversation-id", "x-openwebui-user-id")

RequestKey = tuple[str | None, ...]
"""What equal requests have in common: the owner, the route, headers and the digest of the body."""


class RepeatedRequests:
    """The runs of the latest requests."""

    def __init__(self) -> None:
        self._runs: dict[RequestKey, StartedRun] = {}

    async def first_run(self, request: Request, identity: Identity) -> tuple[RequestKey, StartedRun | None]:
        """Return the key of a request, and the run of the request that it repeats, if it is a repetition."""
        body = await request.body()
        digest = await asyncio.to_thread(bytes_digest, body) if len(body) > _THREAD_BYTES else bytes_digest(body)
        headers = [request.headers.get(name, "") for name in _IDENTIFYING]
        key = (*identity.owner, request.url.path, *headers, digest)
        if request.headers.get(_ATTEMPT, "0") == "0":
            self._runs.pop(key, None)  # the same words again: another run
        return key, self._runs.get(key)

    def remember(self, key: RequestKey, run: StartedRun) -> None:
        """Remember the run of a request; the oldest request is forgotten."""
        self._runs[key] = run
        if len(self._runs) > _MAX_REMEMBERED:
            del self._runs[next(iter(self._runs))]
