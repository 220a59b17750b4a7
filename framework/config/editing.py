"""Files as people see and edit them: without secrets, compared with what was read, written at once."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from shutil import copymode

import yaml
from yaml.events import CollectionEndEvent, CollectionStartEvent, MappingStartEvent, NodeEvent, ScalarEvent

from framework.config.api_keys import ApiKey
from framework.config.overlay import is_settings_file
from framework.config.snapshot import AGENTS, PLUGINS, PROJECT_FOLDERS, PROMPTS, TRIGGERS, is_read_below
from framework.config.yaml.document import MAX_DOCUMENT_BYTES
from framework.config.yaml.parse import mask_key_like
from framework.tools.files import SKILL_FILES
from framework.tools.skills import is_omitted
from framework.types.redact import MASK, redact
from framework.types.text import source_digest

SECRET_SETTINGS = (
    *("models.*.api_key", "models.*.extra_body", "models.*.headers"),
    *("telemetry.otlp_headers", "store.url", "server.api_keys"),
)
"""Keys of `agentsd.yaml` whose values are secret, with everything below them."""
SECRETS_OF_SOURCES = (
    *("mcp_servers.*.env", "mcp_servers.*.headers", "skill_hosts.*.headers"),
    *("mcp_servers.*.auth.oauth.client_secret", "mcp_servers.*.auth.oauth.private_key"),
    *("openapi.*.auth", "openapi.*.headers", "openapi.*.cookies", "openapi.*.query"),
    *("http_tools.*.auth", "http_tools.*.headers", "http_tools.*.cookies", "a2a_agents.*.headers"),
)
"""The same for files of tool servers."""
_KEY_RIGHTS = frozenset(ApiKey.model_fields) - {"sha256"}
"""Keys of an entry of `server.api_keys` that are not secret."""
_REFERENCE = re.compile(r"(?:(?:Bearer|Basic) )?\$\{(?:[A-Za-z_][A-Za-z0-9_]*|file:[^}]*)\}")
"""A value that is read from a variable or a file. It is no secret."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class FileText:
    """The text of a file."""

    text: str | None
    """None if it is not shown."""
    is_masked: bool = False
    """Whether secrets in it were replaced by `***`."""
    reason: str | None = None
    """Why it is not shown."""


def readable_text(path: str, source: bytes) -> FileText:
    """Return the text of a project file without its secrets."""
    if is_omitted(source):
        return FileText(None, reason="it is not a text, or larger than 1 MB")
    try:
        text = source.decode()
    except UnicodeDecodeError as error:
        return FileText(None, reason=f"it is not UTF-8: byte 0x{source[error.start]:02x} at {error.start}")
    shown = text
    if secrets := _secrets_of(path):
        try:
            shown = mask_key_like(_mask_values(text, secrets))
        except (yaml.YAMLError, RecursionError):
            return FileText(None, reason="it may contain secrets, which cannot be found because it is not valid YAML")
    shown = redact(shown)
    return FileText(shown, is_masked=shown != text)


def _secrets_of(path: str) -> Collection[str]:
    if is_settings_file(path):
        return SECRET_SETTINGS
    if path.startswith(TRIGGERS + "/"):
        return ("webhook.secret",)
    return SECRETS_OF_SOURCES if path.startswith(PLUGINS + "/") and not path.endswith(".py") else ()


def _mask_values(text: str, secrets: Collection[str]) -> str:
    """Replace the values of these keys, unless a value is a reference to a variable."""
    parts, end = [], 0
    for path, event in _scalars(text):
        if event.value and not _REFERENCE.fullmatch(event.value) and _is_secret(path, secrets):
            assert event.start_mark is not None, "events of a parser have marks"
            assert event.end_mark is not None, "events of a parser have marks"
            start, after = event.start_mark.index, event.end_mark.index
            parts += [text[end:start], MASK, "\n" if text[start:after].endswith("\n") else ""]
            end = after
    return "".join([*parts, text[end:]])


def _is_secret(path: Sequence[str], secrets: Collection[str]) -> bool:
    if path[:2] == ["server", "api_keys"] and not _KEY_RIGHTS.isdisjoint(path[3:4]):
        return False
    return any(
        len(path) >= len(keys) and all(key in ("*", own) for key, own in zip(keys, path, strict=False))
        for keys in (secret.split(".") for secret in secrets)
    )


def _scalars(text: str) -> Iterator[tuple[list[str], ScalarEvent]]:
    """Yield the values of a document that are neither mappings nor lists, each with its path."""
    keys: list[str | int | None] = []
    """For each open collection, the key of the current value: None where the next event is the key of a mapping."""
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, CollectionEndEvent):
            keys.pop()
        elif not isinstance(event, NodeEvent):
            continue
        elif keys and keys[-1] is None:
            if not isinstance(event, ScalarEvent):
                raise yaml.YAMLError("a key is not a text")
            keys[-1] = event.value
            continue
        elif isinstance(event, CollectionStartEvent):
            keys.append(None if isinstance(event, MappingStartEvent) else 0)
            continue
        elif isinstance(event, ScalarEvent):
            yield [str(key) for key in keys], event
        if keys:  # the value is complete
            keys[-1] = keys[-1] + 1 if isinstance(keys[-1], int) else None


EDITABLE_FOLDERS = (AGENTS, PROMPTS)
_MAX_NAME_BYTES, _MAX_PATH_BYTES = 200, 500
"""Lengths of a file name and of a path below the project that every file system accepts."""
_REPLACED = "\ufffd"
"""What a server puts in place of bytes that are not UTF-8."""
_EXCHANGE = 2
"""`RENAME_EXCHANGE` of Linux and `RENAME_SWAP` of macOS."""
_NOT_SUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FileChanged(Exception):
    """Raised if a file is not the expected version; `digest` is that of its content, None if there is no file."""

    def __init__(self, digest: str | None) -> None:
        super().__init__(digest)
        self.digest = digest


