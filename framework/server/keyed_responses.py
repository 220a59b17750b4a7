"""Repetitions of requests with an `Idempotency-Key` on routes that start no run: they get the first one's response.

The keys of requests that start a run are in the store, with the run. What these routes change is safe to repeat, or
belongs to one process, so that the responses are kept in memory: a decision is made once, and a rollback is of the
process that got it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header
from starlette.requests import Request
from starlette.responses import Response

from framework.server.identity import identity_of
from framework.server.schemas import Printable
from framework.types.errors import IdempotencyConflict
from framework.types.strict_json import bytes_digest, content_digest

IdempotencyHeader = Annotated[
    Printable | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="A repetition within 24 hours returns the same run, or the same response.",
    ),
]
_SECONDS = 24 * 60 * 60.0
_MAX_KEYS = 1000
_MAX_BYTES = 256 * 1024
"""Size of a response from which it is not kept: the request is then handled again."""


@dataclass(frozen=True, slots=True)
class _Kept:
    digest: str
    """Digest of the request."""
    at: float
    response: asyncio.Future[Response]


class KeyedResponses:
    """The responses of the latest requests with a key."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._kept: dict[tuple[object, ...], _Kept] = {}

    async def once(self, request: Request, key: str | None, handle: Callable[[], Awaitable[Response]]) -> Response:
        """Return the response of `handle`, or that of an earlier request with the same key, body and path.

        Raises:
            IdempotencyConflict: the client used the key for a different request.
        """
        if key is None:
            return await handle()
        place = (*identity_of(request).owner, key)
        digest = content_digest(f"{request.method} {request.url.path} {bytes_digest(await request.body())}")
        earlier = self._kept.get(place)
        if earlier is not None and earlier.at > self._now() - _SECONDS:
            if earlier.digest != digest:
                raise IdempotencyConflict(
                    f"Idempotency-Key {key[:40]!r} was used for a different request: send a new key"
                )
            return _copy(await asyncio.shield(earlier.response))
        kept = _Kept(digest, self._now(), asyncio.get_running_loop().create_future())
        self._remember(place, kept)
        try:
            response = await handle()
        except BaseException as error:
            self._forget(place, kept)
            kept.response.set_exception(error if isinstance(error, Exception) else RuntimeError("the client left"))
            kept.response.exception()  # read, because usually nobody waits for it
            raise
        if response.status_code >= 400 or len(bytes(response.body)) > _MAX_BYTES:
            self._forget(place, kept)
        kept.response.set_result(response)
        return _copy(response)

    def _remember(self, place: tuple[object, ...], kept: _Kept) -> None:
        self._kept.pop(place, None)
        self._kept[place] = kept
        if len(self._kept) > _MAX_KEYS:
            del self._kept[next(iter(self._kept))]

    def _forget(self, place: tuple[object, ...], kept: _Kept) -> None:
        if self._kept.get(place) is kept:
            del self._kept[place]


def _copy(response: Response) -> Response:
    """Return a response with the same content: the layers around a route change the headers of theirs."""
    copied = Response(response.body, response.status_code)
    copied.raw_headers = [*response.raw_headers]
    return copied
