"""An agent file as typed data. A field's docstring is its documentation, in editors and on the reference page."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, StringConstraints, Tag, field_validator

from framework.types.frozen import Duration, Frozen, check_version
from framework.types.linear_pattern import LinearPattern
from framework.types.mcp_policy import McpPolicy

AgentName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
SourceName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
ToolPattern = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Risk = Literal["low", "medium", "high", "critical"]
RISKS: tuple[Risk, ...] = ("low", "medium", "high", "critical")
"""From harmless to harmful; the order is what `risk_level` and `confirm.from` compare by."""


ContentMode = Literal["none", "redacted", "full"]
CONTENT_MODES: tuple[ContentMode, ...] = ("none", "redacted", "full")
"""What of prompts, arguments and results stands in traces, from least to most."""
OnExpiry = Literal["reject", "cancel"]
Protocol = Literal["auto", "native", "json"]
PositiveInt = Annotated[int, Field(gt=0, strict=True)]


def _is_regex(pattern: str) -> str:
    try:
        LinearPattern(pattern)
    except ValueError as error:
        raise ValueError(f"not a regular expression that takes linear time: {error}") from None
    return pattern


Regex = Annotated[str, AfterValidator(_is_regex)]


def _is_below_base(pattern: str) -> str:
    if ".." in pattern.split("/") or "\\" in pattern or pattern.startswith("~"):
        raise ValueError("it matches no file: write it from tools.base_path, without '..', a backslash or '~'")
    return pattern


FilePattern = Annotated[str, StringConstraints(min_length=1, max_length=500), AfterValidator(_is_below_base)]


def _text_or(tag: str) -> Discriminator:
    return Discriminator(lambda value: "text" if isinstance(value, str) else tag)


class TemplateRef(Frozen):
    """Instructions kept in a file under `prompts/`."""

    template: str
    """Path below `prompts/`, such as `support/system.j2`."""
    vars: dict[str, Any] = {}
    """Fixed values for the template's variables."""


class InputSpec(Frozen):
    """One typed variable of a request."""

    type: Literal["string", "integer", "number", "boolean", "array", "object"] = "string"
    """What a value must be."""
    required: bool = False
    """Refuse requests that do not bring it."""
    default: Any = None
    """Used when the caller gives none."""
    description: str = ""
    """What it is: told to an agent that calls this one."""


class Example(Frozen):
    """A few-shot turn put before the conversation."""

    user: str
    """What the user says."""
    assistant: str
    """What the agent answers."""


class Routing(Frozen):
    """When the router picks this agent by itself."""

    priority: Annotated[int, Field(strict=True)] = 0
    """Between agents that both match, the higher one wins."""
    keywords: tuple[str, ...] = ()
    """Words or phrases, matched without regard to case."""
    patterns: tuple[Regex, ...] = ()
    """Regular expressions searched for in the message."""
    examples: tuple[str, ...] = ()
    """Messages this agent is meant for, matched whole and without regard to case."""

    @cached_property
    def compiled(self) -> tuple[tuple[str, LinearPattern], ...]:
        """The patterns as written, and ready to be searched for."""
        return tuple((pattern, LinearPattern(pattern)) for pattern in self.patterns)


class ModelSettings(Frozen):
    """Sampling options passed to the model; those left out stay the provider's own."""

    temperature: Annotated[float, Field(ge=0, le=2, strict=True)] | None = None
    """How much chance is in the choice of words: 0 (least) to 2."""
    top_p: Annotated[float, Field(gt=0, le=1, strict=True)] | None = None
    """Choose only among the likeliest words that together reach this probability."""
    max_tokens: Annotated[int, Field(gt=0, le=100_000_000, strict=True)] | None = None
    """Longest answer of one model call, in tokens."""
    stop: tuple[str, ...] = ()
    """Texts at which an answer ends."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63, strict=True)] | None = None
    """The same seed and input give, with most providers, the same answer."""
    tool_choice: str | None = None
    """`auto`, `none`, `required` or the name of one tool."""
    reasoning: Literal["minimal", "low", "medium", "high"] | None = None
    """How long a reasoning model may think."""
    response_format: Literal["text", "json"] | None = None
    """Form of the final answer: `json` is one JSON object. Left out: JSON of the `output_schema`, if there is one."""


class Rule(Frozen):
    """A rule for tool calls."""

    tool: ToolPattern
    """A tool's name or a glob such as `orders.delete_*`."""
    when: dict[str, str | int | float | bool] = {}
    """Only calls with such arguments, e.g. `{amount: "> 50"}`: `>`, `>=`, `<`, `<=`, `!=`, a glob, or a value."""
    reason: str = ""
    """Told to the human who is asked, and to the model that is denied."""


