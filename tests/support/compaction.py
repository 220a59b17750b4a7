"""A conversation that is long enough to be compacted, and the script of its model."""

from __future__ import annotations

from framework.llm.client import ModelRequest
from framework.testing import Turn, calls

MESSAGES = ("pay 80 for order 1234", "word " * 100, "word " * 100, "word " * 100, "and now?")


def is_compression(request: ModelRequest) -> bool:
    """Return whether the request asks for a summary."""
    return "is too long to keep" in request.messages[-1].content


def script(request: ModelRequest) -> Turn:
    """Write a summary, call the payment tool, or answer."""
    if is_compression(request):
        return "THE SUMMARY"
    if request.messages[-1].content.startswith("pay "):
        return calls(("pay", {"amount": int(request.messages[-1].content.split()[1])}))
    return "well " * 60
