"""The notify plugin sends mail over SMTP to allowed recipients; the mail server is part of this test."""

from __future__ import annotations

import asyncio
import email
import sys
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.tools.plugins import PluginLoader
from framework.tools.tool import Tool, ToolContext
from framework.types.errors import ToolError
from tests.support.cases import cases
from tests.support.paths import ROOT

pytest.importorskip("aiosmtplib")

SOURCE = ROOT / "plugins" / "notify.py"
CONTEXT = ToolContext(run_id="r", call_id="c", agent="a", base_path=Path())


@dataclass
class MailServer:
    """A minimal SMTP server that records the received lines and mails."""

    refuses: str = "nobody"
    lines: list[str] = field(default_factory=list)
    mails: list[bytes] = field(default_factory=list)
    closed: list[asyncio.Event] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.closed.append(closed := asyncio.Event())
        writer.write(b"220 test\r\n")
        while line := (await reader.readline()).decode().rstrip("\r\n"):
            self.lines.append(line)
            match line.split(" ")[0].upper():
                case "EHLO":
                    writer.write(b"250-test\r\n250-SMTPUTF8\r\n250 AUTH PLAIN\r\n")
                case "AUTH":
                    writer.write(b"535 no\r\n" if line.endswith("=bad") else b"235 welcome\r\n")
                case "RCPT":
                    writer.write(b"550 who?\r\n" if self.refuses in line else b"250 ok\r\n")
                case "DATA":
                    writer.write(b"354 start\r\n")
                    self.mails.append((await reader.readuntil(b"\r\n.\r\n"))[:-3])
                    writer.write(b"250 accepted\r\n")
                case "QUIT":
                    writer.write(b"221 bye\r\n")
                    break
                case _:
                    writer.write(b"250 ok\r\n")
        writer.close()
        await writer.wait_closed()
        closed.set()

    @property
    def mail(self) -> EmailMessage:
        (raw,) = self.mails
        message = email.message_from_bytes(raw, policy=default)
        assert isinstance(message, EmailMessage)
        return message


@pytest.fixture(scope="module")
def send_email() -> Tool:
    (tool,) = PluginLoader().load("plugins/notify.py", SOURCE.read_bytes()).tools
    return tool


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SMTP_HOST", "127.0.0.1")
    monkeypatch.setenv("NOTIFY_SMTP_TLS", "none")
    monkeypatch.setenv("NOTIFY_FROM", "Agent <agent@example.com>")
    monkeypatch.setenv("NOTIFY_TO_DOMAINS", "Example.com, boss@partner.example")


def send(tool: Tool, to: list[str], subject: str, body: str, server: MailServer | None = None) -> Any:
    server = server or MailServer()

    async def main() -> Any:
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("NOTIFY_SMTP_PORT", str(listening.sockets[0].getsockname()[1]))
                try:
                    return await tool(to, subject, body, context=CONTEXT)
                finally:
                    for closed in server.closed:
                        await closed.wait()

    return asyncio.run(main())


def test_mail_is_never_sent_without_approval(send_email: Tool) -> None:
    assert (send_email.name, send_email.risk, send_email.confirm) == ("notify.send_email", "high", True)
    assert not send_email.idempotent


def test_a_mail_arrives_unchanged(send_email: Tool) -> None:
    server = MailServer()
    result = send(
        send_email, ["ann@example.com", "boss@partner.example"], "Grüße 你好", "Zeile 1\n.\nZeile 3 é\n", server
    )

    assert result == "sent to ann@example.com, boss@partner.example"
    assert server.mail["From"] == "Agent <agent@example.com>"
    assert server.mail["To"] == "ann@example.com, boss@partner.example"
    assert server.mail["Subject"] == "Grüße 你好"
    assert server.mail["X-Idempotency-Key"] == "r:c"
    assert server.mail.get_content().replace("\r\n", "\n").replace("\n..\n", "\n.\n") == "Zeile 1\n.\nZeile 3 é\n"
    assert next(line for line in server.lines if line.startswith("MAIL")).startswith("MAIL FROM:<agent@example.com>")
    assert sum(line.startswith("RCPT") for line in server.lines) == 2
    assert not any(line.startswith("AUTH") for line in server.lines)


