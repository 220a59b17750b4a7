"""Evaluates the conditions of policy rules, and converts paths and URLs to one form before."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, islice, product
from math import isfinite
from pathlib import Path, PurePath, PurePosixPath
from posixpath import normpath
from typing import Any, Literal
from urllib.parse import unquote

from pydantic import AliasChoices, BaseModel, RootModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import to_jsonable_python
from pydantic_core.core_schema import DecimalSchema

from framework.tools.arguments import ModelArguments
from framework.tools.files import BaseFolder, refuse_symlinks, relative_parts, relative_to_base, split_path
from framework.tools.http import parse_canonical_url
from framework.tools.json_schema import JsonSchema, RepairedArguments, is_of_type, type_names
from framework.tools.tool import Tool
from framework.types.errors import ToolError
from framework.types.flat_schema import declared_properties, is_composed
from framework.types.spec import LinearPattern, Rule, file_pattern_fault

# A tool declares which of its arguments are paths and URLs. They are converted once, before the policy is evaluated, so
# that the policy, the approval, the person who approves and the tool all see the same value.


LocationKind = Literal["path", "url"]
_FORMATS: Mapping[str, LocationKind] = {
    **dict.fromkeys(("path", "file-path", "directory-path"), "path"),
    **dict.fromkeys(("uri", "url"), "url"),
}
"""Values of `format` in a server's JSON Schema that declare an argument as a path or URL."""
_MAX_DEPTH = 6
NOT_AN_OBJECT: Any = object()
"""Placeholder for a value that is not an object, although a rule names a part of it."""


def location_kind(tool: Tool, name: str) -> LocationKind | None:
    """Return the kind that a tool declares for an argument, by its dotted name, or None."""
    return "path" if name in tool.paths else "url" if name in tool.urls else None


def canonical_arguments(tool: Tool, arguments: Mapping[str, Any], base: Path) -> RepairedArguments:
    """Convert declared paths and URLs to their canonical form; values that have none stay unchanged.

    Returns:
        The arguments, with one note for each argument that was changed.
    """
    changed, notes = dict(arguments), []
    for name in (*tool.paths, *tool.urls):
        convert = partial(_canonical_or_unchanged, tool, location_kind(tool, name), base)
        after = _replace_at(changed, name, convert)
        if after is not changed:
            notes.append(f"{name}: {'path' if name in tool.paths else 'URL'} written in its canonical form")
            changed = after
    return RepairedArguments(changed, tuple(notes))


def require_canonical(tool: Tool, arguments: Mapping[str, Any], base: Path) -> None:
    """Raise ToolError for a declared path or URL that has no canonical form, such as one with `..`."""
    for name in (*tool.paths, *tool.urls):
        for value in values_at(arguments, name):
            if isinstance(value, (str, PurePosixPath)):
                _canonical(tool, location_kind(tool, name), base, str(value))


def paths_below_base(tool: Tool, arguments: Mapping[str, Any], base: BaseFolder) -> Iterator[tuple[str, ...]]:
    """Yield the declared paths and `file:` URLs of a call as parts below the base folder; omit those outside."""
    for name in (*tool.paths, *tool.urls):
        for value in values_at(arguments, name):
            text = str(value) if isinstance(value, (str, Path)) else None
            given_path = text and (_file_url_path(text) or (text if name in tool.paths else None))
            if given_path is None:
                continue
            try:
                path = PurePosixPath(_path_for_rules(given_path, base))
            except ToolError:
                continue  # rejected before the call
            if not path.is_absolute():
                yield path.parts


def location_matches(kind: LocationKind, value: str, pattern: str, base: BaseFolder) -> bool | None:
    """Return whether a path or URL matches a rule's pattern, in any spelling of either, or None if unknown."""
    try:
        canonical = _path_for_rules(value, base) if kind == "path" else str(parse_canonical_url(value))
    except ToolError:
        return None if kind == "path" or _is_http(value) else fnmatchcase(value, pattern)
    return _url_matches(canonical, _url_pattern(pattern)) if kind == "url" else base.matches(canonical, pattern)


