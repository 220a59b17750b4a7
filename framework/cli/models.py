"""`agentsd models`: what agentsd assumes of a model, from where, and whether its server agrees."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from framework.cli.location import PROJECT_OPTION, locate
from framework.cli.show import show_table
from framework.cli.terminal import print_json, say
from framework.config.overlay import SETTINGS_FILE
from framework.config.settings import ModelAlias, Settings
from framework.engine.context.run_context import ModelClients
from framework.llm.capabilities import Capabilities, Prices, known_rows, known_server
from framework.llm.client import ModelClient, ModelReply, ModelRequest, ProbingClient
from framework.llm.providers import OFFLINE, chosen_api, create_client
from framework.types.errors import EXIT_NEGATIVE, ModelError, RequestError
from framework.types.messages import Message, ToolCall, ToolDefinition
from framework.types.spec import ModelSettings

STRICTEST: Mapping[str, Any] = {
    "late_system": False,
    "repeated_roles": False,
    "parallel_calls": False,
    "call_ids": "short",
    "null_content": False,
}
"""The form of a conversation that every chat template accepts."""
_UNKNOWN = "unknown: strictest form"
_MAX_TOKENS = 1000
_WORD = "KIWI"
_TOOL = ToolDefinition(
    name="get_number",
    description="Return the number of the day.",
    parameters={"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]},
)
_SYSTEM = Message(role="system", content="You are a helpful assistant. Answer in one short sentence.")
_QUESTION = Message(role="user", content="What is the number of Monday? Call get_number.")
_LONG_ID = "call_0123456789abcdefghijklmn"
_NO_CALL = "set `protocol: json` in the agent's file, or see docs/models.md for the server's flags"


@dataclass(frozen=True, slots=True)
class _Probe:
    """A request that deviates from the strictest form in one point."""

    name: str
    messages: tuple[Message, ...]
    field: str = ""
    """The capability that permits the deviation; empty if there is none."""
    permitted: Any = True
    tools: tuple[ToolDefinition, ...] = (_TOOL,)
    word: str = ""
    """A text that the answer contains if the model has read everything."""


def _calling(*ids: str, content: str = "I look it up.") -> tuple[Message, ...]:
    """Return a conversation with a turn of calls and their results."""
    calls = tuple(ToolCall(id=each, tool=_TOOL.name, arguments={"day": "Monday"}) for each in ids)
    results = (Message(role="tool", tool_call_id=each, content="7") for each in ids)
    return (_SYSTEM, _QUESTION, Message(role="assistant", content=content, tool_calls=calls), *results)


_GREETING = Message(role="user", content="Say hello.")
_PROBES = (
    _Probe("plain", (_SYSTEM, _GREETING), tools=()),
    _Probe(
        "late system message",
        (_SYSTEM, _GREETING, Message(role="system", content=f"Answer with the single word {_WORD}.")),
        "late_system",
        tools=(),
        word=_WORD,
    ),
    _Probe("parallel calls", _calling("abcdefgh1", "abcdefgh2"), "parallel_calls"),
    _Probe("long call ids", _calling(_LONG_ID), "call_ids", permitted="any"),
    _Probe("null content", _calling("abcdefgh1", content=""), "null_content"),
    _Probe("tool call", (_SYSTEM, _QUESTION)),
)


@click.group("models")
def command() -> None:
    """Show what is assumed of a model, and check it."""


@command.command("check")
@click.argument("model")
@PROJECT_OPTION
@click.option("--live", is_flag=True, help="Send up to six small requests, and compare.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def check(model: str, project: str, live: bool, as_json: bool) -> int:
    """Show what agentsd assumes of MODEL, an alias or provider/model, and where each value comes from.

    Without --live nothing is sent. Exit codes: 0, or 1 if the model does not answer or accepts less than assumed.
    """
    settings = locate(project).settings()
    ModelClients({}).require_known(settings, model)
    alias = settings.models.get(model) or ModelAlias.model_construct(model=model)
    if alias.model == OFFLINE:
        raise RequestError("offline is a rule-based stand-in: nothing is assumed of it")
    api = chosen_api(alias.model, base_url=alias.base_url, api=alias.api, capabilities=alias.capabilities)
    assumed = [*_assumptions(model, alias, settings, has_form=api == "chat")]
    outcomes = asyncio.run(_outcomes(alias, dict(row[:2] for row in assumed), has_form=api == "chat")) if live else []
    if as_json:
        rows = [{"name": name, "value": _data(value), "source": source} for name, value, source in assumed]
        data = {"model": alias.model, "server": _server(alias), "assumed": rows, "live": outcomes}
        print_json(data)
    else:
        click.echo(f"{alias.model} at {_server(alias)}")
        show_table(("assumption", "value", "source"), [(name, _text(value), source) for name, value, source in assumed])
        _show_outcomes(outcomes)
    return EXIT_NEGATIVE if any(not outcome["holds"] for outcome in outcomes) else 0


def _server(alias: ModelAlias) -> str:
    provider = alias.model.partition("/")[0]
    if alias.base_url is None:
        return f"the server of {provider}"
    known = known_server(alias.base_url)
    return f"{alias.base_url} (the server of {known})" if known else f"{alias.base_url} (not a known provider's)"


def _assumptions(name: str, alias: ModelAlias, settings: Settings, *, has_form: bool) -> Iterator[tuple[str, Any, str]]:
    """Yield each capability that is known or has a strictest value, with its value and its source."""
    rows = [*known_rows(alias.model, alias.base_url)]
    own = alias.capabilities if name in settings.models else None
    for field in Capabilities.model_fields:
        if field in STRICTEST and not has_form:
            continue  # only chat templates have a form
        if own is not None and (value := getattr(own, field)) is not None:
            yield field, value, f"{SETTINGS_FILE}: models.{name}.capabilities"
        elif row := next((row for row in reversed(rows) if getattr(row.known, field) is not None), None):
            yield field, getattr(row.known, field), f"{row.source} ({row.as_of}, {row.pattern})"
        elif field in STRICTEST:
            yield field, STRICTEST[field], _UNKNOWN


def _data(value: Any) -> Any:
    return value.model_dump(exclude_none=True) if isinstance(value, Prices) else value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value)
    return json.dumps(_data(value)) if isinstance(value, Prices) else str(value)


# --- requests to the server


async def _outcomes(alias: ModelAlias, assumed: Mapping[str, Any], *, has_form: bool) -> list[dict[str, Any]]:
    """Send the requests and return what each shows; only the first one if that fails."""
    outcomes: list[dict[str, Any]] = await _reported(alias, assumed)
    first = len(outcomes)
    for probe in _PROBES:
        if probe.field and not has_form:
            continue
        outcomes.append(await _outcome(probe, alias, assumed))
        if not outcomes[first]["holds"]:
            break
    return outcomes


async def _reported(alias: ModelAlias, assumed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a local server itself says about the model, such as its context window, compared with the file."""
    client = _client(alias, None)
    known = client.info.capabilities
    try:
        if isinstance(client, ProbingClient):
            await client.probe()
        reported = client.info.capabilities
    finally:
        await client.close()
    outcomes = []
    for field in Capabilities.model_fields:
        value, expected = getattr(reported, field), assumed.get(field)
        if value == getattr(known, field):
            continue
        outcome = {"request": field, "holds": expected is None or expected <= value, "note": f"the server says {value}"}
        if expected not in (None, value):
            outcome["write"] = {field: value}
        outcomes.append(outcome)
    return outcomes


