"""What a caller may say about one run, and how it becomes the run's first state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from pydantic import BaseModel, ValidationError

from framework.config.compile import Agent
from framework.config.generation import Generation
from framework.llm.chat import read_again, repair
from framework.llm.forms import imported
from framework.types.errors import RequestError, did_you_mean
from framework.types.messages import Message, ToolCall
from framework.types.spec import Limits, ModelSettings
from framework.types.state import Decision, Edit, Reject, Respond, RunState
from framework.types.strict_json import read_json
from framework.types.transcript import MAX_MESSAGE_CHARS, is_unicode

T = TypeVar("T", Limits, ModelSettings)
MAX_ID_CHARS = 200
"""Of a conversation, a user, a tenant."""
MAX_INPUTS_CHARS = 256 * 1024
"""Of a request's variables, as JSON: more than a rendered prompt may have, for templates also choose from them."""


WRITTEN = ("inputs", "metadata", "model_settings", "locale")
"""Options that go on record as they are given."""


class RunOptions(TypedDict, total=False):
    """Everything about a run that is not its message; all of it may be left out."""

    agent: str | None
    """Which agent; otherwise the router chooses."""
    conversation: str | None
    """Go on with the conversation of this id; an unknown id begins one."""
    history: Sequence[Message | Mapping[str, Any]] | str | None
    """Earlier messages, such as `RunResult.messages`, or as JSON text; not together with `conversation`."""
    inputs: Mapping[str, Any] | None
    """Values for the variables that the agent declares."""
    limits: Mapping[str, Any] | None
    """Limits other than the agent's, by their key, e.g. `{"max_steps": 3}`."""
    model_settings: Mapping[str, Any] | None
    """Sampling options other than the agent's."""
    base_path: str | Path | None
    """Where file tools work; otherwise the process's `tools.base_path`."""
    locale: str | None
    user: str | None
    tenant: str | None
    metadata: Mapping[str, Any] | None
    """Passed to tools as it is."""
    output_type: type[BaseModel] | None
    """What the answer's data must be; otherwise the agent's `output_schema`."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks for a run; what is given must be the run's own."""

    user: str | None = None
    tenant: str | None = None

    def may_see(self, user: str | None, tenant: str | None) -> bool:
        """Is what belongs to these theirs?"""
        return self.user in (None, user) and self.tenant in (None, tenant)


def first_state(message: str, agent: Agent, generation: Generation, locale: str, options: RunOptions) -> RunState:
    """The state a run starts from; raises RequestError for options that do not fit the agent."""
    if not message.strip():
        raise RequestError("the message is empty")
    if len(message) > MAX_MESSAGE_CHARS:
        raise RequestError(f"the message has {len(message)} characters; at most {MAX_MESSAGE_CHARS} are taken")
    for what, given in {"message": message, **{name: options.get(name) for name in WRITTEN}}.items():
        if given and not is_unicode(json.dumps(given, ensure_ascii=False, default=str, skipkeys=True)):
            raise RequestError(f"the {what} is not Unicode text: it holds half a character")
    history = options.get("history")
    if history and options.get("conversation"):
        raise RequestError("give either history or a conversation, not both")
    base_path, output_type = options.get("base_path"), options.get("output_type")
    return RunState(
        agent=agent.name,
        generation=generation.number,
        digest=generation.digest,
        conversation_id=options.get("conversation"),
        conversation_ttl=agent.spec.conversation.ttl,
        user=options.get("user"),
        tenant=options.get("tenant"),
        locale=options.get("locale") or locale,
        inputs=_inputs(agent, options.get("inputs") or {}),
        metadata=dict(options.get("metadata") or {}),
        base_path=str(base_path) if base_path else None,
        limits=_changed(agent.spec.runtime_policy, Limits, options.get("limits") or {}, "limits"),
        model_settings=_changed(
            agent.spec.model_settings, ModelSettings, options.get("model_settings") or {}, "model_settings"
        ),
        output_schema=output_type.model_json_schema() if output_type else agent.spec.output_schema,
        history=[m for m in _history(history) if m.role != "system"] if history else [],
        messages=[Message(role="user", content=message)],
    )


def check_names(options: RunOptions) -> None:
    """Names that no store could keep are refused; raises RequestError."""
    named = {"conversation": options.get("conversation"), "user": options.get("user"), "tenant": options.get("tenant")}
    for name, value in named.items():
        if value is not None and not (value.isprintable() and len(value) <= MAX_ID_CHARS):
            raise RequestError(f"{name}: at most {MAX_ID_CHARS} printable characters are expected")


def _inputs(agent: Agent, given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        inputs = agent.inputs.model_validate(dict(given), strict=True)
    except ValidationError as error:
        raise RequestError(f"inputs of {agent.name!r}: {_sentences(error)}") from None
    if (size := len(inputs.model_dump_json())) > MAX_INPUTS_CHARS:
        raise RequestError(f"inputs of {agent.name!r}: {size} characters; at most {MAX_INPUTS_CHARS} are taken")
    return inputs.model_dump()


def _changed(base: T, model: type[T], changes: Mapping[str, Any], what: str) -> T:
    if not changes:
        return base
    known = {name: getattr(base, name) for name in model.model_fields}
    if unknown := [name for name in changes if name not in known]:
        raise RequestError(f"{what}: there is no {unknown[0]!r}{did_you_mean(unknown[0], list(known))}")
    try:
        return model.model_validate({**known, **changes})
    except ValidationError as error:
        raise RequestError(f"{what}: {_sentences(error)}") from None


def _history(history: Sequence[Message | Mapping[str, Any]] | str) -> list[Message]:
    try:
        given = read_json(history) if isinstance(history, str) else list(history)
    except ValueError as error:
        raise RequestError(f"history: not JSON: {error}") from None
    if isinstance(given, list):
        given = [m.model_dump() if isinstance(m, Message) else m for m in given]
    return imported(given, "messages", what="history")


def _sentences(error: ValidationError) -> str:
    details = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(str(part) for part in detail['loc'])}: {detail['msg']}" for detail in details)


def kept_decisions(decisions: Mapping[str, Decision]) -> dict[str, Decision]:
    """Decisions as they can be stored and read again; raises RequestError for arguments that cannot."""
    kept: dict[str, Decision] = {}
    for key, decision in decisions.items():
        match decision:
            case Edit(arguments=arguments):
                if problem := read_again(ToolCall(id=key, tool="", arguments=arguments)).invalid:
                    raise RequestError(f"the edit of {key}: {problem}")
                kept[key] = decision
            case Respond(text=text):
                kept[key] = Respond(text=repair(text))
            case Reject(reason=reason):
                kept[key] = Reject(reason=repair(reason))
            case _:
                kept[key] = decision
    return kept
