"""The files of a project at one moment, and the scanner that reads them."""

from __future__ import annotations

import errno
import os
import stat
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from operator import attrgetter, itemgetter
from pathlib import Path

from framework.config.overlay import is_settings_file, settings_files
from framework.config.yaml.document import MAX_DOCUMENT_BYTES
from framework.tools.files import SKILL_FILES, BaseFolder, is_hidden, open_file
from framework.tools.openapi.document import MAX_API_DOCUMENT_BYTES
from framework.tools.skills import omitted_content
from framework.types.errors import ToolError
from framework.types.problem import Problem
from framework.types.text import DATA_SUFFIX, source_digest
from framework.types.tool_servers import DOCUMENTS_FOLDER

AGENTS, PROMPTS, PLUGINS = "agents.d", "prompts", "plugins"
API_DOCUMENTS, TRIGGERS = DOCUMENTS_FOLDER, "triggers.d"
PROJECT_FOLDERS: Mapping[str, tuple[str, ...]] = {
    AGENTS: (".yaml", ".yml", DATA_SUFFIX),
    PROMPTS: (".j2",),
    PLUGINS: (".py", ".yaml", ".yml"),
    API_DOCUMENTS: (".yaml", ".yml", ".json"),
    TRIGGERS: (".yaml", ".yml"),
}
"""The watched folders, and the suffixes of the files that are read in each."""
TEST_SUFFIXES = (".test.yaml", ".test.yml")
"""Suffixes of case files next to agent files. They and their data are kept separately: agents do not depend on them."""

Cases = Mapping[str, bytes | Problem]
"""Case files by path: the content, or the problem that prevents reading it."""

_AFTER_SLASH = chr(ord("/") + 1)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The project's files at one moment, by path relative to the root, such as `agents.d/support.yaml`."""

    files: Mapping[str, bytes]
    """The contents, sorted by path."""
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
        files = {path: source for path, source in {**self.files, **changes}.items() if source is not None}
        return build_snapshot(files, problems, cases)

    def changed_files(self, before: Snapshot) -> set[str]:
        """Return the paths of the files that differ from another snapshot."""
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
    return path.endswith((*TEST_SUFFIXES, DATA_SUFFIX)) and _is_in(path, AGENTS)


def build_snapshot(files: Mapping[str, bytes], problems: Iterable[Problem], cases: Cases) -> Snapshot:
    """Create a snapshot and compute its digest."""
    files, problems = dict(sorted(files.items())), tuple(problems)
    contents = (part for file in files.items() for part in file)
    return Snapshot(files, problems, source_digest(*contents, *(str(problem) for problem in problems)), cases)


_MAX_ATTEMPTS, _RETRY_SECONDS = 5, 0.005
"""Attempts to read a file that changes while it is read, and the pause between them."""
_HIDDEN_FOLDERS, _HIDDEN_FILES = (".", "__"), (".", "_")
_HELPER_SUFFIXES = (".py", ".j2")
"""Helper modules of plugins and partial templates may start with `_`; they are not hidden."""
FINE_NS, COARSE_NS = 50_000_000, 2_000_000_000
"""Resolution of file times, in nanoseconds; the coarse one applies where times are whole seconds."""

Fingerprint = tuple[int, int, int, int, int]
"""Device, inode, size, mtime and ctime. No program can set the ctime, so it reveals an edit that restores the mtime."""


MAX_SKILL_FOLDERS, MAX_SKILL_DEPTH, _MAX_SKILL_FILES = 2_000, 8, 10_000
"""Limits of one folder of skills: folders in it, their depth, and files."""
_MAX_DIGESTED_BYTES = 1 << 26
"""Size of a file of a skill from which on it is not read at all."""
_NO_SKILL_FOLDERS = ("node_modules", "__pycache__", ".git", ".venv")

FoundFile = tuple[str, os.stat_result | OSError, bool]
"""Path, status or the error that prevents reading it, and whether it is a symbolic link. A tuple: there may be many."""


fingerprint: Callable[[os.stat_result], Fingerprint] = attrgetter(
    "st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns"
)
"""Returns a value that changes with the file, except for edits within the resolution of its times."""


def was_stable(read: Fingerprint, started_ns: int) -> bool:
    """Return whether the file's last change was old enough that its next change will have a different time.

    Args:
        read: the fingerprint of the file that was read.
        started_ns: when reading started, in Unix nanoseconds.
    """
    changed = read[-1]
    return started_ns - changed > (FINE_NS if changed % 1_000_000_000 else COARSE_NS)


