"""Files of a project as tools may open them: below a base folder, protected, written at once."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from framework.types.errors import ToolError
from framework.types.text import did_you_mean, shorten


@dataclass(frozen=True, slots=True)
class BaseFolder:
    """The folder that relative paths start from, and the files in it that tools do not touch."""

    path: Path
    denied: tuple[str, ...] = ()
    """Patterns from `skill_policy.files.deny`: these files are neither read, listed nor written."""
    reserved: tuple[Path, ...] = ()
    """Absolute paths of the store's files, which no agent reads or writes, whatever its settings."""
    unprotected: tuple[str, ...] = ()
    """Globs of protected files that tools may access."""
    write_below: tuple[str, ...] | None = None
    """Folders that tools may write to; None: all except protected ones."""
    ignores_case: bool | None = None
    """Whether `A` and `a` name the same file. None: check the file system when the answer matters."""

    def is_case_insensitive(self) -> bool:
        """Return whether names that differ only in case are the same file below this folder."""
        return _is_case_insensitive(self.path) if self.ignores_case is None else self.ignores_case

    def matches(self, path: str, pattern: str) -> bool:
        """Return whether a canonical path matches a pattern in any spelling, such as `./a//b` for `a/b`.

        A pattern that ends in `/` matches a folder and everything in it. `**/` matches any number of folders, or none.
        """
        forms = [*_pattern_variants(_canonical_pattern(pattern, self.path))]
        if any(_matches_glob(path, form) for form in forms):
            return True
        return any(_matches_glob(_normalized(path), _normalized(form)) for form in forms) and self.is_case_insensitive()

    def denying_pattern(self, parts: Sequence[str]) -> str | None:
        """Return the pattern that denies a file or one of its parent folders, or None."""
        for pattern in self.denied:
            if any(self.matches(path, pattern) for path in _path_and_parents(parts)):
                return pattern
        return None

    def is_reserved(self, parts: Sequence[str]) -> bool:
        """Return whether a path names one of the reserved files, in any spelling."""
        if not self.reserved:
            return False
        location = self.path.resolve().joinpath(*parts)
        if location in self.reserved:
            return True
        reserved = {_normalized(str(path)) for path in self.reserved}
        return _normalized(str(location)) in reserved and self.is_case_insensitive()

    def permits(self, parts: Sequence[str]) -> bool:
        """Return whether tools may see a file or folder: it is neither reserved nor denied."""
        return not self.is_reserved(parts) and self.denying_pattern(parts) is None


def split_path(path: str) -> tuple[str, ...]:
    """Split a path into its parts, without `.`, empty parts and a trailing `/`. An absolute path starts with `/`.

    Raises:
        ToolError: the path contains `..`, or a character that is not allowed, or starts with `~`.
    """
    if not is_printable(path):
        raise ToolError("a path must not contain control characters or broken Unicode")
    if "\\" in path:
        raise ToolError("a path must not contain a backslash: write / between folders")
    if path.startswith("~"):
        raise ToolError("a path must not begin with '~': give it from the base folder, like 'docs/notes.txt'")
    parts = tuple([part for part in path.split("/") if part not in ("", ".")])
    if ".." in parts:
        raise ToolError("a path must not contain '..': give it from the base folder, like 'docs/notes.txt'")
    return ("/", *parts) if path.startswith("/") else parts


def relative_to_base(base: Path, path: PurePosixPath) -> PurePosixPath | None:
    """Return an absolute path relative to the base folder, as given or resolved, or None if it is outside."""
    for root in (base.absolute(), base.resolve()) if path.is_absolute() else ():
        if path.is_relative_to(root):
            return path.relative_to(root)
    return None


def is_inside(parts: Sequence[str], folder: str) -> bool:
    """Return whether a path is inside a folder, at any depth; `.` is the base folder."""
    folder_parts = split_path(folder)
    return len(parts) > len(folder_parts) and tuple(parts[: len(folder_parts)]) == folder_parts


def is_printable(text: str) -> bool:
    """Return whether a text has no control characters, line separators or broken Unicode."""
    return text.isprintable() or not any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in text)


