"""The project's files as bytes, read in one go: what a generation is built from."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
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
        """The files of one folder; a file that is a project by itself counts as one of `agents.d`."""
        return {path: source for path, source in self.files.items() if _belongs(path, folder)}

    def unreadable(self, folder: str, known: Iterable[str]) -> dict[str, Problem]:
        """What is there in a folder but could not be read; of a folder in it, the files that are known from before."""
        found: dict[str, Problem] = {}
        for problem in self.problems:
            if _belongs(problem.path, folder):
                below = [path for path in known if path.startswith(problem.path + "/")]
                found.update(dict.fromkeys(below or [problem.path], problem))
        return found


def _belongs(path: str, folder: str) -> bool:
    top, below, _ = path.partition("/")
    return top == folder or (folder == AGENTS and not below and top not in FOLDERS)


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

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # a folder that is not there, or no longer
            problems.append(_unreadable(Path(error.filename).relative_to(root), error))

    for folder, suffixes in FOLDERS.items():
        for path in sorted(_walk(root / folder, suffixes, refuse)):
            name = path.relative_to(root)
            try:
                name.as_posix().encode()
                _refuse_outsider(path, root / folder)
                files[name.as_posix()] = _read(path)
            except FileNotFoundError as error:
                if path.is_symlink():  # otherwise it was deleted since the folder was listed
                    problems.append(_unreadable(name, error))
            except (OSError, UnicodeEncodeError) as error:
                problems.append(_unreadable(name, error))
    return _snapshot(files, problems)


def single_file(path: Path) -> Snapshot:
    """A project of one agent file."""
    try:
        return _snapshot({path.name: _read(path)}, [])
    except OSError as error:
        return _snapshot({}, [_unreadable(Path(path.name), error)])


def _snapshot(files: Mapping[str, bytes], problems: list[Problem]) -> Snapshot:
    parts = [part for name, source in sorted(files.items()) for part in (name, source)]
    return Snapshot(files, tuple(problems), digest_of(*parts, *(str(problem) for problem in problems)))


def _unreadable(name: Path, error: OSError | UnicodeEncodeError) -> Problem:
    printable = os.fsencode(name).decode("utf-8", "backslashreplace")
    if isinstance(error, UnicodeEncodeError):
        return Problem(path=printable, message="cannot be read: its name is not UTF-8")
    return Problem(path=printable, message=f"cannot be read: {error.strerror or error}")


def _walk(folder: Path, suffixes: tuple[str, ...], refuse: Callable[[OSError], None]) -> Iterator[Path]:
    for where, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        for name in names:
            hidden = name.startswith((".", "_")) or name.endswith("~")
            if name.endswith(suffixes) and not hidden and not name.endswith(_TEST_SUFFIXES):
                yield Path(where, name)


def _refuse_outsider(path: Path, folder: Path) -> None:
    """Raise OSError for a link that leads out of the folder: what is served must be what the folder holds."""
    if path.is_symlink() and not Path(os.path.realpath(path, strict=True)).is_relative_to(folder.resolve()):
        raise OSError(errno.EXDEV, "it is a link that leads out of the folder")


def _read(path: Path) -> bytes:
    """The whole file; O_NONBLOCK, so that a FIFO of that name cannot hang the reader."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a Path cannot open a descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        source = file.read(MAX_BYTES + 1)
    if len(source) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_BYTES} bytes")
    return source
