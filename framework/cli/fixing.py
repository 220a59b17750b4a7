"""Applies the fixes of problems to files, and shows the changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import unified_diff
from itertools import groupby
from pathlib import Path

import click

from framework.config.agents.compile import Agent
from framework.config.files.editing import replace_file
from framework.config.generations.generation import Generation
from framework.config.yaml.document import DEFAULT_PLACE
from framework.config.yaml.fixes import apply_fixes
from framework.config.yaml.rewriting import rewrite_agent
from framework.types.errors import RequestError
from framework.types.problem import Problem
from framework.types.spec import RISKS, is_glob
from framework.types.text import visible

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def fix_files(root: Path, problems: Iterable[Problem], *, quiet: bool) -> list[str]:
    """Apply the fixes of problems to their files below a root; return the paths of the changed files.

    Raises:
        RequestError: a file cannot be written.
    """
    fixable = sorted((problem for problem in problems if problem.fix), key=lambda problem: problem.path)
    changed = []
    for path, found in groupby(fixable, key=lambda problem: problem.path):
        file = root / path
        try:
            before = file.read_bytes()
            after = apply_fixes(path, before, found)
            if after != before:
                replace_file(file.resolve(), after)
        except OSError as error:
            raise RequestError(f"{path} cannot be fixed: {error.strerror}") from None
        if after != before:
            changed.append(path)
            if not quiet:
                _show(path, before, after)
    return changed


def rewrite_agents(root: Path, generation: Generation, only: str | None, *, quiet: bool) -> list[str]:
    """Rewrite the older spellings of valid agent files below a root; return the paths of the changed files.

    `skill_policy` stays where `tools` would allow a tool that its risk denies now. Raises RequestError.
    """
    changed = []
    for agent in generation.agents.values():
        file = root / agent.path
        if agent.stale or agent.original or only not in (None, agent.path) or not file.is_file():
            continue
        before = file.read_bytes()
        lifted = [*_lifted_tools(agent)] if agent.document.place(("skill_policy",)) != DEFAULT_PLACE else []
        after = rewrite_agent(agent.path, before, with_tools=not lifted)
        if lifted and not quiet and b"skill_policy" in after:
            note = f"skill_policy stays: `tools` would allow {', '.join(lifted)} whatever the risk"
            click.secho(f"{agent.path}: {note}", dim=True)
        if after == before:
            continue
        try:
            replace_file(file.resolve(), after)
        except OSError as error:
            raise RequestError(f"{agent.path} cannot be rewritten: {error.strerror}") from None
        changed.append(agent.path)
        if not quiet:
            _show(agent.path, before, after)
    return changed


def _lifted_tools(agent: Agent) -> Iterator[str]:
    """Yield the tools without a wildcard that the risk ceiling denies, or whose risk is unknown."""
    policy = agent.spec.skill_policy
    for name in dict.fromkeys((*policy.allow, *(rule.tool for rule in policy.ask))):
        tool = agent.toolset.tools.get(name)
        ceiling = RISKS.index(agent.spec.runtime_policy.risk_level)
        if not is_glob(name) and (tool is None or RISKS.index(tool.risk) > ceiling):
            yield name


def _show(path: str, before: bytes, after: bytes) -> None:
    old, new = (source.decode("utf-8-sig").splitlines() for source in (before, after))
    for line in unified_diff(old, new, path, path, "before", "fixed", n=1, lineterm=""):
        click.secho(visible(line).replace("\\t", "  "), fg=_STYLES.get(line[:1]))