def find_files(folder: str, suffixes: tuple[str, ...]) -> Iterator[FoundFile]:
    """Yield the files below a folder, and the folders that cannot be read, in no order.

    Hidden and private names are skipped. A symbolic link must not point outside the folder. A link to a folder is
    followed only if the folder is hidden, as in Kubernetes volume mounts: a visible folder is listed anyway.
    """
    pending: list[tuple[str, tuple[Path, ...]]] = [(folder, ())]
    while pending:  # not recursive: folders may be nested deeper than the call stack allows
        current, followed = pending.pop()
        try:
            entries = _entries(current)
        except OSError as error:
            yield current, error, False
            continue
        while entries:
            entry = entries.pop()  # it holds its status; many of them would cause garbage collections
            if entry.is_file(follow_symlinks=False) or not _is_folder(entry):
                if _is_read(entry.name, suffixes) and (file := _file(entry, folder)):
                    yield file
            elif not is_hidden_folder(entry.name):
                try:
                    target = _link_target(entry.path, folder) if entry.is_symlink() else None
                except OSError as error:
                    yield entry.path, error, True
                    continue
                if target is None:
                    pending.append((entry.path, followed))
                elif _is_hidden(target) and target not in followed:
                    pending.append((entry.path, (*followed, target)))


def find_skill_files(folder: str) -> Iterator[FoundFile]:
    """Yield the files of the skills below a folder: those in folders with a `SKILL.md`, and below these.

    Hidden files are skipped, and hidden folders in a skill. Symbolic links are not followed: one in a skill, or to a
    folder that may be a skill, is yielded as an error. So is the folder itself if it contains too many folders or
    files; folders that are too deep are skipped.
    """
    pending, folders, files = [(folder, 1, False)], 0, 0
    while pending:
        current, depth, in_skill = pending.pop()
        try:
            entries = _entries(current)
        except OSError as error:
            yield current, error, False
            continue
        in_skill = in_skill or any(entry.name in SKILL_FILES for entry in entries)
        for entry in entries:
            if entry.name in _NO_SKILL_FOLDERS or entry.name.startswith(".." if not in_skill else "."):
                continue
            if entry.is_symlink():
                if in_skill or _is_folder(entry):
                    yield entry.path, OSError(errno.ELOOP, "symbolic links are not followed in folders of skills"), True
            elif entry.is_dir(follow_symlinks=False):
                folders += 1
                pending.append((entry.path, depth + 1, in_skill))
            elif in_skill and not is_hidden(entry.name) and (file := _file(entry, folder)):
                files += 1
                yield file
        if folders > MAX_SKILL_FOLDERS or files > _MAX_SKILL_FILES:
            limit = f"more than {MAX_SKILL_FOLDERS} folders or {_MAX_SKILL_FILES} files: not all skills are read"
            yield folder, OSError(errno.EFBIG, limit), False
            return
        pending = [one for one in pending if one[1] <= MAX_SKILL_DEPTH]


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []  # never created, or deleted a moment ago


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def is_hidden_folder(name: str) -> bool:
    """Return whether a scan skips folders of this name."""
    return name.startswith(_HIDDEN_FOLDERS)


def _is_hidden(path: Path) -> bool:
    return any(is_hidden_folder(part) for part in path.parts)


def _file(entry: os.DirEntry[str], folder: str) -> FoundFile | None:
    """Return a file, or the error that prevents reading it; None if it was deleted after it was listed."""
    link = entry.is_symlink()
    try:
        if link:
            _link_target(entry.path, folder)
        return entry.path, entry.stat(), link
    except OSError as error:
        return (entry.path, error, link) if link or not isinstance(error, FileNotFoundError) else None


def is_read_below(parts: Sequence[str], suffixes: tuple[str, ...]) -> bool:
    """Return whether a scan of a folder reads a file with this path below it: neither hidden nor private."""
    *folders, name = parts
    return _is_read(name, suffixes) and not any(map(is_hidden_folder, folders))


def _is_read(name: str, suffixes: tuple[str, ...]) -> bool:
    hidden = "." if name.endswith(_HELPER_SUFFIXES) else _HIDDEN_FILES
    return name.endswith(suffixes) and not name.startswith(hidden)


