"""Who sends a request: keys, roles, who may enter without a key, and the limits of each key."""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from hmac import compare_digest
from math import floor
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request
from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from framework.config.api_keys import ROLES, ApiKey, Rate, Role, key_digest, text_digest
from framework.config.settings import ServerSettings
from framework.server.errors import AccessDenied, RateLimited, ServerBusy, TooManyRuns, TooManyStreams, Unauthenticated
from framework.store.types import RunQuery
from framework.types.errors import AgentNotFound, RequestError
from framework.types.http import is_loopback

if TYPE_CHECKING:
    from framework.store.store import Store


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
    client_tools: bool = False
    """Whether its requests may bring tools of their own to agents whose file does not allow them."""
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
            client_tools=key.client_tools,
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


def scope_of(identity: Identity, user: str | None = None) -> dict[str, Any]:
    """Return the filters of a query for what exists for an identity, and belongs to a user if one is given."""
    return {
        "user": identity.user_of(user),
        "tenant": identity.tenant,
        "without_tenant": identity.tenant is None and not identity.single_user,
        "agents": identity.agents,
    }


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


Admin = Annotated[Identity, requires("admin")]
AnyRole = Annotated[Identity, requires(*ROLES)]
Chatter = Annotated[Identity, requires("chat")]
Decider = Annotated[Identity, requires("decide")]
Reader = Annotated[Identity, requires("read")]
RunReader = Annotated[Identity, requires("read", "chat")]
ProjectAdmin = Annotated[Identity, requires("admin", all_agents=True)]
ProjectReader = Annotated[Identity, requires("read", all_agents=True)]
_OTHER_SITE = (
    "requests from web pages of other sites are refused; set server.api_keys and send a key, or add the page's origin "
    "to server.cors_origins"
)
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+))(?::[0-9]{1,5})?")
"""A Host header: an address or a name, and a port. URL parsers accept more, and disagree with each other."""
_KEY_PARAMETERS = ("key", "api_key", "apikey", "api-key", "token", "access_token")
"""Names under which clients put keys into URLs."""


def access_check(
    keys: Callable[[], tuple[SecretStr | ApiKey, ...]], origins: Callable[[], Collection[str]] = tuple
) -> Identify:
    """Return a check that calls `keys` and `origins` for each request, so that edits of them apply immediately.

    Args:
        keys: returns `server.api_keys`.
        origins: returns `server.cors_origins`, whose pages have access like programs of this machine.
    """
    ring = _KeyRing(())

    def check(connection: HTTPConnection) -> Identity:
        nonlocal ring
        current = keys()
        if not current:
            _check_local(connection.headers, connection.client.host if connection.client else None, origins())
            return LOCAL
        if ring.keys is not current:
            ring = _KeyRing(current)
        return ring.identity_of(connection)

    return check


class _KeyRing:
    """The digests of all keys, with their identities."""

    def __init__(self, keys: tuple[SecretStr | ApiKey, ...]) -> None:
        self.keys = keys
        self._identities = [
            (key_digest(key), Identity.of_key(key) if isinstance(key, ApiKey) else FULL_ACCESS) for key in keys
        ]

    def identity_of(self, connection: HTTPConnection) -> Identity:
        """Return the identity whose key a request sends; raise Unauthenticated if it sends none of them."""
        sent = connection.headers.getlist("authorization")
        if len(sent) > 1:
            raise Unauthenticated("the request has several Authorization headers: send one, with `Bearer KEY`")
        scheme, _, credential = (sent[0] if sent else "").partition(" ")
        digest = text_digest(credential.strip(" "))
        found: Identity | None = None
        for key, identity in self._identities:  # all are compared: the time does not depend on which one matches
            found = identity if compare_digest(digest, key) else found
        if scheme.lower() == "bearer" and found is not None:
            return found
        if not sent and any(name.lower() in _KEY_PARAMETERS for name in connection.query_params):
            raise Unauthenticated(
                "keys in the URL are not accepted, because URLs are logged: send the key in the header Authorization"
            )
        raise Unauthenticated(
            "missing or invalid key: send `Bearer KEY` in the header Authorization, with a key of this server"
        )


