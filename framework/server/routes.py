"""The routes of one runtime, in one router; a module for each kind of resource."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter

from framework.engine.runtime.runtime import Runtime
from framework.server.access import Admit, admission
from framework.server.agents_api import add_agent_routes
from framework.server.config_api import add_config_routes
from framework.server.endpoint import endpoint
from framework.server.events_api import add_event_routes
from framework.server.feed import ConfigFeed

PREFIX = "/agent"


def router(runtime: Runtime, *, guarded: bool = True) -> APIRouter:
    """The routes below `/agent`, for `app.include_router`.

    Args:
        runtime: what they serve. It must be open for as long as the app is.
        guarded: ask for one of `server.api_keys`, or without any for a client on this machine. If false, the app that
            the router is part of decides who may ask.
    """
    feed = ConfigFeed()
    runtime.catalog.subscribe(feed.add)
    return routes(runtime, feed, admission_of(runtime) if guarded else _anybody)


def routes(runtime: Runtime, feed: ConfigFeed, admit: Admit) -> APIRouter:
    """The same, with a feed that whoever made it can close."""
    made = APIRouter(
        prefix=PREFIX, route_class=endpoint(admit, lambda: runtime.settings.telemetry.inbound), tags=["agentsd"]
    )
    add_agent_routes(made, runtime)
    add_config_routes(made, runtime)
    add_event_routes(made, feed, admit)
    return made


def admission_of(runtime: Runtime) -> Admit:
    """By the keys of the runtime's settings, as they are at each request."""
    return admission(lambda: runtime.settings.server.api_keys)


def _anybody(headers: Mapping[str, str], client: str | None) -> None:
    """The app around the routes has decided."""
