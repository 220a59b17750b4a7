"""The project's files as bytes, read in one go: what a generation is built from."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path

from framework.config.files.reading import Fingerprint, FoundFile, find_files, fingerprint, read_consistent, was_stable
from framework.types.problem import Problem

AGENTS, PROMPTS, PLUGINS = "agents.d", "prompts", "plugins"
SETTINGS = "agentsd.yaml"
PROJECT_FOLDERS: Mapping[str, tuple[str, ...]] = {
    AGENTS: (".yaml", ".yml"),
    PROMPTS: (".j2",),
    PLUGINS: (".py", ".yaml", ".yml"),
}
"""The watched folders, and the files in them that count."""
TEST_SUFFIXES = (".test.yaml", ".test.yml")
"""Of the files of cases beside agents. They are kept apart: what is served does not depend on them."""

Cases = Mapping[str, bytes | Problem]
"""Files of cases by path: their bytes, or why they cannot be read."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files by their path relative to the root, such as `agents.d/support.yaml`."""

    files: Mapping[str, bytes]
    problems: tuple[Problem, ...]
    digest: str
    """Equal for equal paths and bytes; of files of cases only where they are counted."""
    cases: Cases = field(default_factory=dict)

    def with_cases_in_digest(self) -> Snapshot:
        """The same files; here another case is another digest, as it must be where cases decide what goes live."""
        parts = [part for path, source in sorted(self.cases.items()) for part in (path, _bytes_of(source))]
        return replace(self, digest=source_digest(self.digest, *parts)) if parts else self

    def with_earlier(self, paths: Collection[str], earlier: Snapshot) -> Snapshot:
        """The same, but with some paths as they were in an earlier snapshot."""
        files = {path: source for path, source in self.files.items() if path not in paths}
        files |= {path: source for path, source in earlier.files.items() if path in paths}
        problems = [problem for problem in self.problems if problem.path not in paths]
        problems += [problem for problem in earlier.problems if problem.path in paths]
        return build_snapshot(files, problems, self.cases)

    def below(self, folder: str) -> dict[str, bytes]:
        """The files of one folder; a file that is a project by itself counts as one of `agents.d`."""
        return {path: source for path, source in self.files.items() if _is_in(path, folder)}

    def unreadable(self, folder: str, known: Iterable[str]) -> dict[str, Problem]:
        """What is there in a folder but could not be read; of a folder in it, the files that are known from before."""
        found: dict[str, Problem] = {}
        for problem in self.problems:
            if _is_in(problem.path, folder):
                below = [path for path in known if path.startswith(problem.path + "/")]
                found.update(dict.fromkeys(below or [problem.path], problem))
        return found


def _bytes_of(source: bytes | Problem) -> bytes:
    return source if isinstance(source, bytes) else str(source).encode()


def _is_in(path: str, folder: str) -> bool:
    top, below, _ = path.partition("/")
    return top == folder or (folder == AGENTS and not below and top not in PROJECT_FOLDERS and top != SETTINGS)


def source_digest(*parts: bytes | str) -> str:
    """A short content hash."""
    hashed = blake2b(digest_size=8)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.hexdigest()


def take_snapshot(root: Path) -> Snapshot:
    """Read every file that counts below the root's folders; what cannot be read is a Problem."""
    return Scanner(root).scan()


def take_single_file_snapshot(path: Path) -> Snapshot:
    """A project of one agent file, and of its cases if they lie beside it."""
    return Scanner(path, single=True).scan()


class Scanner:
    """Reads the files again and again; only those that changed since the last time are opened.

    One call at a time: it remembers what it read.
    """

    def __init__(self, root: Path, *, single: bool = False) -> None:
        self._root, self._single = root, single
        self._known: dict[str, tuple[Fingerprint, bytes]] = {}
        self._last: Snapshot | None = None

    def scan(self) -> Snapshot:
        """The files as they are now; the very same object as before if nothing changed."""
        files: dict[str, bytes] = {}
        problems: list[Problem] = []
        cases: dict[str, bytes | Problem] = {}
        known: dict[str, tuple[Fingerprint, bytes]] = {}
        for name, found in sorted(self._found(), key=itemgetter(0)):
            source = self._source(name, found, known)
            if source is None:
                continue
            if name.endswith(TEST_SUFFIXES) and _is_in(name, AGENTS):
                cases[source.path if isinstance(source, Problem) else name] = source
            elif isinstance(source, Problem):
                problems.append(source)
            else:
                files[name] = source
        self._known = known
        last = self._last
        if last is None or last.files != files or last.problems != tuple(problems) or last.cases != cases:
            self._last = last = build_snapshot(files, problems, cases)
        return last

    def _found(self) -> Iterator[tuple[str, FoundFile]]:
        """What counts, by its path relative to the root."""
        settings = (self._root.parent if self._single else self._root) / SETTINGS
        if os.path.lexists(settings):
            yield SETTINGS, _stat(settings)
        if self._single:
            beside = [self._root.with_name(self._root.stem + suffix) for suffix in TEST_SUFFIXES]
            yield from ((path.name, _stat(path)) for path in (self._root, *filter(Path.is_file, beside)))
            return
        root = os.path.join(self._root, "")  # noqa: PTH118 - a string: a Path for each of many files takes its time
        for folder, suffixes in PROJECT_FOLDERS.items():
            for found in find_files(root + folder, suffixes):
                yield found.path.removeprefix(root), found

    def _source(
        self, name: str, found: FoundFile, known: dict[str, tuple[Fingerprint, bytes]]
    ) -> bytes | Problem | None:
        """What a file holds, or why it cannot be read; none if it was deleted since the folder was listed."""
        try:
            name.encode()
            if found.status is None:
                raise found.error or FileNotFoundError
            entry = self._known.get(name)
            if entry is None or entry[0] != fingerprint(found.status):
                began = time.time_ns()
                source, read = read_consistent(found.path)
                entry = read, source
                if not was_stable(read, began):
                    return source
            known[name] = entry
            return entry[1]
        except FileNotFoundError as error:
            return _unreadable(name, error) if found.link or self._single else None
        except (OSError, UnicodeEncodeError) as error:
            return _unreadable(name, error)


def _stat(path: Path) -> FoundFile:
    try:
        return FoundFile(str(path), status=path.stat())
    except OSError as error:
        return FoundFile(str(path), error=error)


def build_snapshot(files: Mapping[str, bytes], problems: Iterable[Problem], cases: Cases) -> Snapshot:
    """A snapshot with its digest."""
    problems = tuple(problems)
    parts = [part for name, source in sorted(files.items()) for part in (name, source)]
    digest = source_digest(*parts, *(str(problem) for problem in problems))
    return Snapshot(files, problems, digest, cases)


def _unreadable(name: str, error: OSError | UnicodeEncodeError) -> Problem:
    printable = os.fsencode(name).decode("utf-8", "backslashreplace")
    if isinstance(error, UnicodeEncodeError):
        return Problem(path=printable, message="cannot be read: its name is not UTF-8")
    return Problem(path=printable, message=f"cannot be read: {error.strerror or error}")
