"""Warnings about valid agents: rules without effect, unused variables, too many tools."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from functools import partial

from framework.config.agents.plan_steps import file_references
from framework.config.templates.prompts import PLAN_TEMPLATE, Prompts
from framework.config.yaml.document import Document, KeyPath
from framework.tools.conditions import has_argument, location_kind
from framework.tools.tool import Tool, source_of
from framework.tools.toolset import CLIENT, TOOL_SEARCH, PlacedRule, Toolset, matching_names
from framework.types.problem import Problem
from framework.types.spec import AgentSpec, PlanSettings, TemplateRef

_MAX_OFFERED_TOOLS = 128
"""The limit of OpenAI, and of servers that are compatible with it."""
_TEMPLATE_HINT = "insert it with a template: instructions: {template: …}"
_LOCATION_ARGUMENTS = frozenset(
    ("path", "file", "filename", "file_path", "filepath", "folder", "directory", "dir", "root_dir", "url", "uri")
)
"""Names of arguments that are probably paths or URLs."""
_LEARNS: Mapping[str, str] = {
    "findings": "why its last plan is invalid, and repeats it until max_corrections",
    "progress": "which steps are done or failed when it plans again",
    "feedback": "what a person wants changed",
}
"""What a variable of the planner's template says, for warnings about templates without it."""
_LISTING_TOOL = "list_dir"
"""Returns names, not the contents of files."""


def lint(
    spec: AgentSpec, document: Document, toolset: Toolset, prompts: Prompts, unavailable: Collection[str] = ()
) -> Iterator[Problem]:
    """Yield warnings about a valid agent. Rules for tools of `unavailable` sources are not checked."""
    yield from _empty_allow(spec, document)
    yield from _many_tools(toolset, document)
    yield from _deferred_tools(spec, toolset, document)
    yield from _rule_warnings(spec, toolset, unavailable)
    yield from _unused_variables(spec, document, prompts)
    yield from _planner_variables(spec, document, prompts)
    yield from _unused_plan(spec, document)


def _empty_allow(spec: AgentSpec, document: Document) -> Iterator[Problem]:
    """Warn about an empty allow list next to deny rules, which is easily read as "all tools but these"."""
    policy = spec.skill_policy
    if policy.deny and not policy.allow and not policy.ask and not (spec.sub_agents or spec.handoffs):
        message = "`allow` is empty, so no tool is offered: deny rules only remove tools"
        hint = 'to allow all tools except the denied ones, write `allow: ["*"]`'
        yield document.warning(("skill_policy", "allow"), message, hint=hint, at_key=True)


def _unused_plan(spec: AgentSpec, document: Document) -> Iterator[Problem]:
    """Warn about an agent that writes no plans, and is to ask for the approval of them."""
    if spec.executor in ("react", "code") and spec.plan.approval not in ("never", PlanSettings().approval):
        message = "`plan.approve` has no effect without a plan: `tools.ask` and `approve_from` ask about single calls"
        yield document.warning(("plan", "approval"), message, hint="or write `mode: plan`", at_key=True)


def _many_tools(toolset: Toolset, document: Document) -> Iterator[Problem]:
    """Warn about more tools than providers accept. Only tools that the model is offered count."""
    if (count := len(toolset.definitions)) > _MAX_OFFERED_TOOLS:
        message = f"the model is offered {count} tools, and several providers accept at most {_MAX_OFFERED_TOOLS}"
        hint = "let the model search for them: `tools: {defer: auto}`, or allow fewer"
        yield document.warning(("skill_policy", "allow"), message, hint=hint, at_key=True)


def _deferred_tools(spec: AgentSpec, toolset: Toolset, document: Document) -> Iterator[Problem]:
    """Warn about patterns of `defer` that match no offered tool, and about a search that the rules deny."""
    patterns = spec.skill_policy.defer if spec.skill_policy.defer != "auto" else ()
    for index, pattern in enumerate(patterns):
        if not matching_names((pattern,), toolset.offered.keys()):
            yield document.warning(("skill_policy", "defer", index), f"{pattern!r} matches no tool that is offered")
    if toolset.deferred and TOOL_SEARCH not in toolset.offered:
        message = f"the model cannot find the deferred tools: a rule denies {TOOL_SEARCH}"
        yield document.warning(("skill_policy", "defer"), message)


def _unused_variables(spec: AgentSpec, document: Document, prompts: Prompts) -> Iterator[Problem]:
    warning = partial(document.warning, at_key=True)
    if isinstance(spec.guidance, TemplateRef):
        for name in spec.guidance.vars.keys() - _variables_of(spec.guidance, prompts):
            yield warning(("guidance", "vars", name), f"no template uses the variable {name!r}")
    source = spec.instructions
    in_plan = {reference.input for step in spec.plan.steps for reference in file_references(step)}
    if not isinstance(source, TemplateRef):
        for name in (name for name in spec.inputs if name not in in_plan):
            message = f"the model never sees the input {name!r}: the instructions are plain text"
            yield warning(("inputs", name), message, hint=_TEMPLATE_HINT)
        return
    used = _variables_of(source, prompts)
    for name in source.vars.keys() - used:
        yield warning(("instructions", "vars", name), f"no template uses the variable {name!r}")
    for name in spec.inputs.keys() - used - in_plan:
        yield warning(("inputs", name), f"no template uses the input {name!r}: the model never sees it")


