"""Steps of plans: those of an agent's file as a plan, checks when the file is loaded, references to earlier results.

A fixed plan is a plan like one that the model writes, and the same executor runs it. The checks of the graph and of
arguments serve both; a run repeats them, with the policy and the limits, before it executes the plan.

Parameters refer to results as `{{ steps.find.output }}`, those of files also to `{{ inputs.NAME }}`, and in a loop to
`{{ item }}`. References are found by one pattern and replaced by values, which are never scanned again. A text that is
only a reference becomes the value itself, in the type that the parameter's schema requires; inside a longer text, a
reference becomes text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final

from framework.config.yaml.document import Document, KeyPath
from framework.tools.arguments import ArgumentsError, SchemaArguments
from framework.tools.conditions import CONDITION_FORMS, condition_fault, rule_matches
from framework.tools.json_schema import UNREADABLE, JsonSchema, is_of_type, parse_as, type_names
from framework.tools.tool import Tool, source_of
from framework.tools.toolset import Toolset
from framework.types.errors import ToolError
from framework.types.messages import ToolDefinition
from framework.types.plan import Plan, PlanStep, is_item_id
from framework.types.problem import Problem
from framework.types.spec import AgentSpec, AnswerGoal, FileStep
from framework.types.text import did_you_mean, read_json, shorten

_STEPS: KeyPath = ("plan", "steps")
_MAX_LOOP_ID = 58
"""Maximum length of a loop's id: the steps of its items append a number to it."""
_EXECUTOR = "plan"


def file_plan(spec: AgentSpec, goal: str, source: str) -> Plan:
    """Return the steps of an agent's file as a plan, with references to inputs.

    Args:
        spec: the agent.
        goal: what the plan is to achieve.
        source: file and line of the steps.
    """
    known = {step.id for step in spec.plan.steps}
    steps: list[PlanStep] = []
    for step in spec.plan.steps:
        before = step.depends_on if step.depends_on is not None else [one.id for one in steps[-1:] if one.id != step.id]
        referred = [reference.step for reference in file_references(step) if reference.step in known - {step.id}]
        each = read_reference(step.for_each) if step.for_each else None
        steps.append(
            PlanStep(
                id=step.id,
                description=step.description or step.goal or step.tool or f"ask {step.agent}",
                tool=f"agent.{step.agent}" if step.agent else step.tool,
                parameters=step.parameters | ({"message": step.message} if step.message else {}),
                tools=step.tools,
                depends_on=tuple(dict.fromkeys((*before, *referred))),
                expected=step.expected,
                when=step.when,
                for_each=each.text if each else step.for_each,
                max_items=step.max_items,
            )
        )
    answer = spec.plan.answer
    answers = {"answer_goal": answer.goal} if isinstance(answer, AnswerGoal) else {"answer": answer or ""}
    return Plan(goal=goal, steps=tuple(steps), source=source, **answers)


def file_references(step: FileStep) -> Iterator[StepReference]:
    """Yield the references of a step, its conditions and its list included."""
    yield from references([step.parameters, step.message, step.goal])
    for text in (*step.when, step.for_each):
        if reference := read_reference(text):
            yield reference


# --- checks of every plan


def graph_findings(plan: Plan, remaining: list[PlanStep]) -> Iterator[tuple[str, str]]:
    """Yield problems of ids and dependencies, each with the id of the step that has it."""
    known = {step.id: step for step in plan.steps}
    for name, count in Counter(step.id for step in plan.steps).items():
        if count > 1:
            done = next((step for step in plan.steps if step.id == name and step.status == "done"), None)
            yield (
                name,
                f"step {name} is already done: use another id for a new step"
                if done
                else f"two steps have the id {name!r}",
            )
    for step in remaining:
        for other in dict.fromkeys(step.depends_on):
            if other == step.id:
                yield step.id, f"step {step.id} depends on itself"
            elif other not in known:
                meant = did_you_mean(other, sorted(known))
                yield step.id, f"step {step.id} depends on {other!r}, which does not exist{meant}"
            elif known[other].status in ("failed", "skipped") and not known[other].bypassed:
                yield step.id, f"step {step.id} depends on {other}, which was not done"
    if cycle := _find_cycle(remaining):
        yield cycle[0], f"steps depend on each other in a cycle: {' -> '.join(cycle)}"


