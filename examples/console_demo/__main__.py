"""Serves the shop with the console: `python -m examples.console_demo --help`."""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.console_demo.serving import serve_shop


def _absolute(text: str) -> Path:
    return Path(text).resolve()


async def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="console_demo", description="The console with two weeks of runs of a shop.")
    parser.add_argument("--port", type=int, default=8322, help="0 selects a free one; default: 8322")
    parser.add_argument("--folder", type=_absolute, help="where to keep the project and its runs; default: nowhere")
    parser.add_argument("--visits", type=int, default=260, help="number of conversations in the two weeks")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)  # the runs of the two weeks have warnings, which are in the console
    with TemporaryDirectory(prefix="agentsd-shop-") as temporary:
        print("running two weeks of a shop, a few seconds …", flush=True)
        async with serve_shop(options.folder or Path(temporary), options.port, options.visits) as server:
            print(f"{server.runs} runs of 6 agents; open {server.url} (Ctrl-C ends it)", flush=True)
            print(f"edit the files of {server.project} while the page is open", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print()
