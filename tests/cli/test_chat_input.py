"""The history of a chat, and pastes that are too long to show."""

from __future__ import annotations

import stat
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from framework.cli.chat_commands import is_command
from framework.cli.chat_prompt import MAX_ENTRY_CHARS, MAX_HISTORY_BYTES, SHORT_PASTE_CHARS, ChatHistory, Pastes
from tests.support.cases import cases


def entries(path: Path) -> list[str]:
    """Return the messages in a history, newest first."""
    return list(ChatHistory(path).load_history_strings())


def test_a_history_keeps_messages_of_several_lines_and_no_huge_ones(tmp_path: Path) -> None:
    path = tmp_path / ".agentsd" / "chat_history"
    history = ChatHistory(path)
    for text in ("one\ntwo", "x" * (MAX_ENTRY_CHARS + 1), "a\udcffb"):
        history.store_string(text)
    assert entries(path) == ["a\ufffdb", "one\ntwo"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_large_history_loses_its_older_half(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history = ChatHistory(path)
    for number in range(MAX_HISTORY_BYTES // 5000):
        history.store_string(f"{number} {'x' * 5000}")
    kept = [int(entry.split()[0]) for entry in entries(path)]
    assert kept == sorted(kept, reverse=True)
    assert 90 < len(kept) < 110
    assert kept[0] == MAX_HISTORY_BYTES // 5000 - 1


def test_a_history_that_is_not_text_is_read(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b"\n# 2026\n+a\xff\n")
    assert entries(path) == ["a\ufffd"]


@cases(200)
@given(st.lists(st.text(max_size=20).map(lambda text: text * 200), max_size=4))
def test_pastes_are_sent_whole(texts: list[str]) -> None:
    pastes = Pastes()
    shown = [pastes.add(text) for text in texts]
    assert all(len(text) <= SHORT_PASTE_CHARS for text in shown)
    expected = [text.replace("\r\n", "\n").replace("\r", "\n") for text in texts]
    assert pastes.expanded(" ".join(shown)) == " ".join(expected)


def test_an_unknown_placeholder_stays_text() -> None:
    assert Pastes().expanded("[paste 7: 1 characters, 1 line]") == "[paste 7: 1 characters, 1 line]"


def test_a_command_is_a_word_after_a_slash() -> None:
    assert all(map(is_command, ("/help", "/agent one", "/unknown")))
    assert not any(map(is_command, ("help", "/", "/etc/hosts", "/notes.md what is this?", "")))
