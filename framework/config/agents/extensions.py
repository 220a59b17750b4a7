"""The executors and hooks that an agent names: each must be there, and fit the place where it is named."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import get_args

from framework.config.yaml.document import Document, KeyPath
from framework.tools.extension import Extension
from framework.types.problem import Problem
from framework.types.spec import AgentSpec, HookPlace
from framework.types.text import did_you_mean

BUILTIN_EXECUTORS = ("react", "plan", "auto")
"""Names of the executors that come with the runtime."""
HOOK_ARGUMENTS: Mapping[HookPlace, tuple[str, ...]] = {
    "before_run": ("context", "message"),
    "before_tool": ("context", "call"),
    "after_tool": ("context", "call", "result"),
    "after_run": ("context", "output"),
}


def hooks_of(spec: AgentSpec) -> Iterator[tuple[HookPlace, tuple[str, ...]]]:
    """The names of an agent's hooks, by the place where they are called."""
    places: tuple[HookPlace, ...] = get_args(HookPlace)
    return ((place, getattr(spec.hooks, place)) for place in places)


def extensions_of(spec: AgentSpec) -> list[str]:
    """All names of executors and hooks in an agent's file."""
    return [spec.executor, *(name for _, names in hooks_of(spec) for name in names)]


def extension_problems(
    spec: AgentSpec, document: Document, extensions: Mapping[str, Extension], own_executors: Collection[str]
) -> Iterator[Problem]:
    """What is wrong with the names of executors and hooks."""
    executors = {*own_executors, *(name for name, found in extensions.items() if found.kind == "executor")}
    if spec.executor not in executors:
        yield _unknown(document, ("executor",), "executor", spec.executor, executors)
    hooks = {name: found for name, found in extensions.items() if found.kind == "hook"}
    for place, names in hooks_of(spec):
        for index, name in enumerate(names):
            path: KeyPath = ("hooks", place, index)
            if name not in hooks:
                yield _unknown(document, path, "hook", name, hooks)
            elif not hooks[name].accepts(len(HOOK_ARGUMENTS[place])):
                given = ", ".join(HOOK_ARGUMENTS[place])
                yield document.problem(path, f"{name} does not take what {place} gives: ({given})")


def _unknown(document: Document, path: KeyPath, what: str, name: str, known: Collection[str]) -> Problem:
    hint = None if known else f"a plugin registers one with @{what}"
    return document.problem(path, f"there is no {what} {name!r}{did_you_mean(name, sorted(known))}", hint=hint)
