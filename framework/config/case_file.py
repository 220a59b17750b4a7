"""A case as the text of a file: YAML that our reader, and a person, reads as what it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from framework.config.document import read_document

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./ -]*[A-Za-z0-9_./-]|[A-Za-z_]")
_WORDS = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"])
"""Texts that some reader of YAML takes for something else."""
WIDTH = 140


def case_file(case: Mapping[str, Any]) -> str:
    """A file with one case; a text in it that could be read as anything else is quoted."""
    text = yaml.dump({"cases": [dict(case)]}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)
    assert read_document("case", text.encode()).data == {"cases": [dict(case)]}, "it reads as it was written"
    return text


class _Dumper(yaml.SafeDumper):
    """Without anchors, which our format has none of."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    lines = value.split("\n")
    if len(lines) > 1 and all(line.isprintable() and line == line.strip() for line in lines if line) and lines[0]:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|")
    plain = _PLAIN.fullmatch(value) and value.casefold() not in _WORDS and len(value) < WIDTH // 2
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)
