"""Takes snapshots of the project's files, from which generations are built."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path

from framework.config.files.reading import Fingerprint, FoundFile, find_files, fingerprint, read_consistent, was_stable
from framework.config.settings import SETTINGS_FILE
from framework.types.problem import Problem

AGENTS, PROMPTS, PLUGINS = "agents.d", "prompts", "plugins"
PROJECT_FOLDERS: Mapping[str, tuple[str, ...]] = {
    AGENTS: (".yaml", ".yml"),
    PROMPTS: (".j2",),
    PLUGINS: (".py", ".yaml", ".yml"),
}
"""The watched folders, and the suffixes of the files that are read in each."""
TEST_SUFFIXES = (".test.yaml", ".test.yml")
"""Suffixes of case files next to agent files. They are kept separately: agents do not depend on them."""

Cases = Mapping[str, bytes | Problem]
"""Case files by path: the content, or the problem that prevents reading it."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The project's files at one moment, by path relative to the root, such as `agents.d/support.yaml`."""

    files: Mapping[str, bytes]
    problems: tuple[Problem, ...]
    digest: str
    """Equal for equal paths and bytes. Includes case files only after `with_cases_in_digest`."""
    cases: Cases = field(default_factory=dict)

    def with_cases_in_digest(self) -> Snapshot:
        """Return a copy whose digest covers case files, for projects whose cases gate publication."""
        parts = [part for path, source in sorted(self.cases.items()) for part in (path, _bytes_of(source))]
        return replace(self, digest=source_digest(self.digest, *parts)) if parts else self

    def with_earlier(self, paths: Collection[str], earlier: Snapshot) -> Snapshot:
        """Return a copy with some paths in the version of an earlier snapshot."""
        files = {path: source for path, source in self.files.items() if path not in paths}
        files |= {path: source for path, source in earlier.files.items() if path in paths}
        problems = [problem for problem in self.problems if problem.path not in paths]
        problems += [problem for problem in earlier.problems if problem.path in paths]
        return build_snapshot(files, problems, self.cases)

    def with_texts(self, texts: Mapping[str, bytes]) -> Snapshot:
        """Return a copy in which files have these contents, as after an edit. Files that do not exist are added."""
        cases = {path: source for path, source in texts.items() if is_case_file(path)}
        files = {path: source for path, source in texts.items() if path not in cases}
        problems = [problem for problem in self.problems if problem.path not in texts]
        return build_snapshot({**self.files, **files}, problems, {**self.cases, **cases})

    def files_in(self, folder: str) -> dict[str, bytes]:
        """Return the files of one folder; a single-file project counts as a file in `agents.d`."""
        return {path: source for path, source in self.files.items() if _is_in(path, folder)}

    def unreadable(self, folder: str, known: Iterable[str]) -> dict[str, Problem]:
        """Return the files in a folder that could not be read.

        For a folder that could not be read, these are the `known` files below it.
        """
        unreadable: dict[str, Problem] = {}
        for problem in self.problems:
            if _is_in(problem.path, folder):
                below = [path for path in known if path.startswith(problem.path + "/")]
                unreadable.update(dict.fromkeys(below or [problem.path], problem))
        return unreadable


def _bytes_of(source: bytes | Problem) -> bytes:
    return source if isinstance(source, bytes) else str(source).encode()


def _is_in(path: str, folder: str) -> bool:
    if path.startswith(folder) and path[len(folder) : len(folder) + 1] in ("", "/"):
        return True
    return folder == AGENTS and "/" not in path and path not in PROJECT_FOLDERS and path != SETTINGS_FILE


def is_case_file(path: str) -> bool:
    """Return whether a file next to the agents contains test cases."""
    return path.endswith(TEST_SUFFIXES) and _is_in(path, AGENTS)


def source_digest(*parts: bytes | str) -> str:
    """Return a 64-bit digest of the parts, in hexadecimal."""
    digest = blake2b(digest_size=8)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def take_snapshot(root: Path) -> Snapshot:
    """Read the project's files; a file that cannot be read becomes a Problem."""
    return Scanner(root).scan()


