"""An agent file as typed data. Editors and the reference page show a field's docstring as its documentation."""

from __future__ import annotations

import re
from functools import cached_property
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
from pydantic_core import SchemaError, SchemaValidator, core_schema

from framework.types.budget import AtMost, BudgetName
from framework.types.frozen import Duration, Frozen, check_version


class PromptRef(Frozen):
    """A prompt of an MCP server, with arguments."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    """Name of the prompt on the server."""
    arguments: dict[str, str] = {}
    """Arguments of the prompt."""


def _prompt(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class McpPolicy(Frozen):
    """Resources and prompts of an MCP server for an agent's context. `skill_policy` selects the server's tools."""

    resources: tuple[Annotated[str, StringConstraints(min_length=1, max_length=2000)], ...] = ()
    """URIs of resources whose text is added to the system prompt when a run starts."""
    prompts: tuple[Annotated[PromptRef, BeforeValidator(_prompt, json_schema_input_type=str | PromptRef)], ...] = ()
    """Prompts whose text is added to the system prompt when a run starts: a name, or `{name: …, arguments: {…}}`."""
    pin: Literal["warn", "block"] = "block"
    """Handling of tools whose definition has changed since it was accepted: `block` them, or `warn` and use them."""


AGENT_NAME = "[a-z][a-z0-9_-]{0,63}"
"""Regular expression of the names of agents."""
AgentName = Annotated[str, StringConstraints(pattern=f"^{AGENT_NAME}$")]
SourceName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
ToolPattern = Annotated[str, StringConstraints(min_length=1, max_length=200)]
GLOB_SIGNS = frozenset("*?[")
"""Characters of tool patterns that may match several tools."""
Risk = Literal["low", "medium", "high", "critical"]
RISKS: tuple[Risk, ...] = ("low", "medium", "high", "critical")
"""Risks in ascending order. `risk_level` and `confirm.from` compare by this order."""


ContentMode = Literal["none", "redacted", "full"]
CONTENT_MODES: tuple[ContentMode, ...] = ("none", "redacted", "full")
"""How much of prompts, arguments and results traces include, from least to most."""
OnExpiry = Literal["reject", "cancel"]
Protocol = Literal["auto", "native", "json"]
OnTruncation = Literal["continue", "warn", "stop"]
PositiveInt = Annotated[int, Field(gt=0, strict=True)]


def is_glob(pattern: str) -> bool:
    """Return whether a tool pattern may match several tools."""
    return not GLOB_SIGNS.isdisjoint(pattern)


class LinearPattern:
    """A pattern for Rust's regex engine, which is part of Pydantic: no look-around and no back-references.

    Python's `re` backtracks: `(a+)+$` takes seconds for 26 letters and blocks the event loop.
    """

    def __init__(self, pattern: str) -> None:
        """Compile a pattern; raise ValueError if it is invalid."""
        try:
            self._validator = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
        except SchemaError as error:
            raise ValueError(_reason(str(error))) from None

    def is_in(self, text: str) -> bool:
        """Return whether the pattern matches anywhere in a text."""
        return self._validator.isinstance_python(text)


def _reason(error: str) -> str:
    """Extract the reason from an error message that also quotes the pattern."""
    _, found, reason = error.rpartition("error: ")
    if not found:
        return error.strip().rpartition("\n")[2].strip().rstrip(".").lower()
    return " ".join(reason.split())


def _is_regex(pattern: str) -> str:
    try:
        LinearPattern(pattern)
    except ValueError as error:
        raise ValueError(f"not a linear-time regular expression: {error}") from None
    return pattern


Regex = Annotated[str, AfterValidator(_is_regex)]


def file_pattern_fault(pattern: str) -> str | None:
    """Return why a pattern of files cannot match what is meant, or None."""
    if ".." in pattern.split("/") or "\\" in pattern or pattern.startswith("~"):
        return "write it relative to tools.base_path, without '..', '\\' or '~'"
    if pattern != pattern.strip():
        return "remove the blanks at its ends"
    return "braces are not expanded, write one pattern for each" if _BRACES.search(pattern) else None


def _is_below_base(pattern: str) -> str:
    if pattern.startswith("/"):
        raise ValueError("the pattern is absolute: write it relative to tools.base_path, without the leading /")
    if fault := file_pattern_fault(pattern):
        raise ValueError(f"the pattern matches no file: {fault}")
    return pattern


_BRACES = re.compile(r"\{[^{}]*,[^{}]*\}")
FilePattern = Annotated[str, StringConstraints(min_length=1, max_length=500), AfterValidator(_is_below_base)]


def _text_or(tag: str) -> Discriminator:
    return Discriminator(lambda value: "text" if isinstance(value, str) else tag)


class TemplateRef(Frozen):
    """A template file under `prompts/`."""

    template: str
    """Path relative to `prompts/`, such as `support/system.j2`."""
    vars: dict[str, Any] = {}
    """Fixed values for the template's variables."""


