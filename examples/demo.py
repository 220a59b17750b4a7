"""A demo that needs no API key: `make demo`.

The agents of the starter work on the files of this repository: the router selects an agent, a ReAct run searches, reads
and calculates, a Plan run analyzes a log file, and an agent file is edited during a run.
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
    return "the file was edited during this run"


async def main() -> None:
    """Run the three parts."""
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

            heading("3. An agent file is edited during a run")
            await edit_while_running(runtime, project)
    heading("Next")
    click.echo('  .venv/bin/agentsd run "what is in this repository?"')
    click.echo("  .venv/bin/agentsd chat            # edit agents.d/assistant.yaml meanwhile")


async def show(runtime: Runtime, message: str) -> RunResult:
    """Run a message; print its step tree, answer and trace."""
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
    """Save an agent file during a run. The run ends on the version it began with; the next run uses the new one."""
    agent = project / "agents.d" / "assistant.yaml"
    text = agent.read_text("utf-8")
    agent.write_text(text.replace("allow: [", "allow: [wait_for_edit, "), "utf-8")
    await runtime.wait_generation(2)
    async with runtime.stream("wait for edit", agent="assistant") as stream:
        async for event in stream:
            if isinstance(event, ToolStarted):
                click.echo("  a tool of the run is waiting; saving the agent file with different tools …")
                agent.write_text(text.replace("echo, ", ""), "utf-8")
                live = await runtime.wait_generation(3)
                click.echo(f"  generation {live.number} is live")
                edited.set()
    before = await stream.result()
    after = await runtime.run("echo hello", agent="assistant")
    click.echo(f"  the run in progress ended on generation {before.generation}: {before.output}")
    offered = ", ".join(runtime.catalog.current.agents["assistant"].toolset.offered)
    click.echo(f"  the next run used generation {after.generation}; its tools: {offered}")


def heading(text: str) -> None:
    """Print the heading of a part."""
    click.secho(f"\n── {text} " + "─" * max(0, 92 - len(text)), fg="cyan")


if __name__ == "__main__":
    asyncio.run(main())
