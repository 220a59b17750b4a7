"""Text shortened to a number of characters; `…` stands for what is left out."""

from __future__ import annotations


def shorten(text: str, most: int) -> str:
    """Return the text, or its first `most - 1` characters and `…` if it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def one_line(text: str, most: int) -> str:
    """Return the text on one line, each run of white space as a space, shortened to `most` characters."""
    return shorten(" ".join(text.split()), most)
