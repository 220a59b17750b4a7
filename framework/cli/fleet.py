"""`agentsd fleet` and `agentsd budgets`: what the processes of a store execute and use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from framework.cli.location import (
    COUNT_OPTION,
    PROJECT_OPTION,
    ago,
    in_store,
    lenient_settings,
    locate,
    one_unit,
    project_path,
)
from framework.cli.show import NOTHING, counted, show_table
from framework.cli.terminal import print_json
from framework.store.views import read_fleet
from framework.types.budget import BudgetStatus, budget_statuses
from framework.types.errors import RequestError
from framework.types.fleet import Fleet, FleetProcess, WaitingRuns
from framework.types.text import did_you_mean, visible

if TYPE_CHECKING:
    from framework.store.store import Store

_DIGEST_LENGTH = 8
_PROCESSES = ("process", "kind", "version", "runs", "takes", "generation", "agents", "seen")
_WAITING = ("waiting", "agent", "queue", "oldest", "why")
_WHY = {
    "capacity": "for a process with free capacity",
    "no_worker": "no live process takes them: start `agentsd worker`, or check its --agents and --queues",
    "conversation": "for another run of their conversation",
    "handed_on": "handed on: see below",
    "released": "interrupted: the next free process continues them",
}


@click.command("fleet")
@project_path
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, as GET /agent/fleet returns it.")
def command(path: str, as_json: bool) -> int:
    """Show the processes that share the store of the project at PATH, and what waits where and why."""
    fleet = in_store(path, read_fleet)
    if as_json:
        click.echo(fleet.model_dump_json(indent=2))
        return 0
    if fleet.processes:
        show_table(_PROCESSES, [_process_row(one, fleet) for one in fleet.processes])
    else:
        click.echo("no process: start `agentsd serve` or `agentsd worker`")
    for line in _differences(fleet):
        click.secho(line, fg="yellow")
    if any((fleet.running, fleet.paused, fleet.waiting)):
        waiting = sum(group.count for group in fleet.waiting)
        click.echo(f"\n{counted(fleet.running, 'run')} in progress, {fleet.paused} paused, {waiting} waiting")
    if fleet.waiting:
        show_table(_WAITING, [_waiting_row(one) for one in fleet.waiting])
    for run in fleet.handed_on:
        for process, reason in run.reasons.items():
            click.echo(f"{run.run_id}: {visible(process)} {visible(reason)}")
    return 0


def _process_row(one: FleetProcess, fleet: Fleet) -> list[str]:
    different = sum(digest != next(iter(fleet.digests.get(name, {digest: 1}))) for name, digest in one.agents.items())
    agents = counted(len(one.agents), "agent")
    problems = f", {counted(one.problems, 'problem')}" if one.problems else ""
    return [
        one.name,
        one.kind or NOTHING,
        one.version or NOTHING,
        f"{one.running} of {one.capacity}" if one.works else NOTHING,
        _takes(one),
        str(one.generation or NOTHING),
        agents + (f", {different} different" if different and one.alive else "") + problems,
        ago(one.seen_at.timestamp()) if one.alive else f"ended, last seen {ago(one.seen_at.timestamp())}",
    ]


def _takes(one: FleetProcess) -> str:
    if not one.works:
        return "nothing"
    if one.queues is None and one.only_agents is None:
        return "all runs"
    parts = (("queues", one.queues), ("agents", one.only_agents))
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in parts if names) or "nothing"


def _differences(fleet: Fleet) -> Iterator[str]:
    """Yield a line for each version and each agent that live processes do not share."""
    alive = [one for one in fleet.processes if one.alive]
    versions = sorted({one.version for one in alive if one.version})
    if len(versions) > 1:
        yield f"versions differ: {', '.join(f'{name} ({_named(alive, name)})' for name in versions)}"
    for name, digests in fleet.digests.items():
        if len(digests) > 1:
            (common, count), *others = digests.items()
            holders = ", ".join(
                f"{one.name} has {one.agents[name][:_DIGEST_LENGTH]}"
                for one in alive
                if one.agents.get(name) in dict(others)
            )
            share = f"{count} of {sum(digests.values())} processes"
            yield f"agent {name}: {share} have {common[:_DIGEST_LENGTH]}; {holders}"


def _named(processes: Sequence[FleetProcess], version: str) -> str:
    return ", ".join(one.name for one in processes if one.version == version)


def _waiting_row(group: WaitingRuns) -> list[str]:
    why = f"limit {group.limit}" if group.reason == "limit" else _WHY[group.reason]
    return [str(group.count), group.agent or "any", group.queue or NOTHING, one_unit(group.oldest_seconds), why]


_COLUMNS = ("budget", "for", "share", "resets (UTC)", "used")


@click.command("budgets")
@click.argument("name", required=False)
@COUNT_OPTION
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def budgets_command(name: str | None, limit: int, project: str, as_json: bool) -> int:
    """Show how much of the shared budgets is used in the current periods, the fullest first.

    With NAME, that budget only. Budgets are defined in agentsd.yaml; all processes of the store share them.
    """
    defined = lenient_settings(locate(project)).budgets
    if name is not None and name not in defined:
        raise RequestError(f"there is no budget {name!r}{did_you_mean(name, sorted(defined))}")
    chosen = defined if name is None else {name: defined[name]}

    async def read(store: Store) -> Sequence[BudgetStatus]:
        return budget_statuses(chosen, await store.budget_uses(), store.now())

    found = in_store(project, read) if chosen else ()
    if as_json:
        print_json([one.model_dump(mode="json") for one in found[:limit]])
    elif not found:
        click.echo("agentsd.yaml defines no budgets")
    else:
        show_table(_COLUMNS, [_row(one) for one in found[:limit]])
        if (more := len(found) - limit) > 0:
            click.echo(f"and {more} more: use --limit")
    return 0


def _row(one: BudgetStatus) -> list[str]:
    scope = ", ".join(f"{kind} {value}" if value else f"no {kind}" for kind, value in one.scope.items())
    return [
        one.budget,
        scope or NOTHING,
        f"{one.share:.0%}",
        f"{one.resets_at:%Y-%m-%d}" if one.resets_at else "never",
        ", ".join(_amounts(one)),
    ]


def _amounts(one: BudgetStatus) -> list[str]:
    amounts = []
    if one.max_total_tokens is not None:
        amounts.append(f"{one.tokens:,} of {one.max_total_tokens:,} tokens")
    if one.max_cost_usd is not None:
        amounts.append(f"${one.cost_usd:,.2f} of ${one.max_cost_usd:,.2f}")
    return amounts