def _check_local(headers: Headers, client: str | None, origins: Collection[str]) -> None:
    """Raise AccessDenied unless the client is a program on this machine. Web pages of other origins are refused."""
    if client is None or not is_loopback(client):
        raise AccessDenied("requests from other machines are refused because server.api_keys is not set")
    host = headers.get("host", "")
    if len(headers.getlist("host")) > 1 or not _names_loopback(host):
        raise AccessDenied("the Host header names another machine; use 127.0.0.1 or localhost, or set server.api_keys")
    origin = headers.get("origin")
    if origin in origins and len(headers.getlist("origin")) == 1:
        return
    if len(headers.getlist("origin")) > 1 or (origin is not None and origin.partition("://")[2] != host):
        raise AccessDenied(_OTHER_SITE)
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):  # images and forms send no Origin
        raise AccessDenied(_OTHER_SITE)


def _names_loopback(host: str) -> bool:
    match = _HOST.fullmatch(host)
    return match is not None and is_loopback(match[1] or match[2])


# Everything is counted in this process: servers that share a store limit a key separately, and a restart starts at
# zero.


MAX_BODIES_BYTES = 16 * 1024 * 1024
"""Limit of the request bodies in progress, in all requests together."""
SMALL_BODY_BYTES = 32 * 1024
"""Size up to which a body does not count for it."""
_MAX_IDLE_NAMES = 1000
"""Names for which requests are remembered, before those without a recent one are forgotten."""
_RETRY_SECONDS = 5
"""`Retry-After` where the end of a run or stream must be awaited, whose time is unknown."""


class RateWindow:
    """Admits at most `rate.count` requests in any period of `rate.seconds`."""

    def __init__(self, rate: Rate, earlier: RateWindow | None = None) -> None:
        """Create a window. `earlier` is that of another rate, whose requests count in this one too."""
        self.rate = rate
        self._times: deque[float] = deque(earlier._times if earlier else ())

    def admit(self, now: float) -> int:
        """Count a request and return 0, or return after how many whole seconds the next one is admitted."""
        while self._times and self._times[0] + self.rate.seconds <= now:
            self._times.popleft()
        if len(self._times) < self.rate.count:
            self._times.append(now)
            return 0
        return floor(self._times[len(self._times) - self.rate.count] + self.rate.seconds - now) + 1

    def withdraw(self, at: float) -> None:
        """Count the request that was admitted at this time no more: it was refused, and started nothing."""
        with suppress(ValueError):  # it counts no more
            self._times.remove(at)

    def is_idle(self, now: float) -> bool:
        """Return whether no request counts any more."""
        return not self._times or self._times[-1] + self.rate.seconds <= now


@dataclass(slots=True)
class _Runs:
    """The runs of one key."""

    starting: int = 0
    """Requests that are about to start a run."""
    started: set[str] = field(default_factory=set)
    """Runs that had not ended when they were last compared with the store."""


class BodiesInFlight:
    """Limits the memory of the request bodies that are being received or parsed, in all requests together.

    Parsed data takes several times as much memory, and a process without memory does nothing well.
    """

    def __init__(self, limit: int = MAX_BODIES_BYTES) -> None:
        self._limit, self._size = limit, 0

    def grow(self, before: int, after: int) -> None:
        """Count a body that has grown; raise ServerBusy at the limit. Small ones, such as messages, do not count."""
        more = _counted(after) - _counted(before)
        if more and self._size + more > self._limit:
            raise ServerBusy("the server handles other large requests: try again in a few seconds")
        self._size += more

    def end(self, size: int) -> None:
        """Stop counting a body of this size."""
        self._size -= _counted(size)


def _counted(size: int) -> int:
    return size if size > SMALL_BODY_BYTES else 0


