"""A demo that needs no API key: `make demo`.

In a project with an agent that pays invoices, a rule denies a call, another call waits for approval, an edit takes
effect while the process runs, and a run continues after its process was killed. Then a plan reads a log, in Chinese.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import join
from tempfile import TemporaryDirectory

import click

from framework import Runtime
from framework.cli.terminal import wrap

REPOSITORY = Path(__file__).resolve().parent.parent
AGENTSD = [sys.executable, "-m", "framework.cli.main"]
COLUMNS = 80
SECONDS = 60.0
AGENT = "agents.d/billing.yaml"
FILES = {
    "agentsd.yaml": "routing: {default_agent: billing}\n",
    AGENT: """\
description: Looks up balances and pays invoices.
instructions: You keep the books of a small company.
tools:
  deny: [{tool: books.pay, when: {amount: "> 500"}, reason: above the limit}]
  allow: ["books.*"]
max_risk: high
""",
    "plugins/books.py": '''\
import asyncio
from pathlib import Path

from framework import tool


@tool(risk="low", idempotent=True)
def balance(account: str) -> str:
    """Look up the balance of an account."""
    return f"account {account}: 1,250.00 EUR"


@tool(risk="low", idempotent=True)
async def statement(month: str) -> str:
    """Print the statement of a month."""
    while not Path("printer-is-on").exists():
        await asyncio.sleep(0.05)
    return f"the statement of {month} is printed"


@tool(risk="high")
def pay(invoice: str, amount: float) -> str:
    """Pay an invoice."""
    return f"paid {amount:.2f} EUR for invoice {invoice}"
''',
}
COPIED = ("agents.d/log-analyst.yaml", "plugins/log_transform.py", "prompts/log-analyst", "data/logs")


def main() -> None:
    """Run the five parts in a temporary project; fail if one does not show what it promises."""
    logging.getLogger("framework.config.generations.catalog").setLevel(logging.CRITICAL)  # part 3 prints the problems
    with TemporaryDirectory(prefix="agentsd-demo-") as folder:
        project = Path(folder)
        create(project)

        heading("1. A rule of the agent's file denies a call")
        for line in FILES[AGENT].splitlines()[4:8]:
            click.secho(f"  {line}", dim=True)
        agentsd(project, "run", "pay 900 for invoice 2024", shows="was denied")

        heading("2. A call waits for a person; its process has ended")
        agentsd(project, "run", "pay 80 for invoice 2024", code=3)
        agentsd(project, "runs", "decide", "last", "--approve-all", shows="paid 80.00 EUR")

        heading("3. An edit takes effect without a restart; a broken one does not")
        asyncio.run(edit_while_running(project))

        heading("4. A run continues after its process was killed")
        crash(project, "look up the balance of account 7 then print the statement of May")
        agentsd(project, "runs", "resume", "last", shows="the statement of May is printed")
        agentsd(project, "runs", "show", "last")

        heading("5. A plan reads a log file, in Chinese")
        agentsd(project, "run", "帮我分析一下 data/logs/app.log", shows="ERROR")
    heading("Next")
    click.echo("  . .venv/bin/activate              # puts agentsd on your path")
    click.echo("  agentsd init hello                # a small project of your own")
    click.echo('  agentsd run -C hello "hello"')
    click.echo("  agentsd chat hello                # edit its agents.d/assistant.yaml meanwhile")


def create(project: Path) -> None:
    """Write the files of the project."""
    for name in COPIED:
        source, target = REPOSITORY / name, project / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    for name, text in FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def environment() -> dict[str, str]:
    """Return the environment of commands: without settings of the user, as wide as the demo."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTSD_")}
    return {**kept, "COLUMNS": str(COLUMNS), "PYTHONPATH": str(REPOSITORY)}


def agentsd(project: Path, *words: str, code: int = 0, shows: str = "") -> None:
    """Run a command as the user would type it, and print its answer with the line breaks of the tools.

    Raises:
        SystemExit: it ends with another code than `code`, or does not print `shows`.
    """
    click.secho(f"\n$ {join(['agentsd', *words])}", bold=True)
    sys.stdout.flush()
    done = subprocess.run(
        [*AGENTSD, *words], cwd=project, env=environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if shows else None, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    answer = done.stdout or ""
    for line in answer.rstrip().splitlines():
        click.echo(wrap(line, COLUMNS))
    if done.returncode != code or shows not in answer:
        sys.exit(f"the demo failed: {words} ended with {done.returncode}, expected {code} and {shows!r}")


def crash(project: Path, message: str) -> None:
    """Start a run, and kill its process while the second tool waits for its printer."""
    words: Sequence[str] = ("run", message)
    click.secho(f"\n$ {join(['agentsd', *words])}", bold=True)
    with subprocess.Popen(
        [*AGENTSD, *words], cwd=project, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            click.echo(wrap(line.rstrip(), COLUMNS), err=True)
            if line.startswith("→ books.statement"):
                process.kill()
                break
        process.wait(SECONDS)
    click.secho("(the process was killed while books.statement ran)", fg="yellow")
    (project / "printer-is-on").touch()


async def edit_while_running(project: Path) -> None:
    """Save the agent's file while a runtime is open: a higher limit, then a mistake."""
    file = project / AGENT
    async with Runtime.open(project) as runtime:
        await pay(runtime)
        file.write_text(FILES[AGENT].replace("> 500", "> 1000"), "utf-8")
        click.secho(f"\n(saving {AGENT}: 500 becomes 1000)", fg="yellow")
        await runtime.wait_generation(2)
        await pay(runtime)
        file.write_text(file.read_text("utf-8").replace("max_risk", "max_rsik"), "utf-8")
        click.secho(f"\n(saving {AGENT}: max_rsik instead of max_risk)", fg="yellow")
        await runtime.wait_generation(3)
        for problem in runtime.catalog.current.errors:
            click.echo(str(problem))
        await pay(runtime)
    file.write_text(FILES[AGENT], "utf-8")


async def pay(runtime: Runtime) -> None:
    """Ask for a payment of 600, and print what becomes of it."""
    result = await runtime.run("pay 600 for invoice 2025")
    said = f"waits for approval: {result.pending[0].tool}" if result.pending else result.output
    click.echo(wrap(f"  generation {result.generation}: {said}", COLUMNS))


def heading(text: str) -> None:
    """Print the heading of a part."""
    click.secho(f"\n── {text} " + "─" * max(0, COLUMNS - len(text) - 4), fg="cyan")


if __name__ == "__main__":
    main()
