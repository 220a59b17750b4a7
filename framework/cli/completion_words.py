"""Completes a word of a command line, in the protocol of click's shell scripts.

It imports nothing of the command line: a completion must cost little more than the start of Python.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import TextIOWrapper
from shlex import shlex

from framework.cli.command_index import COMPLETION_VARIABLE, CommandEntry, find_entry, read_index
from framework.cli.project_words import ProjectWords, Word

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
_PATHS = {"FILE": "file", "PATH": "file", "FOLDER": "dir", "OLD": "dir", "NEW": "dir"}
_CHOICES = re.compile(r"[\[{](\w+(?:\|\w+)+)[\]}]")


def print_completions() -> None:
    """Print the completions that the environment asks for."""
    shell = os.environ[COMPLETION_VARIABLE].partition("_")[0]
    lines = [_line(shell, kind, word) for kind, word in complete(*_asked(shell)) if _SAFE.fullmatch(word[0])]
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    print("\n".join(lines))


def _line(shell: str, kind: str, word: Word) -> str:
    """Return a completion as the script of a shell reads it."""
    value, text = word
    text = "".join(char for char in text if char.isprintable())
    if shell == "zsh":
        return "\n".join((kind, value.replace(":", "\\:") if text else value, text or "_"))
    return f"{kind},{value}\t{text}" if shell == "fish" and text else f"{kind},{value}"


def _asked(shell: str) -> tuple[list[str], str]:
    """Return the words before the one to complete, and its beginning."""
    words = _split(os.environ.get("COMP_WORDS", ""))
    if shell == "fish":
        current = os.environ.get("COMP_CWORD", "")
        return words[1:-1] if current and words[1:] and words[-1] == current else words[1:], current
    place = int(os.environ.get("COMP_CWORD", "0"))
    return words[1:place], words[place] if place < len(words) else ""


def _split(text: str) -> list[str]:
    """Split a command line that may end inside quotation marks."""
    lexer = shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:
        words.append(lexer.token)
    return words


def complete(words: Sequence[str], current: str) -> Iterator[tuple[str, Word]]:
    """Yield the completions of a word: `plain`, `file` or `dir`, with the word and what it is.

    Args:
        words: the words before it, without `agentsd`.
        current: what is typed of it.
    """
    while words and words[0] in ("-v", "--verbose"):
        words = words[1:]
    path, entry = find_entry(read_index(), words)
    values = _values_of_options(entry)
    project, positional, awaited = ".", 0, ""
    for word in words[len(path) :]:
        if awaited and word != "=":  # bash splits `--agent=a` into three words
            project = word if awaited == "--project" else project
            awaited = ""
        elif word.startswith("-"):
            awaited = values.get(word, ("", ""))[0]
        elif not awaited:
            positional += 1
    known = ProjectWords(project)
    if awaited:
        yield from _of_kind(known, *values[awaited], current.removeprefix("="))
    else:
        yield from _matching(known, entry, values, positional, current)


def _matching(
    known: ProjectWords,
    entry: CommandEntry,
    values: Mapping[str, tuple[str, str]],
    positional: int,
    current: str,
) -> Iterator[tuple[str, Word]]:
    """Yield the completions of an option, a command or an argument."""
    option, equals, begun = current.partition("=")
    if equals and option in values:
        yield from (
            ("plain", (f"{option}={value}", text)) for _, (value, text) in _of_kind(known, *values[option], begun)
        )
    elif current.startswith("-"):
        for flags, text in entry["options"]:
            yield from (("plain", (flag, text)) for flag in _flags(flags) if flag.startswith(current))
    elif entry["commands"]:
        for name, below in entry["commands"].items():
            if name.startswith(current):
                yield "plain", (name, below["summary"])
    elif arguments := [piece for piece in entry["usage"] if piece != "[OPTIONS]"]:
        yield from _of_kind(known, "", arguments[min(positional, len(arguments) - 1)], current)


def _flags(text: str) -> list[str]:
    """Return the flags in `-a, --agent AGENT`."""
    return re.findall(r"(?<!\S)--?[\w-]+", text)


def _values_of_options(entry: CommandEntry) -> Mapping[str, tuple[str, str]]:
    """Return, by flag, the long flag and the name of the value, for the options with a value."""
    values: dict[str, tuple[str, str]] = {}
    for text, _ in entry["options"]:
        flags = _flags(text)
        if value := text.partition(flags[-1])[2].strip():
            values |= dict.fromkeys(flags, (flags[-1], value))
    return values


def _of_kind(known: ProjectWords, flag: str, value: str, current: str) -> Iterator[tuple[str, Word]]:
    """Yield the completions of the value of an option, or of an argument (then the flag is empty)."""
    if choices := _CHOICES.fullmatch(value):
        words: Iterator[Word] = iter([(choice, "") for choice in choices[1].split("|")])
    elif name := next((name for name in re.findall(r"\w+", value) if name in _PATHS), None):
        yield _PATHS[name], (current, "")
        return
    else:
        named = {"--conversation": "CONVERSATION", "--agents": "AGENT"}.get(flag) or value.strip("[].")
        names = _NAMES.get(named)
        words = names(known) if names else iter(())
    listed, comma, current = current.rpartition(",") if flag == "--agents" else ("", "", current)
    yield from (("plain", (f"{listed}{comma}{word}", text)) for word, text in words if word.startswith(current))
