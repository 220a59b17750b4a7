"""`agentsd chat`: a conversation, with the files watched meanwhile."""

from __future__ import annotations

import asyncio
import sys
from uuid import uuid4

import click

from framework.cli.exporting import exporting
from framework.cli.project import Location, locate, show_problem, store_url
from framework.cli.session import answer, print_result
from framework.config.settings import Settings
from framework.engine.project import folder_of
from framework.engine.request import RunOptions
from framework.engine.runtime import Runtime
from framework.types.errors import AgentsdError, ConfigError
from framework.types.events import ConfigRejected, ConfigReloaded


@click.command("chat")
@click.argument("path", default=".")
@click.option("-a", "--agent", help="Which agent; otherwise the router chooses with the first message.")
@click.option("--locale", help="Language of the prompts, e.g. zh.")
def command(path: str, agent: str | None, locale: str | None) -> int:
    """Talk with an agent of the project at PATH (default: this folder), or with one agent file.

    Edits of the project's files go live between messages. End with Ctrl-D or an empty line.
    """
    location = locate(path)
    with exporting(Settings.load(folder_of(location.root))):
        asyncio.run(_chat(location, agent, locale))
    return 0


async def _chat(location: Location, agent: str | None, locale: str | None) -> None:
    conversation = uuid4().hex
    async with Runtime.open(location.root, store=store_url(location)) as runtime:
        for problem in runtime.catalog.current.errors:
            show_problem(problem)
        prompt = _Prompt()
        runtime.catalog.subscribe(prompt.tell_reload)
        agent = agent or location.agent(runtime.catalog.current)
        click.secho(f"agents: {', '.join(sorted(runtime.catalog.current.agents))}", dim=True, err=True)
        while message := await asyncio.to_thread(prompt.read):
            # An edit saved before this message counts for it, even if the watcher has not come round to it yet.
            await runtime.reload()
            options = RunOptions(agent=agent, conversation=conversation, locale=locale)
            try:
                result = await answer(runtime, runtime.stream(message, **options), quiet=False)
            except ConfigError:
                raise
            except AgentsdError as error:
                click.secho(str(error), fg="red", err=True)
                continue
            print_result(result, as_json=False)


class _Prompt:
    """Where the person types. What an edit did may be told while they do."""

    def __init__(self) -> None:
        self._waiting = False

    def read(self) -> str:
        """The next line; empty at the end."""
        self._show()
        self._waiting = True
        line = sys.stdin.readline().strip()
        self._waiting = False
        return line

    def tell_reload(self, event: ConfigReloaded | ConfigRejected) -> None:
        """Say what changed; if the person was being asked, ask again."""
        interrupted = self._waiting and sys.stdin.isatty()
        if interrupted:
            click.echo(err=True)
        _show_change(event)
        if interrupted:
            self._show()

    def _show(self) -> None:
        if sys.stdin.isatty():
            click.secho("\nyou> ", bold=True, nl=False, err=True)


def _show_change(event: ConfigReloaded | ConfigRejected) -> None:
    for problem in event.problems:
        show_problem(problem)
    if isinstance(event, ConfigRejected):
        click.secho("(the edit cannot be used; what served before still serves)", fg="yellow", err=True)
        return
    parts = [
        f"{name}: {', '.join(names)}" for name in ("added", "changed", "removed") if (names := getattr(event, name))
    ]
    click.secho(
        f"(generation {event.generation} is live; {'; '.join(parts) or 'nothing changed for agents'})",
        dim=True,
        err=True,
    )
