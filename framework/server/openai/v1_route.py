"""The route class of `/v1`: request ids, and failures that clients must not repeat."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


def with_request_ids(guarded: type[APIRoute]) -> type[APIRoute]:
    """Return a route class that adds the headers of OpenAI's API to every response of a guarded route."""

    class V1Route(guarded):  # type: ignore[misc,valid-type]  # the class is a parameter
        """A guarded route whose responses have `x-request-id`."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def handle_with_id(request: Request) -> Response:
                response: Response = await handle(request)
                sent = request.headers.get("x-request-id", "")
                request_id = sent if _REQUEST_ID.fullmatch(sent) else f"req_{uuid4().hex}"
                response.headers["x-request-id"] = request_id
                if response.status_code >= 500:
                    response.headers["x-should-retry"] = "false"
                return response

            return handle_with_id

    return V1Route
