"""`agentsd completion`, the completions of a shell, and the index of all commands that both read.

The index has the help and options of each command, so that nobody imports a command's module for them.
`python -m tests.support.command_index` writes it from the commands, and a test compares the two.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TypedDict

import click
from click.shell_completion import CompletionItem, get_completion_class

from framework.cli.entry import COMPLETION_VARIABLE

INDEX_FILE = Path(__file__).with_name("command_index.json")


class CommandEntry(TypedDict):
    """A command or a group of commands."""

    summary: str
    """One line for lists of commands."""
    help: str
    """The whole help text."""
    usage: Sequence[str]
    """Words of the usage line, such as `[OPTIONS]` and `RUN`."""
    options: Sequence[tuple[str, str]]
    """Flags with the name of their value, such as `-a, --agent AGENT`, and their help."""
    commands: Mapping[str, CommandEntry]
    """Commands of a group, in the order of its help."""


def read_index() -> CommandEntry:
    """Return the entry of `agentsd` itself, with all commands below it."""
    entry: CommandEntry = json.loads(INDEX_FILE.read_text("utf-8"))
    return entry


def find_entry(entry: CommandEntry, words: Sequence[str]) -> tuple[Sequence[str], CommandEntry]:
    """Return the command that the first words name below an entry: its path and its entry."""
    path: list[str] = []
    for word in words:
        if word not in entry["commands"]:
            break
        entry = entry["commands"][word]
        path.append(word)
    return path, entry


Word = tuple[str, str]
"""A completion, and a few words about it."""

MAX_FILES = 500
MAX_RUNS = 30
_NAME = re.compile(r"^name:\s*[\"']?([a-z][a-z0-9_-]*)", re.MULTILINE)
_DESCRIPTION = re.compile(r"^description:\s*[\"']?([^\"'>|\n][^\n]*)", re.MULTILINE)
_STORE_URL = re.compile(r"^store:[^\n]*?(?:\n[ \t]+[^\n]*)*?[\s{]url:\s*[\"']?([^\"'\s},#]+)", re.MULTILINE)
_SQLITE = "sqlite:///"
_DEFAULT_STORE = f"{_SQLITE}.agentsd/state.db"


class ProjectWords:
    """The names of a project: agents and runs as they are now, tools and models as of the last check or run."""

    def __init__(self, folder: str) -> None:
        """Take the project's folder. Whatever cannot be read completes nothing."""
        self._folder = Path(folder)

    def agents(self) -> Iterator[Word]:
        """Yield the names of the agents."""
        for path in sorted((self._folder / "agents.d").glob("*.y*ml"))[:MAX_FILES]:
            with suppress(OSError):
                text = path.read_text("utf-8", "replace")
                if found := _NAME.search(text):
                    description = _DESCRIPTION.search(text)
                    yield found[1], description[1] if description else ""

    def tools(self) -> Iterator[Word]:
        """Yield the names of the tools."""
        yield from self._schema_words("$defs", "SkillPolicy", "properties", "allow", "items")

    def models(self) -> Iterator[Word]:
        """Yield the names of the models: aliases, and providers to continue with the name of a model."""
        yield from self._schema_words("properties", "model")

    def runs(self) -> Iterator[Word]:
        """Yield the newest runs; `last` is the newest."""
        yield "last", "the newest run"
        yield from self._rows("SELECT id, status || ', ' || agent FROM agentsd_runs ORDER BY no DESC LIMIT ?")

    def conversations(self) -> Iterator[Word]:
        """Yield the conversations with the latest turns."""
        yield from self._rows("SELECT id, agent FROM agentsd_conversations ORDER BY updated_at DESC LIMIT ?")

    def _schema_words(self, *path: str) -> Iterator[Word]:
        """Yield the names that the schema for editors lists at a path."""
        with suppress(OSError, ValueError, LookupError, TypeError):
            found = json.loads((self._folder / ".agentsd" / "agent.schema.json").read_text("utf-8"))
            for key in (*path, "anyOf", 0):
                found = found[key]
            texts = found.get("enumDescriptions") or [""] * len(found["enum"])
            yield from ((name, text.partition("\n")[0]) for name, text in zip(found["enum"], texts, strict=False))

    def _rows(self, query: str) -> Iterator[Word]:
        if (path := self._store()) is None:
            return
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=0)) as store,
        ):
            yield from ((name, text or "") for name, text in store.execute(query, (MAX_RUNS,)))

    def _store(self) -> Path | None:
        """Return the SQLite file of the store; None for other databases."""
        url = os.environ.get("AGENTSD_STORE__URL") or self._store_of_settings() or _DEFAULT_STORE
        path = (self._folder / url.removeprefix(_SQLITE)).absolute()
        return path if url.startswith(_SQLITE) and path.is_file() else None

    def _store_of_settings(self) -> str | None:
        with suppress(OSError):
            found = _STORE_URL.search((self._folder / "agentsd.yaml").read_text("utf-8", "replace"))
            return found[1] if found else None
        return None