def _find_cycle(steps: list[PlanStep]) -> list[str]:
    """Return the ids of a dependency cycle, with the first repeated at the end, or an empty list."""
    waiting_for = {step.id: [other for other in step.depends_on if other != step.id] for step in steps}
    while free := [name for name, others in waiting_for.items() if not any(other in waiting_for for other in others)]:
        for name in free:
            del waiting_for[name]
    if not waiting_for:
        return []
    path = [next(iter(waiting_for))]
    while path.count(path[-1]) == 1:
        path.append(next(other for other in waiting_for[path[-1]] if other in waiting_for))
    return path[path.index(path[-1]) :]


def argument_findings(tool: Tool, step: PlanStep) -> Iterator[str]:
    """Yield problems of arguments whose values are known."""
    try:
        tool.bind(step.parameters)
    except ArgumentsError as error:
        later = referring_parameters(step)
        known = [finding for finding in error.findings if finding.field.partition(".")[0] not in later]
        messages = [str(finding) for finding in known] if error.findings else error.message.splitlines()
        if messages:
            yield f"{tool.name}: {'; '.join(messages)}"


# --- checks of a file


def plan_problems(
    spec: AgentSpec, document: Document, toolset: Toolset, outputs: Mapping[str, Any], unavailable: Collection[str]
) -> Iterator[Problem]:
    """Yield the problems of the fixed plan in an agent's file.

    Args:
        spec: the agent.
        document: its file.
        toolset: its tools.
        outputs: JSON Schemas of the agents' answers, by the names of their tools.
        unavailable: sources whose tools are not known.
    """
    if not spec.plan.steps:
        if spec.plan.answer is not None and (*_STEPS, 0) not in document.marks:  # not invalid ones
            yield document.problem(("plan", "answer"), "`answer` belongs to `plan.steps`, and there are none")
        return
    if spec.executor != _EXECUTOR:
        message = f"`plan.steps` needs `mode: plan`; this agent has the mode {spec.executor}"
        yield document.problem(_STEPS, message, hint="add `mode: plan`", at_key=True)
    if spec.plan.on_failure == "replan":
        message = "a fixed plan is never replanned: use fail, skip or ask"
        yield document.problem(("plan", "on_failure"), message)
    limit, calls = spec.runtime_policy.max_tool_calls, sum(step.goal is None for step in spec.plan.steps)
    if limit is not None and calls > limit:
        message = f"the steps call {calls} tools; max_tool_calls is {limit}"
        yield document.problem(_STEPS, message, hint="raise `limits: {max_tool_calls: …}`", at_key=True)
    yield from _Check(spec, document, toolset, outputs, unavailable).problems()


