"""The routes of one runtime, in one router; a module for each kind of resource."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter

from framework.engine.runtime.runtime import Runtime
from framework.server.access import AccessCheck, access_check
from framework.server.agents_api import add_agent_routes
from framework.server.config_api import add_config_routes
from framework.server.event_feed import ConfigFeed
from framework.server.events_api import add_event_routes
from framework.server.request_handling import guarded_route

_PREFIX = "/agent"


def router(runtime: Runtime, *, guarded: bool = True) -> APIRouter:
    """The routes below `/agent`, for `app.include_router`.

    Args:
        runtime: what they serve. It must be open for as long as the app is.
        guarded: ask for one of `server.api_keys`, or without any for a client on this machine. If false, the app that
            the router is part of decides who may ask.
    """
    feed = ConfigFeed()
    runtime.catalog.subscribe(feed.add)
    return build_routes(runtime, feed, runtime_access_check(runtime) if guarded else _allow_all)


def build_routes(runtime: Runtime, feed: ConfigFeed, admit: AccessCheck) -> APIRouter:
    """The same, with a feed that whoever made it can close."""
    made = APIRouter(
        prefix=_PREFIX, route_class=guarded_route(admit, lambda: runtime.settings.telemetry.inbound), tags=["agentsd"]
    )
    add_agent_routes(made, runtime)
    add_config_routes(made, runtime)
    add_event_routes(made, feed, admit)
    return made


def runtime_access_check(runtime: Runtime) -> AccessCheck:
    """By the keys of the runtime's settings, as they are at each request."""
    return access_check(lambda: runtime.settings.server.api_keys)


def _allow_all(headers: Mapping[str, str], client: str | None) -> None:
    """The app around the routes has decided."""
