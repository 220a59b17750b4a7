"""`agentsd runs`: what is on record of runs, and what can be done with them.

In reading order; each module imports only from those below it:

    cancel  `agentsd runs cancel`: ends a run, in whatever process it goes on.
    decide  `agentsd runs decide`: a human's word on what a run asks.
    export  `agentsd runs export`: a run's messages as data, or the run as a case.
    list    `agentsd runs list`: the runs on record.
    prune   `agentsd runs prune`: deletes what is older than it is to be kept.
    replay  `agentsd runs replay`: a recorded run once more, and what would be different now.
    resume  `agentsd runs resume`: goes on with a run that was left behind.
    show    `agentsd runs show`: what happened in a run, and what it waits for.
"""

from __future__ import annotations

import click

from framework.cli.lazy import LazyGroup

COMMANDS = {
    "list": "List runs: those that wait, that were left behind, that have ended.",
    "show": "Show what happened in a run, step by step, and what it waits for.",
    "decide": "Answer what a run asks, and go on with it.",
    "resume": "Go on with a run that waits, or that was left behind when its process ended.",
    "cancel": "End a run that goes on, waits, or was left behind.",
    "replay": "Carry a run out again, offline, and show what would be different now.",
    "export": "Write a run's messages in a provider's form, or the run as a case for `agentsd test`.",
    "prune": "Delete runs and conversations that are older than they are to be kept.",
}


@click.group("runs", cls=LazyGroup, package="framework.cli.runs", commands_of=COMMANDS)
def command() -> None:
    """Look at runs, decide what they ask, go on with them, replay and export them.

    RUN is the id of a run, the beginning of one, or `last`.
    """
