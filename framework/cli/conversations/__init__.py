"""`agentsd conversations`: stored conversations.

In reading order; each module imports only from those below it:

    delete   Deletes a conversation with its runs, events and traces.
    export   Writes a conversation as JSON.
    fork     Begins a conversation with the history of another.
    import_  Reads a conversation from a file.
    list     Lists the stored conversations.
    show     Shows the messages of a conversation, turn by turn.
    find     Finds the conversation that a command names.
"""

from __future__ import annotations

import click

from framework.cli.lazy import LazyGroup

COMMANDS = {
    "list": "List conversations, the one with the latest turn first.",
    "show": "Show the messages of a conversation, and which generation answered.",
    "fork": "Begin a conversation with the history of another.",
    "export": "Write a conversation in a provider's format, or in our own.",
    "import": "Read a conversation from a file.",
    "delete": "Delete a conversation with its runs, events and traces.",
}


@click.group("conversations", cls=LazyGroup, package="framework.cli.conversations", commands_of=COMMANDS)
def command() -> None:
    """List, show, fork, export, import and delete conversations. `agentsd chat` continues one."""