def replace_file(file: Path, content: bytes) -> None:
    """Replace a file atomically, whatever it contains. Raises OSError."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content)
        if file.exists():
            copymode(file, fresh)
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)


def edit_refusal(path: str, single_file: str | None = None) -> str | None:
    """Return why a path is not one of an agent file or template that may be edited from outside; None if it is.

    Args:
        path: relative to the project's folder.
        single_file: name of the agent file if it is the whole project.
    """
    if path == single_file:
        return None
    top, *below = path.split("/")
    if is_settings_file(path):
        return "settings are edited on the server's machine only: they contain keys, and decide who may edit"
    if top in PROJECT_FOLDERS and top not in EDITABLE_FOLDERS:
        kinds = {PLUGINS: "plugins are code", TRIGGERS: "triggers start runs by themselves"}
        kind = kinds.get(top, "documents of APIs decide what tools do")
        return f"{kind}: they are edited on the server's machine only"
    if not single_file and top in EDITABLE_FOLDERS and _is_plain(below) and is_read_below(below, PROJECT_FOLDERS[top]):
        return None
    if path.rpartition("/")[2] in SKILL_FILES:
        return "skills are edited on the server's machine only"
    expected = single_file or f"{AGENTS}/NAME.yaml, or {PROMPTS}/NAME.j2"
    return f"it is not the path of an agent file or template: expected {expected}"


def _is_plain(parts: Sequence[str]) -> bool:
    """Return whether a path has only visible characters, and a length that every file system accepts."""
    visible = all(part.isprintable() and {"\\", _REPLACED}.isdisjoint(part) for part in parts)
    if not visible or not all(parts):
        return False
    sizes = [len(part.encode()) for part in parts]
    return 0 < sum(sizes) + len(sizes) <= _MAX_PATH_BYTES and max(sizes) <= _MAX_NAME_BYTES


def write_if_unchanged(root: Path, path: str, content: bytes, expected: str | None) -> None:
    """Write a file of a project if it still is the expected version. Concurrent writes of one version: one succeeds.

    Args:
        root: the project's folder.
        path: relative path for which `edit_refusal` returns None. Missing folders of a new file are created.
        content: what to write. The file's mode is kept.
        expected: `source_digest` of the version to replace; None creates the file.

    Raises:
        FileChanged: the file has another content, is missing, or exists already.
        OSError: it cannot be written, or the file or one of its folders is a symbolic link.
    """
    *folders, name = path.split("/")
    with _open_folder(root, folders, create=expected is None) as folder:
        fcntl.flock(folder, fcntl.LOCK_EX)  # against other writers that exchange files
        found = _status(folder, name)
        if found is not None and not stat.S_ISREG(found.st_mode):
            raise OSError(errno.ELOOP, "it is a symbolic link, or no regular file")
        if (digest := _digest(folder, name)) != expected:
            raise FileChanged(digest)
        fresh = f".{token_hex(8)}.agentsd"
        try:
            _write(folder, fresh, content, found)
            if expected is None:
                _create(folder, fresh, name)
            else:
                _replace(folder, fresh, name, expected, source_digest(content))
            os.fsync(folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=folder)


@contextmanager
def _open_folder(root: Path, folders: Sequence[str], *, create: bool) -> Iterator[int]:
    """Open a folder below the root without following symbolic links; missing folders are created on request."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in folders:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
            try:
                inner = os.open(name, _FOLDER, dir_fd=descriptor)
            except FileNotFoundError:
                raise FileChanged(None) from None
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _status(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _digest(folder: int, name: str) -> str | None:
    """Return the digest of a file; None if there is no regular file."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None
        raise
    with os.fdopen(descriptor, "rb") as file:
        return source_digest(file.read(MAX_DOCUMENT_BYTES + 1))


def _write(folder: int, name: str, content: bytes, like: os.stat_result | None) -> None:
    """Write a new file with the mode and, if permitted, the owner of another one, and wait until it is on the disk."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        if like is not None:
            with suppress(OSError):
                os.fchown(descriptor, like.st_uid, like.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _create(folder: int, fresh: str, name: str) -> None:
    try:
        os.link(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        raise FileChanged(_digest(folder, name)) from None


def _replace(folder: int, fresh: str, name: str, expected: str, written: str) -> None:
    """Give the new file its name. If it then turns out that another version was replaced, put that back.

    Args:
        folder: the open folder.
        fresh: name of the new file.
        name: name of the file to replace.
        expected: digest of the version to replace.
        written: digest of the new file.
    """
    try:
        _exchange(folder, fresh, name)
    except FileNotFoundError:
        raise FileChanged(None) from None
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        if (digest := _digest(folder, name)) != expected:
            raise FileChanged(digest) from None
        os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
        return
    if (replaced := _digest(folder, fresh)) != expected:
        _exchange(folder, fresh, name)
        if _digest(folder, fresh) != written:  # another program has replaced the new file in between: its version stays
            _exchange(folder, fresh, name)
        raise FileChanged(replaced)


def _exchange(folder: int, one: str, other: str) -> None:
    """Exchange the names of two files of a folder atomically; raises OSError, also if the system cannot do that."""
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, "renameat2", None) or getattr(library, "renameatx_np", None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(folder, os.fsencode(one), folder, os.fsencode(other), _EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
