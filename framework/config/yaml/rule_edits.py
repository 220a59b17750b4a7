"""Edits the rules of an agent's file as text. Comments, order and everything else in the file stay as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from framework.config.yaml.parse import ParseError, parse_agent
from framework.types.spec import AgentSpec, Rule, SkillPolicy

_SECTIONS = ("tools", "skill_policy")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")

_Edit = tuple[int, int, str]
"""Start, end and new text."""


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
    entries = _entries(root)
    section = next((entries[name] for name in _SECTIONS if name in entries), None)
    if not isinstance(section, MappingNode):
        raise NotEditable("its rules are not a mapping")
    changed = text
    for start, end, new in sorted(_File(text, section).edits(edits), key=lambda one: one[:2], reverse=True):
        changed = changed[:start] + new + changed[end:]
    try:
        found, _ = parse_agent(path, changed.encode("utf-8"))
    except ParseError:
        found = None
    if found is None or _meaning(found) != _meaning(_expected(spec, edits)):
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


def _meaning(spec: AgentSpec) -> AgentSpec:
    """Return a spec without what follows from its rules."""
    policy: SkillPolicy = spec.skill_policy.model_copy(update={"any_risk": (), "any_risk_if_asked": ()})
    return spec.model_copy(update={"skill_policy": policy})


def _entries(node: Node | None) -> dict[str, Node]:
    return {key.value: value for key, value in node.value} if isinstance(node, MappingNode) else {}


def _end(node: Node) -> Node:
    """Return the last scalar or flow collection in a node: the end of a block is after the comments below it."""
    if not isinstance(node, MappingNode | SequenceNode) or node.flow_style or not node.value:
        return node
    last = node.value[-1]
    return _end(last[1] if isinstance(node, MappingNode) else last)


class _File:
    """The text of a file, and its mapping of rules."""

    def __init__(self, text: str, section: MappingNode) -> None:
        self._text, self._section, self._lists = text, section, _entries(section)
        self._newline = "\r\n" if "\r\n" in text else "\n"

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
        keys = _entries(item)
        conditions = keys.get("when")
        if isinstance(conditions, MappingNode) and conditions.value:
            own = _entries(conditions)
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
        after = ", " if node.flow_style else f"{self._newline}{' ' * mark.column}"
        return mark.index, mark.index, f"{text}{after}"

    def _after(self, node: MappingNode, value: Node, text: str) -> _Edit:
        """Return the edit that writes an entry after the one with a value, below the comment beside that."""
        end = value.end_mark.index
        if node.flow_style:
            return end, end, f", {text}"
        line = self._text.find("\n", end)
        at = len(self._text) if line < 0 else line - (self._text[line - 1] == "\r")
        return at, at, f"{self._newline}{' ' * node.value[0][0].start_mark.column}{text}"

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
        line = self._text.find("\n", end)
        at, indent = (len(self._text) if line < 0 else line + 1), " " * node.start_mark.column
        lines = "".join(f"{indent}- {text}{self._newline}" for text in texts)
        return (at, at, f"{self._newline}{lines}") if line < 0 else (at, at, lines)