def _rule(value: Any) -> Any:
    return {"tool": value} if isinstance(value, str) else value


Rules = tuple[Annotated[Rule, BeforeValidator(_rule, json_schema_input_type=str | Rule)], ...]


class FilePolicy(Frozen):
    """Which files no tool of the agent touches."""

    deny: tuple[FilePattern, ...] = ()
    """Globs below `tools.base_path`, such as `data/*secret*` or `private/`: neither read, searched, listed nor
    written. `*` stands for anything, slashes too, and `**/` for any number of folders; what lies in a denied folder
    is denied as well."""


class SkillPolicy(Frozen):
    """Which tools the agent is offered. A matching deny wins over ask, ask over allow."""

    deny: Rules = ()
    """Calls that never happen."""
    ask: Rules = ()
    """Calls that a human must approve."""
    allow: tuple[ToolPattern, ...]
    """Tools the agent may call: names or globs; `["*"]` for all."""
    files: FilePolicy = FilePolicy()
    """Files that none of the tools may touch."""


class ConfirmPolicy(Frozen):
    """Which risks a human must confirm."""

    from_: Literal["low", "medium", "high", "critical", "never"] = Field(default="high", alias="from")
    """Ask for tools of this risk and above; `never` asks only where a rule or the tool itself does."""
    expires: Duration | None = None
    """How long a human may take to decide, such as `15m`; missing: as long as they like."""
    on_expiry: OnExpiry = "reject"
    """What happens then: `reject` the call and go on, or `cancel` the run."""


class Limits(Frozen):
    """What a run may use up. A missing limit is the small default, never unlimited; `null` means no limit."""

    max_steps: PositiveInt | None = 10
    """Model turns."""
    max_tool_calls: PositiveInt | None = 20
    """Calls of tools, those that failed included."""
    max_total_tokens: PositiveInt | None = 50_000
    """Input and output tokens of all model calls together."""
    max_cost_usd: Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)] | None = None
    """US dollars for all model calls together; every model that may be asked needs a known price."""
    timeout: Duration | None = 120.0
    """The whole run, without the time it waits for a human."""
    model_timeout: Duration | None = 60.0
    """One attempt at a model call; where answers are streamed, each pause between two pieces of the answer."""
    first_token_timeout: Duration | None = 30.0
    """The first piece of an answer, where answers are streamed; keeping the connection alive does not count."""
    tool_timeout: Duration | None = 30.0
    """One tool call; a tool's own, shorter timeout wins."""
    max_parallel_tools: PositiveInt = 8
    """Tool calls of one turn that run side by side; 1 is serial."""
    max_repeated_calls: PositiveInt | None = 3
    """The same tool with the same arguments: at this count a warning, after it the end."""
    max_corrections: Annotated[int, Field(ge=0, strict=True)] = 2
    """Turns in a row with arguments or tool names that were wrong."""
    max_observation_chars: Annotated[int, Field(ge=100, strict=True)] = 4000
    """What the model sees of a tool's result; the trace keeps the whole."""


class RuntimePolicy(Limits):
    """Limits, risk and confirmation."""

    risk_level: Risk = "medium"
    """Tools above this risk are denied."""
    confirm: ConfirmPolicy = ConfirmPolicy()
    """Which risks a human must confirm."""
    strict_arguments: Annotated[bool, Field(strict=True)] = False
    """Put nothing right in a model's arguments, not even `"5"` where a number is wanted."""


class ApprovalFrom(Frozen):
    """Ask for plans that contain a step of some risk."""

    from_: Risk = Field(alias="from")
    """The lowest such risk."""


class PlanSettings(Frozen):
    """How `executor: plan` works."""

    approval: Annotated[
        Annotated[Literal["never", "always"], Tag("text")] | Annotated[ApprovalFrom, Tag("risk")], _text_or("risk")
    ] = ApprovalFrom.model_validate({"from": "high"})
    """When a human must approve the plan: `never`, `always` or `{from: RISK}`."""
    model: str | None = None
    """The model that plans, named as the agent's `model`; missing: the agent's own."""
    max_plan_steps: PositiveInt = 12
    """Steps that one plan may still have to do; a longer one is refused."""
    max_replans: Annotated[int, Field(ge=0, strict=True)] = 2
    """How often a failed step may make the plan anew."""
    max_parallel: PositiveInt = 2
    """Independent steps that run side by side."""
    step_timeout: Duration | None = 60.0
    """One step: its call with all attempts, or all turns of a step without a tool."""
    step_retries: Annotated[int, Field(ge=0, strict=True)] = 1
    """How often a step's call is made again when its tool broke; only of tools that are harmless to repeat."""
    on_failure: Literal["replan", "skip", "fail", "ask"] = "replan"
    """When a step fails: replan from what is done, skip what depends on it, fail the run, or ask the user whether to
    retry, skip or stop."""
    recite: Annotated[bool, Field(strict=True)] = True
    """Show the model its open plan, or its to-do list, at the end of every turn; never stored."""


