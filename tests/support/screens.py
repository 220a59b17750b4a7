"""A terminal that understands what a live area writes: carriage return, new line, erase line, cursor up."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\r|\n|\x1b\[2K|\x1b\[1A|\x1b\[\?25[hl]|\x1b\[[0-9;]*m|[^\x1b\r\n]+")


def screen_of(output: str) -> list[str]:
    """Return the lines of the terminal after `output`, without styles."""
    lines, row, column = [""], 0, 0
    for piece in _SEQUENCE.findall(output):
        if piece == "\r":
            column = 0
        elif piece == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif piece == "\x1b[2K":
            lines[row] = ""
        elif piece == "\x1b[1A":
            row -= 1
        elif not piece.startswith("\x1b"):
            lines[row] = lines[row][:column].ljust(column) + piece + lines[row][column + len(piece) :]
            column += len(piece)
    return lines


def without_styles(text: str) -> str:
    """Return text without colours and other control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
