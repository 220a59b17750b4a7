"""What a caller may say about one run, and how it becomes the run's first state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from framework.config.agents.compile import Agent
from framework.config.generations.generation import Generation
from framework.engine.runtime.options import RunOptions, require_type
from framework.llm.message_formats import Form, imported
from framework.llm.openai_format import revalidate_call
from framework.types.confirmation_kinds import CONFIRMATION_KINDS
from framework.types.errors import RequestError
from framework.types.messages import Message, ToolCall
from framework.types.spec import Limits, ModelSettings
from framework.types.state import Approve, Confirmation, Decision, Edit, Reject, Respond, RunState
from framework.types.text import did_you_mean, fix_surrogates
from framework.types.transcript import MAX_MESSAGE_CHARS, is_unicode

T = TypeVar("T", Limits, ModelSettings)
_MAX_INPUTS_CHARS = 256 * 1024
"""Of a request's variables, as JSON: more than a rendered prompt may have, for templates also choose from them."""


_STORED_OPTIONS = ("inputs", "metadata", "model_settings", "locale")
"""Options that go on record as they are given."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks for a run, a conversation, or the data stored with it."""

    user: str | None = None
    tenant: str | None = None
    single_user: bool = False
    """The host has one user only: without a user, or tenant, what belongs to any of them may be seen."""

    def can_access(self, user: str | None, tenant: str | None) -> bool:
        """Whether data of this user and tenant may be seen; data without an owner needs an asker without one."""
        return self._matches(self.user, user) and self._matches(self.tenant, tenant)

    def _matches(self, given: str | None, owner: str | None) -> bool:
        return given == owner or (given is None and self.single_user)


RUNTIME_CALLER = Caller(single_user=True)
"""The runtime itself, when it resumes interrupted runs and those whose questions have expired."""


def initial_state(message: str, agent: Agent, generation: Generation, locale: str, options: RunOptions) -> RunState:
    """The state a run starts from; raises RequestError for options that do not fit the agent."""
    if not message.strip():
        raise RequestError("the message is empty")
    if len(message) > MAX_MESSAGE_CHARS:
        raise RequestError(f"the message has {len(message)} characters; at most {MAX_MESSAGE_CHARS} are taken")
    for what, given in {"message": message, **{name: options.get(name) for name in _STORED_OPTIONS}}.items():
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
        model=options.get("model"),
        limits=run_limits(agent.spec.runtime_policy, options),
        model_settings=_override(
            agent.spec.model_settings, ModelSettings, options.get("model_settings") or {}, "model_settings"
        ),
        output_schema=output_type.model_json_schema() if output_type else agent.spec.output_schema,
        history=_history(history, agent) if history else [],
        messages=[Message(role="user", content=message)],
    )


def run_limits(policy: Limits, options: RunOptions) -> Limits:
    """Return the limits of a run: an agent's, with those the caller gives in their place; raises RequestError."""
    return _override(policy, Limits, options.get("limits") or {}, "limits")


def _inputs(agent: Agent, given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        inputs = agent.inputs.model_validate(dict(given), strict=True)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise RequestError("; ".join(_input_problem(detail, agent) for detail in details)) from None
    if (size := len(inputs.model_dump_json())) > _MAX_INPUTS_CHARS:
        raise RequestError(f"inputs of {agent.name!r}: {size} characters; at most {_MAX_INPUTS_CHARS} are taken")
    return inputs.model_dump()


def _input_problem(detail: ErrorDetails, agent: Agent) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    place = f"input {name!r} of agent {agent.name!r}"
    match detail["type"]:
        case "missing":
            return f"{place} is missing: give inputs={{{name!r}: …}}, or -i {name}=VALUE on the command line"
        case "extra_forbidden":
            return f"unknown {place}{did_you_mean(name, list(agent.spec.inputs))}"
        case _:
            return f"{place}: {detail['msg']}"


def _override(base: T, model: type[T], changes: Mapping[str, Any], what: str) -> T:
    if not changes:
        return base
    known = {name: getattr(base, name) for name in model.model_fields}
    if unknown := [name for name in changes if name not in known]:
        raise RequestError(f"{what}: there is no {unknown[0]!r}{did_you_mean(unknown[0], list(known))}")
    try:
        return model.model_validate({**known, **changes})
    except ValidationError as error:
        raise RequestError(f"{what}: {_sentences(error)}") from None


def _history(messages: Sequence[Any], agent: Agent) -> list[Message]:
    """Read earlier messages, our own or in OpenAI's form; an agent's instructions are never taken from a history."""
    given = [m.model_dump() if isinstance(m, Message) else m for m in messages]
    form: Form = "openai" if any(map(_is_openai, given)) else "messages"
    read = imported(given, form, agent.toolset.definitions, what="history")
    return [message for message in read if message.role != "system"]


def _is_openai(message: object) -> bool:
    """Return whether a message has a form that OpenAI's chat completions allow and ours does not."""
    if not isinstance(message, Mapping):
        return False
    content, called = message.get("content", ""), message.get("tool_calls")
    functions = isinstance(called, list) and any(isinstance(call, Mapping) and "function" in call for call in called)
    return functions or content is None or isinstance(content, list) or message.get("role") == "developer"


def _sentences(error: ValidationError) -> str:
    details = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(str(part) for part in detail['loc'])}: {detail['msg']}" for detail in details)


def check_decisions(pending: Sequence[Confirmation], decisions: Mapping[str, Decision]) -> None:
    """Refuse decisions that do not answer what is asked; raises RequestError."""
    for asked in pending:
        match decisions.get(asked.id):
            case Respond(text=text) if asked.choices and text not in asked.choices:
                raise RequestError(f"{asked.id}: not one of its choices ({', '.join(asked.choices)}): {text!r}")
            case Respond(text=text) if asked.kind == "ask_user" and not text.strip():
                raise RequestError(f"{asked.id}: the answer is empty")
            case Approve() | Edit() if not CONFIRMATION_KINDS[asked.kind].can_approve:
                raise RequestError(f"{asked.id}: it is a question: respond with an answer, or reject it")


def storable_decisions(decisions: Mapping[str, Decision]) -> dict[str, Decision]:
    """Return decisions as a store can keep them.

    Raises:
        RequestError: one is not a decision, or the arguments of an edit cannot be stored.
    """
    require_type("decisions", decisions, Mapping)
    kept: dict[str, Decision] = {}
    for key, decision in decisions.items():
        match decision:
            case Edit(arguments=arguments):
                if problem := revalidate_call(ToolCall(id=key, tool="", arguments=arguments)).invalid:
                    raise RequestError(f"the edit of {key}: {problem}")
                kept[key] = decision
            case Respond(text=text):
                kept[key] = Respond(text=fix_surrogates(text))
            case Reject(reason=reason):
                kept[key] = Reject(reason=fix_surrogates(reason))
            case Approve():
                kept[key] = decision
            case _:
                given = type(decision).__name__
                raise RequestError(f"decision of {key}: expected Approve, Edit, Reject or Respond, got {given}")
    return kept