InputType = Literal["string", "integer", "number", "boolean", "array", "object"]


class InputSpec(Frozen):
    """A typed variable that a request provides."""

    type: InputType = "string"
    """Type of the value."""
    required: bool = False
    """Reject requests without this variable."""
    default: Any = None
    """Value used when the request provides none."""
    description: str = ""
    """Description of the variable, shown to agents that call this one."""


class Example(Frozen):
    """A few-shot example, inserted before the conversation."""

    user: str
    """Message of the user."""
    assistant: str
    """Answer of the agent."""


class Routing(Frozen):
    """Rules by which the router selects this agent when a request names none."""

    priority: Annotated[int, Field(strict=True)] = 0
    """If several agents match, the one with the highest priority is selected."""
    keywords: tuple[str, ...] = ()
    """Words or phrases to find in the message, ignoring case."""
    patterns: tuple[Regex, ...] = ()
    """Regular expressions to find in the message."""
    examples: tuple[str, ...] = ()
    """Complete messages that this agent handles, compared ignoring case."""

    @cached_property
    def compiled(self) -> tuple[tuple[str, LinearPattern], ...]:
        """The patterns as pairs of source text and compiled expression."""
        return tuple((pattern, LinearPattern(pattern)) for pattern in self.patterns)


ReasoningLevel = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
"""Reasoning effort of a model, from none to the highest."""


Penalty = Annotated[float, Field(ge=-2, le=2, strict=True)]


class ModelSettings(Frozen):
    """Sampling options passed to the model. Omitted options keep the provider's defaults."""

    temperature: Annotated[float, Field(ge=0, le=2, strict=True)] | None = None
    """Randomness of the output, from 0 (least) to 2."""
    top_p: Annotated[float, Field(gt=0, le=1, strict=True)] | None = None
    """Nucleus sampling: sample only from the most likely tokens whose probabilities add up to this value."""
    max_tokens: Annotated[int, Field(gt=0, le=100_000_000, strict=True)] | None = None
    """Maximum length of the answer of one model call, in tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer when the model generates one of them."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63, strict=True)] | None = None
    """Seed for sampling. With most providers, the same seed and input produce the same answer."""
    tool_choice: str | None = None
    """Whether the model calls tools: `auto`, `none`, `required`, or the name of the tool it must call."""
    reasoning: ReasoningLevel | None = None
    """Reasoning effort of a reasoning model: `none`, `minimal`, `low`, `medium`, `high` or `xhigh`."""
    top_k: Annotated[int, Field(gt=0, strict=True)] | None = None
    """Sample only from this number of the most likely tokens."""
    min_p: Annotated[float, Field(ge=0, le=1, strict=True)] | None = None
    """Sample only from tokens that are at least this likely, relative to the most likely one."""
    frequency_penalty: Penalty | None = None
    """Penalty for tokens by how often the text contains them already, from -2 to 2."""
    presence_penalty: Penalty | None = None
    """Penalty for tokens that the text contains already, from -2 to 2."""
    parallel_tool_calls: Annotated[bool, Field(strict=True)] | None = None
    """Whether the model may call several tools in one turn."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """Length of the answers of OpenAI's models: `low`, `medium` or `high`."""
    service_tier: Annotated[str, StringConstraints(pattern="^[a-z_-]{1,32}$")] | None = None
    """Processing tier of the provider, such as `flex` or `priority`."""
    response_format: Literal["text", "json"] | None = None
    """Format of the final answer; `json` is one JSON object. Default: JSON if `output_schema` is set, else text."""


Conditions = dict[str, str | int | float | bool]


