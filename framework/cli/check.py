"""`agentsd check`: reports all problems of a project's files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from difflib import unified_diff
from itertools import groupby
from pathlib import Path

import click

from framework.cli.location import Location, locate, project_path, show_problem
from framework.cli.project import read_project, refresh_schemas
from framework.cli.show import counted
from framework.cli.terminal import print_json, prints_on_stderr
from framework.config.agents.compile import Agent
from framework.config.editing import replace_file
from framework.config.generations.generation import Generation
from framework.config.overlay import environment_in, is_settings_file, read_settings_files
from framework.config.settings import Settings
from framework.config.yaml.document import DEFAULT_PLACE, apply_fixes
from framework.config.yaml.parse import sort_problems, without_repeats
from framework.config.yaml.text_edits import rewrite_agent
from framework.engine.runtime.project import Project
from framework.evals.suite import read_suite
from framework.types.errors import EXIT_CONFIG, EXIT_NEGATIVE, ConfigError, RequestError
from framework.types.installation import needs_only_extras
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
    changed: list[str] = []
    for path, found in groupby(fixable, key=lambda problem: problem.path):
        try:
            before = (root / path).read_bytes()
        except OSError as error:
            raise RequestError(f"{path} cannot be fixed: {error.strerror}") from None
        changed += _replaced(root, path, before, apply_fixes(path, before, found), quiet=quiet)
    return changed


def _replaced(root: Path, path: str, before: bytes, after: bytes, *, quiet: bool) -> list[str]:
    """Replace the content of a file, and show what changes; return its path if anything does."""
    if after == before:
        return []
    try:
        replace_file((root / path).resolve(), after)
    except OSError as error:
        raise RequestError(f"{path} cannot be fixed: {error.strerror}") from None
    if not quiet:
        old, new = (source.decode("utf-8-sig").splitlines() for source in (before, after))
        for line in unified_diff(old, new, path, path, "before", "fixed", n=1, lineterm=""):
            click.secho(visible(line).replace("\\t", "  "), fg=_STYLES.get(line[:1]))
    return [path]


def rewrite_agents(root: Path, generation: Generation, only: str | None, *, quiet: bool) -> list[str]:
    """Rewrite the older spellings of valid agent files below a root; return the paths of the changed files.

    `skill_policy` stays where `tools` would allow a tool that its risk denies now. Raises RequestError.
    """
    changed: list[str] = []
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
        changed += _replaced(root, agent.path, before, after, quiet=quiet)
    return changed


def _lifted_tools(agent: Agent) -> Iterator[str]:
    """Yield the tools without a wildcard that the risk ceiling denies, or whose risk is unknown."""
    policy = agent.spec.skill_policy
    for name in dict.fromkeys((*policy.allow, *(rule.tool for rule in policy.ask))):
        tool = agent.toolset.tools.get(name)
        ceiling = RISKS.index(agent.spec.runtime_policy.risk_level)
        if not is_glob(name) and (tool is None or RISKS.index(tool.risk) > ceiling):
            yield name


ROUNDS = 3
"""Rounds of fixes: one fix can uncover the next problem."""


@click.command("check")
@project_path
@click.option(
    "--fix",
    "fix",
    is_flag=True,
    help="Correct mistakes that have only one possible meaning, rewrite older keys, and show the changes.",
)
@click.option("--connect", is_flag=True, help="Connect to the tool servers, and report those that fail.")
@click.option("--strict", is_flag=True, help="Exit with 1 if there are warnings, for use in CI.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(path: str, fix: bool, connect: bool, strict: bool, as_json: bool) -> int:
    """Check the files of a project (default: this folder) or one agent file.

    Exit codes: 0 all files are valid, 78 some are not; with --strict, 1 all are valid, but with warnings.
    """
    location = locate(path)
    changed = _fix(location, quiet=as_json) if fix else []
    try:
        generation, settings_problems = asyncio.run(_load(location, connect=connect)), list[Problem]()
    except ConfigError as error:
        if not any(is_settings_file(problem.path) for problem in error.problems):
            raise
        generation, settings_problems = asyncio.run(_load_beside(location)), [*error.problems]
    problems = settings_problems + _problems(location, generation)
    errors = sum(problem.severity == "error" for problem in problems)
    if as_json:
        data = _as_data(generation, problems, strict=strict) | ({"fixed": changed} if fix else {})
        print_json(data)
    else:
        for problem in problems:
            show_problem(problem)
        _show_summary(generation, errors, len(problems) - errors)
    return EXIT_CONFIG if errors else EXIT_NEGATIVE if strict and problems else 0


def _fix(location: Location, *, quiet: bool) -> list[str]:
    """Apply all possible fixes, settings first: nothing else is read while these are invalid."""
    root, changed = location.folder, list[str]()
    for _ in range(ROUNDS):
        try:
            problems = _problems(location, asyncio.run(_load(location)))
        except ConfigError as error:
            problems = [problem for problem in error.problems if location.file in (None, problem.path)]
        if not (now := fix_files(root, problems, quiet=quiet)):
            break
        changed += now
    with suppress(ConfigError):
        generation = asyncio.run(_load(location))
        changed += rewrite_agents(root, generation, location.file, quiet=quiet)
    return [*dict.fromkeys(changed)]


def _problems(location: Location, generation: Generation) -> list[Problem]:
    found = sort_problems([*generation.problems, *read_suite(generation).problems])
    return without_repeats(problem for problem in found if location.file in (None, problem.path))


async def _load(location: Location, *, connect: bool = False) -> Generation:
    project = await read_project(location, connect=connect)
    refresh_schemas(project)
    return project.catalog.current


async def _load_beside(location: Location) -> Generation:
    """Load the other files beside an invalid `agentsd.yaml`."""
    settings = Settings.valid_part(read_settings_files(location.folder))
    with prints_on_stderr():
        project = await Project.read(location.root, settings)
        await project.catalog.close()
    return project.catalog.current


def _as_data(generation: Generation, problems: list[Problem], *, strict: bool) -> dict[str, object]:
    return {
        "ok": not any(strict or problem.severity == "error" for problem in problems),
        "digest": generation.digest,
        "environment": environment_in(generation.files),
        "agents": sorted(generation.agents),
        "tools": sorted(generation.tools),
        "not_contacted": sorted(generation.external.not_contacted),
        "not_installed": _not_installed(generation),
        "problems": [problem.model_dump(exclude_none=True) for problem in problems],
    }


def _not_installed(generation: Generation) -> list[str]:
    """Return which tools need extras that are not installed: the files are valid, and runs with these tools warn."""
    tools = (tool for tool in generation.tools.values() if needs_only_extras(tool.needs))
    return [missing for tool in tools if (missing := tool.missing_packages)]


def _show_summary(generation: Generation, errors: int, warnings: int) -> None:
    none = "none" if errors else "none (put one under agents.d/, or run `agentsd init`)"
    if name := environment_in(generation.files):
        click.echo(f"environment: {name} (agentsd.{name}.yaml over agentsd.yaml)")
    click.echo(f"agents: {', '.join(sorted(generation.agents)) or none}")
    click.echo(f"tools:  {own} and the built-in ones" if (own := generation.own_tools) else "tools:  the built-in ones")
    if generation.triggers:
        click.echo(f"triggers: {', '.join(sorted(generation.triggers))}")
    if silent := generation.external.not_contacted:
        click.echo(f"{counted(len(silent), 'server')} not contacted: {', '.join(sorted(silent))}; use --connect")
    for missing in _not_installed(generation):
        click.secho(f"not installed: {missing}", dim=True)
    if errors:
        click.secho(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}", fg="red")
    else:
        click.secho("all files are valid" + (f" ({counted(warnings, 'warning')})" if warnings else ""), fg="green")
