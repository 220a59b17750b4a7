"""Tools that clients execute themselves: which are offered to the model, and the results that later requests bring.

A call that is returned to its client has an id that contains the run. The results are decisions on what the run waits
for, so that any process can continue it, and a repeated result changes nothing.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from framework.config.agents.compile import Agent
from framework.server.openai.client_request import ClientRequest
from framework.store.types import OPEN_STATUSES
from framework.tools.toolset import CLIENT
from framework.types.errors import RequestError
from framework.types.messages import Message, ToolDefinition
from framework.types.state import CLIENT_RESULT, ClientTools, Confirmation, Decision, Reject, Respond, RunState
from framework.types.strict_json import canonical_call, content_digest
from framework.types.text import fix_surrogates

MAX_CLIENT_TOOLS = 128
"""Number of tools of one request that are offered: providers accept no more."""
_MAX_LISTED = 20
_RUN = "run_"
_CALL_ID = re.compile(r"call_([A-Za-z0-9_-]{22})[0-9a-f]{12}")
_RESPONSE_ID = re.compile(r"resp_([0-9a-f]{32})(?:_[0-9]{1,12})?")
_OTHERS = "agents call the tools of their own files"


class UnknownCall(RequestError):
    """No run waits for the result of a call: it was never made, or belongs to another tenant."""

    code = "unknown_call"


class HistoryChanged(RequestError):
    """The messages before the calls are not those that the run began with."""

    code = "history_changed"


class PreviousResponseNotFound(RequestError):
    """No stored response has the id."""

    code = "previous_response_not_found"


# --- what is offered


def offered_tools(
    asked: ClientRequest, agents: Sequence[Agent], key: str, history: str
) -> tuple[ClientTools | None, tuple[str, ...]]:
    """Return the tools of a request that are offered to the model, and the fields that are ignored.

    Args:
        asked: the request.
        agents: the agent that answers, or all from which the router chooses.
        key: name of the API key, if it allows the client's tools.
        history: digest of the messages, if the request with results repeats them.

    Raises:
        RequestError: a tool is invalid or has the name of one of the agent's own, there are too many, or a call is
            required that nothing allows.
    """
    names = [str(tool.get("name")) for tool in asked.tools]
    allowed = {name for name in names if _is_allowed(name, agents, key)}
    if not allowed:
        if asked.is_call_required:
            advice = "name the function whose arguments are the answer, or leave tool_choice out"
            raise RequestError(
                f"tool_choice: required with {len(names)} functions: {_OTHERS}: {advice}", param="tool_choice"
            )
        return (ClientTools(stored=True) if asked.is_stored else None), asked.ignored
    offered = [tool for tool in asked.tools if str(tool.get("name")) in allowed]
    if len(offered) > MAX_CLIENT_TOOLS:
        raise RequestError(f"tools: {len(offered)} functions; at most {MAX_CLIENT_TOOLS} are accepted", param="tools")
    if len(allowed) < len(offered):
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"tools: two functions are named {twice!r}", param="tools")
    if len(agents) == 1:
        _refuse_own_names(allowed, agents[0])
    left_out = [f"tools.{name}" for name in dict.fromkeys(names) if name not in allowed and name.isascii()]
    others = [field for field in asked.ignored if field != "tools"]
    client = ClientTools(
        tools=tuple(map(_declared, offered)),
        required=asked.is_call_required,
        key=key,
        history=history,
        stored=asked.is_stored,
    )
    return client, (*others, *left_out[:_MAX_LISTED])


def _is_allowed(name: str, agents: Iterable[Agent], key: str) -> bool:
    """Return whether a rule of some agent, or the key, allows a client's tool, and no rule of that agent denies it."""
    full = f"{CLIENT}{name}"
    toolsets = (agent.toolset for agent in agents)
    return any((key or toolset.client_rule(full)) and not toolset.unconditional_deny(full) for toolset in toolsets)


def _refuse_own_names(names: Iterable[str], agent: Agent) -> None:
    own = {tool.definition.wire_name: tool.name for tool in agent.toolset.tools.values()}
    for name in names:
        if taken := own.get(name) or (name if name in agent.toolset.tools else None):
            raise RequestError(
                f"tools: the agent {agent.name!r} has a tool named {name!r} itself ({taken}): rename the function",
                param="tools",
            )


def _declared(function: Mapping[str, Any]) -> ToolDefinition:
    description, parameters = function.get("description"), function.get("parameters")
    if not isinstance(parameters, Mapping | None) or not isinstance(description, str | None):
        name = str(function.get("name"))
        expected = "expected a text as the description, and a JSON Schema of an object as the parameters"
        raise RequestError(f"tools: {name:.80}: {expected}", param="tools")
    schema = {"type": "object", "properties": {}, **(parameters or {})}
    return ToolDefinition(name=str(function.get("name")), description=description or "", parameters=schema)


# --- ids


def client_call_id(run_id: str, confirmation_id: str) -> str:
    """Return the id of a call for its client: 39 characters, which contain the run. Providers accept 40."""
    run = urlsafe_b64encode(bytes.fromhex(run_id.removeprefix(_RUN))).decode().rstrip("=")
    return f"call_{run}{sha256(confirmation_id.encode()).hexdigest()[:12]}"


def run_of_call(call_id: str) -> str | None:
    """Return the id of the run that made a call; None for an id that no run gave."""
    found = _CALL_ID.fullmatch(call_id)
    return f"{_RUN}{urlsafe_b64decode(found[1] + '==').hex()}" if found else None