class Rule(Frozen):
    """A rule that matches tool calls."""

    tool: ToolPattern
    """Name of a tool, or a glob such as `orders.delete_*`."""
    when: Conditions = {}
    """Conditions on arguments, such as `{amount: "> 50"}`. Operators: `>`, `>=`, `<`, `<=`, `!=`, a glob or a value."""
    at_most: AtMost | None = None
    """Number of such calls per period that the rule does not apply to, such as `10/day`: it applies to those beyond.
    Counted for each user, over all processes of the store; days and months are those of UTC."""
    reason: str = ""
    """Reason shown to the person who decides, and to the model when the call is denied."""
    optional: Annotated[bool, Field(strict=True)] = False
    """Whether the tool may be missing, such as one that a server may offer later. Otherwise that is an error."""

    @property
    def is_conditional(self) -> bool:
        """Whether it applies to some calls of the tool only."""
        return bool(self.when or self.at_most)

    @property
    def condition(self) -> str:
        """Its conditions in words, such as `amount > 50 and more than 10/day`."""
        parts = [f"{name} {expected}" for name, expected in self.when.items()]
        return " and ".join([*parts, *([f"more than {self.at_most}"] if self.at_most else [])])


def _rule(value: Any) -> Any:
    return {"tool": value} if isinstance(value, str) else value


Rules = tuple[Annotated[Rule, BeforeValidator(_rule, json_schema_input_type=str | Rule)], ...]


class FilePolicy(Frozen):
    """Files that no tool of the agent can access."""

    deny: tuple[FilePattern, ...] = ()
    """Globs relative to `tools.base_path`, such as `data/*secret*` or `private/`. Matching files cannot be read,
    searched, listed or written. `*` matches any characters, slashes included; `**/` matches any number of folders.
    A denied folder denies everything below it."""


class SkillPolicy(Frozen):
    """Tools that the agent can use. `deny` takes precedence over `ask`, and `ask` over `allow`."""

    deny: Rules = ()
    """Calls that are denied."""
    ask: Rules = ()
    """Calls that require the approval of a person."""
    allow: tuple[ToolPattern, ...]
    """Tools that the agent may call, as names or globs; `["*"]` allows all."""
    defer: Annotated[
        Annotated[Literal["auto"], Tag("text")] | Annotated[tuple[ToolPattern, ...], Tag("list")], _text_or("list")
    ] = ()
    """Allowed tools that requests do not contain until the model finds them with `tool_search`, as names or globs;
    `auto`: the tools of files, servers and the program, if the definitions of all tools take more than 5 % of the
    model's context window."""
    files: FilePolicy = FilePolicy()
    """Files that no tool can access."""
    any_risk: tuple[ToolPattern, ...] = ()
    """Names of allowed tools to which `max_risk` does not apply: those that `tools` allows without a wildcard."""
    any_risk_if_asked: tuple[ToolPattern, ...] = ()
    """Names of tools to which `max_risk` does not apply in calls that an ask rule matches: those that `tools.ask` names
    without a wildcard."""


SkillPattern = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class SkillRule(Frozen):
    """Skills that an agent cannot use."""

    skill: SkillPattern
    """Name of a skill, or a glob such as `internal-*`."""
    reason: str = ""
    """Reason shown when a run that knows the skill is denied it."""
    optional: Annotated[bool, Field(strict=True)] = False
    """Whether the skill may be missing. Otherwise a rule that matches no skill is an error."""


def _skill_rule(value: Any) -> Any:
    return {"skill": value} if isinstance(value, str) else value


class AgentSkills(Frozen):
    """Agent Skills that the agent can use: folders with a `SKILL.md`. `deny` takes precedence."""

    deny: tuple[Annotated[SkillRule, BeforeValidator(_skill_rule, json_schema_input_type=str | SkillRule)], ...] = ()
    """Skills that are unknown to the model."""
    allow: tuple[SkillPattern, ...] = ()
    """Skills whose names and descriptions the model gets, as names or globs; it loads their text with `skill.load`."""
    preload: tuple[SkillPattern, ...] = ()
    """Skills whose text is part of the system prompt, as names or globs. They need not be in `allow`."""
    scripts: Literal["never", "ask", "allow"] = "never"
    """Whether the model may execute scripts of these skills, in the sandbox of `tools.sandbox`: `ask` a person about
    each call, or `allow` it as far as the risk `medium` needs no approval."""