def _client(alias: ModelAlias, capabilities: Capabilities | None) -> ModelClient:
    return create_client(
        alias.model,
        base_url=alias.base_url,
        api_key=alias.key_text,
        api=alias.api,
        capabilities=capabilities,
        stream=alias.stream,
        environ=os.environ,
        **alias.options,
    )


async def _outcome(probe: _Probe, alias: ModelAlias, assumed: Mapping[str, Any]) -> dict[str, Any]:
    form = {**STRICTEST, **({probe.field: probe.permitted} if probe.field else {})}
    capabilities = (alias.capabilities or Capabilities()).model_copy(update=form)
    client = _client(alias, capabilities)
    try:
        reply = await _reply(client, probe)
    except ModelError as error:
        if error.error_type == "empty_answer":
            return _judged(probe, assumed, accepted=True, note="accepted, with an empty answer")
        return _judged(probe, assumed, accepted=False, note=error.message)
    finally:
        await client.close()
    if probe.name == "tool call" and not reply.message.tool_calls:
        return {"request": probe.name, "holds": False, "note": f"the model called no tool: {_NO_CALL}"}
    if probe.word and probe.word not in reply.message.content.upper():
        return _judged(probe, assumed, accepted=False, note="accepted, but the model did not follow it")
    return _judged(probe, assumed, accepted=True, note="accepted")


def _judged(probe: _Probe, assumed: Mapping[str, Any], *, accepted: bool, note: str) -> dict[str, Any]:
    """Return the outcome of a request; with the line to write if it differs from what was assumed."""
    if not probe.field:
        return {"request": probe.name, "holds": accepted, "note": note}
    permitted = assumed[probe.field] == probe.permitted
    outcome: dict[str, Any] = {"request": probe.name, "holds": accepted or not permitted, "note": note}
    if accepted != permitted:
        right = probe.permitted if accepted else STRICTEST[probe.field]
        outcome["write"] = {probe.field: right}
    return outcome


async def _reply(client: ModelClient, probe: _Probe) -> ModelReply:
    request = ModelRequest(messages=probe.messages, tools=probe.tools, settings=ModelSettings(max_tokens=_MAX_TOKENS))
    reply: ModelReply | None = None
    async for delta in client.stream(request):
        reply = delta.reply or reply
    if reply is None:
        raise ModelError("the answer was cut off")
    return reply


def _show_outcomes(outcomes: list[dict[str, Any]]) -> None:
    if not outcomes:
        return
    click.echo()
    for outcome in outcomes:
        state = "does not hold" if not outcome["holds"] else "accepts more" if outcome.get("write", {}) else "holds"
        colour = "red" if not outcome["holds"] else "yellow" if "write" in outcome else "green"
        click.secho(f"{state:14}", fg=colour, nl=False)
        say(f"{outcome['request']}: {outcome['note']}")
    lines = {name: value for outcome in outcomes for name, value in outcome.get("write", {}).items()}
    if lines:
        click.echo("\nWrite at the alias in agentsd.yaml:\n\n    capabilities:")
        for name, value in lines.items():
            click.echo(f"      {name}: {str(value).lower()}")
