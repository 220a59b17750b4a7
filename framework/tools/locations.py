"""Converts paths and URLs in a tool's arguments to one canonical form.

A tool declares which of its arguments are paths and URLs. They are converted once, before the policy is evaluated, so
that the policy, the approval, the person who approves and the tool all see the same value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any, Literal
from urllib.parse import unquote

from framework.tools.files import BaseFolder, refuse_symlinks, relative_parts, relative_to_base, split_path
from framework.tools.http import parse_canonical_url
from framework.tools.schema.json_schema import JsonSchema, RepairedArguments, type_names
from framework.tools.tool import Tool
from framework.types.errors import ToolError
from framework.types.flat_schema import declared_properties, is_composed

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
    if kind == "url":
        return fnmatchcase(canonical, _url_pattern(pattern))
    return base.matches(canonical, pattern)


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
    """Return the keys of an object that a dotted name may begin with; keys may contain dots themselves."""
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
