"""The tools `list_dir` and `read_file`: folders, text files and files for models below the base path of the run."""

from __future__ import annotations

import heapq
import os
import stat
from contextlib import suppress

from framework.tools.files import is_hidden, open_file, open_folder, printable, readable_parts
from framework.tools.tool import ToolContext, tool
from framework.types.errors import RequestError, ToolError
from framework.types.file import File
from framework.types.media import MAX_MEDIA_BYTES, file_size, media_type_of

_MAX_ENTRIES = 200
_MAX_READ_BYTES = 1024 * 1024
BINARY_CHECK_BYTES = 8 * 1024


@tool(risk="low", idempotent=True, paths="path")
def list_dir(path: str = ".", *, context: ToolContext) -> str:
    """List the content of a folder: one line per entry, with its kind and size; folders end in /.

    Hidden entries are omitted; at most 200 entries are shown.

    Args:
        path: The folder, relative to the base folder, such as docs or docs/2026; . is the base folder.
        context: The run.
    """
    parts = readable_parts(context, path)
    files = context.files
    with open_folder(files, parts) as folder:
        with os.scandir(folder) as entries:
            visible = (entry.name for entry in entries if not is_hidden(entry.name))
            names = [name for name in visible if files.permits((*parts, name))]
        lines = [_entry(folder, name) for name in heapq.nsmallest(_MAX_ENTRIES, names)]
    if len(names) > _MAX_ENTRIES:
        lines.append(f"({len(names) - _MAX_ENTRIES} more entries: list a subfolder, or find a name with search_files)")
    return "\n".join(lines) or "(nothing in this folder)"


@tool(risk="low", idempotent=True, paths="path")
def read_file(path: str, start_line: int = 1, max_lines: int = 200, *, context: ToolContext) -> str | File:
    """Read lines of a text file (UTF-8), or look at an image, a PDF or audio.

    If there is more text, the last line, in parentheses, says how to get it. Only the first MB of a text file can be
    read; hidden files and dot-env files cannot be read.

    Args:
        path: The file, relative to the base folder, such as docs/notes.txt or docs/chart.png.
        start_line: The first line to read; the first line of the file is 1.
        max_lines: How many lines to read at most.
        context: The run.
    """
    if start_line < 1 or max_lines < 1:
        raise ToolError("start_line and max_lines must be 1 or more")
    parts = readable_parts(context, path)
    with open_file(context.files, parts) as file:
        content, size = file.read(_MAX_READ_BYTES), os.fstat(file.fileno()).st_size
        if _is_media(content):
            if size > MAX_MEDIA_BYTES:
                raise ToolError(f"the file has {file_size(size)}: at most {file_size(MAX_MEDIA_BYTES)} can be read")
            return _media(content + file.read(), parts[-1])
    lines = _first_lines(content, size)
    if not lines:
        return "(the file is empty)"
    if start_line > len(lines):
        raise ToolError(f"there are only {len(lines)} lines to read: start_line must be at most {len(lines)}")
    end = start_line - 1 + max_lines
    chosen = lines[start_line - 1 : end]
    if len(lines) > end:
        chosen.append(f"({len(lines) - end} more lines: continue with start_line={end + 1})")
    elif size > _MAX_READ_BYTES:
        chosen.append(f"(only the first MB of {format_size(size)} can be read)")
    return "\n".join(chosen)


def is_binary(content: bytes) -> bool:
    """Return whether content is binary: it has a zero byte in its first 8 KB."""
    return b"\0" in content[:BINARY_CHECK_BYTES]


def format_size(size: int) -> str:
    """Return a number of bytes for people: `12 bytes`, `3.4 KB`, `5.6 MB`."""
    if size < 1024:
        return f"{size} byte{'' if size == 1 else 's'}"
    return f"{size / 1024:.1f} KB" if size < 1024**2 else f"{size / 1024**2:.1f} MB"


def _entry(folder: int, name: str) -> str:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return f"{printable(name)}  deleted"
    if stat.S_ISDIR(status.st_mode):
        return f"{printable(name)}/  folder"
    if stat.S_ISREG(status.st_mode):
        return f"{printable(name)}  file, {format_size(status.st_size)}"
    return f"{printable(name)}  {'link, not followed' if stat.S_ISLNK(status.st_mode) else 'pipe or device'}"


def _is_media(content: bytes) -> bool:
    """Return whether content is a file for models; some texts begin like one, but PDFs are not always binary."""
    media_type = media_type_of(content)
    return media_type == "application/pdf" or (media_type is not None and is_binary(content))


def _media(content: bytes, name: str) -> File:
    """Return a file for the model, without its name if the extension is that of another type; raises ToolError."""
    with suppress(RequestError):
        return File.from_bytes(content, name=name)
    try:
        return File.from_bytes(content)
    except RequestError as error:
        raise ToolError(error.message) from None


def _first_lines(content: bytes, size: int) -> list[str]:
    if is_binary(content):
        raise ToolError(f"the file is binary ({format_size(size)}), not text: it cannot be read")
    if size > len(content) and b"\n" in content:
        content = content[: content.rindex(b"\n") + 1]
    lines = content.decode("utf-8-sig", "replace").replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines
