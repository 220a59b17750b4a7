"""The identity of a client: its tenant and user, its agents and roles, and its limits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from framework.config.api_keys import ROLES, ApiKey, Rate, Role
from framework.server.errors import AccessDenied
from framework.types.errors import AgentNotFound, RequestError

_STATE_KEY = "agentsd_access"

Identify = Callable[[HTTPConnection], "Identity"]
"""Returns the identity of a request's client. Raises Unauthenticated or AccessDenied if it has no access."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A client of the API, and what it may do."""

    name: str
    """Name of the key, or `local` or `full-access`. Limits count the requests of one name together."""
    tenant: str | None = None
    """Tenant of all its runs and conversations."""
    user: str | None = None
    """User of all its runs and conversations. None: requests name the user, and see those of all users."""
    agents: tuple[str, ...] | None = None
    """Agents that it may use. None: all."""
    roles: frozenset[Role] = frozenset(ROLES)
    rate: Rate | None = None
    """Limit on requests that start or continue a run."""
    max_running: int | None = None
    """Limit on its runs that are queued or in progress."""
    single_user: bool = False
    """Whether it can access the data of all tenants: the server has one owner, who has all rights."""

    @classmethod
    def of_key(cls, key: ApiKey) -> Identity:
        """Return the identity of an entry of `server.api_keys`."""
        return cls(
            name=key.name,
            tenant=key.tenant,
            user=key.user,
            agents=key.agents,
            roles=frozenset(key.roles),
            rate=Rate.parse(key.rate) if key.rate else None,
            max_running=key.max_running,
        )

    @property
    def owner(self) -> tuple[str, str | None, str | None]:
        """Whose data this is: names are unique in `server.api_keys`, but an app may give one to all of its users."""
        return (self.name, self.tenant, self.user)

    @property
    def rights(self) -> tuple[object, ...]:
        """What it may see and do, without its name and limits."""
        return (self.tenant, self.user, self.agents, self.roles, self.single_user)

    def may_use(self, agent: str) -> bool:
        """Return whether an agent exists for this identity."""
        return self.agents is None or agent in self.agents

    def can_access(self, *, tenant: str | None, user: str | None, agent: str | None = None) -> bool:
        """Return whether data of this tenant, user and, for runs, agent exists for this identity."""
        is_own = self.single_user or (tenant == self.tenant and self.user in (None, user))
        return is_own and (agent is None or self.may_use(agent))

    def user_of(self, requested: str | None) -> str | None:
        """Return the user of a new run: the identity's own or, if it has none, the one that the request names."""
        return requested if self.user is None else self.user


ROUTER_NAME = "auto"
"""Stands for the router where a protocol needs the name of an agent, unless an agent has this name."""
LOCAL = Identity("local", single_user=True)
"""A program on this machine, on a server without keys."""
FULL_ACCESS = Identity("full-access", single_user=True)
"""A client whose key is plain text in `server.api_keys`, or that an app around the routes has admitted."""


@dataclass(frozen=True, slots=True)
class _Access:
    """The identity of a request, and the check that found it."""

    identify: Identify
    identity: Identity


def check_access(identify: Identify, connection: HTTPConnection) -> Identity:
    """Return the identity of a request's client, and attach it to the request, where `identity_of` finds it.

    Raises:
        Unauthenticated, AccessDenied: the client has no access.
    """
    identity = identify(connection)
    setattr(connection.state, _STATE_KEY, _Access(identify, identity))
    return identity


def identity_of(connection: HTTPConnection) -> Identity:
    """Return the identity of a request's client; raise AccessDenied if no access check has attached one."""
    return _access_of(connection).identity


def is_current(connection: HTTPConnection) -> bool:
    """Return whether the client still has the rights of its identity. Streams end if its key was removed or changed."""
    access = _access_of(connection)
    try:
        return access.identify(connection).rights == access.identity.rights
    except RequestError:
        return False


def _access_of(connection: HTTPConnection) -> _Access:
    access = getattr(connection.state, _STATE_KEY, None)
    if not isinstance(access, _Access):
        raise AccessDenied("the request has no identity: no access check has admitted it")
    return access


def agent_named(name: str, known: Collection[str]) -> str | None:
    """Return the agent that a client of another protocol names, or None for `auto`, which leaves it to the router."""
    return None if name == ROUTER_NAME and ROUTER_NAME not in known else name


def agent_for(identity: Identity, requested: str | None, known: Collection[str]) -> str | None:
    """Return the agent of a new run, or None if the router chooses it, which it does for unrestricted identities only.

    Args:
        identity: the client.
        requested: the agent that the request names.
        known: the agents that exist.

    Raises:
        AgentNotFound: the identity may not use the agent. The error is that of an unknown agent.
        RequestError: the request names no agent, and the identity may use several.
    """
    if identity.agents is None:
        return requested
    agents = [name for name in identity.agents if name in known]
    if requested is None and len(identity.agents) != 1:
        message = f"agent: the key {identity.name!r} is limited to some agents; name one: {', '.join(agents)}"
        raise RequestError(message, param="agent")
    chosen = identity.agents[0] if requested is None else requested
    if chosen not in agents:
        raise AgentNotFound(chosen, agents)
    return chosen