def _skills(value: Any) -> Any:
    return {"allow": value} if isinstance(value, (list, tuple)) else value


MemoryScope = Literal["agent", "user", "tenant"]
MEMORY_SCOPES: tuple[MemoryScope | None, ...] = (None, "agent", "user", "tenant")
"""The scopes of notes, from none to the one that most runs share."""
MemoryWrite = Literal["never", "ask", "allow"]
MEMORY_WRITES: tuple[MemoryWrite, ...] = ("never", "ask", "allow")
"""From least to most."""


class MemoryPolicy(Frozen):
    """Notes that the agent keeps across conversations."""

    scope: MemoryScope | None = None
    """Who shares the notes: `user` (all agents with this scope, for one user), `agent` (this agent alone, for one user)
    or `tenant` (all users of a tenant). Default: no memory."""
    write: MemoryWrite = "ask"
    """Whether the model may save and forget notes: `ask` a person about each call, `allow`, or `never`."""
    recall: Annotated[int, Field(ge=0, le=50, strict=True)] = 5
    """Maximum number of notes that a run starts with; 0: the model searches for them."""
    recall_tokens: Annotated[int, Field(ge=100, le=20_000, strict=True)] = 1000
    """Maximum size of these notes, as a token estimate."""
    ttl: Duration | None = 15_552_000.0
    """How long a note is kept, such as `180d`; `null`: without limit."""
    max: Annotated[int, Field(gt=0, le=10_000, strict=True)] = 200
    """Maximum number of notes of one owner. Beyond it, those are deleted that were not used for longest."""
    embed: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    """Function of a plugin (`@embedder`) that turns texts into vectors, by which notes are found. Default: by words."""


class ConfirmPolicy(Frozen):
    """Which tool calls need a person's approval because of their risk."""

    from_: Literal[Risk, "never"] = Field(default="high", alias="from")
    """Require approval for tools of this risk or higher. `never`: only where a rule or the tool requires it."""
    expires: Duration | None = None
    """Time limit for a decision, such as `15m`. Default: no limit."""
    on_expiry: OnExpiry = "reject"
    """Action when the time limit is exceeded: `reject` the call and continue, or `cancel` the run."""


class Limits(Frozen):
    """Limits of a run. An omitted limit keeps its default; `null` removes the limit."""

    max_steps: PositiveInt | None = 10
    """Maximum number of model turns."""
    max_tool_calls: PositiveInt | None = 20
    """Maximum number of tool calls, failed calls included."""
    max_total_tokens: PositiveInt | None = 50_000
    """Maximum number of input and output tokens of all model calls together."""
    max_cost_usd: Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)] | None = None
    """Maximum cost of all model calls, in US dollars. Every model that the run can call needs a known price."""
    timeout: Duration | None = 120.0
    """Time limit for the whole run, without the time it waits for a person."""
    model_timeout: Duration | None = 60.0
    """Time limit for one attempt of a model call. If the answer is streamed, the limit applies between two chunks."""
    model_total_timeout: Duration | None = None
    """Time limit for one attempt of a model call as a whole, also if its answer is streamed and still arriving."""
    first_token_timeout: Duration | None = 30.0
    """Time limit for the first chunk of a streamed answer. Keep-alive messages do not count as chunks."""
    tool_timeout: Duration | None = 30.0
    """Time limit for one tool call. If the tool declares a shorter timeout, that one applies."""
    max_parallel_tools: PositiveInt = 8
    """Maximum number of tool calls of one turn that run concurrently; 1 runs them one after another."""
    max_repeated_calls: PositiveInt | None = 3
    """Maximum number of calls of one tool with the same arguments. The last allowed call emits a warning; one more
    stops the run."""
    max_corrections: Annotated[int, Field(ge=0, strict=True)] = 2
    """Maximum number of consecutive turns with invalid arguments or unknown tool names."""
    max_observation_chars: Annotated[int, Field(ge=100, strict=True)] = 4000
    """Maximum number of characters of a tool result that the model receives. Of a longer one it receives the start,
    and can read on with `result.read` and `result.search`. The trace contains the full result."""


