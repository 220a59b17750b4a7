"""Test cases of agents as typed data: messages, scripted model answers, and expectations.

A file `agents.d/NAME.test.yaml` contains the cases of the agent `NAME`. It may name files with more of them, one JSON
object per line.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

from framework.types.frozen import Duration, Frozen, check_version
from framework.types.plan import PlanDraft
from framework.types.spec import AgentName, PositiveInt, Regex, ToolPattern
from framework.types.state import Approve, Decision, Edit, Reject, Respond
from framework.types.text import DATA_SUFFIX

SUB_AGENT_PREFIX = "agent."
Text = Annotated[str, StringConstraints(min_length=1)]


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _is_below_root(path: str) -> str:
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or path.startswith("~"):
        raise ValueError("write a path below the project's folder, relative to it")
    return path


def _only_one(model: Frozen, *names: str) -> None:
    """Raise ValueError unless exactly one of these keys is set."""
    present = [name for name in names if getattr(model, name) is not None]
    if len(present) != 1:
        suffix = f"; found {' and '.join(present)}" if present else ""
        raise ValueError(f"write exactly one of {', '.join(names)}{suffix}")


def _some(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("at least one value is required")
    return values


Texts = Annotated[tuple[Text, ...], BeforeValidator(_listed, json_schema_input_type=Text | tuple[Text, ...])]
Tools = Annotated[
    tuple[ToolPattern, ...], BeforeValidator(_listed, json_schema_input_type=ToolPattern | tuple[ToolPattern, ...])
]


class ScriptedCall(Frozen):
    """A tool call in a scripted answer."""

    call: Text
    """Name of the tool."""
    arguments: dict[str, Any] = {}
    """Arguments of the call."""


class ScriptedAnswer(Frozen):
    """The scripted answer to one model call. Answers are used in order."""

    call: Text | None = None
    """Tool that the model calls."""
    arguments: dict[str, Any] = {}
    """Arguments of `call`."""
    calls: Annotated[tuple[ScriptedCall, ...], AfterValidator(_some)] | None = None
    """Several tools that the model calls in one turn."""
    say: Text | None = None
    """Text of the model's message. In a run without a plan, this is the answer."""
    plan: PlanDraft | None = None
    """Plan that the model proposes."""
    fail: Text | None = None
    """Message of a provider error that the model call fails with."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> ScriptedAnswer:
        _only_one(self, "call", "calls", "say", "plan", "fail")
        if self.call is None and "arguments" in self.model_fields_set:
            raise ValueError("`arguments` requires `call`")
        return self

    @property
    def tool_calls(self) -> tuple[ScriptedCall, ...]:
        """The tool calls of the answer."""
        return self.calls or ((ScriptedCall(call=self.call, arguments=self.arguments),) if self.call else ())


class Failure(Frozen):
    """A failure of a tool call."""

    fail: Text
    """Error message that the model receives."""


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
    """A decision with a text or edited arguments."""

    reject: Text | None = None
    """Reject the call, with this reason."""
    respond: Text | None = None
    """Do not execute the call; use this text as its result. A plan is revised with this text as feedback."""
    edit: dict[str, Any] | None = None
    """Approve the call with these arguments; for a plan, approve this plan instead."""

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
    """Convert a decision of a case file to the type that the runtime accepts."""
    if isinstance(written, str):
        return Approve() if written == "approve" else Reject()
    if written.edit is not None:
        return Edit(arguments=written.edit)
    return Respond(text=written.respond) if written.respond is not None else Reject(reason=written.reject or "")


class Judge(Frozen):
    """A model that reads the question and the answer of a case, and decides whether the answer meets a rubric."""

    rubric: Text
    """What a good answer does, such as `Names the amount and the order.`"""
    model: Text
    """The model that decides: an alias or `provider/model`, best another one than the agent's."""
    at_least: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the votes that must be `pass`. A vote that is `unsure`, or that fails, is not."""
    votes: Annotated[int, Field(ge=1, le=25)] = 1
    """How often the model is asked. One vote of a model is noisy."""


class Expect(Frozen):
    """Expectations of a case. Tools are names or globs; an empty list means none."""

    offered: Tools | None = None
    """Tools that the model is offered; others may be offered as well."""
    not_offered: Tools | None = None
    """Tools that the model is not offered."""
    called: Tools | None = None
    """Tools that are called in this order; other calls may come between them."""
    called_exactly: Tools | None = None
    """Tools that are called in this order, and no others."""
    called_in_any_order: Tools | None = None
    """Tools that are called, in any order; a tool that is listed twice is called twice. Other calls may be made."""
    not_called: Tools | None = None
    """Tools that are not called. Denied, rejected and pending calls do not count as calls."""
    arguments: dict[ToolPattern, dict[str, Any]] = {}
    """Arguments by tool. At least one requested call of the tool has these arguments; strings may be globs."""
    denied: Tools | None = None
    """Tools with a call that is denied by a rule or rejected by a person."""
    asked: Tools | None = None
    """Tools that need a person's decision; `plan` stands for the plan."""
    plan: Tools | None = None
    """Steps of the last plan in this order, as tool names or step ids; other steps may come between them."""
    output: Texts | None = None
    """Texts that the last answer contains."""
    output_matches: Regex | None = None
    """Regular expression that matches somewhere in the last answer."""
    status: Literal["completed", "stopped", "paused", "cancelled", "failed"] | None = None
    """Status of the last run. If neither `status` nor `finish_reason` is set, the run must not fail."""
    finish_reason: Text | None = None
    """Finish reason of the last run: `final`, `confirmation`, the key of a limit, or the code of an error."""
    max_steps_used: PositiveInt | None = None
    """Maximum number of model turns that the run uses."""
    max_calls: Annotated[int, Field(ge=0)] | None = None
    """Maximum number of tool calls of all turns, those of sub-agents included."""
    max_cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Maximum cost of all turns, in US dollars. A cost that is unknown exceeds every limit."""
    max_time: Duration | None = None
    """Maximum duration of the whole case, such as `20s`. A case that takes longer is stopped there."""
    judge: Judge | None = None
    """A model that must approve of the last answer."""

    def over(self, defaults: Expect) -> Expect:
        """Return these expectations with those of `defaults` that they do not state."""
        unset = defaults.model_fields_set - self.model_fields_set
        return self.model_copy(update={name: getattr(defaults, name) for name in unset}) if unset else self


Repeats = Annotated[int, Field(ge=1, le=1000)]


class Case(Frozen):
    """A test case: messages to an agent, and the expected outcome."""

    name: Text
    """Name of the case, unique in its file."""
    note: str = ""
    """Why the case exists, such as a person's comment on the answer. It is not checked."""
    agent: AgentName | None = None
    """Agent under test. Default: the agent that the file is named after."""
    message: Text | None = None
    """Message of the user."""
    turns: Annotated[tuple[Text, ...], AfterValidator(_some)] | None = None
    """Messages of the user in one conversation, one run each."""
    files: tuple[Annotated[Text, AfterValidator(_is_below_root)], ...] = ()
    """Images, PDFs and audio of the first message, as paths relative to the project's folder."""
    inputs: dict[str, Any] = {}
    """Values for the variables that the agent declares."""
    model: tuple[ScriptedAnswer, ...] | None = None
    """Scripted answers of the model. Default: the agent runs on `offline`."""
    results: dict[Text, ToolAnswers] = {}
    """Results by tool, returned instead of calling it: a text, `{fail: TEXT}`, or a list with one item per call, whose
    last item repeats."""
    decisions: dict[Text, CaseDecision] = {}
    """Decisions of a person, by tool (`plan` for the plan) or by the id of the confirmation."""
    repeat: Repeats | None = None
    """How often the case is run; it passes if it passes every time. Default: that of its file, or once."""
    expect: Expect = Expect()
    """Expected outcome."""

    @model_validator(mode="after")
    def _says_something(self) -> Case:
        _only_one(self, "message", "turns")
        return self

    @field_validator("results")
    @classmethod
    def _no_sub_agents(cls, results: dict[str, tuple[str | Failure, ...]]) -> dict[str, tuple[str | Failure, ...]]:
        if agents := [name for name in results if name.startswith(SUB_AGENT_PREFIX)]:
            raise ValueError(f"{agents[0]} is a sub-agent and runs as part of the case: script its answers in `model`")
        return results

    @property
    def messages(self) -> tuple[str, ...]:
        """The messages of the user, one per turn."""
        return self.turns or ((self.message,) if self.message else ())


