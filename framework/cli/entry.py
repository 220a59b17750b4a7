"""Entry point of the `agentsd` command: Ctrl-C ends it quietly even while modules are imported."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

COMPLETION_VARIABLE = "_AGENTSD_COMPLETE"
"""Environment variable that asks for completions: `bash_complete`, `zsh_complete` or `fish_complete`."""


def main() -> None:
    """Import the command line and run the command; for a shell, print completions instead."""
    gc.disable()  # modules live as long as the process; `LazyGroup` enables it once the command is imported
    completes = COMPLETION_VARIABLE in os.environ
    try:
        if completes:
            act = import_module("framework.cli.completion").print_completions
        else:
            act = import_module("framework.cli.main").main
    except KeyboardInterrupt:
        sys.exit(130)
    act()