class RuntimePolicy(Limits):
    """Limits, risk and confirmation."""

    risk_level: Risk = "medium"
    """Highest risk of tools that the agent may use. Tools with a higher risk are denied, unless `tools` names them
    without a wildcard."""
    confirm: ConfirmPolicy = ConfirmPolicy()
    """Which tool calls need a person's approval because of their risk."""
    strict_arguments: Annotated[bool, Field(strict=True)] = False
    """Reject invalid arguments instead of repairing them, even `"5"` for a number."""
    cost: Literal["known", "unknown_ok"] = "known"
    """What a cost limit requires: the price of every model (`known`), or none (`unknown_ok`): calls of unknown price
    count as 0."""


class ApprovalFrom(Frozen):
    """Require approval for plans that contain a step of a certain risk or higher."""

    from_: Risk = Field(alias="from")
    """Lowest risk of a step that makes the plan need approval."""


def _id_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


StepId = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$"), BeforeValidator(_id_text)]
StepText = Annotated[str, StringConstraints(min_length=1, max_length=4000)]
MAX_LOOP_ITEMS = 100
"""Highest `max_items` of a loop: each item becomes a step of the plan."""
MAX_FILE_STEPS = 50
"""Maximum number of steps in an agent's file."""


class FileStep(Frozen):
    """A step of a plan in an agent's file. It has exactly one of `tool`, `agent` and `goal`."""

    id: StepId
    """A short word, unique in the plan. Later steps refer to the result as `{{ steps.ID.output }}`."""
    description: StepText | None = None
    """Purpose of the step, shown to people. Default: the name of the tool or agent."""
    tool: str | None = None
    """Tool to call. The agent's rules apply to the call."""
    agent: AgentName | None = None
    """Agent to call, one of `agents`."""
    message: StepText | None = None
    """For an agent: the message that it gets."""
    goal: StepText | None = None
    """What the model must reach in this step, with the tools of the agent."""
    parameters: dict[str, Any] = {}
    """Arguments of the tool, inputs of the agent, or data for the goal. Texts may contain `{{ steps.ID.output }}`,
    `{{ inputs.NAME }}` and, in a loop, `{{ item }}`, each also with a `.FIELD`."""
    tools: tuple[str, ...] | None = None
    """For a goal: the tools that it may use. Default: all tools of the agent."""
    expected: str = ""
    """For a goal: the expected result."""
    when: Conditions = {}
    """Conditions, as in rules: `{steps.order.output.amount: "> 100"}`. The step is skipped unless all are met."""
    for_each: str = ""
    """A list, such as `steps.order.output.contacts` or `inputs.files`: the step runs once for each `{{ item }}`."""
    max_items: Annotated[int, Field(gt=0, le=MAX_LOOP_ITEMS, strict=True)] = 20
    """With `for_each`: the step fails, without any call, if the list is longer."""
    depends_on: tuple[StepId, ...] | None = None
    """Steps that must end before, besides those that it refers to. Default: the step above; `[]`: none."""

    @model_validator(mode="after")
    def _has_one_kind(self) -> FileStep:
        kind = [key for key in ("tool", "agent", "goal") if getattr(self, key) is not None]
        if len(kind) != 1:
            found = " and ".join(kind) if kind else "none of them"
            raise ValueError(f"a step has exactly one of tool, agent and goal; this one has {found}")
        for key, kinds in (("message", "agent"), ("tools", "goal"), ("expected", "goal")):
            if key in self.model_fields_set and getattr(self, key) not in (None, "") and kinds not in kind:
                raise ValueError(f"{key} is for a step with {kinds}; this one has {kind[0]}")
        if kind == ["agent"] and (self.message is None or "message" in self.parameters):
            raise ValueError("a step with agent has a message, outside parameters: the agent sees nothing else")
        if kind == ["goal"] and self.description is not None:
            raise ValueError("a step with goal has no description: the goal says what it is for")
        return self


class AnswerGoal(Frozen):
    """An answer that the model writes from the results of the steps."""

    goal: StepText
    """What the answer must contain."""


