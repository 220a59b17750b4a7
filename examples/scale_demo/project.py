"""The project of the fleet: one agent and one tool. Each process has a copy of it, as on machines of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

AGENT = """\
version: 1
name: stepper
description: Calls its tool as often as the message says.
model: scripted
instructions: Do the steps of the message, one after another.
skill_policy: {allow: [work.step]}
conversation: {window: 1000}
runtime_policy: {max_steps: null, max_tool_calls: null, max_total_tokens: null, timeout: null}
"""
PLUGIN = """\
import asyncio
import os
from pathlib import Path

from examples.scale_demo.log import Log
from framework import tool

log = Log(Path(os.environ["FLEET_LOG"]))

@tool(risk="low", idempotent=True)
async def step(run: str, step: int, seconds: float) -> str:
    \"\"\"Take some seconds, and note the begin and the end.\"\"\"
    log.add("begin", run, step, os.environ["FLEET_PROCESS"])
    await asyncio.sleep(seconds)
    log.add("end", run, step, os.environ["FLEET_PROCESS"])
    return f"did step {step} of {run}"
"""
SETTINGS = """\
server: {{port: 0}}
store: {{url: '{url}'{store}}}
models:
  scripted: {{model: openai/m, base_url: '{model}', api_key: '${{FLEET_PROCESS}}', api: chat, stream: false}}
"""


def write_project(
    folder: Path, *, url: str, model: str, lease: float | None = None, files: Mapping[str, str] | None = None
) -> Path:
    """Write the files into a new folder, and return the folder.

    Args:
        folder: the folder, which must not exist.
        url: of the store.
        model: base URL of the model server.
        lease: of the processes, in seconds. Default: that of agentsd.
        files: further files, or other texts of these.
    """
    store = "" if lease is None else f", lease: {lease}s"
    texts = {
        "agents.d/stepper.yaml": AGENT,
        "plugins/work.py": PLUGIN,
        "agentsd.yaml": SETTINGS.format(url=url, model=model, store=store),
        **(files or {}),
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return folder


def edit_agent(folder: Path) -> None:
    """Change the instructions of the agent, in this folder only."""
    path = folder / "agents.d" / "stepper.yaml"
    path.write_text(path.read_text("utf-8").replace("one after another", "in their order"), "utf-8")