@dataclass(slots=True)
class _Check:
    spec: AgentSpec
    document: Document
    toolset: Toolset
    outputs: Mapping[str, Any]
    unavailable: Collection[str]
    plan: Plan = field(init=False)
    schemas: dict[str, dict[str, Any]] = field(default_factory=dict)
    """JSON Schemas of the results that were looked up, by step."""

    def problems(self) -> Iterator[Problem]:
        """Yield the problems of all steps and of the answer."""
        self.plan = file_plan(self.spec, "goal", "")
        places = {step.id: index for index, step in enumerate(self.plan.steps)}
        for name, finding in graph_findings(self.plan, list(self.plan.steps)):
            yield self.document.problem((*_STEPS, places[name], "id"), finding)
        for index, (step, planned) in enumerate(zip(self.spec.plan.steps, self.plan.steps, strict=True)):
            path = (*_STEPS, index)
            found = chain(self._loop(path, step), self._conditions(path, step), self._kind(path, step, planned))
            yield from found
        if isinstance(answer := self.spec.plan.answer, str):
            path = ("plan", "answer")
            yield from (self.document.problem(path, finding) for finding in invalid_references(answer))
            for reference in references(answer):
                yield from self._reference(path, reference, {}, loop=False)

    def _kind(self, path: KeyPath, step: FileStep, planned: PlanStep) -> Iterator[Problem]:
        values: list[tuple[KeyPath, Any]] = [
            ((*path, "parameters", name), value) for name, value in step.parameters.items()
        ]
        if step.message is not None:
            values.append(((*path, "message"), step.message))
        if step.goal is not None:
            values.append(((*path, "goal"), step.goal))
            for reference in references(step.goal):
                if not reference.input:
                    message = f"a goal cannot contain {{{{ {reference.text} }}}}: text in it would be an instruction"
                    yield self.document.problem((*path, "goal"), message, hint="pass it in `parameters`, as data")
        for place, value in values:
            yield from (self.document.problem(place, finding) for finding in invalid_references(value))
            for reference in references(value):
                yield from self._reference(place, reference, step.when, loop=bool(step.for_each), own=step.id)
        if step.goal is not None:
            for index, name in enumerate(step.tools or ()):
                yield from self._offered((*path, "tools", index), name)
        else:
            yield from self._call(path, step, planned)

    def _call(self, path: KeyPath, step: FileStep, planned: PlanStep) -> Iterator[Problem]:
        name, key = planned.tool or "", "agent" if step.agent else "tool"
        missing = [*self._offered((*path, key), name, agent=step.agent)]
        yield from missing
        tool = self.toolset.tools.get(name)
        if missing or tool is None:
            return
        later = referring_parameters(planned)
        known = tool.with_defaults({name: value for name, value in planned.parameters.items() if name not in later})
        for rule in self.toolset.rules_for(name).deny:
            if not rule.rule.at_most and rule_matches(
                rule.rule, {name: value for name, value in known.items() if name not in later}, tool
            ):
                yield self.document.problem((*path, key), f"the policy forbids it: {rule}")
        for finding in argument_findings(tool, planned):
            yield self.document.problem((*path, "parameters" if step.parameters else key), finding, at_key=True)
        for place, reference, types in expected_types(planned.parameters, tool.definition.parameters):
            schema = self._schema_of(reference, step)
            kinds = type_names(JsonSchema(self._root(reference)).branches(schema)) if schema else set()
            if kinds and types and not _converts(kinds, types):
                found = f"{' or '.join(sorted(kinds))}, and {name} takes {' or '.join(sorted(types))} there"
                message = f"{place}: {reference.text} is {found}"
                own: KeyPath = (
                    ("message",) if place == "message" and step.message else ("parameters", *place.split("."))
                )
                yield self.document.problem((*path, *own), message)

    def _offered(self, path: KeyPath, name: str, agent: str | None = None) -> Iterator[Problem]:
        """Yield a problem for a tool that does not exist, or that the agent must not use."""
        if name in self.toolset.offered or self.toolset.is_deferred(name):
            return
        if source_of(name) in self.unavailable:
            return  # its server is not reachable now: the run tells
        if agent is not None:
            message = f"{agent!r} is not one of this agent's `agents`{did_you_mean(agent, self.spec.sub_agents)}"
            yield self.document.problem(path, message, hint=f"add it: `agents: [{agent}]`")
        elif denying := self.toolset.unconditional_deny(name):
            yield self.document.problem(path, f"the policy forbids {name}: {denying}")
        elif (tool := self.toolset.tools.get(name)) and self.toolset.rules_for(name).allow:
            ceiling = self.spec.runtime_policy.risk_level
            message = f"this agent may not call {name}: its risk is {tool.risk}, and max_risk is {ceiling}"
            yield self.document.problem(path, message, hint=f"raise max_risk, or name it: `tools: [{name}]`")
        elif tool:
            message = f"this agent may not call {name}: `tools` does not allow it"
            yield self.document.problem(path, message, hint=f"add it: `tools: [{name}]`")
        else:
            message = f"there is no tool {name!r}{did_you_mean(name, sorted(self.toolset.offered))}"
            yield self.document.problem(path, message)

    def _loop(self, path: KeyPath, step: FileStep) -> Iterator[Problem]:
        if not step.for_each:
            if "max_items" in step.model_fields_set and step.max_items != FileStep.model_fields["max_items"].default:
                yield self.document.problem((*path, "max_items"), "max_items is for a step with for_each")
            return
        place = (*path, "for_each")
        if len(step.id) > _MAX_LOOP_ID:
            yield self.document.problem((*path, "id"), f"the id of a loop has at most {_MAX_LOOP_ID} characters")
        for other in self.plan.steps:
            if is_item_id(other.id, step.id):
                message = f"step {other.id} has the id that an item of the loop {step.id} gets: use another id"
                yield self.document.problem(place, message)
        reference = read_reference(step.for_each)
        if reference is None or reference.is_item:
            message = f"for_each is a list of an earlier step or of an input; this is {step.for_each!r}"
            yield self.document.problem(place, message, hint="write steps.ID.output.FIELD or inputs.NAME")
            return
        yield from self._reference(place, reference, step.when, loop=False, own=step.id)
        kinds = type_names(JsonSchema(self._root(reference)).branches(self._schema_of(reference, step)))
        if kinds and not kinds & {"array", "string"}:
            yield self.document.problem(place, f"{reference.text} is no list: it is {' or '.join(sorted(kinds))}")

    def _conditions(self, path: KeyPath, step: FileStep) -> Iterator[Problem]:
        for key, condition in step.when.items():
            place = (*path, "when", key)
            reference = read_reference(key)
            if reference is None or key.strip().startswith("{"):
                message = f"a condition is about steps.ID.output, inputs.NAME or, in a loop, item; this is {key!r}"
                yield self.document.problem(place, message, at_key=True)
                continue
            missing = [*self._reference(place, reference, step.when, loop=bool(step.for_each), own=step.id)]
            yield from missing
            if missing:
                continue
            root = self._root(reference)
            schema = {"type": "object", "properties": {key: self._schema_of(reference, step) or {}}}
            schema["$defs"] = root.get("$defs", {})
            if fault := condition_fault(_holder(f"step {step.id}", schema), key, condition):
                yield self.document.problem(place, fault, hint=CONDITION_FORMS)

    def _reference(
        self, path: KeyPath, reference: StepReference, when: Mapping[str, Any], *, loop: bool, own: str = ""
    ) -> Iterator[Problem]:
        """Yield why a reference cannot be resolved whenever the step with these conditions runs."""
        problem = partial(self.document.problem, at_key=path[-2] == "when")
        known = {step.id: step for step in self.spec.plan.steps}
        if reference.is_item:
            if not loop:
                yield problem(path, "`item` is the item of a loop, and there is no for_each here")
        elif reference.input:
            if reference.input not in self.spec.inputs:
                meant = did_you_mean(reference.input, sorted(self.spec.inputs))
                yield problem(path, f"there is no input {reference.input!r}{meant}", hint="declare it under `inputs`")
            elif not (declared := self.spec.inputs[reference.input]).required and declared.default is None:
                message = f"the input {reference.input!r} may be missing"
                yield problem(
                    path, message, hint=f"require it, `{reference.input}: {declared.type}!`, or give a default"
                )
        elif reference.step not in known:
            meant = did_you_mean(reference.step, sorted(known))
            yield problem(path, f"there is no step {reference.step!r}{meant}")
        elif reference.step == own:
            yield problem(path, f"step {own} refers to its own result")
        elif also := _step_conditions(known[reference.step]).items() - when.items():
            name, condition = sorted(also, key=str)[0]
            message = f"step {reference.step} may be skipped, and then it has no result"
            yield problem(path, message, hint=f"add its condition here: `when: {{{name}: {condition!r}}}`")
        if not reference.is_item and self._schema_of(reference, None) is None:
            yield problem(path, f"there is no {reference.text}: the result has no {'.'.join(reference.path)}")

    def _root(self, reference: StepReference) -> dict[str, Any]:
        """Return the JSON Schema of what a reference names, without its path; empty if anything is possible."""
        if reference.input:
            declared = self.spec.inputs.get(reference.input)
            return {"type": declared.type} if declared else {}
        if reference.step not in self.schemas:
            planned = next((step for step in self.plan.steps if step.id == reference.step), None)
            self.schemas[reference.step] = self._output_of(planned) if planned else {}
        return self.schemas[reference.step]

    def _output_of(self, step: PlanStep) -> dict[str, Any]:
        tool = self.toolset.tools.get(step.tool or "")
        if step.tool is None:
            schema: dict[str, Any] = {"type": "string"}
        elif step.tool in self.outputs:
            schema = self.outputs[step.tool]
        else:
            schema = tool.returns.schema if tool is not None and tool.returns is not None else {}
        if not step.for_each:
            return schema
        own = {key: value for key, value in schema.items() if key != "$defs"}
        return {"type": "array", "items": own, "$defs": schema.get("$defs", {})}

    def _schema_of(self, reference: StepReference, step: FileStep | None) -> Any:
        """Return the schema of a value; empty if anything is possible, and None if there is no such value."""
        if reference.is_item:
            each = read_reference(step.for_each) if step and step.for_each else None
            if each is None or each.is_item:
                return {}
            return self._schema_of(StepReference(each.step, (*each.path, "0", *reference.path), each.input), None)
        root = self._root(reference)
        reader, node = JsonSchema(root), root
        for part in reference.path:
            if not (branches := reader.branches(node)):
                return {}
            inside = [child for branch in branches if (child := _part_of(branch, part)) is not None]
            if not inside:
                return None
            node = inside[0] if len(inside) == 1 else {}
        return node