class PlanSettings(Frozen):
    """Settings of `executor: plan`."""

    approval: Annotated[
        Annotated[Literal["never", "always"], Tag("text")] | Annotated[ApprovalFrom, Tag("risk")], _text_or("risk")
    ] = ApprovalFrom.model_validate({"from": "high"})
    """When a person must approve the plan: `never`, `always` or `{from: RISK}`."""
    model: str | None = None
    """Model that writes the plan, in the same form as the agent's `model`. Default: the agent's model."""
    template: str | None = None
    """Template that asks for a plan, relative to `prompts/`. Default: `plan.j2`."""
    max_plan_steps: PositiveInt = 12
    """Maximum number of open steps in a plan. A longer plan is rejected."""
    max_replans: Annotated[int, Field(ge=0, strict=True)] = 2
    """Maximum number of times that failed steps cause a new plan."""
    max_parallel: PositiveInt = 2
    """Maximum number of independent steps that run concurrently."""
    step_timeout: Duration | None = 60.0
    """Time limit for one step: all attempts of its tool call, or all turns of a step without a tool."""
    step_retries: Annotated[int, Field(ge=0, strict=True)] = 1
    """Maximum number of retries when the tool of a step fails. Only idempotent tools are retried."""
    on_failure: Literal["replan", "skip", "fail", "ask"] = "replan"
    """Action when a step fails: `replan` the remaining work, `skip` the steps that depend on it, `fail` the run, or
    `ask` the user whether to retry, skip or stop. With `steps`: `fail` by default, and never `replan`."""
    steps: Annotated[tuple[FileStep, ...], Field(max_length=MAX_FILE_STEPS)] = ()
    """A fixed plan: its steps replace the plan that the model would write. Needs `mode: plan`."""
    answer: (
        Annotated[Annotated[StepText, Tag("text")] | Annotated[AnswerGoal, Tag("goal")], _text_or("goal")] | None
    ) = None
    """Answer of a fixed plan: a text with references, or `{goal: TEXT}`, which the model writes. Default: the result of
    the last step that was done."""
    recite: Annotated[bool, Field(strict=True)] = True
    """Append the open plan or the to-do list to every model request. The text is not stored in the conversation."""

    @model_validator(mode="before")
    @classmethod
    def _fixed_plans_fail(cls, data: Any) -> Any:
        """By default, a fixed plan fails with its first failed step: the model must not replace the rest of it."""
        return {"on_failure": "fail", **data} if isinstance(data, dict) and data.get("steps") else data


class ConversationSettings(Frozen):
    """How much history a request contains, and how long conversations are stored."""

    window: PositiveInt = 50
    """Maximum number of earlier messages sent with a request."""
    compress_at_tokens: PositiveInt | None = 24_000
    """Token estimate of the history above which its oldest messages are replaced by a summary; `null`: never."""
    compress_model: str | None = None
    """Model that writes the summary, in the same form as the agent's `model`. Default: the agent's model."""
    ttl: Duration | None = 2_592_000.0
    """How long a conversation is stored after its last turn; `null`: without limit."""


HookPlace = Literal["before_run", "before_tool", "after_tool", "after_run"]
ExtensionName = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class CommandHook(Frozen):
    """A program as a hook: it reads a JSON object and prints `{"verdict": "allow"}`. Anything else refuses."""

    command: tuple[Annotated[str, StringConstraints(max_length=10_000)], ...]
    """A file below `hooks/` of the project, and its arguments."""

    @property
    def name(self) -> str:
        """What refusals and `agentsd explain` call it."""
        return " ".join(self.command)


def _hooks(value: Any) -> Any:
    return [value] if isinstance(value, str | dict) else value


HookEntry = Annotated[
    Annotated[ExtensionName, Tag("text")] | Annotated[CommandHook, Tag("command")], _text_or("command")
]
HookEntries = Annotated[
    tuple[HookEntry, ...], BeforeValidator(_hooks, json_schema_input_type=HookEntry | tuple[HookEntry, ...])
]


class Hooks(Frozen):
    """Plugin functions (`@hook`) by name, such as `audit.before`, or commands, called in the order listed.

    Each can refuse.
    """

    before_run: HookEntries = ()
    """Hooks called with the message, before the agent starts."""
    before_tool: HookEntries = ()
    """Hooks called with each tool call that the rules permit, before a person is asked for approval."""
    after_tool: HookEntries = ()
    """Hooks called with the result of each tool call. They can replace it."""
    after_run: HookEntries = ()
    """Hooks called with the final answer before it is emitted. They can replace it."""