def run_of_calls(call_ids: Iterable[str]) -> str | None:
    """Return the run whose calls these are, or None if none of them is a call of a run.

    Raises:
        UnknownCall: they are not of one run.
    """
    runs = {run_of_call(call_id): call_id for call_id in call_ids}
    if len(runs) > 1:
        raise UnknownCall(f"the results are of calls of several runs, such as {[*runs.values()][-1]!r:.80}")
    return next(iter(runs), None)


def run_of_response(response_id: str) -> str:
    """Return the id of the run that a response is of; raises PreviousResponseNotFound."""
    if not (found := _RESPONSE_ID.fullmatch(response_id)):
        raise previous_not_found(response_id)
    return f"{_RUN}{found[1]}"


def previous_not_found(response_id: str) -> PreviousResponseNotFound:
    """Return the error for an id of no stored response."""
    advice = "only responses to requests with store: true are kept; or send the conversation, or X-Conversation-Id"
    return PreviousResponseNotFound(f"there is no response {response_id!r:.80}: {advice}", param="previous_response_id")


# --- what comes back


def history_digest(messages: Sequence[Message]) -> str:
    """Return the digest of a conversation up to its last message that is no text of the assistant.

    Clients repeat texts that preceded a call, or leave them out; nobody repeats reasoning and system messages exactly.
    """
    kept = list(messages)
    while kept and kept[-1].role == "assistant" and not kept[-1].tool_calls:
        kept.pop()
    lines = []
    for message in kept:
        calls = [f"{call.id} {canonical_call(call.tool, call.arguments)}" for call in message.tool_calls]
        files = [part.digest for part in message.media]
        lines.append(repr((message.role, message.content.strip(), files, calls, message.tool_call_id)))
    return content_digest("\n".join(lines))


def require_same_history(state: RunState, messages: Sequence[Message]) -> None:
    """Raise HistoryChanged unless messages repeat those of a run, its calls, and their results only."""
    begin = next(place for place, one in enumerate(messages) if _calls_of(state, one))
    is_same = (
        history_digest(messages[:begin]) == (state.client.history if state.client else "")
        and not any(message.role == "user" for message in messages[begin:])
        and all(run_of_call(call.id) == state.run_id for message in messages[begin:] for call in message.tool_calls)
    )
    if not is_same:
        advice = "send them unchanged, or leave the calls and their results out to ask anew"
        raise HistoryChanged(
            f"messages: those around the calls of run {state.run_id} are not the ones that it made them for: {advice}",
            param="messages",
        )


def results_in(state: RunState, messages: Iterable[Message]) -> dict[str, str]:
    """Return the results of calls of a run that messages contain, by the client's id of the call."""
    own = (message for message in messages if message.role == "tool" and message.tool_call_id)
    return {
        one.tool_call_id: one.content
        for one in own
        if one.tool_call_id and run_of_call(one.tool_call_id) == state.run_id
    }


def new_decisions(state: RunState, results: Mapping[str, str], param: str) -> dict[str, Decision]:
    """Return the decisions that results make; empty if the run has all of them already.

    Args:
        state: the run.
        results: texts by the client's id of the call.
        param: the field of the request that contains them.

    Raises:
        UnknownCall: the run did not make one of the calls.
        RequestError: a result is missing, or differs from an earlier one, or the run has ended without it.
    """
    asked, decisions = _confirmations(state), dict[str, Decision]()
    for call_id, text in results.items():
        confirmation_id = asked.get(call_id)
        made = state.decisions.get(confirmation_id) if confirmation_id else None
        given = Respond(text=fix_surrogates(text))
        if isinstance(made, Reject) or (confirmation_id is None and state.status not in OPEN_STATUSES):
            ended = "it waits no longer for the result: no result came in time, or it was ended"
            raise RequestError(f"{call_id}: run {state.run_id} is {state.status}; {ended}", param=param)
        if confirmation_id is None:
            raise UnknownCall(f"no run waits for the result of the call {call_id!r:.80}", param=param)
        if made is None:
            decisions[confirmation_id] = given
        elif made != given:
            raise RequestError(f"{call_id}: another result was accepted before this one", param=param)
    missing = [call_id for call_id, one in asked.items() if one not in decisions and one not in state.decisions]
    if decisions and missing:
        raise RequestError(f"the result of {missing[0]} is missing: send those of all calls together", param=param)
    return decisions


def pause_of(events: Iterable[Mapping[str, Any]], state: RunState, call_ids: Collection[str]) -> int:
    """Return the number of the event with which a run paused for these calls."""
    waiting, last = False, 0
    for event in events:
        if event.get("event") == "confirm_required":
            waiting = waiting or client_call_id(state.run_id, str(event.get("id"))) in call_ids
        elif event.get("event") == "done":
            last, waiting = (int(event["seq"]) if waiting else last), False
    return last


def _confirmations(state: RunState) -> dict[str, str]:
    """Return the ids of what a run waits, or has waited, for, by the client's id of the call."""
    ids = (*(one.id for one in state.pending if is_client_call(one)), *state.decisions)
    return {client_call_id(state.run_id, one): one for one in ids if one.endswith(CLIENT_RESULT)}


def is_client_call(asked: Confirmation) -> bool:
    """Return whether a run waits for the client to execute a tool."""
    return asked.kind == "client_tool"


def _calls_of(state: RunState, message: Message) -> bool:
    return any(run_of_call(call.id) == state.run_id for call in message.tool_calls)
