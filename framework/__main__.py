"""`python -m framework`: the command line."""

from __future__ import annotations

from framework.cli.entry import main

if __name__ == "__main__":
    main()