def _planner_variables(spec: AgentSpec, document: Document, prompts: Prompts) -> Iterator[Problem]:
    """Warn about a planner template of the project that leaves out what the model must learn."""
    if spec.executor not in ("plan", "auto"):
        return
    template = spec.plan.template or PLAN_TEMPLATE
    path: KeyPath = ("plan", "template") if spec.plan.template else ()
    for variant in prompts.variants(template):
        if variant not in prompts.project_names:
            continue
        for name in ("findings", "progress", "feedback"):
            if name not in prompts.variables(variant):
                message = (
                    f"the planner template {variant} leaves out `{name}`: the model does not learn {_LEARNS[name]}"
                )
                hint = f"insert it as the shipped one does: agentsd templates {PLAN_TEMPLATE} --text --shipped"
                yield document.warning(path, message, hint=hint)


def _variables_of(source: TemplateRef, prompts: Prompts) -> set[str]:
    """Return the variables that any language of a template uses."""
    return set().union(*(prompts.variables(variant) for variant in prompts.variants(source.template)))


def _rule_warnings(spec: AgentSpec, toolset: Toolset, unavailable: Collection[str]) -> Iterator[Problem]:
    """Yield a warning for each rule that has no effect, or less than it seems to have."""
    seen: dict[tuple[str, ...], PlacedRule] = {}
    denied = {tool.name: _denied_paths(toolset, tool) for tool in toolset.offered.values() if tool.paths}
    for rule, names in toolset.matches():
        tools = [toolset.tools[name] for name in names]
        first = seen.get(same := (rule.kind, rule.rule.tool, repr((sorted(rule.rule.when.items()), rule.rule.at_most))))
        if first is not None:
            yield _warning(rule, f"duplicates line {first.place.rpartition(':')[2]}")
        elif not tools:  # for deny and ask rules, that is an error or was declared with `optional`
            if rule.kind == "allow" and source_of(rule.rule.tool) not in (*unavailable, CLIENT[:-1]):
                yield _warning(rule, "matches no tool")
        elif rule.kind != "deny" and (reason := _reason_denied(spec, toolset, tools)):
            yield _warning(rule, f"never applies: {reason}")
        else:
            yield from (_warning(rule, text) for text in _loose_conditions(rule, tools))
            yield from (_warning(rule, text) for text in _uncovered_tools(spec, toolset, rule, tools, denied))
        seen.setdefault(same, rule)


def _loose_conditions(rule: PlacedRule, tools: list[Tool]) -> Iterator[str]:
    """Yield conditions that another spelling of the same path or URL bypasses, or that only absolute paths meet."""
    for name, condition in rule.rule.when.items():
        local = [tool.name for tool in tools if location_kind(tool, name) == "path" and not tool.is_external]
        if local and str(condition).removeprefix("!=").lstrip().startswith("/"):
            yield f"compares {name!r} of {local[0]} with an absolute path; write it relative to tools.base_path"
        if name.rpartition(".")[2] not in _LOCATION_ARGUMENTS:
            continue
        plain_text = [tool for tool in tools if has_argument(tool, name) and location_kind(tool, name) is None]
        if plain_text:
            tool = plain_text[0]
            declaration = (
                f"paths: {{'*': [{name}]}} in the entry of its server" if tool.is_external else f"@tool(paths={name!r})"
            )
            yield (
                f"compares {name!r} of {tool.name} as plain text, so another spelling of the same place bypasses it; "
                f"declare it as a path or URL: {declaration}"
            )


def _uncovered_tools(
    spec: AgentSpec, toolset: Toolset, rule: PlacedRule, tools: list[Tool], denied: Mapping[str, Set[object]]
) -> Iterator[str]:
    """Yield the other tools that can access the files which a deny rule protects from the tools it matches."""
    if rule.kind != "deny":
        return
    named = {tool.name for tool in tools}
    for name, condition in rule.rule.when.items():
        writers = {tool.risk != "low" for tool in tools if name in tool.paths}
        if not writers or not isinstance(condition, str) or condition in spec.skill_policy.files.deny:
            continue
        others = [
            tool.name
            for tool in toolset.offered.values()
            if tool.paths and tool.name not in {*named, _LISTING_TOOL} and (tool.risk != "low") in writers
            if condition not in denied[tool.name]
        ]
        if others:
            advice = "add the same condition for them"
            if writers == {False} and not condition.startswith(("!=", "/")):
                advice = f"deny the files for all tools: files: {{deny: [{condition!r}]}}"
            yield f"leaves the same files accessible to {', '.join(sorted(others))}; {advice}"


def _denied_paths(toolset: Toolset, tool: Tool) -> Set[object]:
    """Return the path conditions under which calls of a tool are denied."""
    rules = toolset.rules_for(tool.name).deny
    return {rule.rule.when[name] for rule in rules for name in tool.paths if name in rule.rule.when}


def _reason_denied(spec: AgentSpec, toolset: Toolset, tools: list[Tool]) -> str | None:
    """Return why every call of these tools is denied before ask and allow rules apply, or None."""
    if any(tool.name in toolset.offered or tool.name in toolset.blocked for tool in tools):
        return None
    for tool in tools:
        if toolset.unconditional_deny(tool.name) is None:
            return f"{tool.name} has risk {tool.risk}, and max_risk is {spec.runtime_policy.risk_level}"
    denying = toolset.unconditional_deny(tools[0].name)
    assert denying is not None
    return f"the tools it matches are denied by {denying.rule.tool!r} in line {denying.place.rpartition(':')[2]}"


def _warning(rule: PlacedRule, text: str) -> Problem:
    path, _, line = rule.place.rpartition(":")
    message = f"the {rule.kind} rule {rule.rule.tool!r} {text}"
    return Problem(path=path, line=int(line), message=message, severity="warning")
