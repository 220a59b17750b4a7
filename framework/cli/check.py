"""`agentsd check`: reports all problems of a project's files."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import click

from framework.cli.fixing import fix_files, rewrite_agents
from framework.cli.location import Location, locate, show_problem
from framework.cli.options import project_path
from framework.cli.project import read_project
from framework.cli.schema import refresh_schemas
from framework.cli.screen import prints_on_stderr
from framework.cli.show import counted
from framework.config.generations.generation import Generation
from framework.config.overlay import environment_in, is_settings_file, read_settings_files
from framework.config.settings import Settings
from framework.config.yaml.parse import sort_problems, without_repeats
from framework.engine.runtime.project import Project
from framework.evals.suite import read_suite
from framework.types.errors import EXIT_CONFIG, EXIT_NEGATIVE, ConfigError
from framework.types.extras import needs_only_extras
from framework.types.problem import Problem

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
        click.echo(json.dumps(data, ensure_ascii=False, indent=2))
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
    click.echo(f"tools:  {len(generation.tools)}")
    if silent := generation.external.not_contacted:
        click.echo(f"{counted(len(silent), 'server')} not contacted: {', '.join(sorted(silent))}; use --connect")
    for missing in _not_installed(generation):
        click.secho(f"not installed: {missing}", dim=True)
    if errors:
        click.secho(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}", fg="red")
    else:
        click.secho("all files are valid" + (f" ({counted(warnings, 'warning')})" if warnings else ""), fg="green")
