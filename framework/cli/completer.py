"""Completes what the user types in a chat: slash commands, agents, models, inputs and files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from framework.cli.chat_commands import AUTO, COMMANDS_HELP, DEFAULT
from framework.cli.chat_state import ChatState

MIN_PATH_CHARS = 1


class ChatCompleter(Completer):
    """Completes the word before the cursor."""

    def __init__(self, chat: ChatState) -> None:
        self._chat, self._paths = chat, PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield what the word before the cursor may become."""
        text = document.text_before_cursor
        word = text.rpartition(" ")[2].rpartition("\n")[2]
        command, space, _ = text.partition(" ")
        if text.startswith("/") and not space and "/" not in text[1:]:
            for usage, help_text in COMMANDS_HELP.items():
                name = usage.split()[0]
                if name.startswith(text):
                    yield Completion(name, -len(text), display_meta=help_text)
        elif (names := self._names(command)) is not None:
            yield from (Completion(name, -len(word)) for name in names if name.startswith(word))
        elif len(word) >= MIN_PATH_CHARS:
            yield from self._paths.get_completions(Document(word), complete_event)

    def _names(self, command: str) -> Sequence[str] | None:
        """Return the possible arguments of a command; None if it accepts others."""
        agents = self._chat.runtime.catalog.current.agents
        match command:
            case "/agent":
                return [*sorted(agents), AUTO]
            case "/model":
                return [*sorted({agent.spec.model for agent in agents.values() if agent.spec.model}), DEFAULT]
            case "/inputs":
                selected = agents.get(self._chat.agent or "")
                return [f"{name}=" for name in (selected.spec.inputs if selected else ())]
        return None