@pytest.mark.parametrize(
    ("to", "subject", "message"),
    [
        (["ann@evil.example"], "Hi", r"is not an allowed recipient.*NOTIFY_TO_DOMAINS"),
        (["ann@sub.example.com"], "Hi", "is not an allowed recipient"),
        (["ann@notexample.com"], "Hi", "is not an allowed recipient"),
        (["clerk@partner.example"], "Hi", "is not an allowed recipient"),
        (["ann@example.com", "x@evil.example"], "Hi", "x@evil.example is not an allowed recipient"),
        (["ann@evil.example@example.com"], "Hi", "not a plain address"),
        (["ann@example.com, x@evil.example"], "Hi", "not a plain address"),
        (["ann@example.com\nBcc: x@evil.example"], "Hi", "not a plain address"),
        (["ann@example.com\r\nRCPT TO:<x@evil.example>"], "Hi", "not a plain address"),
        (["<x@evil.example> ann@example.com"], "Hi", "not a plain address"),
        (["ann@example.com\0"], "Hi", "not a plain address"),
        (["ann@ex\u0430mple.com"], "Hi", "not a plain address"),
        (["ann"], "Hi", "not a plain address"),
        ([], "Hi", "1 to 10 addresses"),
        (["ann@example.com"] * 11, "Hi", "1 to 10 addresses"),
        (["ann@example.com"], "Hi\nBcc: x@evil.example", "one line"),
        (["ann@example.com"], "Hi\r\n\r\nbody", "one line"),
        (["ann@example.com"], "Hi\u2028Bcc: x@evil.example", "one line"),
        (["ann@example.com"], "Hi\x0bBcc: x@evil.example", "one line"),
        (["ann@example.com"], " ", "one line"),
        (["ann@example.com"], "x" * 201, "one line"),
    ],
)
def test_headers_and_recipients_cannot_be_injected(send_email: Tool, to: list[str], subject: str, message: str) -> None:
    server = MailServer()
    with pytest.raises(ToolError, match=message):
        send(send_email, to, subject, "text", server)
    assert not server.lines, "the mail server was not contacted"


@cases(20)
@given(st.text(max_size=60), st.text(st.characters(codec="utf-8"), max_size=80))
def test_any_text_is_sent_with_the_given_headers_and_recipients_only(subject: str, body: str) -> None:
    (tool,) = PluginLoader().load("plugins/notify.py", SOURCE.read_bytes()).tools
    server = MailServer()
    try:
        send(tool, ["ann@example.com"], subject, body, server)
    except ToolError:
        return
    expected = {
        "From",
        "To",
        "Subject",
        "X-Idempotency-Key",
        "Content-Type",
        "Content-Transfer-Encoding",
        "MIME-Version",
    }
    assert set(server.mail.keys()) == expected
    assert [line for line in server.lines if line.startswith("RCPT")] == ["RCPT TO:<ann@example.com>"]


def test_a_body_with_the_end_of_a_mail_does_not_start_another(send_email: Tool) -> None:
    server = MailServer()
    send(send_email, ["ann@example.com"], "Hi", "end\r\n.\r\nMAIL FROM:<x@evil.example>\r\n", server)
    assert len(server.mails) == 1
    assert sum(line.startswith("MAIL") for line in server.lines) == 1


def test_a_body_that_is_too_long_is_rejected(send_email: Tool) -> None:
    with pytest.raises(ToolError, match="the limit is 100000"):
        send(send_email, ["ann@example.com"], "Hi", "x" * 100_001)


@pytest.mark.parametrize("name", ["NOTIFY_SMTP_HOST", "NOTIFY_FROM", "NOTIFY_TO_DOMAINS"])
def test_a_missing_variable_is_named(send_email: Tool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name)
    with pytest.raises(ToolError, match=f"must set the environment variable {name}"):
        send(send_email, ["ann@example.com"], "Hi", "text")


def test_mail_is_not_sent_without_encryption_by_default(send_email: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    server = MailServer()
    monkeypatch.delenv("NOTIFY_SMTP_TLS")
    with pytest.raises(ToolError, match=r"was not sent.*STARTTLS"):
        send(send_email, ["ann@example.com"], "Hi", "text", server)
    assert not server.mails


def test_a_password_is_sent_to_the_server_only(send_email: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    server = MailServer()
    monkeypatch.setenv("NOTIFY_SMTP_USER", "agent")
    monkeypatch.setenv("NOTIFY_SMTP_PASSWORD", "hunter2")
    result = send(send_email, ["ann@example.com"], "Hi", "text", server)
    assert any(line.startswith("AUTH PLAIN") for line in server.lines)
    assert "hunter2" not in result


def test_rejections_by_the_server_are_reported(send_email: Tool) -> None:
    with pytest.raises(ToolError, match=r"sent to ann@example.com, but the mail server refused bob@example.com"):
        send(send_email, ["ann@example.com", "bob@example.com"], "Hi", "text", MailServer(refuses="bob"))
    with pytest.raises(ToolError, match="was not sent: SMTPRecipientsRefused"):
        send(send_email, ["bob@example.com"], "Hi", "text", MailServer(refuses="bob"))


def test_an_unreachable_server_is_reported(send_email: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SMTP_PORT", "1")
    with pytest.raises(ToolError, match="was not sent: SMTPConnect"):
        asyncio.run(send_email(["ann@example.com"], "Hi", "text", context=CONTEXT))


def test_a_missing_package_is_named(send_email: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiosmtplib", None)
    with pytest.raises(ToolError, match="install agentsd with the extra `mail`"):
        send(send_email, ["ann@example.com"], "Hi", "text")
