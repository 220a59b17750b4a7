"""agentsd over HTTP: `router(runtime)` mounts into any FastAPI app, and `agentsd serve` is such an app.

In reading order; each module imports only from those below it:

    process       `agentsd serve`: a runtime and its server as one process, from the first signal to the last request.
    app           The app that `agentsd serve` serves: the routes of a runtime, and what load balancers ask.
    routes        The routes of one runtime, in one router; a module for each kind of resource.
    events_api    `/events`: what happens to the configuration, as server-sent events.
    config_api    `/config`: what is live, what was, what the files would do now, and the way back.
    agents_api    `/agents`: which agents there are.
    endpoint      What holds for every route, wherever it is mounted: who may ask, how much is read, how a failure ...
    feed          What happens to the configuration, for those who listen: numbered, and the last ones kept for ...
    listening     The socket that a server listens on: where, for whom, and what to say when that cannot be.
    access        Who may ask. With `server.api_keys` whoever shows one of them; without, only programs on this ...
    connections   Limits on connections: how many there are, how many one address has, and how long each may wait ...
    failures      What goes wrong with a request, as an answer: `{"error": {"code": …, "message": …}}` and a status.
    housekeeping  What a server does about runs that nobody asks for: left behind by a process that ended, waiting ...
    replies       What the server says, as data: the JSON of each route. Secrets are masked on the way out, by ...
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.server.routes import router

__all__ = ["router"]


def __getattr__(name: str) -> Any:
    if name != "router":
        raise AttributeError(f"module 'framework.server' has no attribute {name!r}")
    return import_module("framework.server.routes").router
