"""What an agent is and may do: its tools with the policy's verdicts, its limits and its rendered prompt."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from framework.config.agents.compile import Agent
from framework.config.agents.models import Budgets
from framework.config.agents.skills import denying_skill_rule
from framework.config.generations.generation import Generation
from framework.config.settings import Settings
from framework.engine.context.policy import VerdictKind
from framework.engine.tool_call.call import ConditionalVerdict, ToolExplanation, explain_tools, system_prompt
from framework.llm.capabilities import Capabilities, known_capabilities
from framework.llm.client import ModelInfo
from framework.tools.skills import AgentSkill
from framework.types.frozen import Frozen
from framework.types.spec import HookPlace, Risk
from framework.types.text import estimate_tokens


class PolicyCondition(Frozen):
    """A verdict for calls whose arguments meet a condition."""

    verdict: VerdictKind
    when: str
    """The condition in words, with the `file:line` of its rule and its reason."""
    condition: str
    """The condition alone, such as `amount > 50`."""
    rule: str
    """The rule that decides."""
    place: str
    """`file:line` of the rule."""
    reason: str
    """Reason that the rule states."""

    @classmethod
    def of(cls, found: ConditionalVerdict) -> PolicyCondition:
        """Return the verdict as data."""
        verdict = found.verdict
        return cls(
            verdict=verdict.kind,
            when=str(found),
            condition=found.condition,
            rule=verdict.rule,
            place=verdict.place,
            reason=verdict.reason,
        )


class ToolPolicy(Frozen):
    """The policy's verdict on a tool of an agent."""

    tool: str
    """Name of the tool."""
    offered: bool
    """Whether the model is offered the tool."""
    verdict: VerdictKind
    """The verdict on calls that meet no condition: `allow`, `ask` (a person must approve) or `deny`."""
    rule: str
    """The rule that decides."""
    place: str
    """`file:line` of the rule."""
    reason: str
    """Reason that the rule states."""
    conditions: tuple[PolicyCondition, ...]
    """Verdicts for calls that meet a condition."""
    risk: Risk
    """Risk of the tool."""
    tokens: int
    """Estimated tokens of its definition in each request."""
    deferred: bool = False
    """The first request does not contain the tool: a run adds it when it needs it."""

    @classmethod
    def of(cls, found: ToolExplanation) -> ToolPolicy:
        """Return the verdict as data."""
        return cls(
            tool=found.tool.name,
            offered=found.offered,
            verdict=found.verdict.kind,
            rule=found.verdict.rule,
            place=found.verdict.place,
            reason=found.verdict.reason,
            conditions=tuple(map(PolicyCondition.of, found.conditions)),
            risk=found.tool.risk,
            tokens=found.tokens,
            deferred=found.deferred,
        )


class AgentBudget(Frozen):
    """A shared budget that an agent names."""

    name: str
    limits: str | None = None
    """Its limits; None if the settings do not define it."""
    places: tuple[str, ...] = ()
    """`file:line` of its limits."""


class SkillUse(Frozen):
    """An Agent Skill of the project, and what an agent may do with it."""

    name: str
    use: Literal["load", "preload", "deny"]
    """`load`: the model is told its name and description; `preload`: its text is part of the system prompt."""
    rule: str
    """The rule that decides."""
    place: str
    """`file:line` of the rule."""
    reason: str
    """Reason that the rule states."""
    description: str
    path: str
    """Its `SKILL.md`, relative to the project root."""
    digest: str
    """Digest of all of its files."""
    files: int
    """Number of its other files."""
    tokens: int
    """Estimated tokens of its text."""
    asks_for: tuple[str, ...]
    """Its `allowed-tools`. They are shown, and permit nothing."""
    license: str
    compatibility: str


class AgentPolicy(Frozen):
    """What an agent may do, as `agentsd explain` prints it."""

    agent: str
    path: str
    """The agent file, relative to the project root."""
    model: str
    """The agent's model, or the default of the settings."""
    executor: str
    stale: tuple[str, ...]
    """Errors in the file, if this is its last good version."""
    tools: tuple[ToolPolicy, ...]
    """Every tool of the project, by name."""
    tools_tokens: int
    """Estimated tokens of the definitions of all offered tools."""
    skills: tuple[SkillUse, ...]
    """Every Agent Skill of the project, by name."""
    not_contacted: tuple[str, ...]
    """Tool servers that were not contacted; their tools are missing in `tools`."""
    unavailable: tuple[str, ...]
    """Tool servers whose tools are not known, including those that were not contacted."""
    budgets: tuple[AgentBudget, ...]
    """Shared budgets of the agent."""
    limits: dict[str, Any]
    """The effective `runtime_policy`."""
    hooks: dict[HookPlace, tuple[str, ...]]
    """Names of its hooks, by the place where they are called."""


