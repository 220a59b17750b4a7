"""`agentsd budgets`: shows how much of the shared budgets is used."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import click

from framework.cli.location import lenient_settings, locate
from framework.cli.options import PROJECT_OPTION
from framework.cli.records import open_project_store
from framework.cli.show import NOTHING, show_table
from framework.types.budget import BudgetStatus, budget_statuses
from framework.types.errors import RequestError
from framework.types.text import did_you_mean

_COLUMNS = ("budget", "for", "share", "resets (UTC)", "used")


@click.command("budgets")
@click.argument("name", required=False)
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", default=20, show_default=True, help="Maximum number."
)
@PROJECT_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def command(name: str | None, limit: int, project: str, as_json: bool) -> int:
    """Show how much of the shared budgets is used in the current periods, the fullest first.

    With NAME, that budget only. Budgets are defined in agentsd.yaml; all processes of the store share them.
    """
    location = locate(project)
    defined = lenient_settings(location).budgets
    if name is not None and name not in defined:
        raise RequestError(f"there is no budget {name!r}{did_you_mean(name, sorted(defined))}")
    chosen = defined if name is None else {name: defined[name]}

    async def read() -> Sequence[BudgetStatus]:
        async with open_project_store(location) as store:
            return budget_statuses(chosen, await store.budget_uses(), store.now())

    found = asyncio.run(read()) if chosen else ()
    if as_json:
        click.echo(json.dumps([one.model_dump(mode="json") for one in found[:limit]], ensure_ascii=False, indent=2))
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
