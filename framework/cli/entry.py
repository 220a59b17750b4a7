"""Where the `agentsd` command begins: Ctrl-C is quiet even while the rest is being loaded."""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> None:
    """Load the command line, and carry out what the arguments say."""
    try:
        command = import_module("framework.cli.main").main
    except KeyboardInterrupt:
        sys.exit(130)
    command()