def _link_target(path: str, folder: str) -> Path:
    """Return the target of a link, relative to the folder; raise OSError if it is outside the folder."""
    target, base = Path(os.path.realpath(path, strict=True)), os.path.realpath(folder)
    if not target.is_relative_to(base):
        raise OSError(errno.EXDEV, "symbolic link points outside its folder")
    return target.relative_to(base)


def read_consistent(path: str, max_bytes: int = MAX_DOCUMENT_BYTES) -> tuple[bytes, Fingerprint]:
    """Read a file as it was at one moment.

    Raises:
        OSError: the file cannot be read, is not a regular file, is larger than `max_bytes`, or kept changing.
    """
    for attempt in range(_MAX_ATTEMPTS):
        if attempt:
            time.sleep(_RETRY_SECONDS)
        # without O_NONBLOCK, opening a FIFO of that name would block
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            source = _read(descriptor, max_bytes)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if len(source) > max_bytes:
            raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes")
        if fingerprint(before) == fingerprint(after) and len(source) == after.st_size:
            return source, fingerprint(after)
    raise OSError(errno.EBUSY, "still being written")


def _read(descriptor: int, max_bytes: int) -> bytes:
    """Read the whole file, or one byte more than allowed."""
    parts: list[bytes] = []
    remaining = max_bytes + 1
    while remaining and (part := os.read(descriptor, remaining)):
        parts.append(part)
        remaining -= len(part)
    return b"".join(parts)


def read_skill_file(folder: Path, parts: Sequence[str]) -> tuple[bytes, Fingerprint]:
    """Read a file of a skill like `read_consistent`; one that is not text, or is large, as `omitted_content`.

    Raises:
        ToolError: it is a link, a pipe or a device, or one of its folders is a link.
        OSError: it cannot be read, or kept changing.
    """
    for attempt in range(_MAX_ATTEMPTS):
        if attempt:
            time.sleep(_RETRY_SECONDS)
        with open_file(BaseFolder(folder), parts) as file:
            before = os.fstat(file.fileno())
            if before.st_size > _MAX_DIGESTED_BYTES:
                raise OSError(errno.EFBIG, f"larger than {_MAX_DIGESTED_BYTES} bytes")
            source = file.read(MAX_DOCUMENT_BYTES + 1)
            size = len(source)
            if size > MAX_DOCUMENT_BYTES or b"\0" in source:
                digest = sha256(source)
                while size <= _MAX_DIGESTED_BYTES and (part := file.read(1 << 20)):
                    digest.update(part)
                    size += len(part)
                source = omitted_content(source, digest.hexdigest(), size)
            after = os.fstat(file.fileno())
        if fingerprint(before) == fingerprint(after) and size == after.st_size:
            return source, fingerprint(after)
    raise OSError(errno.EBUSY, "still being written")


_Source = bytes | Problem
"""The content of a file, or the problem that prevents reading it."""


def take_snapshot(root: Path, skills: Sequence[str] = ()) -> Snapshot:
    """Read the project's files, and those of its `skills` folders; a file that cannot be read becomes a Problem."""
    return Scanner(root, skills=skills).scan()


def take_single_file_snapshot(path: Path) -> Snapshot:
    """Read a project that is one agent file, with its case files if there are any."""
    return Scanner(path, single=True).scan()


