"""Entry point of the `agentsd` command: Ctrl-C ends it quietly even while modules are imported."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from framework.cli.command_index import COMPLETION_VARIABLE
from framework.types.imports import import_uncollected


def main() -> None:
    """Import the command line and run the command; for a shell, print completions without importing it."""
    completes = COMPLETION_VARIABLE in os.environ
    try:
        if completes:
            act = import_module("framework.cli.completion_words").print_completions
        else:
            act = import_uncollected("framework.cli.main").main
    except KeyboardInterrupt:
        sys.exit(130)
    act()