def agent_policy(agent: Agent, generation: Generation) -> AgentPolicy:
    """Return what an agent of a generation may do."""
    tools = tuple(ToolPolicy.of(found) for found in explain_tools(agent))
    return AgentPolicy(
        agent=agent.name,
        path=agent.path,
        model=agent.spec.model or generation.settings.model,
        executor=agent.spec.executor,
        stale=tuple(str(problem) for problem in agent.stale),
        tools=tools,
        tools_tokens=sum(tool.tokens for tool in tools),
        skills=tuple(_skill_use(agent, skill) for _, skill in sorted(generation.skills.items())),
        not_contacted=tuple(sorted(generation.external.not_contacted)),
        unavailable=tuple(sorted(generation.external.unavailable)),
        budgets=tuple(_budget(name, generation.budgets) for name in agent.spec.budgets),
        limits=agent.spec.runtime_policy.model_dump(mode="json", by_alias=True),
        hooks={place: tuple(hook.name for hook in hooks) for place, hooks in agent.hooks.items()},
    )


class RenderedPrompt(Frozen):
    """The first message of a new conversation."""

    system_prompt: str
    """Its text, with placeholders for the user's message and missing inputs."""
    system_prompt_tokens: int
    """Estimated tokens of the text."""


def render_prompt(agent: Agent, settings: Settings, locale: str | None, inputs: Mapping[str, Any]) -> RenderedPrompt:
    """Render the system prompt of an agent; raises PromptError.

    Args:
        agent: the agent.
        settings: settings of its generation.
        locale: language of its templates. Default: that of the settings.
        inputs: values of its inputs; placeholders are used for those that are missing.
    """
    model = ModelInfo("", "", capabilities=_capabilities(agent.spec.model or settings.model, settings))
    text = system_prompt(agent, locale or settings.locale, inputs, settings.tools.http, model)
    return RenderedPrompt(system_prompt=text, system_prompt_tokens=estimate_tokens(text))


def _capabilities(model: str, settings: Settings) -> Capabilities:
    """Return what is known of a model without calling it."""
    alias = settings.models.get(model)
    known = known_capabilities(alias.model, alias.base_url) if alias else known_capabilities(model)
    return alias.capabilities.over(known) if alias and alias.capabilities else known


def _skill_use(agent: Agent, known: AgentSkill) -> SkillUse:
    own, allowed = agent.skills, agent.spec.skills
    skill = own.skills.get(known.name, known)  # an agent whose file is invalid has its last good version
    use: Literal["load", "preload", "deny"] = "deny"
    rule, place, reason = "not in skills.allow", agent.place("skills"), ""
    if skill.name in own.skills:
        use = "preload" if skill.name in own.preloaded else "load"
        key, patterns = ("preload", allowed.preload) if use == "preload" else ("allow", allowed.allow)
        index, pattern = next(found for found in enumerate(patterns) if fnmatchcase(skill.name, found[1]))
        rule, place = f"skills.{key} {pattern}", agent.place("skills", key, index)
    elif denying := denying_skill_rule(agent.spec, skill.name):
        index, denied = denying
        rule, place, reason = f"skills.deny {denied.skill}", agent.place("skills", "deny", index), denied.reason
    return SkillUse(
        name=skill.name,
        use=use,
        rule=rule,
        place=place,
        reason=reason,
        description=skill.description,
        path=skill.path,
        digest=skill.digest,
        files=len(skill.files),
        tokens=estimate_tokens(skill.body),
        asks_for=skill.asks_for,
        license=skill.license,
        compatibility=skill.compatibility,
    )


def _budget(name: str, budgets: Budgets) -> AgentBudget:
    if name not in budgets:
        return AgentBudget(name=name)
    places = dict.fromkeys(budgets[name].places.values())
    return AgentBudget(name=name, limits=budgets[name].budget.describe(), places=(*places,))
