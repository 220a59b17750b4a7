"""Rewrites the older spellings of agent files. Comments, order and everything else in a file stay as they are.

Each step is checked by itself: a step that would change what the file means, or that finds a form of YAML it does not
expect, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from framework.config.yaml.agent_keys import INPUT_TYPES, PLAN_APPROVALS, TOP_LEVEL, WRITTEN
from framework.config.yaml.parse import ParseError, parse_agent
from framework.types.spec import AgentSpec

_Edit = tuple[int, int, str]
"""Start, end and new text."""
_RENAMED = {path[0]: key for key, path in TOP_LEVEL.items() if len(path) == 1 and key in ("agents", "mode", "mcp")}
_PLAIN = re.compile(r"[\w./-]+(?: [\w./-]+)*")
"""A text that needs no quotes within a mapping, if YAML does not read it as another type."""


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
        changed = text
        for start, end, new in sorted(step(_File(text, root)), reverse=True):
            changed = changed[:start] + new + changed[end:]
        if changed != text and _meaning(path, changed) == before:
            text = changed
    return text.encode("utf-8")


def _meaning(path: str, text: str) -> AgentSpec | None:
    """Return what a file means, apart from the tools that may have any risk; None if it is invalid."""
    try:
        spec, _ = parse_agent(path, text.encode("utf-8"))
    except ParseError:
        return None
    policy = spec.skill_policy.model_copy(update={"any_risk": (), "any_risk_if_asked": ()})
    return spec.model_copy(update={"skill_policy": policy})


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
    spans = [file.lines(inner[name][0], _last(inner[name][1])) for name in moved]
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


def _last(node: Node) -> Node:
    """Return the last value within a node: the end of a block is after the comments below it."""
    return node if _is_flow(node) or not isinstance(node, MappingNode) else _last(node.value[-1][1])


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
            indent, at = " " * own.value[0][0].start_mark.column, file.text.find("\n", _last(own).end_mark.index) + 1
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
