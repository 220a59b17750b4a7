"""Writes the pages of docs/reference: `python -m examples.reference`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from examples.reference.commands import commands_page, groups_page, run_commands_page
from examples.reference.files import agent_page, older_agent_page, settings_page
from examples.reference.http import configuration_page, http_page
from examples.reference.outcomes import outcomes_page
from examples.reference.policy import policy_page
from examples.reference.python import (
    modules_page,
    names_page,
    plugins_page,
    public_modules,
    results_page,
    runs_page,
    runtime_page,
)
from examples.reference.stream import events_page
from examples.reference.telemetry import telemetry_page
from examples.reference.templates import templates_page

ELSEWHERE = ("framework.types.events", "framework.config.settings")
"""Modules whose contents are on `events` and `settings-file`."""
OF_MODELS = ("framework.llm.client",)
OTHERS = [one.__name__ for one in public_modules() if one.__name__ not in (*ELSEWHERE, *OF_MODELS)]
FOLDER = Path(__file__).resolve().parents[2] / "docs/reference"
PAGES: Mapping[str, Callable[[], Iterator[str]]] = {
    "agent-file": agent_page,
    "agent-file-older": older_agent_page,
    "settings-file": settings_page,
    "commands": commands_page,
    "commands-groups": groups_page,
    "commands-runs": run_commands_page,
    "events": events_page,
    "outcomes": outcomes_page,
    "policy": policy_page,
    "templates": templates_page,
    "telemetry": telemetry_page,
    "python-runtime": runtime_page,
    "python-runs": runs_page,
    "python-names": names_page,
    "python-results": results_page,
    "python-plugins": plugins_page,
    "http": http_page,
    "http-configuration": configuration_page,
    "python-models": partial(modules_page, "Model clients", OF_MODELS),
    "python-modules": partial(modules_page, "Message formats, tests, server, store and redaction", OTHERS),
}


def written(name: str) -> str:
    """Return the text of a page."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join(PAGES[name]())).strip() + "\n"


def main() -> None:
    """Write all pages."""
    for name in PAGES:
        (FOLDER / f"{name}.md").write_text(written(name), "utf-8")


if __name__ == "__main__":
    main()
