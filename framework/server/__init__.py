"""The HTTP API: `router(runtime)` mounts into any FastAPI app, `agentsd serve` runs it as a server.

In reading order; each module imports only from those below it:

    process           `agentsd serve`: runs a runtime and its HTTP server until a signal stops them.
    worker            `agentsd worker`: executes queued and interrupted runs until a signal stops it.
    console           `/` and `/console/…`: the web page for people, from the static files of `framework/console`.
    routes            The router with all routes of a runtime.
    operations_api    `/health`, `/ready`, `/metrics`, and what a server tells of itself: identity, processes, events.
    agui              `/agui`: runs of agents for user interfaces that speak AG-UI.
    acp               `agentsd acp`: agents in editors that speak the Agent Client Protocol.
    a2a               `/a2a`: runs as tasks of other agents, by the protocol A2A.
    mcp               `/mcp` and `agentsd mcp`: agents as tools of other programs.
    conversation_api  `/conversations`: lists, shows and deletes conversations.
    usage_api         `/usage`: runs, tokens, cost, latency and errors over time, by agent, model and more.
    approvals_api     `/approvals`: lists what runs wait for, and what was decided.
    runs_api          `/chat` and `/runs`: starts, lists, shows, follows, decides and cancels runs.
    logins_api        `/logins` and `/oauth/callback`: people log in at tool servers with a browser.
    replay_api        `/runs/{run_id}/files`, `/test-case` and `/replay`: what a run ran on, and how to repeat it.
    openai            `/v1`: agents as models for OpenAI's clients.
    run_schemas       The bodies of requests and answers about runs and conversations.
    run_service       Starts, follows, continues and cancels runs for an identity, of its own data only.
    config_api        `/config`: the live configuration, its history, and rollbacks.
    files_api         `/config/files` and `/config/check`: the project's files, a check of edits, and edits.
    agents_api        `/agents`: the agents that are available, and what each of them may do.
    keyed_responses   Repetitions of requests with an `Idempotency-Key`: they get the first one's response.
    openapi           `/openapi.json`: describes the routes, with an example for each body.
    event_stream      Server-sent events: heartbeats, clients that leave or do not read, the events of the project.
    request_handling  Applies to every route: access, limits of bodies, strict JSON, paging, error responses, metrics.
    key_limits        Limits of each key: requests that start runs, runs in progress, and open event streams.
    identity          The identity of a client: key, tenant, user, agents, roles; who may enter without a key.
    startup           Starts and stops a server or worker, and the work that it does beside requests.
    listen_socket     Binds the socket of the server, and explains why an address is not available.
    stdio             Standard input and output as the connection to one client.
    protocol_texts    Why a run has no answer, and what it asks, for clients that only show text.
    schemas           The request and response bodies of the routes. Secrets are redacted before they are sent.
    errors            The errors of the API, and their JSON: `{"error": {"code", "type", "message", "param"}}`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from framework.server.errors import AccessDenied, Unauthenticated
    from framework.server.identity import Identity
    from framework.server.routes import router

__all__ = ["AccessDenied", "Identity", "Unauthenticated", "router"]

_MODULES = {"AccessDenied": "errors", "Identity": "identity", "Unauthenticated": "errors", "router": "routes"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'framework.server' has no attribute {name!r}")
    return getattr(import_module(f"framework.server.{_MODULES[name]}"), name)