def take_single_file_snapshot(path: Path) -> Snapshot:
    """Read a project that is one agent file, with its case files if there are any."""
    return Scanner(path, single=True).scan()


class Scanner:
    """Scans the project's files repeatedly, and opens only those that changed since the previous scan.

    Not safe for concurrent calls.
    """

    def __init__(self, root: Path, *, single: bool = False) -> None:
        self._root, self._single = root, single
        self._read: dict[str, tuple[Fingerprint, bytes]] = {}
        self._last: Snapshot | None = None

    def scan(self) -> Snapshot:
        """Return a snapshot of the current files; the previous object if nothing changed."""
        files: dict[str, bytes] = {}
        problems: list[Problem] = []
        cases: dict[str, bytes | Problem] = {}
        read: dict[str, tuple[Fingerprint, bytes]] = {}
        for name, file in sorted(self._find(), key=itemgetter(0)):
            source = self._source(name, file, read)
            if source is None:
                continue
            if is_case_file(name):
                cases[source.path if isinstance(source, Problem) else name] = source
            elif isinstance(source, Problem):
                problems.append(source)
            else:
                files[name] = source
        self._read = read
        last = self._last
        if last is None or last.files != files or last.problems != tuple(problems) or last.cases != cases:
            self._last = last = build_snapshot(files, problems, cases)
        return last

    def _find(self) -> Iterator[tuple[str, FoundFile]]:
        """Yield the relevant files with their paths relative to the root."""
        settings = (self._root.parent if self._single else self._root) / SETTINGS_FILE
        if os.path.lexists(settings):
            yield SETTINGS_FILE, _stat(settings)
        if self._single:
            cases = [self._root.with_name(self._root.stem + suffix) for suffix in TEST_SUFFIXES]
            yield from ((path.name, _stat(path)) for path in (self._root, *filter(Path.is_file, cases)))
            return
        root = os.path.join(self._root, "")  # noqa: PTH118 - creating a Path for each of many files is slow
        for folder, suffixes in PROJECT_FOLDERS.items():
            for file in find_files(root + folder, suffixes):
                yield file.path.removeprefix(root), file

    def _source(self, name: str, file: FoundFile, read: dict[str, tuple[Fingerprint, bytes]]) -> bytes | Problem | None:
        """Return the content or the problem of a file; None if it was deleted since the folder was listed."""
        try:
            name.encode()
            if file.status is None:
                raise file.error or FileNotFoundError
            entry = self._read.get(name)
            if entry is None or entry[0] != fingerprint(file.status):
                began = time.time_ns()
                source, version = read_consistent(file.path)
                entry = version, source
                if not was_stable(version, began):
                    return source
            read[name] = entry
            return entry[1]
        except FileNotFoundError as error:
            return _unreadable(name, error) if file.link or self._single else None
        except (OSError, UnicodeEncodeError) as error:
            return _unreadable(name, error)


def _stat(path: Path) -> FoundFile:
    try:
        return FoundFile(str(path), status=path.stat())
    except OSError as error:
        return FoundFile(str(path), error=error)


def build_snapshot(files: Mapping[str, bytes], problems: Iterable[Problem], cases: Cases) -> Snapshot:
    """Create a snapshot and compute its digest."""
    problems = tuple(problems)
    parts = [part for name, source in sorted(files.items()) for part in (name, source)]
    digest = source_digest(*parts, *(str(problem) for problem in problems))
    return Snapshot(files, problems, digest, cases)


def _unreadable(name: str, error: OSError | UnicodeEncodeError) -> Problem:
    printable = os.fsencode(name).decode("utf-8", "backslashreplace")
    if isinstance(error, UnicodeEncodeError):
        return Problem(path=printable, message="cannot be read: the file name is not UTF-8")
    return Problem(path=printable, message=f"cannot be read: {error.strerror or error}")
