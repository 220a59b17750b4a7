"""Edits agent files as text: newer spellings, other rules. Comments, order and everything else stay as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from framework.config.yaml.agent_keys import INPUT_TYPES, PLAN_APPROVALS, TOP_LEVEL, WRITTEN
from framework.config.yaml.parse import ParseError, parse_agent
from framework.types.spec import AgentSpec, Rule

_Edit = tuple[int, int, str]
"""Start, end and new text."""
_RENAMED = {path[0]: key for key, path in TOP_LEVEL.items() if len(path) == 1 and key in ("agents", "mode", "mcp")}


def rewrite_agent(path: str, source: bytes, *, with_tools: bool = True) -> bytes:
    """Return an agent file with the newer spellings; the same bytes if there is nothing to rewrite.

    Args:
        path: the file.
        source: its content, which must be valid.
        with_tools: whether to rewrite `skill_policy`. Under `tools`, a tool that is named without a wildcard may have
            any risk.
    """
    text = source.decode("utf-8")
    steps = [_drop_version, _drop_name(path), _rename, _templates, _plan, _inputs, _limits, _budgets]
    for step in [*steps, _tools] if with_tools else steps:
        before = _meaning(path, text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if before is None or not isinstance(root, MappingNode) or root.flow_style:
            break
        changed = _applied(text, step(_File(text, root)))
        if changed != text and _meaning(path, changed) == before:
            text = changed
    return text.encode("utf-8")


def _meaning(path: str, text: str) -> AgentSpec | None:
    """Return what a file means, apart from the tools that may have any risk; None if it is invalid."""
    try:
        spec, _ = parse_agent(path, text.encode("utf-8"))
    except ParseError:
        return None
    return _without_lifts(spec)


def _without_lifts(spec: AgentSpec) -> AgentSpec:
    """Return a spec without what follows from its rules: the tools that may have any risk."""
    policy = spec.skill_policy.model_copy(update={"any_risk": (), "any_risk_if_asked": ()})
    return spec.model_copy(update={"skill_policy": policy})


def _applied(text: str, edits: Iterable[_Edit]) -> str:
    """Return a text with edits of it."""
    for start, end, new in sorted(edits, key=lambda edit: edit[:2], reverse=True):
        text = text[:start] + new + text[end:]
    return text


class _File:
    """The text of a file with the nodes of its keys and values."""

    def __init__(self, text: str, root: MappingNode) -> None:
        self.text, self.entries = text, _entries(root)
        self.newline = "\r\n" if "\r\n" in text else "\n"

    def of(self, node: Node) -> str:
        return self.text[node.start_mark.index : node.end_mark.index]

    def lines(self, first: Node, last: Node) -> tuple[int, int] | None:
        """Return start and end of the lines of an entry; None if they contain anything else, such as a comment."""
        start = self.text.rfind("\n", 0, first.start_mark.index) + 1
        end = self.text.find("\n", last.end_mark.index) + 1 or len(self.text)
        around = self.text[start : first.start_mark.index] + self.text[last.end_mark.index : end]
        return None if around.strip(" \t\r\n\ufeff") else (start, end)

    def comments_above(self, start: int) -> tuple[int, list[str]]:
        """Return the comment lines directly above a line, and where the first of them starts."""
        comments: list[str] = []
        for line in reversed(self.text[:start].splitlines(keepends=True)):
            if not line.lstrip().startswith("#"):
                break
            comments.insert(0, line.strip())
            start -= len(line)
        return start, comments

    def removed(self, key: str) -> Iterator[_Edit]:
        """Yield the edit that removes an entry with its line."""
        if key in self.entries and (lines := self.lines(*self.entries[key])):
            yield (*lines, "\ufeff" if self.text[lines[0]] == "\ufeff" else "")


def _entries(node: Node) -> dict[str, tuple[Node, Node]]:
    return {key.value: (key, value) for key, value in node.value} if isinstance(node, MappingNode) else {}


def _replaced(node: Node, new: str) -> _Edit:
    return node.start_mark.index, node.end_mark.index, new


def _drop_version(file: _File) -> Iterator[_Edit]:
    yield from file.removed("version")


def _drop_name(path: str) -> Callable[[_File], Iterator[_Edit]]:
    def step(file: _File) -> Iterator[_Edit]:
        if "name" in file.entries and file.entries["name"][1].value == PurePosixPath(path).stem:
            yield from file.removed("name")

    return step


def _rename(file: _File) -> Iterator[_Edit]:
    for older, key in _RENAMED.items():
        if older in file.entries:
            yield _replaced(file.entries[older][0], key)


def _templates(file: _File) -> Iterator[_Edit]:
    for section in ("instructions", "guidance"):
        inner = _entries(file.entries[section][1]) if section in file.entries else {}
        if "template" in inner:
            yield _replaced(inner["template"][0], "file")


def _plan(file: _File) -> Iterator[_Edit]:
    inner = _entries(file.entries["plan"][1]) if "plan" in file.entries else {}
    if "approval" not in inner:
        return
    key, value = inner["approval"]
    risk = _entries(value).get("from")
    if risk and _is_flow(value):
        yield from (_replaced(key, "approve"), _replaced(value, risk[1].value))
    elif isinstance(value, ScalarNode) and value.value in PLAN_APPROVALS:
        yield _replaced(key, "approve")


def _inputs(file: _File) -> Iterator[_Edit]:
    inputs = _entries(file.entries["inputs"][1]) if "inputs" in file.entries else {}
    for _, value in inputs.values():
        if isinstance(value, MappingNode) and _is_flow(value) and (short := _short_input(file, value)):
            yield _replaced(value, short)


def _short_input(file: _File, node: MappingNode) -> str | None:
    """Return the short form of an input: its type, with `!` if it is required, or its default."""
    keys = _entries(node)
    kind, required = (keys[name][1].value if name in keys else "" for name in ("type", "required"))
    if keys.keys() <= {"type", "required"} and kind in INPUT_TYPES:
        return f"{kind}!" if required == "true" else str(kind)
    if keys.keys() <= {"type", "default"} and "default" in keys and isinstance(keys["default"][1], ScalarNode):
        return file.of(keys["default"][1])
    return None


def _limits(file: _File) -> Iterator[_Edit]:
    """Rewrite `runtime_policy` to `limits` and the keys that are at the top level now, which precede it."""
    key, section = file.entries.get("runtime_policy", (None, None))
    if key is None or section is None:
        return
    inner = _entries(section)
    moved = [name for name in inner if WRITTEN["runtime_policy", name][0] != "limits"]
    above = [f"{WRITTEN['runtime_policy', name][0]}: {_moved_value(file, inner[name][1])}" for name in moved]
    limits = {name: str(WRITTEN["runtime_policy", name][-1]) for name in inner if name not in moved}
    start, end = key.start_mark.index, section.end_mark.index
    if _is_flow(section):
        if "#" not in file.text[start:end]:
            pairs = ", ".join(f"{limits[name]}: {file.of(inner[name][1])}" for name in limits)
            yield start, end, file.newline.join([*above, *([f"limits: {{{pairs}}}"] if limits else [])])
        return
    spans = [file.lines(inner[name][0], _end(inner[name][1])) for name in moved]
    if not all(spans) or (not limits and "#" in file.text[start : section.start_mark.index]):
        return  # a comment would lose its place
    comments = [file.comments_above(span[0]) for span in spans if span]
    lines = [line for (_, own), text in zip(comments, above, strict=True) for line in (*own, text)]
    yield start, start, "".join(f"{line}{file.newline}" for line in lines)
    yield (start, key.end_mark.index, "limits") if limits else (start, file.text.find("\n", start) + 1, "")
    yield from ((first, span[1], "") for (first, _), span in zip(comments, spans, strict=True) if span)
    yield from (_replaced(inner[name][0], new) for name, new in limits.items())


def _moved_value(file: _File, value: Node) -> str:
    """Return a value of `runtime_policy` as it is written at the top level; `confirm` as one of `approve_from`."""
    keys = _entries(value)
    if keys.keys() == {"from"}:
        return file.of(keys["from"][1])
    pairs = (f"{'risk' if name == 'from' else name}: {file.of(one)}" for name, (_, one) in keys.items())
    return f"{{{', '.join(pairs)}}}" if keys else file.of(value)


def _end(node: Node) -> Node:
    """Return the last scalar or flow collection in a node: the end of a block is after the comments below it."""
    if not isinstance(node, MappingNode | SequenceNode) or node.flow_style or not node.value:
        return node
    last = node.value[-1]
    return _end(last[1] if isinstance(node, MappingNode) else last)


def _is_flow(node: Node) -> bool:
    return isinstance(node, (MappingNode, SequenceNode)) and bool(node.flow_style)


def _budgets(file: _File) -> Iterator[_Edit]:
    if "budgets" not in file.entries or "runtime_policy" in file.entries:
        return
    key, value = file.entries["budgets"]
    if not isinstance(value, SequenceNode) or not _is_flow(value):
        return
    shown = file.of(value.value[0]) if len(value.value) == 1 else file.of(value)
    limits = file.entries.get("limits")
    if limits is None:
        yield key.start_mark.index, value.end_mark.index, f"limits: {{budgets: {shown}}}"
    elif removed := [*file.removed("budgets")]:
        own = limits[1]
        if _is_flow(own):
            yield own.end_mark.index - 1, own.end_mark.index - 1, f"{', ' if own.value else ''}budgets: {shown}"
        else:
            indent, at = " " * own.value[0][0].start_mark.column, file.text.find("\n", _end(own).end_mark.index) + 1
            if not at:
                return
            yield at, at, f"{indent}budgets: {shown}{file.newline}"
        yield from removed


def _tools(file: _File) -> Iterator[_Edit]:
    if "skill_policy" not in file.entries:
        return
    key, section = file.entries["skill_policy"]
    inner = _entries(section)
    allow = inner["allow"][1]
    between = file.text[key.end_mark.index : allow.start_mark.index]
    if inner.keys() == {"allow"} and _is_flow(allow) and "#" not in between:
        end = section.end_mark.index if _is_flow(section) else allow.end_mark.index
        yield key.start_mark.index, end, f"tools: {file.of(allow)}"
    else:
        yield _replaced(key, "tools")


_SECTIONS = ("tools", "skill_policy")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class NotEditable(Exception):
    """The file has a form that is not edited as text; the message says what to write instead."""


@dataclass(frozen=True, slots=True)
class RuleEdit:
    """An edit of the rules of an agent."""

    index: int = 0
    """Which ask rule is replaced."""
    rules: tuple[Rule, ...] = ()
    """The rules in its place, which differ from it in one condition each; empty: it stays."""
    allow: tuple[str, ...] = ()
    """Tools that are allowed as well."""
    deny: tuple[Rule, ...] = ()
    """Calls that are denied as well."""


def edit_rules(path: str, source: bytes, edits: Sequence[RuleEdit]) -> bytes:
    """Return an agent's file with other rules; raises NotEditable if its text cannot be edited so.

    Args:
        path: the file.
        source: its content, which must be valid.
        edits: replaced ask rules, each once, and further rules. They are about the content as given.
    """
    text = source.decode("utf-8")
    spec, _ = parse_agent(path, source)
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    entries = _values(root)
    section = next((entries[name] for name in _SECTIONS if name in entries), None)
    if not isinstance(section, MappingNode):
        raise NotEditable("its rules are not a mapping")
    changed = _applied(text, _Rules(text, section).edits(edits))
    if _meaning(path, changed) != _without_lifts(_expected(spec, edits)):
        ways = [rule_yaml(rule) for edit in edits for rule in (*edit.rules, *edit.deny)]
        raise NotEditable(f"write {', '.join(ways)}")
    return changed.encode("utf-8")


def rule_yaml(rule: Rule) -> str:
    """Return a rule as YAML in one line."""
    parts = [f"tool: {_name(rule.tool)}"]
    if rule.when:
        pairs = ", ".join(f"{_name(name)}: {_scalar(value)}" for name, value in rule.when.items())
        parts.append(f"when: {{{pairs}}}")
    parts += [f"reason: {_scalar(rule.reason)}"] if rule.reason else []
    parts += [f"at_most: {rule.at_most}"] if rule.at_most else []
    parts += ["optional: true"] if rule.optional else []
    return f"{{{', '.join(parts)}}}"


def _name(text: str) -> str:
    return text if _PLAIN_NAME.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _expected(spec: AgentSpec, edits: Sequence[RuleEdit]) -> AgentSpec:
    policy = spec.skill_policy
    replaced = {edit.index: edit.rules for edit in edits if edit.rules}
    ask = tuple(new for index, rule in enumerate(policy.ask) for new in replaced.get(index, (rule,)))
    allow = dict.fromkeys((*policy.allow, *(name for edit in edits for name in edit.allow)))
    deny = (*policy.deny, *(rule for edit in edits for rule in edit.deny))
    changed = policy.model_copy(update={"ask": ask, "allow": tuple(allow), "deny": deny})
    return spec.model_copy(update={"skill_policy": changed})


def _values(node: Node | None) -> dict[str, Node]:
    return {} if node is None else {key: value for key, (_, value) in _entries(node).items()}


class _Rules(_File):
    """The text of a file, with the nodes of its rules."""

    def __init__(self, text: str, section: MappingNode) -> None:
        super().__init__(text, section)
        self._section, self._lists = section, _values(section)

    def edits(self, edits: Sequence[RuleEdit]) -> Iterator[_Edit]:
        """Yield the edits of the text; raises NotEditable."""
        for edit in edits:
            if edit.rules:
                yield from self._replaced(edit.index, edit.rules)
        for key, texts in (
            ("allow", dict.fromkeys(_name(name) for edit in edits for name in edit.allow)),
            ("deny", dict.fromkeys(rule_yaml(rule) for edit in edits for rule in edit.deny)),
        ):
            if texts:
                yield self._appended(key, [*texts])

    def _replaced(self, index: int, rules: Sequence[Rule]) -> Iterator[_Edit]:
        asked = self._lists.get("ask")
        if not isinstance(asked, SequenceNode):
            raise NotEditable("`ask` is not a list")
        item, first = asked.value[index], rules[0]
        if isinstance(item, ScalarNode):
            yield item.start_mark.index, item.end_mark.index, rule_yaml(first)
        elif isinstance(item, MappingNode):
            yield from self._with_conditions(item, first)
        else:
            raise NotEditable("a rule is a list")
        if rules[1:]:
            yield self._inserted(asked, item, [rule_yaml(rule) for rule in rules[1:]])

    def _with_conditions(self, item: MappingNode, rule: Rule) -> Iterator[_Edit]:
        """Yield the edits that give a rule its conditions. Those that it has already stay as they are written."""
        keys = _values(item)
        conditions = keys.get("when")
        if isinstance(conditions, MappingNode) and conditions.value:
            own = _values(conditions)
            for name, value in rule.when.items():
                if name not in own:
                    yield self._first_key(conditions, f"{_name(name)}: {_scalar(value)}")
                elif isinstance(own[name], ScalarNode) and own[name].value != str(value):
                    yield own[name].start_mark.index, own[name].end_mark.index, _scalar(value)
        elif "tool" in keys and conditions is None:
            pairs = ", ".join(f"{_name(name)}: {_scalar(value)}" for name, value in rule.when.items())
            yield self._after(item, keys["tool"], f"when: {{{pairs}}}")
        else:
            raise NotEditable("a rule is not a mapping with `tool`")

    def _first_key(self, node: MappingNode, text: str) -> _Edit:
        """Return the edit that writes an entry before the first one of a mapping."""
        mark = node.value[0][0].start_mark
        after = ", " if node.flow_style else f"{self.newline}{' ' * mark.column}"
        return mark.index, mark.index, f"{text}{after}"

    def _after(self, node: MappingNode, value: Node, text: str) -> _Edit:
        """Return the edit that writes an entry after the one with a value, below the comment beside that."""
        end = value.end_mark.index
        if node.flow_style:
            return end, end, f", {text}"
        line = self.text.find("\n", end)
        at = len(self.text) if line < 0 else line - (self.text[line - 1] == "\r")
        return at, at, f"{self.newline}{' ' * node.value[0][0].start_mark.column}{text}"

    def _appended(self, key: str, texts: Sequence[str]) -> _Edit:
        """Return the edit that adds items to a list of rules, or the list."""
        node = self._lists.get(key)
        if node is None:
            return self._first_key(self._section, f"{key}: [{', '.join(texts)}]")
        if not isinstance(node, SequenceNode):
            raise NotEditable(f"`{key}` is not a list")
        if not node.value:
            end = node.end_mark.index - 1
            return end, end, ", ".join(texts)
        return self._inserted(node, node.value[-1], texts)

    def _inserted(self, node: SequenceNode, item: Node, texts: Sequence[str]) -> _Edit:
        """Return the edit that inserts items after an item of a list."""
        end = _end(item).end_mark.index
        if node.flow_style:
            return end, end, "".join(f", {text}" for text in texts)
        line = self.text.find("\n", end)
        at, indent = (len(self.text) if line < 0 else line + 1), " " * node.start_mark.column
        lines = "".join(f"{indent}- {text}{self.newline}" for text in texts)
        return (at, at, f"{self.newline}{lines}") if line < 0 else (at, at, lines)