SHELLS = ("bash", "zsh", "fish")
_SAFE = re.compile(r"[\w./:@+=,~-]*")
"""Words that mean the same in every shell. No others are completed."""
_NAMES: Mapping[str, Callable[[ProjectWords], Iterator[Word]]] = {
    "AGENT": ProjectWords.agents,
    "MODEL": ProjectWords.models,
    "RUN": ProjectWords.runs,
    "TOOL": ProjectWords.tools,
    "TOOLS": ProjectWords.tools,
    "CONVERSATION": ProjectWords.conversations,
}
"""What completes a value, by its name in the help."""
_FOLDERS = ("FOLDER", "OLD", "NEW")
_PATHS = ("FILE", "PATH", *_FOLDERS)
_CHOICES = re.compile(r"[\[{](\w+(?:\|\w+)+)[\]}]")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print the completion script of a shell; add `eval "$(agentsd completion bash)"` to ~/.bashrc.

    For zsh, add the same with `zsh` to ~/.zshrc; for fish, write the script to
    ~/.config/fish/completions/agentsd.fish. It completes commands, options, agents, tools, models, runs and
    conversations: those of the project in this folder, or of -C. Tools and models are those of the last check or run.
    """
    found = get_completion_class(shell)
    assert found is not None
    script = found(command, {}, "agentsd", COMPLETION_VARIABLE)
    click.echo(script.source_template % script.source_vars())  # `source()` would start a bash to check its version
    return 0


def print_completions() -> None:
    """Print the completions that the environment asks for."""
    found = get_completion_class(os.environ[COMPLETION_VARIABLE].partition("_")[0])
    if found is None:
        return
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    print(found(command_of("agentsd", read_index()), {}, "agentsd", COMPLETION_VARIABLE).complete())


def command_of(name: str, entry: CommandEntry) -> click.Command:
    """Return a command that completes as the one of the index would; it cannot be called."""
    options: list[click.Parameter] = [_option(text, help_text) for text, help_text in entry["options"]]
    about: dict[str, Any] = {"short_help": entry["summary"], "add_help_option": False}
    if entry["commands"]:
        below = [command_of(one, inner) for one, inner in entry["commands"].items()]
        return click.Group(name, below, params=options, **about)
    pieces = [piece for piece in entry["usage"] if piece != "[OPTIONS]"]
    arguments = [
        click.Argument([f"word{number}"], required=False, nargs=-1 if piece is pieces[-1] else 1, **_kind("", piece))
        for number, piece in enumerate(pieces)
    ]
    return click.Command(name, params=[*options, *arguments], **about)


def _option(text: str, help_text: str) -> click.Option:
    """Return the option that the help shows as `-a, --agent AGENT`."""
    flags = re.findall(r"(?<!\S)--?[\w-]+", text)
    value = text.partition(flags[-1])[2].strip()
    return click.Option(flags, is_flag=not value, help=help_text, **_kind(flags[-1], value) if value else {})


def _kind(flag: str, value: str) -> dict[str, Any]:
    """Return the type of a value, or what completes it; the flag is empty for an argument."""
    if choices := _CHOICES.fullmatch(value):
        return {"type": click.Choice(choices[1].split("|"))}
    if path := next((name for name in re.findall(r"\w+", value) if name in _PATHS), None):
        return {"type": click.Path(file_okay=path not in _FOLDERS)}
    names = _NAMES.get({"--conversation": "CONVERSATION", "--agents": "AGENT"}.get(flag) or value.strip("[]."))
    if names is None:
        return {}

    def complete(ctx: click.Context, _: click.Parameter, current: str) -> list[CompletionItem]:
        listed, comma, begun = current.rpartition(",") if flag == "--agents" else ("", "", current)
        return [
            CompletionItem(f"{listed}{comma}{word}", help="".join(char for char in text if char.isprintable()) or None)
            for word, text in names(ProjectWords(ctx.params.get("project") or "."))
            if word.startswith(begun) and _SAFE.fullmatch(word)
        ]

    return {"shell_complete": complete}
