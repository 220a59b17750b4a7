"""Draws docs/images/terminal.svg, the picture in the README: `make picture`.

The project is the one in the README: its agent file and its plugin are read from there. Each command is executed in a
pseudo-terminal, and its output is drawn with its colors.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

REPOSITORY = Path(__file__).resolve().parent.parent
PICTURE = REPOSITORY / "docs/images/terminal.svg"
COLUMNS = 92
AGENT, PLUGIN = "agents.d/billing.yaml", "plugins/books.py"
MISTAKE = ("max_risk:", "max_rsik:")
COMMANDS = (
    'agentsd run "balance of account 7001"',
    'agentsd run "pay 900 for invoice 2024"',
    "# save a typing mistake",
    "agentsd check",
)
"""The commands in the picture. The comment represents the edit that makes `MISTAKE`."""
SEQUENCE = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])")
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
THEME = TerminalTheme(
    (22, 27, 34),
    (230, 237, 243),
    [
        *((72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34)),
        *((88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196)),
    ],
)


def readme_blocks() -> dict[str, str]:
    """Return the first YAML block and the first Python block of the README by their file paths."""
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    blocks = {}
    for path, language in ((AGENT, "yaml"), (PLUGIN, "python")):
        match = re.search(rf"```{language}\n(.*?)```", readme, re.DOTALL)
        assert match, f"README.md has no {language} block"
        blocks[path] = match[1]
    return blocks


def output_of(command: str, project: Path) -> str:
    """Run a command in a pseudo-terminal of `COLUMNS` columns; return its output with control sequences.

    A comment makes the mistake in the agent file and prints nothing.
    """
    if command.startswith("#"):
        edited = (project / AGENT).read_text("utf-8").replace(*MISTAKE)
        (project / AGENT).write_text(edited, "utf-8")
        return ""
    words = [sys.executable, "-m", "framework.cli.main", *shlex.split(command)[1:]]
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(words, cwd=project, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    chunks = []
    with suppress(OSError):  # raised at the end of the output
        while chunk := os.read(master, 65536):
            chunks.append(chunk)
    os.close(master)
    process.wait()
    return b"".join(chunks).decode("utf-8")


def final_screen(output: str) -> list[str]:
    """Replay cursor movements, so that only the last state of each line remains; colors stay in the text."""
    lines, row, position = [""], 0, 0
    for match in [*SEQUENCE.finditer(output), None]:
        for part in re.split(r"(\r?\n)", output[position : match.start() if match else None]):
            if part.endswith("\n"):
                row += 1
                lines.extend([""] * (row + 1 - len(lines)))
            else:
                lines[row] += part.replace("\r", "")
        if match is None:
            break
        position = match.end()
        if match[2] == "A":
            row -= int(match[1] or 1)
        elif match[2] == "K":
            lines[row] = ""
        elif match[2] == "m":
            lines[row] += match[0]
    return lines


def draw(screens: Mapping[str, list[str]]) -> str:
    """Return the SVG of commands and their output. It loads no fonts from a server."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    for command, lines in screens.items():
        console.print(Text.assemble(("$ ", "bold green"), (command, "dim" if command.startswith("#") else "bold")))
        for line in filter(None, lines):
            console.print(Text.from_ansi(line), highlight=False)
    svg = console.export_svg(title="agentsd", theme=THEME, unique_id="terminal")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code, monospace", FONT)


def main() -> None:
    """Run the commands in a new project, and write the picture."""
    with TemporaryDirectory(prefix="agentsd-picture-") as folder:
        project = Path(folder)
        for path, text in readme_blocks().items():
            (project / path).parent.mkdir()
            (project / path).write_text(text, "utf-8")
        screens = {command: final_screen(output_of(command, project).rstrip()) for command in COMMANDS}
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(screens), "utf-8")
    print(f"{PICTURE.relative_to(REPOSITORY)}: {PICTURE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
