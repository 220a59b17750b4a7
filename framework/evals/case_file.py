"""Writes a case as YAML: a new file, or an addition to an existing file that leaves its other lines unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import Any

import yaml

from framework.config.yaml.document import DocumentError, read_document
from framework.types.errors import RequestError

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./ -]*[A-Za-z0-9_./-]|[A-Za-z_]")
_ITEM = re.compile(r"^cases:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*([ ]*)- ", re.MULTILINE)
_WORDS = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"])
"""Texts that some YAML parsers read as another type."""
_WIDTH = 140


def case_file(case: Mapping[str, Any]) -> str:
    """Return the text of a file with one case. Texts that YAML could read as another type are quoted."""
    text = yaml.dump({"cases": [dict(case)]}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    assert read_document("case", text.encode()).data == {"cases": [dict(case)]}, "parsing the text returns the case"
    return text


def with_case(source: bytes, case: Mapping[str, Any], path: str) -> str:
    """Return the text of a case file with one case appended; the other lines are unchanged.

    Raises:
        RequestError: the file is invalid, or a case cannot be appended to it.
    """
    try:
        data = read_document(path, source).data
    except DocumentError as error:
        raise RequestError(f"{path} cannot be extended: {error}") from None
    before = data.get("cases")
    cases = before if isinstance(before, list) else []
    renamed = {**case, "name": _new_name(str(case["name"]), cases)}
    text = source.decode("utf-8-sig").rstrip() + "\n"
    item = case_file(renamed).partition("\n")[2]
    first = _ITEM.search(text)
    whole = text + indent(item, first[1] if first else "")
    try:
        is_intact = read_document(path, whole.encode()).data == {**data, "cases": [*cases, renamed]}
    except DocumentError:
        is_intact = False
    if not is_intact:
        raise RequestError(f"{path} cannot be extended: its `cases` are not a block list at its end; use another file")
    return whole


def _new_name(name: str, cases: Sequence[Any]) -> str:
    names_in_use = {case.get("name") for case in cases if isinstance(case, Mapping)}
    names = (name, *(f"{name} ({number})" for number in range(2, len(names_in_use) + 2)))
    return next(free for free in names if free not in names_in_use)


class _Dumper(yaml.SafeDumper):
    """A dumper without anchors, which the case format does not support."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    lines = value.split("\n")
    if len(lines) > 1 and all(line.isprintable() and line == line.strip() for line in lines if line) and lines[0]:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|")
    plain = _PLAIN.fullmatch(value) and value.casefold() not in _WORDS and len(value) < _WIDTH // 2
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)