class KeyLimits:
    """Counts the requests, runs and streams of each key, by the name of its identity, and bodies of all together."""

    def __init__(self, store: Store, settings: ServerSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._windows: dict[str, RateWindow] = {}
        self._runs: dict[str, _Runs] = {}
        self._streams: Counter[str] = Counter()
        self.bodies = BodiesInFlight()

    def check_rate(self, identity: Identity) -> float | None:
        """Count a request that starts or continues a run; raise RateLimited if the key may send none now.

        Returns the time for which it counts, if it counts.
        """
        if identity.rate is None:
            return None
        now, window = self._clock(), self._windows.get(identity.name)
        if window is None or window.rate != identity.rate:
            self._forget_idle(now)
            window = self._windows[identity.name] = RateWindow(identity.rate, window)
        if seconds := window.admit(now):
            raise RateLimited(f"the key {identity.name!r} sends too many requests: retry in {seconds} s", seconds)
        return now

    @asynccontextmanager
    async def starting(self, identity: Identity) -> AsyncIterator[Callable[[str], object]]:
        """Admit a request that starts or continues a run. The caller passes the run's id to the yielded function.

        If the context ends with an error, nothing was started, and the request does not count for the rate.

        Raises:
            RateLimited: the key may send no request now.
            TooManyRuns: as many of its runs as it may have are queued or in progress.
            StoreError: the store fails.
        """
        counted_at = self.check_rate(identity)
        try:
            async with self._counting_run(identity) as started:
                yield started
        except BaseException:
            if counted_at is not None and (window := self._windows.get(identity.name)) is not None:
                window.withdraw(counted_at)
            raise

    @asynccontextmanager
    async def _counting_run(self, identity: Identity) -> AsyncIterator[Callable[[str], object]]:
        """Count a run of the key while it starts, and from then on; see `starting`."""
        if identity.max_running is None:
            yield lambda run_id: None  # noqa: ARG005 - nothing counts these runs
            return
        runs = self._runs.setdefault(identity.name, _Runs())
        if runs.starting + len(runs.started) >= identity.max_running:
            await self._forget_ended(runs, identity)
        if runs.starting + len(runs.started) >= identity.max_running:
            raise TooManyRuns(
                f"the key {identity.name!r} has {identity.max_running} runs queued or in progress: retry when one ends",
                _RETRY_SECONDS,
            )
        runs.starting += 1
        try:
            yield runs.started.add
        finally:
            runs.starting -= 1

    def admit_stream(self, identity: Identity) -> ExitStack:
        """Count a stream from now on, before its run is started. The returned context ends the count.

        The caller passes `pop_all()` of the context to the response, which closes it when the stream ends.

        Raises:
            TooManyStreams: the server has as many open streams as it may have.
            RateLimited: the key has.
        """
        if self._streams.total() >= self._settings.max_streams:
            raise TooManyStreams(f"too many event streams: {self._settings.max_streams} are open (server.max_streams)")
        if self._streams[identity.name] >= self._settings.max_streams_per_key:
            message = f"the key {identity.name!r} has {self._settings.max_streams_per_key} event streams open"
            raise RateLimited(f"{message} (server.max_streams_per_key): close one", _RETRY_SECONDS)
        self._streams[identity.name] += 1
        admitted = ExitStack()
        admitted.callback(self._end_stream, identity.name)
        return admitted

    def _end_stream(self, name: str) -> None:
        self._streams[name] -= 1
        if not self._streams[name]:
            del self._streams[name]

    async def _forget_ended(self, runs: _Runs, identity: Identity) -> None:
        """Forget the runs that have ended or paused. The store knows: no counter can miss how a run ends."""
        known = frozenset(runs.started)
        query = RunQuery(statuses=("queued", "running"), tenant=identity.tenant)
        runs.started -= known - {info.run_id for info in await self._store.runs(query)}

    def _forget_idle(self, now: float) -> None:
        if len(self._windows) >= _MAX_IDLE_NAMES:
            self._windows = {name: window for name, window in self._windows.items() if not window.is_idle(now)}
