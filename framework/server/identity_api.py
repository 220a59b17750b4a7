"""`/me`: who the client of a request is, what it may do, and what this server offers."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from framework.config.api_keys import ROLES, Role
from framework.engine.runtime.runtime import Runtime
from framework.server.identity import Identity, identity_of, requires
from framework.server.request_handling import verbatim_response
from framework.server.schemas import ResponseModel
from framework.types.version import installed_version


class ClientLimits(ResponseModel):
    """The limits of a key. None: no limit."""

    rate: str | None = None
    """Requests that start or continue a run, such as `60/m`."""
    max_running: int | None = None
    """Runs that are queued or in progress."""


class ServerFeatures(ResponseModel):
    """What the server offers."""

    version: str
    allow_edit: bool
    """Whether keys with the role `admin` may edit the project's files."""
    stored: bool
    """Whether runs outlive the server's process."""


class Me(ResponseModel):
    """The client of a request."""

    name: str
    """Name of the key, `local` without keys, or `full-access`."""
    user: str | None
    """User of all its runs. None: each request names one."""
    tenant: str | None
    roles: tuple[Role, ...]
    agents: tuple[str, ...] | None
    """The agents that it may use. None: all."""
    limits: ClientLimits
    server: ServerFeatures

    @classmethod
    def of(cls, identity: Identity, runtime: Runtime) -> Me:
        """Return the client with this identity."""
        features = ServerFeatures(
            version=installed_version(),
            allow_edit=runtime.settings.server.allow_edit,
            stored=runtime.store.durable,
        )
        return cls(
            name=identity.name,
            user=identity.user,
            tenant=identity.tenant,
            roles=tuple(role for role in ROLES if role in identity.roles),
            agents=identity.agents,
            limits=ClientLimits(rate=identity.rate and str(identity.rate), max_running=identity.max_running),
            server=features,
        )


def add_identity_routes(routes: APIRouter, runtime: Runtime) -> None:
    """Add `/me`."""

    @routes.get("/me", response_model=Me, dependencies=[requires(*ROLES)])
    async def show_identity(request: Request) -> Response:
        """Return the identity of the client: its roles, agents and limits, and what the server offers."""
        return verbatim_response(Me.of(identity_of(request), runtime))