def is_location(tool: Tool, kind: LocationKind, text: str) -> bool:
    """Return whether a call of the tool can have this path or URL; a call with another one is rejected."""
    try:
        if kind == "path":
            split_path(text)
        elif not tool.is_external or _is_http(text):
            parse_canonical_url(text)
    except ToolError:
        return False
    return True


def values_at(value: Any, name: str) -> Iterator[Any]:
    """Yield the values at a dotted name: `a.b` is `b` in the object `a`. Lists are searched item by item.

    Where the name continues into a value that is not an object, `NOT_AN_OBJECT` is yielded.
    """
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from values_at(item, name)
    elif not name:
        yield value
    elif isinstance(value, Mapping):
        for key in _leading_keys(value, name):
            yield from values_at(value[key], name[len(key) + 1 :])
    elif value is not None:
        yield NOT_AN_OBJECT


def declared_in_schema(schema: Mapping[str, Any]) -> Iterator[tuple[str, LocationKind]]:
    """Yield the arguments that a JSON Schema declares as paths or URLs with `format`, by their dotted names."""
    yield from _declared_in_node(JsonSchema(schema), schema, "", 0)


def schemas_at(schema: Mapping[str, Any], name: str) -> list[Mapping[str, Any]] | None:
    """Return the schemas of an argument's values, by its dotted name; for a list, those of its items.

    Returns:
        Schemas with `type`, `enum` or `const`; an empty list if any value is possible; None if there is no such
        argument.
    """
    return _schemas_below(JsonSchema(schema), schema, name)


def _schemas_below(reader: JsonSchema, node: Any, name: str) -> list[Mapping[str, Any]] | None:
    branches = _item_schemas(reader, node)
    if not name or not branches:
        return branches
    found: list[Mapping[str, Any]] = []
    for branch in branches:
        declared = _properties(reader, branch)
        for key in (keys := _leading_keys(declared, name)):
            inside = _schemas_below(reader, declared[key], name[len(key) + 1 :])
            if inside == []:
                return []
            found += inside or ()
        if not keys and _is_open(branch, declared):
            return []
    return found or None


def _is_open(branch: Mapping[str, Any], declared: Mapping[str, Any]) -> bool:
    """Return whether an object may have properties that its schema does not name."""
    if "patternProperties" in branch or branch.get("additionalProperties") not in (None, False):
        return True
    is_object = "object" in type_names([branch] if "type" in branch else [])
    return is_object and not declared and "additionalProperties" not in branch


def _item_schemas(schema: JsonSchema, node: Any, depth: int = 0) -> list[Mapping[str, Any]]:
    """Return the schemas of a value, or of its items if it is a list; empty if any value is possible."""
    found: list[Mapping[str, Any]] = []
    for branch in schema.branches(node, "enum", "const"):
        types = type_names([branch] if "type" in branch else [])
        if "array" in types:
            items = _item_schemas(schema, branch.get("items"), depth + 1) if depth < _MAX_DEPTH else []
            if not items or "prefixItems" in branch:
                return []
            found += items
        if others := types - {"array"}:
            found.append(branch if others == types else {**branch, "type": sorted(others)})
        elif not types:
            found.append(branch)
    return found


def _declared_in_node(schema: JsonSchema, node: Any, name: str, depth: int) -> Iterator[tuple[str, LocationKind]]:
    is_whole = isinstance(node, Mapping) and is_composed(node)
    for branch in schema.branches(node) or ([node] if is_whole else []):
        kind = _FORMATS.get(str(branch.get("format")))
        if kind and name:
            yield name, kind
        if depth < _MAX_DEPTH:
            yield from _declared_in_node(schema, branch.get("items"), name, depth + 1)
            for key, inner in _properties(schema, branch).items():
                yield from _declared_in_node(schema, inner, f"{name}.{key}" if name else key, depth + 1)


