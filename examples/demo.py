"""The main job, without any key: `make demo`.

The starter's agents work on this repository's own files: the router chooses one, a ReAct run searches, reads and
computes, a Plan run looks into a log file, and an agent file is edited while a run goes on.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from framework import Runtime, tool
from framework.cli.init import copy_starter
from framework.cli.session import print_result, view_of_run
from framework.cli.waterfall import waterfall
from framework.config.settings import Settings, ToolSettings
from framework.store.memory import MemoryStore
from framework.types.events import ToolStarted
from framework.types.state import RunResult

REPOSITORY = Path(__file__).resolve().parent.parent
edited = asyncio.Event()


@tool(risk="low")
async def wait_for_edit() -> str:
    """Wait until the agent's file has been edited."""
    await edited.wait()
    return "the file was edited while this run was going on"


async def main() -> None:
    """The four parts, one after the other."""
    with TemporaryDirectory(prefix="agentsd-demo-") as folder:
        project = Path(folder)
        copy_starter(project)
        settings = Settings(tools=ToolSettings(base_path=str(REPOSITORY)))
        async with Runtime.open(
            project, settings=settings, tools=[wait_for_edit], store=MemoryStore(keep_spans=True)
        ) as runtime:
            heading("1. The router picks an agent; it searches, reads and computes (ReAct)")
            request = (
                "in this repository, search for files containing 'calculator', "
                "then read framework/tools/builtin/calculator.py, then calculate the mean of [1, 2, 3, 4, 5]"
            )
            await show(runtime, request)

            heading("2. A plan over a real log file: plan, steps, summary")
            await show(runtime, "帮我分析一下 data/logs/app.log")

            heading("3. An agent file is edited while a run goes on")
            await edit_while_running(runtime, project)
    heading("Next")
    click.echo('  .venv/bin/agentsd run "what is in this repository?"')
    click.echo("  .venv/bin/agentsd chat            # and edit agents.d/assistant.yaml while you talk")


async def show(runtime: Runtime, message: str) -> RunResult:
    """Run a message with its tree, its answer and its trace."""
    click.secho(f"> {message}\n", bold=True)
    view = view_of_run()
    async with runtime.stream(message) as stream:
        async for event in stream:
            view.show(event)
    view.close()
    result = await stream.result()
    sys.stderr.flush()
    click.echo()
    print_result(result, as_json=False)
    click.echo()
    for line in waterfall(await runtime.store.spans(result.run_id)):
        click.secho(line, dim=True)
    return result


async def edit_while_running(runtime: Runtime, project: Path) -> None:
    """Save a new version in mid-run: the run ends on the version it began with, the next one uses the new."""
    agent = project / "agents.d" / "assistant.yaml"
    text = agent.read_text("utf-8")
    agent.write_text(text.replace("allow: [", "allow: [wait_for_edit, "), "utf-8")
    await runtime.wait_generation(2)
    async with runtime.stream("wait for edit", agent="assistant") as stream:
        async for event in stream:
            if isinstance(event, ToolStarted):
                click.echo("  the run waits in a tool; now its file is saved with another set of tools …")
                agent.write_text(text.replace("echo, ", ""), "utf-8")
                live = await runtime.wait_generation(3)
                click.echo(f"  generation {live.number} is live after the save")
                edited.set()
    before = await stream.result()
    after = await runtime.run("echo hello", agent="assistant")
    click.echo(f"  the run that was going on ended on generation {before.generation}: {before.output}")
    offered = ", ".join(runtime.catalog.current.agents["assistant"].toolset.offered)
    click.echo(f"  the next run used generation {after.generation}; its tools: {offered}")


def heading(text: str) -> None:
    """A line between the parts."""
    click.secho(f"\n── {text} " + "─" * max(0, 92 - len(text)), fg="cyan")


if __name__ == "__main__":
    asyncio.run(main())
