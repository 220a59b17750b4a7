"""E-mail to people. Needs the extra `mail` of agentsd and these environment variables:

NOTIFY_SMTP_HOST, NOTIFY_FROM  the mail server and the sender's address; required
NOTIFY_TO_DOMAINS              allowed recipients: domains and addresses, as in `example.com, boss@partner.example`
NOTIFY_SMTP_PORT               the server's port; default 587
NOTIFY_SMTP_TLS                `starttls` (default), `tls` from the first byte, or `none`, for a server on this machine
NOTIFY_SMTP_USER, NOTIFY_SMTP_PASSWORD  credentials, if the server requires them
"""

from __future__ import annotations

import os
import re
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any

from agentsd import ToolContext, ToolError, tool

MAX_TO = 10
MAX_SUBJECT = 200
MAX_BODY = 100_000
SECONDS = 20.0
TLS = {"starttls": {"start_tls": True}, "tls": {"use_tls": True}, "none": {"start_tls": False}}
ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z0-9-]{2,63}")


@tool(risk="high", confirm=True, timeout=30)
async def send_email(to: list[str], subject: str, body: str, *, context: ToolContext) -> str:
    """Send a plain-text e-mail. A person must approve it first.

    Args:
        to: Up to 10 addresses, such as ann@example.com, without names.
        subject: The subject, on one line.
        body: The text of the mail.
        context: The run.
    """
    server, sender = _server(), _setting("NOTIFY_FROM")
    _check(to, subject, body)
    try:
        import aiosmtplib
    except ImportError:
        raise ToolError("mail is not installed: the operator must install agentsd with the extra `mail`") from None
    message = _message(sender, to, subject, body, context.idempotency_key)
    try:
        refused, _ = await aiosmtplib.send(message, recipients=to, timeout=SECONDS, **server)
    except (aiosmtplib.SMTPException, OSError) as error:
        raise ToolError(f"the mail was not sent: {type(error).__name__}: {error}") from None
    if refused:
        accepted = [address for address in to if address not in refused]
        raise ToolError(f"sent to {', '.join(accepted)}, but the mail server refused {', '.join(refused)}")
    return f"sent to {', '.join(to)}"


def _setting(name: str) -> str:
    value = os.environ.get(name, "").strip()
    if not value:
        raise ToolError(f"mail is not set up: the operator must set the environment variable {name}")
    return value


def _server() -> dict[str, Any]:
    tls, port = os.environ.get("NOTIFY_SMTP_TLS", "starttls"), os.environ.get("NOTIFY_SMTP_PORT", "587")
    if tls not in TLS or not port.isdecimal():
        raise ToolError("mail is not set up: NOTIFY_SMTP_TLS is starttls, tls or none, and NOTIFY_SMTP_PORT a number")
    user, password = os.environ.get("NOTIFY_SMTP_USER"), os.environ.get("NOTIFY_SMTP_PASSWORD")
    return {"hostname": _setting("NOTIFY_SMTP_HOST"), "port": int(port), "username": user, "password": password} | TLS[
        tls
    ]


def _check(to: list[str], subject: str, body: str) -> None:
    if not 1 <= len(to) <= MAX_TO:
        raise ToolError(f"give 1 to {MAX_TO} addresses")
    if not subject.strip() or len(subject) > MAX_SUBJECT or not subject.isprintable():
        raise ToolError(f"the subject must be one line of 1 to {MAX_SUBJECT} printable characters")
    if len(body) > MAX_BODY:
        raise ToolError(f"the body has {len(body)} characters; the limit is {MAX_BODY}")
    allowed = {recipient.strip().lower() for recipient in _setting("NOTIFY_TO_DOMAINS").split(",")}
    for address in to:
        if not ADDRESS.fullmatch(address):
            raise ToolError(f"{address!r} is not a plain address like ann@example.com")
        if not {address.lower(), address.lower().rpartition("@")[2]} & allowed:
            raise ToolError(f"{address} is not an allowed recipient: it is not in the operator's NOTIFY_TO_DOMAINS")


def _message(sender: str, to: list[str], subject: str, body: str, key: str) -> EmailMessage:
    message = EmailMessage(policy=SMTP)
    try:
        message["From"], message["To"], message["Subject"] = sender, ", ".join(to), subject
        message["X-Idempotency-Key"] = key
        message.set_content(body)
    except (ValueError, UnicodeError) as error:
        raise ToolError(f"invalid mail: {error}") from None
    return message