def _properties(schema: JsonSchema, branch: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the properties that a schema of an object declares, also in the schemas that it is composed of."""
    if is_composed(branch):
        return declared_properties(branch, schema.root).properties
    properties = branch.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _leading_keys(value: Mapping[str, Any], name: str) -> list[str]:
    """Return the keys of an object that a dotted name may start with; keys may contain dots themselves."""
    parts = name.split(".")
    heads = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return [head for head in heads if head in value]


def _replace_at(value: Any, name: str, convert: Callable[[str], str]) -> Any:
    """Return the value with `convert` applied at the name; the same object if nothing changes."""
    if isinstance(value, list):
        items = [_replace_at(item, name, convert) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    if not name:
        return convert(value) if isinstance(value, str) else value
    if not isinstance(value, dict):
        return value
    fresh = {key: _replace_at(value[key], name[len(key) + 1 :], convert) for key in _leading_keys(value, name)}
    return value if all(new is value[key] for key, new in fresh.items()) else {**value, **fresh}


def _canonical_or_unchanged(tool: Tool, kind: LocationKind | None, base: Path, text: str) -> str:
    try:
        canonical = _canonical(tool, kind, base, text)
    except ToolError:
        return text
    return text if canonical == text else canonical


def _canonical(tool: Tool, kind: LocationKind | None, base: Path, text: str) -> str:
    if not text:
        return text  # an empty string may mean "no path"
    if kind == "url":
        return text if tool.is_external and not _is_http(text) else str(parse_canonical_url(text))
    if tool.is_external:  # a server has its own folders, so an absolute path stays absolute
        return _joined(split_path(text))
    parts = relative_parts(base, text)
    refuse_symlinks(base, parts)
    return "/".join(parts) or "."


def _path_for_rules(text: str, base: BaseFolder) -> str:
    """Return a path as rules see it: relative to the base folder if it is below it."""
    parts = split_path(text)
    inside = relative_to_base(base.path, PurePosixPath(*parts)) if parts[:1] == ("/",) else None
    return _joined(parts) if inside is None else str(inside)


def _joined(parts: tuple[str, ...]) -> str:
    return f"/{'/'.join(parts[1:])}" if parts[:1] == ("/",) else "/".join(parts) or "."


def _file_url_path(text: str) -> str | None:
    """Return the path of a `file:` URL in any spelling, or None for any other text."""
    scheme, mark, rest = text.strip().partition(":")
    if not mark or scheme.lower() != "file":
        return None
    path = unquote(rest.partition("#")[0].partition("?")[0])
    return normpath(f"/{path[2:].partition('/')[2]}" if path.startswith("//") else path)


def _url_matches(url: str, pattern: str) -> bool | None:
    """Return whether a URL matches a glob, or None if a wildcard for a part of the host has matched more than that.

    `*://a.example/*` matches `https://b.example/://a.example/`, which neither may be permitted nor escape a rule. A
    pattern for any host, such as `https://*`, has no such part.
    """
    if not fnmatchcase(url, pattern):
        return False
    (origin, path), (own, rest) = _split_url(url), _split_url(pattern)
    if own.rpartition("://")[2].strip("*") == "" and ("://" in own or not rest):
        return True
    return True if rest and fnmatchcase(origin, own) and fnmatchcase(path, rest) else None


def _split_url(url: str) -> tuple[str, str]:
    """Return scheme and host of a URL or pattern, and what follows from the `/` of the path on."""
    mark = url.find("://")
    slash = url.find("/", 0 if mark < 0 else mark + 3)
    return (url, "") if slash < 0 else (url[:slash], url[slash:])


def _url_pattern(pattern: str) -> str:
    """Return a URL pattern with scheme and host in lower case, and a `/` after a host without a path."""
    scheme, mark, rest = pattern.partition("#")[0].partition("://")
    if not mark:
        return pattern
    host, slash, target = rest.partition("/")
    is_whole_url = not slash and not any(char in host for char in "*?[")
    return f"{scheme.lower()}://{host.lower()}{'/' if is_whole_url else slash}{target}"


def _is_http(text: str) -> bool:
    return text.strip().lower().startswith(("http:", "https:"))


# A condition that cannot be evaluated counts as met: rules only restrict, so this is the safe interpretation. When a
# file is loaded, `condition_fault` compares a condition with the type of its argument, so that no rule silently applies
# to no call, or to every call.


Condition = str | int | float | bool
Matcher = Callable[[str, str], bool | None]
"""Returns whether a text matches a pattern, or None if that is unknown."""
WORKING_FOLDER = BaseFolder(Path())
_SCALARS = frozenset({str, int, float, bool, type(None)})
"""Types whose values are JSON data already. Values of their subclasses, such as string enumerations, are not."""
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
CONDITION_FORMS = (
    'a condition is a comparison with a number (">", ">=", "<", "<="), "!= VALUE", a value, or a pattern such as "a*"; '
    '"*" is met by any value'
)
"""What a `when` may contain, as the hint of an error."""
_MEANT: Mapping[str, tuple[str, ...]] = {
    ">=": (">=", "=>", "≥", "⩾", "gte", "ge", "at least", "not less than", "no less than"),
    "<=": ("<=", "=<", "≤", "⩽", "lte", "le", "at most", "not more than", "no more than", "up to"),
    ">": (">", "＞", "gt", "more than", "greater than", "larger than", "over", "above"),
    "<": ("<", "＜", "lt", "less than", "fewer than", "smaller than", "under", "below"),
    "!=": ("!=", "!==", "=!", "<>", "≠", "ne", "neq", "not equal to", "is not", "not", "!"),
    "": ("===", "==", "=", "eq", "equals", "equal to", "is"),
}
"""Operators, each with spellings that people use for it. The first one of each is the right one."""
_OPERATORS = {spelling: sign for sign, spellings in _MEANT.items() for spelling in spellings}
_SPELLING = "|".join(re.escape(spelling) for spelling in sorted(_OPERATORS, key=len, reverse=True))
_COMPARED_NUMBER = re.compile(
    rf"(?P<sign>{_SPELLING})?\s*[^\w\s.+-]?\s*(?P<number>[+-]?\d[\d,._' ]*(?:e[+-]?\d+)?)\s*"
    r"(?P<more>\+|(?:or|and) (?:more|less|above|below|over|under|up))?(?P<unit>\s*[^\d\s][^\d]*)?"
)
"""A number as people write it: with an operator in any spelling, thousands separators, a currency or a unit."""
_COMPARED_TEXT = re.compile(r"(?P<sign>===?|!==|=!|<>|≠|[=!](?=\s))\s*(?P<text>\S.*)")
"""A text with an operator of another language."""
_NO_NUMBER = "does not compare with a number"
_MAX_CHARS_READ = 100
"""Length up to which a condition is searched for what it may have meant."""
_MAX_FILLED = 3_000
"""Maximum number of texts that are tried as matches of a pattern."""
_FILLINGS = ("", "1", "a", "0", "5", "https", "https://a", "https://", "1.1.1", "s", "-1", "1e-05")
"""Texts that are tried for a wildcard of a pattern."""
_STEP_TOLERANCE = 1e-6
_NUMBER_IN_TEXT = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


def rule_matches(
    rule: Rule, arguments: Mapping[str, Any], tool: Tool | None = None, base: BaseFolder = WORKING_FOLDER
) -> bool:
    """Return whether all conditions of a rule are met. A condition on a missing argument is not met."""
    for name, condition in rule.when.items():
        match = matcher_for(tool, name, base)
        if not any(condition_matches(condition, value, match) for value in values_at(arguments, name)):
            return False
    return True


def condition_matches(condition: Condition, value: Any, match: Matcher = fnmatchcase) -> bool:
    """Return whether a value matches a condition. A list matches if any of its items does.

    An object cannot be compared, so it meets every condition.
    """
    if isinstance(value, list):
        return any(condition_matches(condition, item, match) for item in value)
    if isinstance(value, Mapping) or value is NOT_AN_OBJECT:
        return True
    if not isinstance(condition, str):
        return bool(value == condition) or yaml_text(value) == yaml_text(condition)
    sign = next((sign for sign in COMPARISONS if condition.startswith(sign)), None)
    if sign is not None:
        number, bound = exact_number(value), exact_number(condition.removeprefix(sign))
        return number is None or bound is None or COMPARISONS[sign](number, bound)
    if condition.startswith("!="):
        return not match(yaml_text(value), condition.removeprefix("!=").strip())
    return match(yaml_text(value), condition) is not False


def exact_number(value: Any) -> Decimal | None:
    """Return a number, or the number in a text, without rounding; None if there is none, as for NaN."""
    try:
        number = Decimal(int(value) if isinstance(value, bool) else str(value))
    except (ArithmeticError, ValueError):
        return None
    return None if number.is_nan() else number


class _DecimalsAsNumbers(GenerateJsonSchema):
    """Describes decimal numbers as numbers only: the text form that they have as well is no other value."""

    def decimal_schema(self, schema: DecimalSchema) -> JsonSchemaValue:
        number: JsonSchemaValue = super().decimal_schema(schema)["anyOf"][0]
        return number


def has_argument(tool: Tool, name: str) -> bool:
    """Return whether a call of the tool can have an argument with this dotted name."""
    return _schemas(tool, name) is not None


def takes_text(tool: Tool, name: str) -> bool:
    """Return whether an argument may be any text."""
    schemas = _schemas(tool, name) or ()
    return len(schemas) > 0 and "string" in _kinds(schemas)


def condition_fault(tool: Tool, name: str, condition: Condition) -> str | None:
    """Return why a condition cannot be what its writer means, with the right spelling if it is clear; None if it can.

    It is a fault if no value of the argument meets the condition, or if every value does, except for `*`. Only the
    declared type, its choices and its limits are known: the format of a text is not.
    """
    found = _fault(tool, name, condition)
    if found is None:
        return None
    meant = _meant(condition, _kinds(_schemas(tool, name) or ()))
    if meant is None and location_kind(tool, name) == "url" and isinstance(condition, str) and "://" not in condition:
        sign, pattern = ("!= ", condition[2:].strip()) if condition.startswith("!=") else ("", condition)
        meant = f"{sign}*://{pattern}"
    if meant is not None and meant != condition and _fault(tool, name, meant) is None:
        return f"{found}; did you mean {meant!r}?"
    choices = {text.lower(): text for schema in _schemas(tool, name) or () for text in map(yaml_text, _choices(schema))}
    close = get_close_matches(str(condition).lower(), choices, n=1)
    return f"{found}; did you mean {choices[close[0]]!r}?" if close else found


def _fault(tool: Tool, name: str, condition: Condition) -> str | None:
    what = f"the condition {condition!r} on {name!r}"
    if condition and isinstance(condition, str) and not condition.strip("*"):
        return None
    schemas = _schemas(tool, name) or ()
    if isinstance(condition, str):
        if fault := _text_fault(tool, name, condition, _kinds(schemas)):
            return f"{what} of {tool.name} {fault}"
    elif not isfinite(condition):
        return f"{what} of {tool.name} is no number that a call can have"
    if not schemas:
        return None
    values = [schema for schema in schemas if "object" not in type_names([schema] if "type" in schema else [])]
    if not values:
        return f"{what} cannot be evaluated: it is an object in {tool.name}; name a field, such as '{name}.id'"
    seen = _outcomes(tool, name, condition, values)
    if seen == {True, False}:
        return None
    if True in seen:
        return f"{what} of {tool.name} is met by every value"
    described = JsonSchema({}).describe_any(values)
    return f"{what} can never be met: {tool.name} takes {described} there"


def operator_fault(condition: str) -> str | None:
    """Return what is wrong with the operator of a condition on a text or on a value of any type, or None."""
    sign = next((sign for sign in COMPARISONS if condition.startswith(sign)), None)
    if sign is not None:
        return None if _is_finite(condition.removeprefix(sign)) else _NO_NUMBER
    return "has no known operator" if _is_misspelt(condition) else None


def _text_fault(tool: Tool, name: str, condition: str, kinds: Collection[str]) -> str | None:
    """Return what is wrong with the operator or pattern of a condition, whatever values there are; None if nothing."""
    fault = operator_fault(condition)
    if fault == _NO_NUMBER or (fault and "string" in kinds):
        return fault
    if location_kind(tool, name) == "path" and not tool.is_external:
        pattern = condition[2:].strip() if condition.startswith("!=") else condition
        if pattern_fault := file_pattern_fault(pattern):
            return f"matches no path: {pattern_fault}"
    return None


def _schemas(tool: Tool, name: str) -> Sequence[Mapping[str, Any]] | None:
    """Return the schemas of an argument's values, by its name or its alias, as `schemas_at` does."""
    found = schemas_at(tool.definition.parameters, name)
    if found is None and isinstance(tool.arguments, ModelArguments):
        found = schemas_at(tool.arguments.model.model_json_schema(by_alias=False), name)
    if found and {"number", "string"} <= _kinds(found) and isinstance(tool.arguments, ModelArguments):
        exact = tool.arguments.model.model_json_schema(schema_generator=_DecimalsAsNumbers)
        return schemas_at(exact, name) or found
    return found


def _kinds(schemas: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the types of schemas whose values are not enumerated; `string` if any value is possible."""
    kinds = type_names(schema for schema in schemas if not _choices(schema) and "type" in schema)
    return kinds or ({"string"} if not schemas else set())


def _choices(schema: Mapping[str, Any]) -> Sequence[Any]:
    if "const" in schema:
        return [schema["const"]]
    return choices if isinstance(choices := schema.get("enum"), list) else ()


def _is_finite(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


def _as_number(text: str) -> float:
    """Return the number of a text; a whole one is not rounded, as an identifier may have more than 15 digits."""
    number = float(text)
    return int(text) if isfinite(number) and text.lstrip("+-").isdecimal() else number


def _is_misspelt(condition: str) -> bool:
    """Return whether a condition on a text starts with an operator of another language."""
    text = condition.strip()
    if text != condition and text.startswith((*COMPARISONS, "!=")):
        return True
    if len(text) > _MAX_CHARS_READ or text.startswith((*COMPARISONS, "!=")):
        return False
    number = _COMPARED_NUMBER.fullmatch(text.lower())
    if number and number["sign"] and not number["unit"]:
        return True
    return _COMPARED_TEXT.fullmatch(text) is not None


def _meant(condition: Condition, kinds: set[str]) -> str | None:
    """Return a condition in the right spelling, or None if it is not clear what it means."""
    if not isinstance(condition, str) or len(condition) > _MAX_CHARS_READ:
        return None
    text = re.sub(r"^([<>!=])\s+=", r"\1=", condition.strip())
    if match := _COMPARED_NUMBER.fullmatch(text.lower()):
        number, sign = _plain_number(match["number"]), _OPERATORS[match["sign"]] if match["sign"] else ""
        more = match["more"] or ""
        if more and sign in ("", ">"):
            sign = "<=" if more.endswith(("less", "below", "under")) else ">="
        return number and f"{sign} {number}".strip()
    if "string" in kinds and (match := _COMPARED_TEXT.fullmatch(text)):
        return f"{_OPERATORS[match['sign']]} {match['text']}".strip()
    return None


def _plain_number(text: str) -> str | None:
    """Return a number without thousands separators, in the form that values are compared in."""
    compact = re.sub(r"[_' ]|,(?=\d{3}(?:\D|$))", "", text)
    compact = compact.replace(",", ".") if compact.count(",") == 1 and "." not in compact else compact
    return yaml_text(float(compact)) if _is_finite(compact) else None


def _outcomes(tool: Tool, name: str, condition: Condition, schemas: Iterable[Mapping[str, Any]]) -> set[bool]:
    """Return whether there are values that meet a condition, and values that do not."""
    match, kind = matcher_for(tool, name, WORKING_FOLDER), location_kind(tool, name)
    compares = isinstance(condition, str) and condition.startswith((*COMPARISONS,))
    seen: set[bool] = set()
    for value in chain.from_iterable(_examples(schema, condition) for schema in schemas):
        is_number = not isinstance(value, str) and not isinstance(condition, str)
        if is_number and isinstance(value, bool) != isinstance(condition, bool):
            continue  # in Python, true is 1
        if compares and value is None:
            continue  # it is met, but only because it cannot be compared
        if kind and isinstance(value, str) and not is_location(tool, kind, value):
            continue
        seen.add(condition_matches(condition, value, match))
        if len(seen) > 1:
            break
    return seen


def _examples(schema: Mapping[str, Any], condition: Condition) -> Iterator[Any]:
    """Yield values that a schema allows: its choices, or those near the numbers and texts of a condition."""
    if choices := _choices(schema):
        yield from choices
        return
    types = type_names([schema])
    literal = str(condition) if isinstance(condition, str) else yaml_text(condition)
    pattern = literal[2:].strip() if literal.startswith("!=") else literal
    if "null" in types:
        yield None
    if "boolean" in types:
        yield from (True, False)
    if types & {"number", "integer"}:
        yield from (number for number in _numbers(schema, literal, pattern) if _is_number(schema, types, number))
    if "string" in types:
        bounds = [_as_number(text) for text in _NUMBER_IN_TEXT.findall(literal)]
        near = (yaml_text(bound + step) for bound in bounds if isfinite(bound) for step in (-1, 0, 1))
        for text in chain(("", "x", "y/z", "http://x.example/y"), near, _filled(pattern)):
            if text != literal or _is_text(schema, text):
                yield text


def _numbers(schema: Mapping[str, Any], literal: str, pattern: str) -> Iterator[float]:
    """Yield numbers near those in a condition and in the limits of a schema, and those that match a pattern."""
    limits = [schema.get(key) for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")]
    found = [_as_number(text) for text in _NUMBER_IN_TEXT.findall(literal)]
    found += [float(limit) for limit in limits if isinstance(limit, (int, float)) and abs(limit) < 1e300]
    if literal.lstrip("<>= ").strip() and _is_finite(literal.lstrip("<>= ")):
        found.append(_as_number(literal.lstrip("<>= ").strip()))
    for number in [0.0, *found]:
        yield from (number, number - 1, number + 1, -number, number * 1.5, number * 0.5, number + 0.5)
        if isinstance(step := schema.get("multipleOf"), (int, float)) and step > 0 and isfinite(number):
            yield from (number // step * step, (number // step + 1) * step)
    for text in _filled(pattern):
        if _is_finite(text):
            yield _as_number(text)


def _is_number(schema: Mapping[str, Any], types: set[str], number: float) -> bool:
    if not isfinite(number) or not is_of_type(number, types):
        return False
    limits: tuple[tuple[str, Callable[[float, float], bool]], ...] = (
        ("minimum", operator.ge),
        ("maximum", operator.le),
        ("exclusiveMinimum", operator.gt),
        ("exclusiveMaximum", operator.lt),
        ("multipleOf", lambda value, step: step <= 0 or abs(value / step - round(value / step)) < _STEP_TOLERANCE),
    )
    given = ((schema.get(key), fits) for key, fits in limits)
    return all(fits(number, limit) for limit, fits in given if isinstance(limit, (int, float)))


def _is_text(schema: Mapping[str, Any], text: str) -> bool:
    """Return whether a schema allows exactly this text; its `format` is not checked."""
    shortest, longest = schema.get("minLength"), schema.get("maxLength")
    if isinstance(shortest, int) and len(text) < shortest:
        return False
    if isinstance(longest, int) and len(text) > longest:
        return False
    try:
        return LinearPattern(str(schema.get("pattern", ""))).is_in(text)
    except ValueError:  # not a linear-time pattern
        return True


def _filled(pattern: str) -> Iterator[str]:
    """Yield texts that match a pattern, with its wildcards filled in."""
    parts: list[Sequence[str]] = []
    position = 0
    while position < len(pattern):
        sign = pattern[position]
        end = pattern.find("]", position + (3 if pattern[position + 1 : position + 2] == "!" else 2))
        if sign == "[" and end >= 0:
            chars = pattern[position : end + 1]
            fits = (char for char in chain("15a0A-./", chars[1:]) if fnmatchcase(char, chars))
            parts.append(list(islice(fits, 3)))
            position = end + 1
            continue
        parts.append(_FILLINGS if sign == "*" else ("1", "a", "s", "/", "-", ".") if sign == "?" else (sign,))
        position += 1
    yield from map("".join, islice(product(*parts), _MAX_FILLED))


def policy_views(
    tool: Tool, arguments: Mapping[str, Any], bound: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the forms of a call's arguments that a policy must evaluate.

    These are the arguments as given, and as the tool receives them if that differs.
    """
    original = tool.with_defaults(arguments)
    for name in original.keys() - arguments.keys():
        if type(original[name]) not in _SCALARS:
            original[name] = to_json_values(original[name])
    converted = to_json_values(bound) if bound is not None else original
    return [original] if converted == original else [original, converted]


def to_json_values(value: Any) -> Any:
    """Convert bound arguments back to JSON data, so that rules see the values that the tool receives.

    Fields of models appear under both their names and their aliases, because rules may use either.
    """
    if type(value) in _SCALARS:
        return value
    if isinstance(value, (dict, Mapping)):  # dict first: isinstance is slow for an abstract class
        keys = ((to_json_values(key), item) for key, item in value.items())
        return {
            str(text): to_json_values(item) for key, item in keys for text in (key if isinstance(key, list) else (key,))
        }
    if isinstance(value, RootModel):
        return to_json_values(value.root)
    if isinstance(value, BaseModel):
        return _model_values(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json_values(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json_values(item) for item in value]
    if isinstance(value, Enum):
        return to_json_values(value.value)
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value == int(value) and abs(value) < 10**18 else float(value)
    return value if isinstance(value, (str, int, float)) else _to_text(value)


def _model_values(value: BaseModel) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, field in type(value).model_fields.items():
        field_value = to_json_values(getattr(value, name))
        values |= dict.fromkeys({name, *_aliases(field)}, field_value)
    return values | {name: to_json_values(extra) for name, extra in (value.model_extra or {}).items()}


def _aliases(field: FieldInfo) -> Iterator[str]:
    """Yield the other names under which a call may give a field of a model."""
    given = field.validation_alias
    for alias in (field.alias, *(given.choices if isinstance(given, AliasChoices) else (given,))):
        if isinstance(alias, str):
            yield alias


def matcher_for(tool: Tool | None, name: str, base: BaseFolder) -> Matcher:
    """Return what compares an argument with patterns: paths and URLs are compared in their canonical form."""
    kind = location_kind(tool, name) if tool else None
    if kind is None:
        return fnmatchcase
    return lambda text, pattern: location_matches(kind, text, pattern, base)


def _to_text(value: Any) -> str | list[str]:
    """Return a value that is no JSON data as text. A date or duration has two forms, which both meet conditions."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, PurePath):
        return value.as_posix()
    if not isinstance(value, (datetime, time, timedelta)):
        return str(value)  # not by pydantic, which would use up an iterator before the tool gets it
    texts = list(dict.fromkeys((str(to_jsonable_python(value)), str(value))))
    return texts if len(texts) > 1 else texts[0]


def yaml_text(value: Any) -> str:
    """Return a value as written in an agent file: `true`, `null`, `50`. `50.0` becomes `50`."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, default=str)
