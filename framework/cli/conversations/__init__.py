"""`agentsd conversations`: what is on record of conversations.

In reading order; each module imports only from those below it:

    delete   `agentsd conversations delete`: a conversation, and whatever is on record of it.
    export   `agentsd conversations export`: a conversation as data.
    import_  `agentsd conversations import`: a conversation out of a file.
    list     `agentsd conversations list`: the conversations on record.
    show     `agentsd conversations show`: what was said, by whom, and under which generation.
"""

from __future__ import annotations

import click

from framework.cli.lazy import LazyGroup

COMMANDS = {
    "list": "List conversations, the one with the latest turn first.",
    "show": "Show what was said in a conversation, and which generation answered.",
    "export": "Write a conversation in the form of a provider, or in our own.",
    "import": "Read a conversation in from a file.",
    "delete": "Delete a conversation with all that is on record of it.",
}


@click.group("conversations", cls=LazyGroup, package="framework.cli.conversations", commands_of=COMMANDS)
def command() -> None:
    """Look at conversations, write them to files, read them in, delete them. `agentsd chat` goes on with one."""