def _path_and_parents(parts: Sequence[str]) -> Iterator[str]:
    for length in range(len(parts), 0, -1):
        yield "/".join(parts[:length])


def _canonical_pattern(pattern: str, base: Path) -> str:
    """Return a pattern in canonical form, relative to the base folder if it can be; a trailing `/` is kept."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    path = ("/" if pattern.startswith("/") else "") + "/".join(parts)
    if path.startswith("/"):
        for root in (str(base.absolute()), str(base.resolve())):
            if path == root or path.startswith(f"{root.rstrip('/')}/"):
                path = path[len(root) :].lstrip("/")
                break
    return f"{path or '.'}{'/' if pattern.endswith('/') and parts else ''}"


def _pattern_variants(pattern: str) -> Iterator[str]:
    """Yield a pattern, and its variants with fewer `**/`, because `fnmatch` requires a folder for each."""
    yield pattern
    parts = pattern.split("/")
    while "**" in parts[:-1]:
        parts.remove("**")
        yield "/".join(parts)


def _matches_glob(path: str, pattern: str) -> bool:
    if not pattern.endswith("/"):
        return fnmatchcase(path, pattern)
    return fnmatchcase(path, pattern[:-1]) or fnmatchcase(path, pattern + "*")


def _normalized(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def _is_case_insensitive(folder: Path) -> bool:
    """Return whether the file system finds the same folder under its name with upper and lower case swapped."""
    cased = next((path for path in (folder, *folder.parents) if path.name.swapcase() != path.name), None)
    try:
        return cased is not None and Path(cased).samefile(cased.with_name(cased.name.swapcase()))
    except OSError:
        return False


SKILL_FILES = ("SKILL.md", "skill.md")
"""The file that makes a folder a skill; the second spelling is used if there is no other."""
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe would block until a writer opens it, too.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MAX_NAMES_COMPARED = 5_000
_MAX_QUOTED_CHARS = 200


def relative_parts(base: Path, path: str) -> tuple[str, ...]:
    """Split `path` into parts relative to `base`; empty for `base` itself.

    An absolute path is accepted if it starts with the base path, as given or resolved.

    Raises:
        ToolError: the path is outside the base folder, or contains a part or character that is not allowed.
    """
    parts = split_path(path)
    if parts[:1] != ("/",):
        return parts
    inside = relative_to_base(base, PurePosixPath(*parts))
    if inside is None:
        raise ToolError("the path is outside the base folder: give one that starts in it, like 'docs/notes.txt'")
    return inside.parts


def refuse_symlinks(base: Path, parts: Sequence[str]) -> None:
    """Raise ToolError if a part of the path is a symbolic link: policy rules would not see where it points."""
    here = str(base)
    for depth, name in enumerate(parts, start=1):
        here = f"{here}/{name}"
        try:
            mode = os.lstat(here).st_mode
        except OSError:
            return  # a part that does not exist is not a link
        if stat.S_ISLNK(mode):
            raise ToolError(f"{quoted(parts[:depth])} is a symbolic link; links are not followed")


@contextmanager
def open_folder(base: BaseFolder, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """Open the folder `parts` below `base` and yield its descriptor; `create` creates missing folders.

    Raises:
        ToolError: the folder is denied, does not exist, or cannot be opened or created.
    """
    require_permitted(base, parts)
    folder = _open_base(base.path)
    try:
        for depth, name in enumerate(parts, start=1):
            if create:
                _create_folder(folder, name, parts[:depth])
            inner = _open_entry(folder, name, parts[:depth], "folder", base)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def open_file(base: BaseFolder, parts: Sequence[str]) -> BinaryIO:
    """Open the regular file `parts` below `base` for reading.

    Raises:
        ToolError: the file is denied, does not exist (similar names are suggested), or is a folder, a symbolic or
            hard link, a pipe or a device.
    """
    if not parts:
        raise ToolError("the path is the base folder itself, not a file: list its content with list_dir")
    with open_folder(base, parts[:-1]) as folder:
        return open_file_at(base, folder, parts)


def open_file_at(base: BaseFolder, folder: int, parts: Sequence[str]) -> BinaryIO:
    """Open a file like `open_file`, in a folder that is already open."""
    require_permitted(base, parts)
    descriptor = _open_entry(folder, parts[-1], parts, "file", base)
    try:
        _require_regular_file(os.fstat(descriptor), quoted(parts))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def require_permitted(base: BaseFolder, parts: Sequence[str]) -> None:
    """Raise ToolError for the store's files and for files that the agent's policy denies."""
    if base.is_reserved(parts):
        raise ToolError(f"{quoted(parts)} belongs to the store of runs and conversations: tools cannot access it")
    if pattern := base.denying_pattern(parts):
        raise ToolError(f"{quoted(parts)} is denied by tools.files.deny: {pattern}")


def printable(name: str) -> str:
    """Return a name or path as one line of UTF-8, with characters that cannot be printed escaped."""
    if is_printable(name):
        return name
    return "".join(char if is_printable(char) else char.encode("unicode_escape").decode() for char in name)


def quoted(parts: Sequence[str]) -> str:
    """Return a path for a message: in quotes, escaped, at most 200 characters."""
    text = printable("/".join(parts))
    return f"'{shorten(text, _MAX_QUOTED_CHARS)}'"


def is_hidden(name: str) -> bool:
    """Return whether a name is omitted from listings, searches and suggestions: `.name`, or `*.env` in any case."""
    return name.startswith(".") or name.lower().endswith(".env")


def _open_base(base: Path) -> int:
    try:
        return os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ToolError(f"the base folder cannot be opened: {error.strerror}") from None


def _open_entry(folder: int, name: str, parts: Sequence[str], kind: Literal["file", "folder"], base: BaseFolder) -> int:
    try:
        return os.open(name, _FOLDER_FLAGS if kind == "folder" else _FILE_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        names = [printable(other) for other in _visible_names(folder) if base.permits((*parts[:-1], other))]
        hint = did_you_mean(printable(name), names)
        raise ToolError(f"there is no {kind} {quoted(parts)}{hint}") from None
    except OSError as error:
        raise ToolError(_open_error(folder, name, parts, error)) from None


def _create_folder(folder: int, name: str, parts: Sequence[str]) -> None:
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        pass  # if it is not a folder, opening it fails next
    except OSError as error:
        raise ToolError(f"the folder {quoted(parts)} cannot be created: {error.strerror}") from None


def _open_error(folder: int, name: str, parts: Sequence[str], error: OSError) -> str:
    where = quoted(parts)
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError:
        return f"{where} cannot be opened: {error.strerror}"
    if stat.S_ISLNK(mode):
        return f"{where} is a symbolic link; links are not followed"
    if isinstance(error, NotADirectoryError):
        return f"{where} is not a folder"
    return f"{where} cannot be opened: {error.strerror}"


def _require_regular_file(status: os.stat_result, where: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{where} is a folder, not a file: list its content with list_dir")
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{where} is a pipe or a device, not a file with content")
    if status.st_nlink > 1:
        raise ToolError(f"{where} is a hard link: its content may be outside the base folder, so it is not read")


def _visible_names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in islice(entries, _MAX_NAMES_COMPARED) if not is_hidden(entry.name))


_AUTOLOADED_STEMS = ("conftest", "sitecustomize", "usercustomize")
"""Modules that Python or pytest imports automatically, in any form: `conftest.py`, `conftest/`, `sitecustomize.so`."""
_PROTECTED_NAMES = (
    *(
        "agents.d",
        "prompts",
        "plugins",
        "openapi",
        "triggers.d",
        "skills",
        "skill.md",
        "agentsd.yaml",
        "agentsd.*.yaml",
        "agentsd.yml",
    ),
    *("*.pth", "*.pyc", "*.pyo", "__pycache__", "*.so", "*.pyd", "*.dylib", "*.dll"),  # loaded instead of a source file
    *("pyproject.toml", "setup.py", "setup.cfg", "tox.ini", "pytest.ini", "noxfile.py"),
    *("makefile", "gnumakefile", "*.mk", "cmakelists.txt", "justfile", "rakefile", "gemfile", "procfile"),
    *("package.json", "package-lock.json", "node_modules", "cargo.toml", "build.rs", "build.gradle*", "pom.xml"),
    *("dockerfile", "dockerfile.*", "*.dockerfile", "docker-compose*", "compose.yaml", "compose.yml"),
    *("jenkinsfile", "vagrantfile", "hooks", "*.git"),
)
"""Names of files and folders that are not written, in addition to hidden ones; a folder includes its content."""


def readable_parts(base: BaseFolder, path: str) -> tuple[str, ...]:
    """Split a path that is to be read or listed into parts below the base folder.

    Raises:
        ToolError: the path is outside the base folder, or hidden.
    """
    parts = relative_parts(base.path, path)
    hidden = next((name for name in parts if is_hidden(name)), None)
    if hidden is not None and not _is_unprotected(parts, base.unprotected):
        raise ToolError(_refusal(parts, hidden, "hidden files may contain secrets, so they are not read"))
    return parts


def writable_parts(base: BaseFolder, path: str) -> tuple[str, ...]:
    """Split a path that is to be written into parts below the base folder.

    Raises:
        ToolError: the path is outside the base folder or `tools.write_below`, is protected, or has invisible
            characters.
    """
    parts = relative_parts(base.path, path)
    if any(unicodedata.category(char) == "Cf" for char in path):
        raise ToolError("the path has invisible characters: write it without them")
    protected = next((name for name in parts if is_protected(name)), None)
    if protected is None and (depth := _depth_of_skill(base.path, parts)):
        protected = parts[depth - 1]
    if protected is not None and not _is_unprotected(parts, base.unprotected):
        raise ToolError(_refusal(parts, protected, "its content decides what runs, so it is not written"))
    if base.write_below is not None and not any(is_inside(parts, folder) for folder in base.write_below):
        folders = ", ".join(base.write_below) or "none"
        raise ToolError(f"{quoted(parts)} is outside the folders that may be written (tools.write_below): {folders}")
    return parts


def _depth_of_skill(base: Path, parts: Sequence[str]) -> int:
    """Return the length of the path of the skill's folder that a file is in, whatever its name; 0 if it is in none."""
    folders = (base.joinpath(*parts[:depth]) for depth in range(1, len(parts)))
    has_skill = (any(os.path.lexists(folder / name) for name in SKILL_FILES) for folder in folders)
    return next((depth for depth, found in enumerate(has_skill, start=1) if found), 0)