def _step_conditions(step: FileStep) -> dict[str, Any]:
    """Return the conditions that skip a whole step, not only an item of its loop."""
    return {key: value for key, value in step.when.items() if (one := read_reference(key)) and not one.is_item}


def _part_of(branch: Mapping[str, Any], part: str) -> Any:
    """Return the schema of a part of a value; empty if it may be anything, and None if there is no such part."""
    types = type_names([branch])
    if "object" in types:
        declared = branch.get("properties", {})
        is_open = (
            not declared or "patternProperties" in branch or branch.get("additionalProperties") not in (None, False)
        )
        return declared.get(part, {} if is_open else None)
    return branch.get("items", {}) if "array" in types and part.isdecimal() else None


def _converts(kinds: set[str], types: frozenset[str]) -> bool:
    """Return whether a value of one of these JSON types may be accepted, or converted, where others are required."""
    if "string" in types or "string" in kinds or kinds & types:
        return True
    return ("number" in types and "integer" in kinds) or ("integer" in types and "number" in kinds)


def _holder(name: str, schema: dict[str, Any]) -> Tool:
    """Return a tool whose arguments are the values that conditions are about, in which rules find them."""
    definition = ToolDefinition(name=name, description="", parameters=schema)
    return Tool(definition, dict, SchemaArguments(schema))


