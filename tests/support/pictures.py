"""Pictures of traces in Phoenix and MLflow, for docs/design/018-traces.md.

    PHOENIX_VENV=.venv/phoenix MLFLOW_VENV=.venv/mlflow python -m tests.support.pictures FOLDER LABEL [CHECKOUT]

starts each backend, sends the runs of `tests/support/picture_runs.py` made by that checkout of agentsd (this one by
default), and writes `FOLDER/{backend}-{list,tree}-LABEL.png`. It needs `chromium`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.backends import Backend, ask, eventually, mlflow, phoenix
from tests.support.browser import browser

PROJECT = "agentsd"
SHOWN = "planner"
"""The run whose tree is shown."""
TEXTS = {"list": "Say hello", "tree": "plan.summary"}
"""Text that a page shows once it has loaded."""


def send(backend: Backend, checkout: Path, headers: list[str]) -> dict[str, str]:
    """Make the runs with a checkout of agentsd; return their trace ids."""
    script = Path(__file__).with_name("picture_runs.py")
    words = [str(checkout / ".venv/bin/python"), str(script), backend.url, PROJECT, *headers]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True, check=True)
    trace_ids: dict[str, str] = json.loads(done.stdout)
    return trace_ids


def phoenix_pages(backend: Backend, trace: str) -> dict[str, str]:
    """Return the URLs of the list of traces and of one trace."""
    query = "query($p: String!) { getProjectByName(name: $p) { id } }"
    answer = ask(f"{backend.url}/graphql", {"query": query, "variables": {"p": PROJECT}})
    project = f"{backend.url}/projects/{answer['data']['getProjectByName']['id']}"
    return {"list": f"{project}/traces", "tree": f"{project}/traces/{trace}"}


def mlflow_pages(backend: Backend, trace: str) -> dict[str, str]:
    """Return the URLs of the list of traces and of one trace."""
    found = ask(f"{backend.url}/api/2.0/mlflow/experiments/get-by-name?experiment_name={PROJECT}")
    traces = f"{backend.url}/#/experiments/{found['experiment']['experiment_id']}/traces"
    return {"list": traces, "tree": f"{traces}?selectedEvaluationId=tr-{trace}"}


def main(folder: str, label: str, checkout: str = ".") -> None:
    """Take all pictures."""
    for name, start, pages in (("phoenix", phoenix, phoenix_pages), ("mlflow", mlflow, mlflow_pages)):
        with TemporaryDirectory() as data:
            venv = Path(os.environ[f"{name.upper()}_VENV"]).absolute()
            with start(venv, Path(data)) as backend:
                trace_ids = send(backend, Path(checkout).absolute(), backend.project(PROJECT))
                eventually(lambda: backend.spans(PROJECT, trace_ids[SHOWN]), f"{name} does not show the runs")  # noqa: B023 - called immediately
                with browser() as page:
                    for shown, url in pages(backend, trace_ids[SHOWN]).items():
                        page.open(url, TEXTS[shown])
                        page.click("Got it")
                        if (name, shown) == ("phoenix", "list"):
                            page.widen("name", 40)
                            page.widen("output", 100)
                        page.picture(Path(folder) / f"{name}-{shown}-{label}.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