class ConversationSettings(Frozen):
    """How long conversations may become and are kept."""

    window: PositiveInt = 50
    """Messages of history sent with a request."""
    compress_at_tokens: PositiveInt | None = 24_000
    """When the history comes to about so many tokens, its beginning is replaced by a summary; `null`: never."""
    ttl: Duration | None = 2_592_000.0
    """How long a conversation is kept after its last turn; `null`: for ever."""


HookPlace = Literal["before_run", "before_tool", "after_tool", "after_run"]
ExtensionName = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Hooks(Frozen):
    """Functions of plugins (`@hook`) by name, such as `audit.before`, called in this order. Each may refuse."""

    before_run: tuple[ExtensionName, ...] = ()
    """Before the agent begins: they see the message."""
    before_tool: tuple[ExtensionName, ...] = ()
    """Before a call that the rules permit, and before a human is asked: they see the call."""
    after_tool: tuple[ExtensionName, ...] = ()
    """After a call: they see its result, and may give another one instead."""
    after_run: tuple[ExtensionName, ...] = ()
    """Before the answer is handed out: they see it, and may give another one instead."""


class TelemetryPolicy(Frozen):
    """What of this agent's work stands in traces; never more than `telemetry.content` in agentsd.yaml lets through."""

    content: ContentMode | None = None
    """Of prompts, arguments and results: `none`, `redacted` (secrets masked, long texts cut) or `full`."""


class AgentSpec(Frozen):
    """One agent: a file `agents.d/NAME.yaml`."""

    version: Annotated[Literal[1], BeforeValidator(check_version)]
    """Version of this file format."""
    name: AgentName
    """The identity: unique, and independent of the file's name."""
    description: Annotated[str, StringConstraints(min_length=1)]
    """What the agent is for: what the router and a parent agent see."""
    model: str | None = None
    """`provider/model`, an alias from agentsd.yaml, or `offline`; missing: the process's default."""
    fallback_models: tuple[str, ...] = ()
    """Models to ask, one after the other, when those before cannot be had; named as `model` is."""
    model_settings: ModelSettings = ModelSettings()
    protocol: Protocol = "auto"
    """How tools are called: `native` by function calls, `json` by one JSON object a turn, for models that know only
    text; `auto`: by function calls if the model has them."""
    instructions: Annotated[
        Annotated[str, StringConstraints(min_length=1), Tag("text")] | Annotated[TemplateRef, Tag("template")],
        _text_or("template"),
    ]
    """The system prompt: text, or `{template: FILE, vars: {…}}`. Rendered byte for byte."""
    inputs: dict[str, InputSpec] = {}
    """Variables a request brings for the template."""
    examples: tuple[Example, ...] = ()
    """Few-shot turns put before the conversation."""
    routing: Routing = Routing()
    executor: str = "react"
    """`react` thinks and acts turn by turn; `plan` makes a plan first and works it off; `auto` picks one for each
    request; or a plugin's, by its name."""
    skill_policy: SkillPolicy = SkillPolicy(allow=())
    """Which tools; missing: none."""
    mcp_policy: dict[SourceName, McpPolicy] = {}
    """By server: what comes from it into the context, and whether its tools may change."""
    runtime_policy: RuntimePolicy = RuntimePolicy()
    plan: PlanSettings = PlanSettings()
    sub_agents: tuple[AgentName, ...] = ()
    """Agents this one may call, offered to the model as tools `agent.NAME`."""
    conversation: ConversationSettings = ConversationSettings()
    output_schema: dict[str, Any] | None = None
    """JSON Schema of an object: the answer's data, beside its text. Missing: only text."""
    hooks: Hooks = Hooks()
    telemetry: TelemetryPolicy = TelemetryPolicy()

    @field_validator("description")
    @classmethod
    def _one_line(cls, value: str) -> str:
        return " ".join(value.split())
