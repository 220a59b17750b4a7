"""The project's files as bytes, read in one go: what a generation is built from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from framework.config.document import MAX_BYTES
from framework.types.problem import Problem

AGENTS, PROMPTS, PLUGINS = "agents.d", "prompts", "plugins"
FOLDERS: Mapping[str, tuple[str, ...]] = {AGENTS: (".yaml", ".yml"), PROMPTS: (".j2",), PLUGINS: (".py",)}
"""The watched folders, and the files in them that count."""
_TEST_SUFFIXES = (".test.yaml", ".test.yml")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files by their path relative to the root, such as `agents.d/support.yaml`."""

    files: Mapping[str, bytes]
    problems: tuple[Problem, ...]
    digest: str
    """Equal for equal paths and bytes."""

    def below(self, folder: str) -> dict[str, bytes]:
        """The files of one folder."""
        return {path: source for path, source in self.files.items() if path.startswith(folder + "/")}


def digest_of(*parts: bytes | str) -> str:
    """A short content hash."""
    hashed = blake2b(digest_size=8)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.hexdigest()


def take_snapshot(root: Path) -> Snapshot:
    """Read every file that counts below the root's folders; what cannot be read is a Problem."""
    files: dict[str, bytes] = {}
    problems: list[Problem] = []
    for folder, suffixes in FOLDERS.items():
        for path in sorted(_walk(root / folder, suffixes)):
            name = path.relative_to(root).as_posix()
            try:
                files[name] = _read(path)
            except OSError as error:
                reason = error.strerror or str(error)
                problems.append(Problem(path=name, message=f"cannot be read: {reason}"))
    parts = [part for name, source in sorted(files.items()) for part in (name, source)]
    return Snapshot(files, tuple(problems), digest_of(*parts, *(str(problem) for problem in problems)))


def single_file(path: Path) -> Snapshot:
    """A project of one agent file; raises OSError."""
    files = {f"{AGENTS}/{path.name}": _read(path)}
    return Snapshot(files, (), digest_of(*files.values()))


def _walk(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        for name in names:
            hidden = name.startswith((".", "_")) or name.endswith("~")
            if name.endswith(suffixes) and not hidden and not name.endswith(_TEST_SUFFIXES) and _is_text(name):
                yield Path(where, name)


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _read(path: Path) -> bytes:
    """The whole file; O_NONBLOCK, so that a FIFO of that name cannot hang the reader."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a Path cannot open a descriptor
        return file.read(MAX_BYTES + 1)