def _is_data_file(path: str) -> str:
    if not path.endswith(DATA_SUFFIX):
        raise ValueError(f"write the path of a file that ends in {DATA_SUFFIX}")
    return _is_below_root(path)


DataPath = Annotated[Text, AfterValidator(_is_data_file)]


class CaseFile(Frozen):
    """A file of test cases, `agents.d/NAME.test.yaml`: cases, files with more of them, and what they have in common."""

    version: Annotated[Literal[1], BeforeValidator(check_version)] = 1
    """Version of this file format."""
    cases: tuple[Case, ...] = ()
    """The cases. Each runs independently."""
    data: Annotated[
        tuple[DataPath, ...], BeforeValidator(_listed, json_schema_input_type=DataPath | tuple[DataPath, ...])
    ] = ()
    """Files with more cases, one JSON object per line with the keys of a case: paths relative to this file's folder."""
    repeat: Repeats = 1
    """`repeat` of all cases of this file and of its data, except for those that set their own."""
    expect: Expect = Expect()
    """Expectations of all cases of this file and of its data, except for those that a case states itself."""

    @model_validator(mode="after")
    def _has_cases(self) -> CaseFile:
        if not {"cases", "data"} & self.model_fields_set:
            raise ValueError("the key 'cases' is missing, or `data` with the files that contain them")
        return self