# --- references in steps


_REFERENCE = re.compile(
    r"\{\{\s*(?:steps\.([a-zA-Z0-9][a-zA-Z0-9_-]*)\.output|inputs\.([^\W\d]\w*)|item)"
    r"((?:\.[A-Za-z0-9_-]+)*)\s*\}\}"
)
_SHOWN_CHARS = 60
_MAX_DIGITS = 10
_SYNTAX = "write {{ steps.ID.output }}, or {{ steps.ID.output.FIELD }} for a part of it"
UNRESOLVED: Final = object()
"""Returned for a reference that stays in the text."""


@dataclass(frozen=True, slots=True)
class StepReference:
    """A reference to a step's result, to an input of the run, or to the item of a loop; or to a part of it."""

    step: str
    """Id of the step; empty for an input or an item."""
    path: tuple[str, ...] = ()
    """Keys and indices into a structured result."""
    input: str = ""
    """Name of the input; with an empty `step`, an empty name means the item of a loop."""

    @property
    def is_item(self) -> bool:
        """Whether it refers to the item of a loop."""
        return not (self.step or self.input)

    @property
    def text(self) -> str:
        """The reference without its braces, such as `steps.find.output.items`."""
        start = f"steps.{self.step}.output" if self.step else f"inputs.{self.input}" if self.input else "item"
        return ".".join((start, *self.path))


def read_reference(text: str) -> StepReference | None:
    """Return a reference that is written with or without braces; None for another text."""
    match = _REFERENCE.fullmatch(text.strip()) or _REFERENCE.fullmatch(f"{{{{ {text.strip()} }}}}")
    return _read(match) if match else None


def references(value: Any) -> Iterator[StepReference]:
    """Yield all references in a value, at any depth."""
    for text in _texts(value):
        yield from (_read(match) for match in _REFERENCE.finditer(text))


def invalid_references(value: Any) -> Iterator[str]:
    """Yield a finding for each text with `{{` that is not a reference."""
    for text in _texts(value):
        rest = _REFERENCE.sub("", text)
        if "{{" in rest:
            invalid = rest[rest.index("{{") :]
            yield f"{shorten(invalid, _SHOWN_CHARS)!r} is not a valid reference: {_SYNTAX}"


def resolve_references(
    value: Any, value_of: Callable[[StepReference], Any], schema: Mapping[str, Any] | None = None
) -> Any:
    """Return the value with each reference replaced by a result, in the type that the schema requires there.

    Args:
        value: a step's parameters.
        value_of: returns the result that a reference names, without its path; UNRESOLVED for one that stays.
        schema: JSON Schema of the parameters; without one, results keep their type.

    Raises:
        ToolError: a result does not contain the referenced part.
    """
    root_schema = JsonSchema(schema or {})
    return _resolved_in(root_schema, root_schema.root, value, value_of)


def expected_types(value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[str, StepReference, frozenset[str]]]:
    """Yield, for each text that is only a reference, its path, the reference, and the JSON types allowed there."""
    root_schema = JsonSchema(schema)
    yield from _expected(root_schema, root_schema.root, value, ())


def referring_parameters(step: PlanStep) -> frozenset[str]:
    """Return the names of parameters that contain references: their values are not known yet."""
    return frozenset(name for name, value in step.parameters.items() if next(references(value), None))


