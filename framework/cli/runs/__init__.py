"""`agentsd runs`: stored runs.

In reading order; each module imports only from those below it:

    cancel  Cancels a run, in whichever process it is in progress.
    decide  Decides the confirmations that a run waits for, and resumes it.
    export  Writes a run's messages as JSON, or the run as a test case.
    list    Lists the stored runs.
    prune   Deletes runs and conversations past their retention.
    replay  Replays a stored run offline under the current files, and shows the differences.
    resume  Resumes an interrupted run.
    show    Shows the steps of a run, and what it waits for.
    tail    Follows a run, in whichever process it is in progress.
"""

from __future__ import annotations

import click

from framework.cli.lazy import LazyGroup

COMMANDS = {
    "list": "List stored runs: paused, interrupted and ended.",
    "show": "Show the steps of a run, and what it waits for.",
    "tail": "Follow a run that is queued or in progress, until it ends.",
    "decide": "Decide what a run waits for, and resume it.",
    "resume": "Resume a paused run, or one whose process ended.",
    "cancel": "Cancel a run that is in progress, paused or interrupted.",
    "replay": "Replay a run offline, and show what would be different now.",
    "export": "Write a run's messages as JSON, or the run as a case for `agentsd test`.",
    "prune": "Delete runs and conversations past their retention.",
}


@click.group("runs", cls=LazyGroup, package="framework.cli.runs", commands_of=COMMANDS)
def command() -> None:
    """List, show, follow, decide, resume, cancel, replay and export stored runs.

    RUN is the id of a run, a prefix of one, or `last`.
    """
