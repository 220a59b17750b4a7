"""The router with all routes of a runtime, each resource in its own module."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import HTTPConnection

from framework.config.overlay import settings_source
from framework.config.settings import unset_key_problems
from framework.engine.runtime.runtime import Runtime
from framework.server.agents_api import add_agent_routes
from framework.server.event_stream import ConfigFeed, OpenStreams
from framework.server.files_api import add_config_routes, add_file_routes
from framework.server.grants_api import add_grant_routes
from framework.server.identity import FULL_ACCESS, Identify, Identity, access_check
from framework.server.key_limits import KeyLimits
from framework.server.logins_api import add_login_routes
from framework.server.openai.v1_routes import v1_routes
from framework.server.openapi import DEFAULT_RESPONSE, add_openapi_route
from framework.server.operations_api import add_event_routes, add_fleet_routes, add_identity_routes
from framework.server.protocol_routes import add_a2a_routes, add_agui_routes, add_mcp_routes
from framework.server.replay_api import add_replay_routes
from framework.server.request_handling import CHAT_BODY_BYTES, CONFIG_BODY_BYTES, KeyedResponses, guarded_route
from framework.server.run_service import RunService
from framework.server.runs_api import add_approval_routes, add_chat_routes, add_conversation_routes, add_run_routes
from framework.server.usage_api import add_usage_routes
from framework.types.errors import ConfigError

_PREFIX = "/agent"


def router(runtime: Runtime, *, guarded: bool = True, identify: Identify | None = None) -> APIRouter:
    """Return the routes below `/agent`, `/v1`, `/agui`, `/mcp` and `/a2a`, for `app.include_router`.

    Args:
        runtime: the runtime to serve. It must stay open as long as the app runs.
        guarded: require one of `server.api_keys` or, if there are none, a client on this machine. If False, the app
            must check access itself; every request that reaches the routes has full access.
        identify: the app's own access check, in place of `guarded`: returns the `Identity` of a request, or raises
            AccessDenied or Unauthenticated. It is called for each request, and again while a stream is open.
    """
    feed = ConfigFeed()
    runtime.catalog.subscribe(feed.add)
    return build_routes(runtime, feed, identify or (runtime_access_check(runtime) if guarded else _allow_all))


def build_routes(
    runtime: Runtime, feed: ConfigFeed, identify: Identify, streams: OpenStreams | None = None
) -> APIRouter:
    """Return the routes.

    Args:
        runtime: the runtime to serve.
        feed: the configuration events. The caller closes it to end the streams of events.
        identify: the access check.
        streams: the streams of runs. The caller closes them to end the open ones.
    """

    def routes_of(tag: str, max_body_bytes: int, prefix: str = _PREFIX) -> APIRouter:
        inbound = lambda: runtime.settings.telemetry.inbound  # noqa: E731 - read at each request
        route = guarded_route(identify, inbound, max_body_bytes, limits.bodies)
        return APIRouter(
            prefix=prefix,
            route_class=route,
            tags=[tag],
            responses=DEFAULT_RESPONSE,
            generate_unique_id_function=lambda added: added.name,
        )

    limits = KeyLimits(runtime.store, runtime.settings.server)
    service = RunService(runtime, limits, streams or OpenStreams())
    keyed = KeyedResponses()
    runs, config = routes_of("runs", CHAT_BODY_BYTES), routes_of("configuration", CONFIG_BODY_BYTES)
    add_chat_routes(runs, service)
    add_run_routes(runs, service, keyed)
    add_approval_routes(runs, runtime)
    add_grant_routes(runs, runtime)
    public = APIRouter()
    add_login_routes(runs, public, runtime)
    add_replay_routes(runs, service, keyed)
    add_conversation_routes(runs, runtime, keyed)
    add_usage_routes(runs, runtime)
    add_identity_routes(config, runtime)
    add_agent_routes(config, runtime)
    add_config_routes(config, runtime, keyed)
    add_fleet_routes(config, runtime)
    files = routes_of("configuration", CHAT_BODY_BYTES)
    add_file_routes(files, runtime)
    add_event_routes(config, feed, limits, service.streams)
    protocols = routes_of("protocols", CHAT_BODY_BYTES, "")
    add_agui_routes(protocols, service)
    add_mcp_routes(protocols, service)
    add_a2a_routes(protocols, service)
    add_openapi_route(config, [*runs.routes, *config.routes, *files.routes, *protocols.routes])
    router = APIRouter()
    for part in (public, runs, config, files, protocols, v1_routes(service, identify)):
        router.routes.extend(part.routes)  # complete; `include_router` would build each of them again
    return router


def runtime_access_check(runtime: Runtime) -> Identify:
    """Return an access check that uses the live `server.api_keys` at each request.

    Raises:
        ConfigError: a variable of `server.api_keys` is not set.
    """
    current = runtime.catalog.current
    if problems := unset_key_problems(current.settings, settings_source(current.files)):
        raise ConfigError(f"{problems[0].path} is invalid", problems)
    return access_check(lambda: runtime.settings.server.api_keys, lambda: runtime.settings.server.cors_origins)


def _allow_all(connection: HTTPConnection) -> Identity:  # noqa: ARG001 - all access checks share a signature
    """Accept every request: the app around the routes checks access."""
    return FULL_ACCESS