def with_item(value: Any, each: StepReference, index: int) -> Any:
    """Return the value with `{{ item }}` replaced by a reference to this item of the list that `each` refers to."""
    match value:
        case str():
            return _REFERENCE.sub(lambda match: _item_text(match, each, index), value)
        case list():
            return [with_item(inner, each, index) for inner in value]
        case dict():
            return {key: with_item(inner, each, index) for key, inner in value.items()}
    return value


def item_reference(reference: StepReference, each: StepReference, index: int) -> StepReference:
    """Return the reference to an item of the list that `each` refers to, for one to `item`; any other, unchanged."""
    if not reference.is_item:
        return reference
    return StepReference(each.step, (*each.path, str(index), *reference.path), each.input)


def _item_text(match: re.Match[str], each: StepReference, index: int) -> str:
    reference = _read(match)
    return f"{{{{ {item_reference(reference, each, index).text} }}}}" if reference.is_item else match[0]


def _resolved_in(schema: JsonSchema, node: Any, value: Any, value_of: Callable[[StepReference], Any]) -> Any:
    match value:
        case str():
            return _resolved(value, value_of, type_names(schema.branches(node)))
        case list():
            parts = enumerate(value)
            return [_resolved_in(schema, schema.child(node, value, at), inner, value_of) for at, inner in parts]
        case dict():
            items = value.items()
            return {key: _resolved_in(schema, schema.child(node, value, key), inner, value_of) for key, inner in items}
    return value


def _resolved(text: str, value_of: Callable[[StepReference], Any], types: set[str]) -> Any:
    if whole := _REFERENCE.fullmatch(text.strip()):
        value = value_of(_read(whole))
        return text if value is UNRESOLVED else _rendered(part_of(value, _read(whole)), types)
    return _REFERENCE.sub(lambda match: _inserted(match, value_of), text)


def _inserted(match: re.Match[str], value_of: Callable[[StepReference], Any]) -> str:
    value = value_of(_read(match))
    return match[0] if value is UNRESOLVED else result_text(part_of(value, _read(match)))


def _rendered(value: Any, types: set[str]) -> Any:
    """Convert a result to one of these types if that is unambiguous; otherwise, or if any type is allowed, return it.

    None is not converted to text: a missing value must not become the word "null".
    """
    if not types or value is None or is_of_type(value, types):
        return value
    if "string" in types:
        return result_text(value)
    read = parse_as(value.strip(), types) if isinstance(value, str) else UNREADABLE
    return value if read is UNREADABLE else read


def _expected(
    schema: JsonSchema, node: Any, value: Any, place: tuple[str, ...]
) -> Iterator[tuple[str, StepReference, frozenset[str]]]:
    match value:
        case str() if whole := _REFERENCE.fullmatch(value.strip()):
            yield ".".join(place), _read(whole), frozenset(type_names(schema.branches(node)))
        case list() | dict():
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                yield from _expected(schema, schema.child(node, value, key), inner, (*place, str(key)))


def _read(match: re.Match[str]) -> StepReference:
    return StepReference(match[1] or "", tuple(part for part in match[3].split(".") if part), match[2] or "")


def part_of(value: Any, reference: StepReference) -> Any:
    """Return the part of a value that the path of a reference leads to; raise ToolError if there is none.

    Many tools return JSON as text, so a path also leads into such a text.
    """
    for part in reference.path:
        if isinstance(value, str):
            value = _json_in(value)
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and len(part) < _MAX_DIGITS and int(part) < len(value):
            value = value[int(part)]
        else:
            path = ".".join(reference.path)
            what = f"the result of step {reference.step}" if reference.step else f"the input {reference.input}"
            raise ToolError(f"{what} has no {path}: it is {kind_of_value(value)}")
    return value


def _json_in(text: str) -> Any:
    """Return the object or list that a text consists of, or the text."""
    try:
        return read_json(text) if text.lstrip().startswith(("{", "[")) else text
    except ValueError:
        return text


def kind_of_value(value: Any) -> str:
    """Return what kind of value it is, in words."""
    match value:
        case dict():
            return f"an object with {', '.join(list(value)[:10]) or 'nothing in it'}"
        case list():
            return f"a list of {len(value)}"
        case str():
            return "text"
    return "a plain value"


def result_text(value: Any) -> str:
    """Return a text unchanged, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value. Keys of objects are not scanned."""
    match value:
        case str():
            yield value
        case list():
            for inner in value:
                yield from _texts(inner)
        case dict():
            for inner in value.values():
                yield from _texts(inner)
