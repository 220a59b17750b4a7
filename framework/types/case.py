"""Cases beside an agent, as typed data: what is said to it, how its model answers, and what must come of it.

A file `agents.d/NAME.test.yaml` holds cases of the agent `NAME`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

from framework.types.frozen import Frozen, check_version
from framework.types.plan import PlanDraft
from framework.types.spec import AgentName, PositiveInt, Regex, ToolPattern
from framework.types.state import Approve, Decision, Edit, Reject, Respond

SUB_AGENT_PREFIX = "agent."
Text = Annotated[str, StringConstraints(min_length=1)]


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _only_one(model: Frozen, *names: str) -> None:
    """Raise ValueError unless exactly one of these keys is written."""
    written = [name for name in names if getattr(model, name) is not None]
    if len(written) != 1:
        found = f"; there are {' and '.join(written)}" if written else ""
        raise ValueError(f"write exactly one of {', '.join(names)}{found}")


def _some(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("at least one is needed")
    return values


Texts = Annotated[tuple[Text, ...], BeforeValidator(_listed, json_schema_input_type=Text | tuple[Text, ...])]
Tools = Annotated[
    tuple[ToolPattern, ...], BeforeValidator(_listed, json_schema_input_type=ToolPattern | tuple[ToolPattern, ...])
]


class ScriptedCall(Frozen):
    """The model asks for one tool."""

    call: Text
    """The tool's name."""
    arguments: dict[str, Any] = {}
    """Its arguments."""


class ScriptedAnswer(Frozen):
    """One answer of the model, in the order in which it is asked."""

    call: Text | None = None
    """It asks for this tool."""
    arguments: dict[str, Any] = {}
    """The arguments of `call`."""
    calls: Annotated[tuple[ScriptedCall, ...], AfterValidator(_some)] | None = None
    """It asks for several tools at once."""
    say: Text | None = None
    """It says this; in a run without a plan that is the answer."""
    plan: PlanDraft | None = None
    """It proposes this plan."""
    fail: Text | None = None
    """The provider fails with this message."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> ScriptedAnswer:
        _only_one(self, "call", "calls", "say", "plan", "fail")
        if self.call is None and "arguments" in self.model_fields_set:
            raise ValueError("`arguments` belongs beside `call`")
        return self

    @property
    def tool_calls(self) -> tuple[ScriptedCall, ...]:
        """The tools it asks for."""
        return self.calls or ((ScriptedCall(call=self.call, arguments=self.arguments),) if self.call else ())


class Failure(Frozen):
    """The tool fails, and the model is told this."""

    fail: Text
    """What the model is told."""


def _text_or_failure(value: Any) -> str:
    return "text" if isinstance(value, str) else "failure"


ToolAnswer = Annotated[
    Annotated[str, Tag("text")] | Annotated[Failure, Tag("failure")], Discriminator(_text_or_failure)
]
ToolAnswers = Annotated[
    tuple[ToolAnswer, ...],
    BeforeValidator(_listed, json_schema_input_type=ToolAnswer | tuple[ToolAnswer, ...]),
    AfterValidator(_some),
]


class LongDecision(Frozen):
    """What the human says, with words of their own."""

    reject: Text | None = None
    """No, and why."""
    respond: Text | None = None
    """No; take this text as the result. A plan is made anew with it in mind."""
    edit: dict[str, Any] | None = None
    """Yes, with these arguments; for a plan: this plan."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> LongDecision:
        _only_one(self, "reject", "respond", "edit")
        return self


def _short_or_long(value: Any) -> str:
    return "short" if isinstance(value, str) else "long"


CaseDecision = Annotated[
    Annotated[Literal["approve", "reject"], Tag("short")] | Annotated[LongDecision, Tag("long")],
    Discriminator(_short_or_long),
]


def to_decision(written: CaseDecision) -> Decision:
    """A decision as the runtime takes it."""
    if isinstance(written, str):
        return Approve() if written == "approve" else Reject()
    if written.edit is not None:
        return Edit(arguments=written.edit)
    return Respond(text=written.respond) if written.respond is not None else Reject(reason=written.reject or "")


class Expect(Frozen):
    """What must come of a case. Tools are names or globs; an empty list means: none at all."""

    offered: Tools | None = None
    """The model is offered these tools, among others."""
    not_offered: Tools | None = None
    """It is offered none of these."""
    called: Tools | None = None
    """These tools are called in this order; others may be called between them."""
    called_exactly: Tools | None = None
    """These tools are called in this order, and no others."""
    not_called: Tools | None = None
    """None of these is called. A call that was denied, rejected or waits was not made."""
    arguments: dict[ToolPattern, dict[str, Any]] = {}
    """By tool: one of its calls, made or asked for, has these arguments among others; texts may be globs."""
    denied: Tools | None = None
    """Calls of these tools are refused, by a rule or by a human."""
    asked: Tools | None = None
    """A human is asked about these tools; `plan` is the plan itself."""
    plan: Tools | None = None
    """The last plan has these steps in this order, others between them: names of tools, or ids of steps."""
    output: Texts | None = None
    """The last answer contains these texts."""
    output_matches: Regex | None = None
    """A regular expression that is found in the last answer."""
    status: Literal["completed", "stopped", "paused", "cancelled", "failed"] | None = None
    """How the last run ends. Where neither this nor `finish_reason` is written, it must not fail."""
    finish_reason: Text | None = None
    """Why it ends: `final`, `confirmation`, the key of a limit, or an error's code."""
    max_steps_used: PositiveInt | None = None
    """It takes no more model turns than these."""


class Case(Frozen):
    """One case: a conversation with an agent, and what is expected of it."""

    name: Text
    """Unique in its file."""
    agent: AgentName | None = None
    """Whom it is about; missing: the agent that the file is named after."""
    message: Text | None = None
    """What the user says."""
    turns: Annotated[tuple[Text, ...], AfterValidator(_some)] | None = None
    """What the user says, turn by turn, in one conversation."""
    inputs: dict[str, Any] = {}
    """Values for the variables that the agent declares."""
    model: tuple[ScriptedAnswer, ...] | None = None
    """How the model answers; missing: the agent runs on `offline`."""
    results: dict[Text, ToolAnswers] = {}
    """What tools answer instead of being called: a text, `{fail: TEXT}`, or several one after the other."""
    decisions: dict[Text, CaseDecision] = {}
    """What a human decides, by the tool that is asked about (`plan` for the plan), or by the question's id."""
    expect: Expect = Expect()
    """What must come of it."""

    @model_validator(mode="after")
    def _says_something(self) -> Case:
        _only_one(self, "message", "turns")
        return self

    @field_validator("results")
    @classmethod
    def _no_sub_agents(cls, results: dict[str, tuple[str | Failure, ...]]) -> dict[str, tuple[str | Failure, ...]]:
        if agents := [name for name in results if name.startswith(SUB_AGENT_PREFIX)]:
            raise ValueError(f"{agents[0]} is a sub-agent: it takes its part in the case, script its answers")
        return results

    @property
    def messages(self) -> tuple[str, ...]:
        """What the user says, turn by turn."""
        return self.turns or ((self.message,) if self.message else ())


class CaseFile(Frozen):
    """A file of cases: `agents.d/NAME.test.yaml`."""

    version: Annotated[Literal[1], BeforeValidator(check_version)] = 1
    """Version of this file format."""
    cases: tuple[Case, ...]
    """Each is carried out by itself."""
