"""Reads the keys of agent files: each key has one place in `AgentSpec`, and older spellings remain valid.

`tools`, `limits`, `approve_from` and the others of `TOP_LEVEL` are moved to the fields of `AgentSpec` together with
their positions, so that everything behind the parser sees one form of an agent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Any, NamedTuple, get_args

from framework.config.yaml.document import MAX_SHOWN_CHARS, Document, KeyPath, Marks, text_fix
from framework.types.problem import Problem
from framework.types.spec import AGENT_NAME, RISKS, AgentSpec, InputType, Limits, is_glob
from framework.types.text import shorten

TOP_LEVEL: Mapping[str, KeyPath] = {
    "tools": ("skill_policy",),
    "max_risk": ("runtime_policy", "risk_level"),
    "approve_from": ("runtime_policy", "confirm"),
    "strict_arguments": ("runtime_policy", "strict_arguments"),
    "limits": ("runtime_policy",),
    "agents": ("sub_agents",),
    "mode": ("executor",),
    "mcp": ("mcp_policy",),
}
"""The keys of agent files whose field in `AgentSpec` has another name, with the path of that field."""
LIMITS: Mapping[str, KeyPath] = {
    **{re.sub("^max_(total_)?", "", name): ("runtime_policy", name) for name in Limits.model_fields},
    "prices": ("runtime_policy", "cost"),
    "budgets": ("budgets",),
}
"""The keys of `limits`, with the paths of their fields."""
WRITTEN: Mapping[KeyPath, KeyPath] = {
    **{path: (key,) for key, path in TOP_LEVEL.items()},
    **{path: ("limits", key) for key, path in LIMITS.items()},
    ("skill_policy", "any_risk"): ("tools", "allow"),
    ("skill_policy", "any_risk_if_asked"): ("tools", "ask"),
    ("runtime_policy", "confirm", "from"): ("approve_from",),
    ("plan", "approval"): ("plan", "approve"),
    ("plan", "approval", "from"): ("plan", "approve"),
    ("instructions", "template"): ("instructions", "file"),
    ("guidance", "template"): ("guidance", "file"),
}
"""Where a file has the value of a field, if it has another path there."""
SECTION_KEYS: Mapping[KeyPath, tuple[str, ...]] = {
    ("tools",): ("allow", "ask", "deny", "defer", "files"),
    ("limits",): tuple(LIMITS),
    ("approve_from",): ("risk", "expires", "on_expiry"),
}
"""The keys of the sections whose keys differ from the fields of `AgentSpec`."""
PLAN_APPROVALS = ("never", "always", *RISKS)
INPUT_TYPES: tuple[str, ...] = get_args(InputType)
_RESTRICTING = frozenset((("skill_policy", "deny"), ("skill_policy", "ask"), ("skill_policy", "files", "deny")))
"""Lists of which both spellings apply to the last good version while a file has two of them."""
_SECTIONS = frozenset(("skill_policy", "runtime_policy"))
"""Fields whose own fields are at other places in a file."""
_OTHER_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("str", "text"), "string"),
    "int": "integer",
    **dict.fromkeys(("float", "decimal"), "number"),
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
"""Names that other languages have for the types of inputs."""
_LIFTS = ("any_risk", "any_risk_if_asked")
"""Fields that `tools` fills with the tools that `allow` and `ask` name without a wildcard."""
_MAX_MOVED = 4
"""Maximum length of a path that is moved."""


def written_path(path: KeyPath) -> KeyPath:
    """Return where agent files have the value of a field, such as `limits.steps` for `runtime_policy.max_steps`."""
    return next((WRITTEN[path[:n]] + path[n:] for n in range(len(path), 0, -1) if path[:n] in WRITTEN), path)


def written_agent(spec: AgentSpec) -> dict[str, Any]:
    """Return the data of a file that defines an agent: every key with its value in effect, defaults included."""
    data = spec.model_dump(mode="json", by_alias=True)
    policy, confirm, plan = data["skill_policy"], data["runtime_policy"]["confirm"], data["plan"]
    data["runtime_policy"]["confirm"] = {"risk": confirm.pop("from"), **confirm}
    if isinstance(plan["approval"], dict):
        plan["approval"] = plan["approval"]["from"]
    older = {
        key for key, lift in zip(("allow", "ask"), _LIFTS, strict=True) if policy.pop(lift) != _lifted(policy, key)
    }
    written: dict[str, Any] = {}
    for path, value in _fields((), data):
        is_older = path[0] == "skill_policy" and path[-1] in older
        *sections, last = map(str, path if is_older else written_path(path))
        at = written
        for section in sections:
            at = at.setdefault(section, {})
        at[last] = value
    return written


def path_in_file(document: Document, path: KeyPath) -> KeyPath:
    """Return where a document has, or would have, the value of a field: older spellings are kept where it uses them."""
    ends = range(len(path), 0, -1)
    moved = next((n for n in ends if path[:n] in document.moved), 0)
    named = next((n for n in ends if path[:n] in WRITTEN), 0)
    is_older = not moved and path[: 1 if path[0] in _SECTIONS else named] in document.marks
    if named > moved and not is_older:
        return WRITTEN[path[:named]] + path[named:]
    return document.moved[path[:moved]] + path[moved:] if moved else path


class AgentKeys(NamedTuple):
    """The document of an agent file in the form of `AgentSpec`, and what is wrong with its keys."""

    document: Document
    problems: tuple[Problem, ...] = ()
    unread: tuple[KeyPath, ...] = ()
    """Fields whose values were left out because they are invalid."""


def read_agent_keys(document: Document) -> AgentKeys:
    """Return a document with the keys of `AgentSpec`. Its positions are those of the keys in the file."""
    reader = _Reader(document)
    reader.read()
    marks = {reader.target(path): marks for path, marks in document.marks.items()} | reader.marks
    moved = {target: path for path, target in reader.moves.items()}
    own = replace(document, data=reader.data, marks=marks, moved=moved)
    return AgentKeys(own, tuple(reader.problems), tuple(reader.unread))


@dataclass(slots=True)
class _Reader:
    document: Document
    data: dict[str, Any] = field(default_factory=dict)
    marks: dict[KeyPath, Marks] = field(default_factory=dict)
    """The positions of fields that have no key of their own in the file."""
    moves: dict[KeyPath, KeyPath] = field(default_factory=dict)
    """The paths of fields, by the paths in the file."""
    problems: list[Problem] = field(default_factory=list)
    unread: list[KeyPath] = field(default_factory=list)

    def read(self) -> None:
        given = self.document.data
        self.data = {key: value for key, value in given.items() if key not in TOP_LEVEL}
        for key, target in TOP_LEVEL.items():
            match key, given.get(key, self):
                case _, value if value is self:
                    continue
                case "tools", tools:
                    self._tools(tools)
                case "limits", dict(limits):
                    self._limits(limits)
                case "approve_from", approval:
                    self._approve_from(approval)
                case _, value:
                    self._move((key,), target, value)
        self._plan(given.get("plan"))
        for key in ("instructions", "guidance"):
            self._template(key, given.get(key))
        self._inputs(given.get("inputs"))
        self._list("routing", "keywords", given.get("routing"))
        self._list("skills", "allow", given.get("skills"))
        self.data.setdefault("version", 1)
        stem = PurePosixPath(self.document.path).stem
        if re.fullmatch(AGENT_NAME, stem):
            self.data.setdefault("name", stem)

    def target(self, path: KeyPath) -> KeyPath:
        """Return the path of the field that a path in the file is moved to."""
        for length in range(min(len(path), _MAX_MOVED), 0, -1) if self.moves else ():
            if moved := self.moves.get(path[:length]):
                return moved + path[length:]
        return path

    def _tools(self, tools: Any) -> None:
        section: KeyPath = ("skill_policy",)
        self._place(section, ("tools",), is_section=isinstance(tools, dict))
        self._section(section, ("tools",))
        if not isinstance(tools, dict):
            self._move(("tools",), (*section, "allow"), tools)
        for key, value in tools.items() if isinstance(tools, dict) else ():
            if key in _LIFTS:
                self._unknown(("tools", key), "name the tool in `allow` or `ask`, without a wildcard")
            else:
                self._move(("tools", key), (*section, key), value)
        policy = self._section(section, ("tools",))
        if "ask" in policy and "allow" not in policy:
            policy["allow"] = []
            self._place((*section, "allow"), ("tools",))
        self._lift(tools if isinstance(tools, dict) else {"allow": tools}, policy)

    def _lift(self, tools: Mapping[str, Any], policy: dict[str, Any]) -> None:
        """Lift the risk ceiling for tools that are named without a wildcard."""
        for key, names in zip(_LIFTS, (_lifted(tools, "allow"), _lifted(tools, "ask")), strict=True):
            if names and isinstance(policy.get(key, []), list):
                policy[key] = [*policy.get(key, []), *names]
                self._place(("skill_policy", key), ("tools",))

    def _limits(self, limits: dict[str, Any]) -> None:
        section: KeyPath = ("runtime_policy",)
        self._place(section, ("limits",), is_section=True)
        self._section(section, ("limits",))
        for key, value in limits.items():
            own, target = ("limits", key), LIMITS.get(key, (*section, key))
            written = written_path(target)
            if key not in LIMITS and written[-1] != key:  # an older spelling, in the new section
                is_limit = written[0] == "limits"
                where = "" if is_limit else ", at the top level of the file"
                self._unknown(own, f"write it as {written[-1]}{where}", written[-1] if is_limit else None)
            elif target == (*section, "strict_arguments"):
                self._unknown(own, "it belongs at the top level of the file")
            self._move(own, target, [value] if key == "budgets" and isinstance(value, str) else value)

    def _approve_from(self, approval: Any) -> None:
        section, own = ("runtime_policy", "confirm"), ("approve_from",)
        self._place(section, own)
        if not isinstance(approval, dict):
            self._move(own, (*section, "from"), approval)
            return
        self._section(section, own)
        for key, value in approval.items():
            if key == "from":
                self._unknown((*own, key), "write it as risk", "risk")
            self._move((*own, key), (*section, "from" if key == "risk" else key), value)

    def _plan(self, plan: Any) -> None:
        if not isinstance(plan, dict) or "approve" not in plan:
            return
        own, target, value = ("plan", "approve"), ("plan", "approval"), plan["approve"]
        self.data["plan"] = {key: item for key, item in plan.items() if key != "approve"}
        if isinstance(value, str) and value in PLAN_APPROVALS:
            self._move(own, target, {"from": value} if value in RISKS else value)
            self._place((*target, "from"), own)
            return
        message = f"must be {', '.join(map(repr, PLAN_APPROVALS[:-1]))} or {PLAN_APPROVALS[-1]!r}"
        self.problems.append(self.document.problem(own, message, hint=_meant(str(value), PLAN_APPROVALS)))
        self.unread.append(target)

    def _template(self, key: str, source: Any) -> None:
        if isinstance(source, dict) and "file" in source:
            self.data[key] = {name: value for name, value in source.items() if name != "file"}
            self._move((key, "file"), (key, "template"), source["file"])

    def _list(self, key: str, field: str, items: Any) -> None:
        """Read a list in place of a section as one of its fields."""
        if isinstance(items, list):
            self.data[key] = {}
            self.marks[key,] = self.document.marks[key,]
            self._move((key,), (key, field), items)

    def _inputs(self, inputs: Any) -> None:
        if isinstance(inputs, dict):
            self.data["inputs"] = {name: self._input(("inputs", name), value) for name, value in inputs.items()}

    def _input(self, path: KeyPath, value: Any) -> Any:
        """Return an input in its long form. One of an unknown type is required, so that a template may use it."""
        if isinstance(value, (bool, int, float)):
            kind = "boolean" if isinstance(value, bool) else "integer" if isinstance(value, int) else "number"
            return {"type": kind, "default": value}
        if not isinstance(value, str):
            return value
        word, required = value.removesuffix("!"), value.endswith("!")
        if word in INPUT_TYPES:
            return {"type": word, "required": required}
        close = get_close_matches(word.lower(), INPUT_TYPES, n=1, cutoff=0.7)
        meant = _OTHER_TYPES.get(word) or next(iter(close), None)
        if not required and not meant:
            return {"default": value}
        default = "" if required else ", or {default: …} for a default value"
        hint = f"write {meant}{'!' if required else ''} for the type{default}" if meant else None
        message = f"must be {', '.join(map(repr, INPUT_TYPES[:-1]))} or {INPUT_TYPES[-1]!r}"
        self.problems.append(self.document.problem(path, message, hint=hint))
        return {"required": True}

    def _section(self, path: KeyPath, own: KeyPath) -> dict[str, Any]:
        """Return the mapping of a field, which is created if it is missing."""
        at = self.data
        for index, part in enumerate(map(str, path)):
            if not isinstance(at.get(part, {}), dict):
                self._conflict(own, path[: index + 1])
            inner = at.get(part)
            at[part] = at = dict(inner) if isinstance(inner, dict) else {}
        return at

    def _move(self, path: KeyPath, target: KeyPath, value: Any) -> None:
        """Set a field to the value at a path of the file, and report another key that sets it."""
        section, last = self._section(target[:-1], path), str(target[-1])
        before = section.get(last)
        if isinstance(value, dict) and isinstance(before, dict):
            for key, item in value.items():
                self._move((*path, key), (*target, key), item)
            return
        if last in section:
            self._conflict(path, target)
        if target in _RESTRICTING and isinstance(value, list) and isinstance(before, list):
            section[last] = [*before, *value]
            self.moves |= {(*path, index): (*target, len(before) + index) for index in range(len(value))}
            return
        section[last], self.moves[path] = value, target

    def _place(self, target: KeyPath, own: KeyPath, *, is_section: bool = False) -> None:
        """Give a field without a key of its own the position of another key."""
        if target not in self.document.marks:
            self.marks[target] = self.document.marks[own]
            if is_section:
                self.moves[own] = target

    def _conflict(self, path: KeyPath, target: KeyPath) -> None:
        other = next((own for own, moved in self.moves.items() if moved == target), target)
        places = sorted((self._line(one), f"`{_dotted(one)}`") for one in (other, path))
        first, second = (f"{key} (line {line})" for line, key in places)
        problem = self.document.problem(path, f"{first} and {second} set the same thing", hint="keep one of them")
        self.problems.append(problem)

    def _line(self, path: KeyPath) -> int:
        marks = self.document.marks
        return next(marks[path[:n]][0][0] for n in range(len(path), -1, -1) if path[:n] in marks)

    def _unknown(self, path: KeyPath, hint: str, instead: str | int | None = None) -> None:
        fix = text_fix(self.document, path, path[-1], str(instead), at_key=True) if instead else None
        message = f"unknown key {shorten(str(path[-1]), MAX_SHOWN_CHARS)!r}"
        self.problems.append(self.document.problem(path, message, hint=hint, at_key=True, fix=fix))


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _meant(word: str, known: Sequence[str]) -> str | None:
    close = get_close_matches(word.lower(), known, n=1, cutoff=0.7)
    return f"did you mean {close[0]!r}?" if close else None


def _fields(path: KeyPath, data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the fields of an agent that have a key of their own in a file, with their paths."""
    for name, value in data.items():
        own = (*path, name)
        if own in (*((section,) for section in _SECTIONS), ("plan",)):
            yield from _fields(own, value)
        else:
            yield own, value


def _lifted(tools: Mapping[str, Any], key: str) -> list[str]:
    """Return the tools that `allow` or `ask` of a file's `tools` names without a wildcard, those of `allow` once."""
    allowed = list(dict.fromkeys(_outright(tools.get("allow"))))
    if key == "allow":
        return allowed
    return [name for name in dict.fromkeys(_outright(tools.get("ask"))) if name not in allowed]


def _outright(rules: Any) -> Iterator[str]:
    """Yield the tools that a list of names and rules names without a wildcard."""
    for rule in rules if isinstance(rules, list) else ():
        name = rule.get("tool") if isinstance(rule, dict) else rule
        if isinstance(name, str) and not is_glob(name):
            yield name