class TelemetryPolicy(Frozen):
    """How much content this agent's traces include. Can only be stricter than `telemetry.content` in agentsd.yaml."""

    content: ContentMode | None = None
    """Content of prompts, arguments and results: `none`, `redacted` (secrets masked, long texts cut) or `full`."""


class AgentSpec(Frozen):
    """An agent, defined by a file `agents.d/NAME.yaml`."""

    version: Annotated[Literal[1], BeforeValidator(check_version)]
    """Version of this file format."""
    name: AgentName
    """Unique name of the agent. It can differ from the name of the file."""
    description: Annotated[str, StringConstraints(min_length=1)]
    """Purpose of the agent. The router and parent agents select the agent by this text."""
    model: str | None = None
    """Model as `provider/model`, an alias from agentsd.yaml, or `offline`. Default: `model` in agentsd.yaml."""
    fallback_models: tuple[str, ...] = ()
    """Models to call, in this order, when `model` is unavailable. Same form as `model`."""
    model_settings: ModelSettings = ModelSettings()
    on_truncation: OnTruncation = "warn"
    """Action when the output limit (`max_tokens`) cuts a text answer: `warn` keeps it with a warning, `continue` has
    the model continue it, `stop` ends the run with the status `stopped`."""
    protocol: Protocol = "auto"
    """How the model calls tools: `native` uses function calling; `json` uses one JSON object per turn, for models
    without function calling; `auto` selects `native` if the model supports it."""
    instructions: Annotated[
        Annotated[str, StringConstraints(min_length=1), Tag("text")] | Annotated[TemplateRef, Tag("template")],
        _text_or("template"),
    ]
    """System prompt: text, or `{template: FILE, vars: {…}}`. Sent to the model unchanged, whitespace included."""
    guidance: Annotated[
        Annotated[Literal["default", "none"], Tag("text")] | Annotated[TemplateRef, Tag("template")],
        _text_or("template"),
    ] = "default"
    """Text of the runtime after the instructions: `default` (`react.j2`), `none`, or `{template: FILE, vars: {…}}`.
    With `none`, the instructions reach the model byte for byte."""
    inputs: dict[str, InputSpec] = {}
    """Variables that a request provides for the template."""
    examples: tuple[Example, ...] = ()
    """Few-shot examples, inserted before the conversation."""
    routing: Routing = Routing()
    executor: str = "react"
    """How the agent works: `react` calls tools turn by turn; `plan` writes a plan and executes its steps; `auto`
    selects one of these two for each request; `code` writes scripts that call the tools; or the name of a plugin's
    executor."""
    skill_policy: SkillPolicy = SkillPolicy(allow=())
    """Tools that the agent can use. Default: none."""
    skills: Annotated[
        AgentSkills, BeforeValidator(_skills, json_schema_input_type=tuple[SkillPattern, ...] | AgentSkills)
    ] = AgentSkills()
    """Agent Skills that the agent can use: a list of names and globs, or `{allow, deny, preload}`. Default: none."""
    mcp_policy: dict[SourceName, McpPolicy] = {}
    """Settings per MCP server: resources and prompts to load, and how changed tools are handled."""
    runtime_policy: RuntimePolicy = RuntimePolicy()
    budgets: tuple[BudgetName, ...] = ()
    """Budgets from agentsd.yaml that this agent shares with others. The run stops at the first that is used up."""
    plan: PlanSettings = PlanSettings()
    sub_agents: tuple[AgentName, ...] = ()
    """Agents that this agent can call, offered to the model as tools `agent.NAME`."""
    handoffs: tuple[AgentName, ...] = ()
    """Agents that this agent can hand its conversation over to, offered to the model as tools `handoff.NAME`. They
    answer the user's message and the next ones."""
    conversation: ConversationSettings = ConversationSettings()
    output_schema: dict[str, Any] | None = None
    """JSON Schema of an object for structured output: the answer contains data in addition to its text. Default: text
    only."""
    memory: MemoryPolicy = MemoryPolicy()
    """Notes that the agent keeps across conversations. Default: none."""
    hooks: Hooks = Hooks()
    telemetry: TelemetryPolicy = TelemetryPolicy()

    @field_validator("description")
    @classmethod
    def _one_line(cls, value: str) -> str:
        return " ".join(value.split())
