"""Requires a role for a route.

A route declares the role that it needs with `requires`, in its decorator or as a parameter, and loads data only for
the identity that `identity_of` returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Depends, Request

from framework.config.api_keys import Role
from framework.server.errors import AccessDenied
from framework.server.identity import Identity, identity_of


def require(identity: Identity, *roles: Role, all_agents: bool = False) -> None:
    """Raise AccessDenied unless the identity has one of the roles and, with `all_agents`, may use every agent."""
    if identity.roles.isdisjoint(roles):
        needed = " or ".join(map(repr, roles))
        raise AccessDenied(f"the key {identity.name!r} lacks the role {needed}, which this request needs")
    if all_agents and identity.agents is not None:
        raise AccessDenied(f"the key {identity.name!r} is limited to some agents; this request concerns all of them")


@dataclass(frozen=True, slots=True)
class RoleRequired:
    """The dependency behind `requires`. Tests find the role of each route by it."""

    roles: tuple[Role, ...]
    """Roles of which one is enough."""
    all_agents: bool = False

    async def __call__(self, request: Request) -> Identity:
        """Return the identity of the request; raise AccessDenied if it has none of the roles."""
        identity = identity_of(request)
        require(identity, *self.roles, all_agents=self.all_agents)
        return identity


def requires(*roles: Role, all_agents: bool = False) -> Any:
    """Return a dependency of a route that needs a role. Its value is the `Identity`.

    Args:
        roles: the role; of several, one is enough.
        all_agents: deny access to keys that are limited to some agents, because the route concerns the whole project.
    """
    return Depends(RoleRequired(roles, all_agents))
