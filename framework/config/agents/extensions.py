"""Checks the executors and hooks that agents name: each must exist and accept the arguments of its place."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import get_args

from framework.config.yaml.document import Document, KeyPath
from framework.tools.declaration import Extension
from framework.types.problem import Problem
from framework.types.spec import AgentSpec, HookPlace
from framework.types.text import did_you_mean

BUILTIN_EXECUTORS = ("react", "plan", "auto")
"""Names of the executors of the runtime."""
HOOK_ARGUMENTS: Mapping[HookPlace, tuple[str, ...]] = {
    "before_run": ("context", "message"),
    "before_tool": ("context", "call"),
    "after_tool": ("context", "call", "result"),
    "after_run": ("context", "output"),
}


def hooks_by_place(spec: AgentSpec) -> Iterator[tuple[HookPlace, tuple[str, ...]]]:
    """Return the hook names of an agent with the place where they are called."""
    places: tuple[HookPlace, ...] = get_args(HookPlace)
    return ((place, getattr(spec.hooks, place)) for place in places)


def extension_names(spec: AgentSpec) -> list[str]:
    """Return the name of the executor and the names of all hooks of an agent."""
    return [spec.executor, *(name for _, names in hooks_by_place(spec) for name in names)]


def extension_problems(
    spec: AgentSpec, document: Document, extensions: Mapping[str, Extension], own_executors: Collection[str]
) -> Iterator[Problem]:
    """Yield a problem for each executor or hook that is missing or does not fit its place."""
    executors = {*own_executors, *(name for name, one in extensions.items() if one.kind == "executor")}
    if spec.executor not in executors:
        yield _unknown(document, ("executor",), "executor", spec.executor, executors)
    hooks = {name: one for name, one in extensions.items() if one.kind == "hook"}
    for place, names in hooks_by_place(spec):
        for index, name in enumerate(names):
            path: KeyPath = ("hooks", place, index)
            if name not in hooks:
                yield _unknown(document, path, "hook", name, hooks)
            elif not hooks[name].accepts(len(HOOK_ARGUMENTS[place])):
                arguments = ", ".join(HOOK_ARGUMENTS[place])
                yield document.problem(path, f"{name} does not accept the arguments of {place}: ({arguments})")


def _unknown(document: Document, path: KeyPath, kind: str, name: str, choices: Collection[str]) -> Problem:
    hint = None if choices else f"a plugin registers one with @{kind}"
    return document.problem(path, f"there is no {kind} {name!r}{did_you_mean(name, sorted(choices))}", hint=hint)
