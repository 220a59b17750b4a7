"""Snapshots of the project's files, from which generations are built."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import islice

from framework.config.overlay import is_settings_file
from framework.types.problem import Problem
from framework.types.tool_servers import DOCUMENTS_FOLDER

AGENTS, PROMPTS, PLUGINS = "agents.d", "prompts", "plugins"
API_DOCUMENTS = DOCUMENTS_FOLDER
PROJECT_FOLDERS: Mapping[str, tuple[str, ...]] = {
    AGENTS: (".yaml", ".yml"),
    PROMPTS: (".j2",),
    PLUGINS: (".py", ".yaml", ".yml"),
    API_DOCUMENTS: (".yaml", ".yml", ".json"),
}
"""The watched folders, and the suffixes of the files that are read in each."""
TEST_SUFFIXES = (".test.yaml", ".test.yml")
"""Suffixes of case files next to agent files. They are kept separately: agents do not depend on them."""

Cases = Mapping[str, bytes | Problem]
"""Case files by path: the content, or the problem that prevents reading it."""

_AFTER_SLASH = chr(ord("/") + 1)
_SUM_BYTES = 32
_SUM_LIMIT = 1 << (8 * _SUM_BYTES)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The project's files at one moment, by path relative to the root, such as `agents.d/support.yaml`."""

    files: Mapping[str, bytes]
    """The contents, sorted by path."""
    problems: tuple[Problem, ...]
    digest: str
    """Equal for equal paths and bytes. Includes case files only after `with_cases_in_digest`."""
    cases: Cases = field(default_factory=dict)
    files_sum: int = 0
    """Sum of the hashes of all files: an edited copy is computed from it without hashing the other files again."""
    edited_from: int | None = None
    """`files_sum` of the snapshot that this one is an edited copy of."""
    edited_paths: frozenset[str] = frozenset()
    """The files that differ from that snapshot."""

    def with_cases_in_digest(self) -> Snapshot:
        """Return a copy whose digest covers case files, for projects whose cases gate publication."""
        parts = [part for path, source in sorted(self.cases.items()) for part in (path, _bytes_of(source))]
        return replace(self, digest=source_digest(self.digest, *parts)) if parts else self

    def with_earlier(self, paths: Collection[str], earlier: Snapshot) -> Snapshot:
        """Return a copy with some paths in the version of an earlier snapshot."""
        problems = [problem for problem in self.problems if problem.path not in paths]
        problems += [problem for problem in earlier.problems if problem.path in paths]
        return self.edited({path: earlier.files.get(path) for path in paths}, problems, self.cases)

    def with_texts(self, texts: Mapping[str, bytes]) -> Snapshot:
        """Return a copy in which files have these contents, as after an edit. Files that do not exist are added."""
        cases = {path: source for path, source in texts.items() if is_case_file(path)}
        files = {path: source for path, source in texts.items() if path not in cases}
        problems = [problem for problem in self.problems if problem.path not in texts]
        return self.edited(files, problems, {**self.cases, **cases})

    def edited(self, changes: Mapping[str, bytes | None], problems: Iterable[Problem], cases: Cases) -> Snapshot:
        """Return a copy in which files have these contents; None removes a file. Problems and cases are replaced."""
        files, total, is_sorted = dict(self.files), self.files_sum, True
        changed = {path: source for path, source in changes.items() if files.get(path) != source}
        for path, source in changed.items():
            if (before := files.get(path)) is not None:
                total -= _file_hash(path, before)
            if source is None:
                del files[path]
            else:
                is_sorted = is_sorted and before is not None
                files[path], total = source, total + _file_hash(path, source)
        files, total, problems = (
            files if is_sorted else dict(sorted(files.items())),
            total % _SUM_LIMIT,
            tuple(problems),
        )
        return Snapshot(files, problems, _digest(total, problems), cases, total, self.files_sum, frozenset(changed))

    def changed_files(self, before: Snapshot) -> Set[str]:
        """Return the paths of the files that differ from another snapshot."""
        if self.files_sum == before.files_sum:
            return frozenset()
        if self.edited_from == before.files_sum:
            return self.edited_paths
        own, other = self.files, before.files
        changed = {path for path, source in own.items() if other.get(path) != source}
        return changed.union(path for path in other if path not in own)

    def files_in(self, folder: str) -> dict[str, bytes]:
        """Return the files of one folder; a single-file project counts as a file in `agents.d`."""
        paths = list(self.files)
        first, end = bisect_left(paths, folder + "/"), bisect_left(paths, folder + _AFTER_SLASH)
        single = [path for path in paths if "/" not in path and _is_in(path, folder)] if folder == AGENTS else []
        return {**dict(islice(self.files.items(), first, end)), **{path: self.files[path] for path in single}}

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
    return folder == AGENTS and "/" not in path and path not in PROJECT_FOLDERS and not is_settings_file(path)


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


def build_snapshot(files: Mapping[str, bytes], problems: Iterable[Problem], cases: Cases) -> Snapshot:
    """Create a snapshot and compute its digest."""
    problems, total = tuple(problems), sum(_file_hash(path, source) for path, source in files.items()) % _SUM_LIMIT
    return Snapshot(dict(sorted(files.items())), problems, _digest(total, problems), cases, total)


def _file_hash(path: str, source: bytes) -> int:
    name = path.encode()
    return int.from_bytes(blake2b(len(name).to_bytes(8, "big") + name + source, digest_size=_SUM_BYTES).digest(), "big")


def _digest(files_sum: int, problems: Iterable[Problem]) -> str:
    return source_digest(files_sum.to_bytes(_SUM_BYTES, "big"), *(str(problem) for problem in problems))
