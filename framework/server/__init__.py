"""The HTTP API: `router(runtime)` mounts into any FastAPI app, `agentsd serve` runs it as a server.

In reading order; each module imports only from those below it:

    process            `agentsd serve`: a runtime and its HTTP server until a signal stops them, with the web page.
    routes             The router with all routes of a runtime, those of AG-UI, MCP and A2A, and `/openapi.json`.
    agui               `/agui`: runs of agents for user interfaces that speak AG-UI.
    agui_events        Events of a run as events of AG-UI.
    acp                `agentsd acp`: agents in editors that speak the Agent Client Protocol.
    a2a                `/a2a`: runs as tasks of other agents, by the protocol A2A.
    mcp                `/mcp` and `agentsd mcp`: agents as tools of other programs.
    openai_api         `/v1`: agents as models for OpenAI's clients, in chat completions and the Responses API.
    openai_answer      The answer of a run to such a client: its texts as they arrive, and how it ended.
    openai_request     What such a client asks for, read from the body of either API.
    runs_api           `/chat` and `/runs`: starts runs, and shows, follows, continues, cancels and rates them.
    replay_api         `/runs/{run_id}/files`, `/test-case` and `/replay`: what a run ran on, and how to repeat it.
    approvals_api      `/approvals` and `/grants`: what waits for people, what they decided, and what is remembered.
    conversations_api  `/conversations` and `/memory`: what agents keep.
    agents_api         `/agents`: the agents that are available, and what each of them may do.
    files_api          `/config`: the live configuration, its history, the files of the project, and edits.
    callbacks_api      `/hooks`, `/triggers`, `/logins`, `/oauth/callback`: what starts or continues runs from outside.
    operations_api     `/health`, `/ready`, `/metrics`, `/me`, `/fleet`, `/events` and `/usage`.
    request_handling   Applies to every route: access, limits, strict JSON, paging, errors, metrics, repeated requests.
    run_service        Starts, follows, continues and cancels runs for an identity, of its own data only.
    event_stream       Server-sent events: heartbeats, clients that leave or do not read, the events of the project.
    schemas            What bodies are made of, and those that the command line reads, too.
    identity           Who sends a request: key, tenant, user, agents, roles; and the limits of each key.
    startup            Starts and stops a server, worker or connection over stdio, and the work beside requests.
    protocol_texts     Why a run has no answer, and what it asks, for clients that only show text.
    errors             The errors of the API, and their JSON: `{"error": {"code", "type", "message", "param"}}`.
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