class Scanner:
    """Scans the project's files repeatedly, and opens only those that changed since the previous scan.

    Not safe for concurrent calls.
    """

    def __init__(
        self,
        root: Path,
        *,
        single: bool = False,
        known: Mapping[str, bytes] | None = None,
        skills: Sequence[str] = (),
    ) -> None:
        """Create a scanner that has read nothing.

        Args:
            root: the project's folder, or its single agent file.
            single: whether the project is a single agent file.
            known: contents that other parts of the process hold. Files that are equal share their bytes.
            skills: folders of skills, relative to the project's folder.
        """
        self._root, self._single = root, single
        self._skills = () if single else tuple(skills)
        self._prefix = os.path.join(root, "")  # noqa: PTH118 - creating a Path for each of many files is slow
        self._read: dict[str, tuple[Fingerprint, bytes]] = {}
        """The files that need not be opened again until their fingerprint changes."""
        self._sources: Mapping[str, _Source] = known or {}
        """What the last scan found."""
        self._last: Snapshot | None = None

    def scan(self) -> Snapshot:
        """Return a snapshot of the current files; the previous object if nothing changed."""
        before, read = self._read, dict[str, tuple[Fingerprint, bytes]]()
        sources: dict[str, _Source] = {}
        for name, file in self._find():
            entry, status = before.get(name), file[1]
            if entry is not None and not isinstance(status, OSError) and entry[0] == fingerprint(status):
                read[name], sources[name] = entry, entry[1]
            elif (source := self._source(name, file, read)) is not None:
                sources[name] = source
        self._read = read
        if self._last is None or sources != self._sources:
            self._sources = dict(sorted(sources.items(), key=itemgetter(0)))
            self._last = self._snapshot()
        return self._last

    def _snapshot(self) -> Snapshot:
        files, problems, cases = dict[str, bytes](), list[Problem](), dict[str, bytes | Problem]()
        for name, source in self._sources.items():
            if is_case_file(name):
                cases[source.path if isinstance(source, Problem) else name] = source
            elif isinstance(source, Problem):
                problems.append(source)
            else:
                files[name] = source
        return build_snapshot(files, problems, cases)

    def _find(self) -> Iterator[tuple[str, FoundFile]]:
        """Yield the relevant files with their paths relative to the root."""
        for name in settings_files():
            settings = (self._root.parent if self._single else self._root) / name
            if os.path.lexists(settings):
                yield name, _stat(settings)
        if self._single:
            cases = [self._root.with_name(self._root.stem + suffix) for suffix in TEST_SUFFIXES]
            cases = [path for path in cases if path.is_file()]
            data = sorted(self._root.parent.glob(f"*{DATA_SUFFIX}")) if cases else []
            yield from ((path.name, _stat(path)) for path in (self._root, *cases, *data))
            return
        start = len(self._prefix)
        for folder, suffixes in PROJECT_FOLDERS.items():
            for file in find_files(self._prefix + folder, suffixes):
                yield file[0][start:], file
        for folder in self._skills:
            for file in find_skill_files(self._prefix + folder):
                yield file[0][start:], file

    def _source(self, name: str, file: FoundFile, read: dict[str, tuple[Fingerprint, bytes]]) -> _Source | None:
        """Return the content or the problem of a file; None if it was deleted since the folder was listed."""
        path, status, is_link = file
        skill = self._skill_file(name)
        try:
            name.encode()
            if isinstance(status, OSError):
                raise status
            started = time.time_ns()
            source, version = read_skill_file(*skill) if skill else read_consistent(path, _max_bytes(name))
            if (known := self._sources.get(name)) == source and isinstance(known, bytes):
                source = known
            if was_stable(version, started):
                read[name] = version, source
            return source
        except FileNotFoundError as error:
            return _unreadable(name, error) if is_link or self._single else None
        except ToolError as error:
            return _skill_problem(name, Problem(path=name, message=f"cannot be read: {error.message}"))
        except (OSError, UnicodeEncodeError) as error:
            problem = _unreadable(name, error)
            return _skill_problem(name, problem) if skill else problem

    def _skill_file(self, name: str) -> tuple[Path, Sequence[str]] | None:
        """Return the folder of skills that a path is below, and its parts below that folder; None if it is not."""
        folder = next((one for one in self._skills if name.startswith(f"{one}/")), None)
        return None if folder is None else (Path(self._prefix + folder), name[len(folder) + 1 :].split("/"))


def _max_bytes(name: str) -> int:
    """Return the size up to which a file is read."""
    return MAX_API_DOCUMENT_BYTES if name.startswith(API_DOCUMENTS + "/") else MAX_DOCUMENT_BYTES


def _skill_problem(name: str, problem: Problem) -> Problem:
    """Return the problem of a file of a skill: a warning unless it is its `SKILL.md`, without which there is none."""
    is_skill = name.rpartition("/")[2] in SKILL_FILES
    return problem if is_skill else problem.model_copy(update={"severity": "warning"})


def _stat(path: Path) -> FoundFile:
    try:
        return str(path), path.stat(), False
    except OSError as error:
        return str(path), error, False


def _unreadable(name: str, error: OSError | UnicodeEncodeError) -> Problem:
    printable = os.fsencode(name).decode("utf-8", "backslashreplace")
    if isinstance(error, UnicodeEncodeError):
        return Problem(path=printable, message="cannot be read: the file name is not UTF-8")
    return Problem(path=printable, message=f"cannot be read: {error.strerror or error}")
