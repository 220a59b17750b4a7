"""Entry point of the `agentsd` command: Ctrl-C ends it quietly even while modules are imported."""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> None:
    """Import the command line and run the command."""
    try:
        command = import_module("framework.cli.main").main
    except KeyboardInterrupt:
        sys.exit(130)
    command()
