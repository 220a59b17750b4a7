"""The routes of the API, with the role that each needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from framework.server.identity import RoleRequired


@dataclass(frozen=True)
class ServerRoute:
    """A method of a route, and the roles that it needs: one, unless a test of them fails."""

    method: str
    path: str
    roles: tuple[RoleRequired, ...]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def server_routes(routes: Sequence[Any], prefix: str = "") -> Iterator[ServerRoute]:
    """Yield the routes of an app or router, including those of the routers that it includes."""
    for route in routes:
        if isinstance(route, APIRoute):
            roles = tuple(_roles(route.dependant))
            for method in sorted(route.methods or ()):
                yield ServerRoute(method, prefix + route.path, roles)
        else:
            inner = route.original_router  # FastAPI includes routers lazily
            yield from server_routes(inner.routes, prefix + route.include_context.prefix)


def _roles(dependant: Dependant) -> Iterator[RoleRequired]:
    for dependency in dependant.dependencies:
        if isinstance(dependency.call, RoleRequired):
            yield dependency.call
        yield from _roles(dependency)
