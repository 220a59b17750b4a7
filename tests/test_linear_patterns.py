"""Every regular expression of the package runs in linear time on any text."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import framework
from tests.support.cases import FACTOR
from tests.support.growth import assert_linear, repeated

PLUGINS = Path(framework.__file__).parents[1] / "plugins"
MOST_CHARACTERS = 8_000
MOST_WORDS = 30
TEXTS = 12 * FACTOR
"""Generated texts for each pattern."""
PARTS = 8
"""Tests that share the patterns, so that several workers can execute them."""
ANCHORED = {"match", "fullmatch"}
BOUNDED = {"framework.engine.model_call.compaction": 80, "framework.llm.offline: (?:[\\s:": 40}
BOUNDED |= {"framework.llm.offline: (\\S+)[\\s:=]*$": 40, "framework.tools.conditions: (?P<sign>": 100}
"""Length limits of the inputs of some patterns, by prefix of their names below."""


@dataclass(frozen=True, slots=True)
class Used:
    """A pattern and how the package applies it."""

    pattern: re.Pattern[str]
    methods: frozenset[str]
    """Functions of `re` called with the pattern; empty if the source does not show them."""

    def __call__(self, text: str) -> object:
        if self.methods and self.methods <= ANCHORED:
            return [getattr(self.pattern, method)(text) for method in self.methods]
        return self.pattern.sub("", text)


def _in(value: Any) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _in(item)


def _used(module: ModuleType) -> Iterator[Used]:
    source = Path(str(module.__file__)).read_text("utf-8")
    for name, value in list(vars(module).items()):
        if not (compiled := list(_in(value))):
            continue
        names = "|".join([name, *re.findall(rf"for (\w+),[^\n]* in {name}\b", source)])
        methods = frozenset(re.findall(rf"\b(?:{names})\.(\w+)\(", source))
        yield from (Used(pattern, methods) for pattern in compiled)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=name), args=[ast.Constant(value=str(text)), *_]
            ):
                if name not in ("escape", "compile"):
                    yield Used(re.compile(text), frozenset([name]))


@cache
def patterns() -> dict[str, Used]:
    """All patterns of the package and of the shipped plugins, by module and text."""
    found: dict[str, Used] = {}
    package = (info.name for info in pkgutil.walk_packages(framework.__path__, "framework."))
    shipped = (f"plugins.{path.stem}" for path in sorted(PLUGINS.glob("*.py")))
    for name in (*package, *shipped):
        if name.endswith(("__main__", "_process")):
            continue
        for used in _used(importlib.import_module(name)):
            found.setdefault(f"{name}: {' '.join(used.pattern.pattern.split())[:60]}", used)
    return found


def _alphabet(pattern: re.Pattern[str]) -> list[str]:
    """Return characters and words from the pattern, and some others."""
    words = re.findall(r"[A-Za-z]{2,}|[^\sA-Za-z0-9]", pattern.pattern)
    return sorted({*words, *(word[0] for word in words), "a", "A", "0", " ", "\n", "-", ".", ":", '"', "/", "_", "中"})


def _texts(pattern: re.Pattern[str], chance: random.Random) -> Iterator[tuple[str, str]]:
    """Generate the repeated pieces of a pattern's input, and its ends."""
    alphabet = _alphabet(pattern)
    for character in alphabet:
        yield character, "\x00"
    for word in [word for word in alphabet if len(word) > 1][:MOST_WORDS]:
        yield from ((separator + word, "\x00") for separator in '- ."')
    for _ in range(TEXTS):
        yield "".join(chance.choices(alphabet, k=chance.randint(1, 4))), chance.choice(["\x00", "", *alphabet])


@pytest.mark.parametrize("part", range(PARTS))
def test_doubling_the_text_doubles_the_time_of_every_pattern(part: int) -> None:
    assert len(patterns()) > 100
    for name, used in list(patterns().items())[part::PARTS]:
        largest = next((most for beginning, most in BOUNDED.items() if name.startswith(beginning)), MOST_CHARACTERS)
        for piece, end in _texts(used.pattern, random.Random(name)):
            assert_linear(
                used, partial(repeated, piece, end=end), largest=largest, label=f"{name} of {piece!r} … {end!r}"
            )