def is_protected(name: str) -> bool:
    """Return whether a file or folder of this name is not written, in any spelling that means it on some system."""
    # Names that differ in case or Unicode form are one file on some systems, and look the same to a person.
    normalized = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    if is_hidden(normalized) or normalized.partition(".")[0] in _AUTOLOADED_STEMS:
        return True
    return any(fnmatchcase(normalized, pattern) for pattern in _PROTECTED_NAMES)


def _refusal(parts: Sequence[str], name: str, why: str) -> str:
    place = quoted(parts) if parts[-1] == name else f"{quoted(parts)} (because of {quoted([name])})"
    return f"{place} is protected: {why}. Only the operator can open it, with tools.unprotected in agentsd.yaml"


def _is_unprotected(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(_matches(parts, pattern.strip("/").split("/")) for pattern in patterns)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Match part by part. `**` matches any number of parts; a hidden name needs a pattern that is hidden, too."""
    if not pattern:
        return not parts
    if pattern[0] == "**" and _matches(parts, pattern[1:]):
        return True
    if not parts or (is_hidden(parts[0]) and not is_hidden(pattern[0])):
        return False
    if pattern[0] == "**":
        return _matches(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


MAX_FILE_BYTES = 1024 * 1024
"""Maximum size of a file, before and after a change."""
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_MODE = 0o666
"""Permissions of a new file, before the process's umask is applied."""

Update = Callable[[bytes | None], bytes]
"""Maps a file's content, None for a new file, to its new content. A ToolError leaves the file unchanged."""


def write_atomically(base: BaseFolder, parts: Sequence[str], update: Update, *, create_folders: bool = False) -> None:
    """Replace the content of the file `parts` below `base` by what `update` returns for it; keep its permissions.

    Raises:
        ToolError: the file is denied, is not a regular file, has hard links, is read-only or too large, or cannot be
            written.
    """
    if not parts:
        raise ToolError("the path is the base folder itself, not a file")
    require_permitted(base, parts)
    with open_folder(base, parts[:-1], create=create_folders) as folder:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            _write_at(base, folder, parts, update)
        except OSError as error:
            raise ToolError(f"{quoted(parts)} cannot be written: {error.strerror}") from None


def preview_write(base: BaseFolder, parts: Sequence[str], update: Update) -> tuple[bytes, bytes]:
    """Return the content of a file now (empty if there is none) and after `write_atomically`. Nothing is written.

    Raises:
        ToolError: `write_atomically` would fail.
    """
    if not parts:
        raise ToolError("the path is the base folder itself, not a file")
    require_permitted(base, parts)
    content = None
    if _folder_exists(base, parts[:-1]):
        with open_folder(base, parts[:-1]) as folder:
            content = None if _stat(folder, parts[-1]) is None else _read(base, folder, parts)
    new_content = update(content)
    _require_size(parts, new_content)
    return content or b"", new_content


def _folder_exists(base: BaseFolder, parts: Sequence[str]) -> bool:
    """Return whether a folder exists, also if a part of its path is no folder, which is an error when it is opened."""
    return all(os.path.lexists(base.path.joinpath(*parts[:depth])) for depth in range(1, len(parts) + 1))


def _require_size(parts: Sequence[str], content: bytes) -> None:
    if len(content) > MAX_FILE_BYTES:
        raise ToolError(f"{quoted(parts)} would have {len(content)} bytes; the limit is {MAX_FILE_BYTES}")


def _write_at(base: BaseFolder, folder: int, parts: Sequence[str], update: Update) -> None:
    name = parts[-1]
    old_stat = _stat(folder, name)
    content = None if old_stat is None else _read(base, folder, parts)
    new_content = update(content)
    _require_size(parts, new_content)
    if new_content == content:
        return
    temporary = _write_temporary(folder, new_content, None if old_stat is None else stat.S_IMODE(old_stat.st_mode))
    try:
        if old_stat is None:
            _reserve_name(folder, parts)
        elif _identity(old_stat) != _identity(_stat(folder, name)):
            raise ToolError(f"{quoted(parts)} was changed by another process during this call: read it again")
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise
    os.fsync(folder)


def _stat(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _identity(status: os.stat_result | None) -> tuple[int, ...] | None:
    return status and (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _read(base: BaseFolder, folder: int, parts: Sequence[str]) -> bytes:
    with open_file_at(base, folder, parts) as file:
        if not os.fstat(file.fileno()).st_mode & 0o222:
            raise ToolError(f"{quoted(parts)} is read-only")
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ToolError(f"{quoted(parts)} is larger than {MAX_FILE_BYTES} bytes: it is too large to change")
    return content


def _write_temporary(folder: int, content: bytes, mode: int | None) -> str:
    """Write a hidden temporary file, sync it to disk, and return its name."""
    name = f".{secrets.token_hex(8)}.tmp"
    descriptor = os.open(name, _CREATE_FLAGS, _NEW_FILE_MODE, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if mode is not None:
                os.fchmod(descriptor, mode)
            os.fsync(descriptor)
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise
    return name


def _reserve_name(folder: int, parts: Sequence[str]) -> None:
    """Create an empty file to rename over: a rename alone would replace a file created since the check."""
    try:
        os.close(os.open(parts[-1], _CREATE_FLAGS, _NEW_FILE_MODE, dir_fd=folder))
    except FileExistsError:
        raise ToolError(f"{quoted(parts)} was created by another process during this call: read it first") from None
