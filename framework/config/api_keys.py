"""Keys of the HTTP server: the entries of `server.api_keys`, with what each may do."""

from __future__ import annotations

import os
import pathlib
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Discriminator, Field, SecretStr, StringConstraints, Tag

from framework.types.frozen import Frozen
from framework.types.spec import AgentName

MAX_KEY_BYTES = 65_536
_REFERENCE = re.compile(r"\s*\$\{file:(?P<path>[^}]*)\}\s*")


def key_path(text: str) -> str | None:
    """Return the path of the file that contains a key; None if the text is the key itself."""
    found = _REFERENCE.fullmatch(text)
    return found["path"].strip() if found else None


def read_key(path: str) -> str:
    """Return the key in a file, without blanks around it.

    Raises:
        ValueError: the path is not absolute, or the file is missing, unreadable, too large, empty or not text.
    """
    if not pathlib.Path(path).is_absolute() or "\0" in path:
        raise ValueError(f"{path!r:.200} is not an absolute path: write ${{file:/run/secrets/NAME}}")
    try:
        # Without O_NONBLOCK, opening a FIFO would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            content = file.read(MAX_KEY_BYTES + 1) if is_file else b""
    except OSError as error:
        raise ValueError(f"the key file {path} cannot be read: {error.strerror}") from None
    if not is_file:
        raise ValueError(f"the key file {path} is not a regular file")
    if len(content) > MAX_KEY_BYTES:
        raise ValueError(f"the key file {path} is larger than {MAX_KEY_BYTES // 1024} KB, so it contains no key")
    try:
        key = content.decode("ascii").strip()
    except UnicodeDecodeError:
        key = "\n"
    if not key:
        raise ValueError(f"the key file {path} is empty")
    if not key.isprintable():
        raise ValueError(f"the key file {path} contains more than one line, or characters that no key contains")
    return key


Role = Literal["chat", "decide", "read", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""`chat`: start, read and cancel runs. `decide`: answer confirmations. `read`: lists, traces and the configuration.
`admin`: check and roll back the configuration, delete conversations."""

KEY_PREFIX = "agentsd_"
"""Start of generated keys, by which scanners and `types/redact` recognize them."""
_MIN_KEY_CHARS = 16
_MAX_ID_CHARS = 200
_RATE = re.compile(r"([1-9][0-9]{0,4})/([smhd])")
_RATE_EXPECTED = "invalid rate: write a number below 100000 and a unit of time, such as 1/s, 60/m, 1000/h or 5000/d"
_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
RESERVED_NAMES = ("local", "full-access")
"""Names of callers without an entry of their own: local programs without keys, and keys that are plain text."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A number of requests in any period of this many seconds."""

    count: int
    seconds: float

    def __str__(self) -> str:
        unit = next(unit for unit, seconds in _UNIT_SECONDS.items() if seconds == self.seconds)
        return f"{self.count}/{unit}"

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Parse a rate such as `60/m`; raise ValueError if it is invalid."""
        match = _RATE.fullmatch(text)
        if match is None:
            raise ValueError(_RATE_EXPECTED)
        return cls(int(match[1]), _UNIT_SECONDS[match[2]])


def _check_rate(text: str) -> str:
    Rate.parse(text)
    return text


def _check_name(name: str) -> str:
    if name in RESERVED_NAMES:
        raise ValueError(f"{name!r} is reserved: choose another name")
    return name


def _check_hash(value: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[0-9A-Fa-f]{64}", value.get_secret_value()):
        raise ValueError("must be the SHA-256 of a key, 64 hexadecimal digits: create one with `agentsd keys new`")
    return SecretStr(value.get_secret_value().lower())


def _check_id(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must contain printable characters only")
    return text


def _check_roles(roles: tuple[Role, ...]) -> tuple[Role, ...]:
    """Return the roles in their canonical order, once each."""
    return tuple(role for role in ROLES if role in roles)


_OwnerId = Annotated[str, StringConstraints(min_length=1, max_length=_MAX_ID_CHARS), AfterValidator(_check_id)]


class ApiKey(Frozen):
    """A key of the server by its hash, and what it may do."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"), AfterValidator(_check_name)]
    """Name of the key in logs, and of its limits."""
    sha256: Annotated[SecretStr, AfterValidator(_check_hash)]
    """SHA-256 of the key, in hexadecimal. `agentsd keys new` prints it."""
    tenant: _OwnerId | None = None
    """Tenant of all runs and conversations of this key. Default: none; data of tenants is not accessible."""
    user: _OwnerId | None = None
    """User of all its runs and conversations. Default: requests name the user, and see those of all users."""
    agents: tuple[AgentName, ...] | None = None
    """Agents that it may use; others do not exist for it. Default: all."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1), AfterValidator(_check_roles)] = ("chat",)
    """`chat` starts and reads runs, `decide` answers confirmations, `read` lists and shows, `admin` changes."""
    rate: Annotated[str, AfterValidator(_check_rate)] | None = None
    """Limit on requests that start or continue a run, such as `1/s`, `60/m` or `1000/h`. Default: none."""
    max_running: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Limit on its runs that are queued or in progress. Default: none."""
    client_tools: bool = False
    """Whether its requests to `/v1` may bring tools of their own to every agent, unless a rule of the agent denies
    them. Default: only to agents whose file allows `client.NAME`."""

    def narrowed_by(self, other: ApiKey) -> ApiKey | None:
        """Return the key with what both permit, or None if they permit nothing together."""
        roles = tuple(role for role in self.roles if role in other.roles)
        agents = _common_agents(self.agents, other.agents)
        if (self.tenant, self.user) != (other.tenant, other.user) or not roles:
            return None
        update = {
            "roles": roles,
            "agents": agents,
            "rate": _lower_rate(self.rate, other.rate),
            "max_running": min((one for one in (self.max_running, other.max_running) if one), default=None),
            "client_tools": self.client_tools and other.client_tools,
        }
        return self.model_copy(update=update)


def _check_text(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if len(text) < _MIN_KEY_CHARS or not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError(
            f"needs {_MIN_KEY_CHARS} or more visible ASCII characters: generate a key with `agentsd keys new`"
        )
    return key


def _kind(value: object) -> str:
    return "object" if isinstance(value, (dict, ApiKey)) else "text"


ApiKeyEntry = Annotated[
    Annotated[SecretStr, AfterValidator(_check_text), Tag("text")] | Annotated[ApiKey, Tag("object")],
    Discriminator(_kind),
]
"""An entry of `server.api_keys`: the key as text, with all roles and no tenant, or an `ApiKey`."""


def key_digest(entry: SecretStr | ApiKey) -> bytes:
    """Return the SHA-256 of the key of an entry."""
    if isinstance(entry, ApiKey):
        return bytes.fromhex(entry.sha256.get_secret_value())
    return text_digest(entry.get_secret_value())


def text_digest(key: str) -> bytes:
    """Return the SHA-256 of a key as text, which need not be valid Unicode."""
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def check_unique(entries: tuple[SecretStr | ApiKey, ...]) -> tuple[SecretStr | ApiKey, ...]:
    """Return the entries; raise ValueError if two have one name or one key, so that its rights are ambiguous."""
    names, digests = dict[str, int](), dict[bytes, int]()
    for index, entry in enumerate(entries):
        digest = key_digest(entry)
        first = digests.setdefault(digest, index)
        if first != index and (isinstance(entry, ApiKey) or isinstance(entries[first], ApiKey)):
            raise ValueError(f"entries {first + 1} and {index + 1} are the same key: remove one of them")
        if isinstance(entry, ApiKey) and (first := names.setdefault(entry.name, index)) != index:
            raise ValueError(
                f"entries {first + 1} and {index + 1} have the same name: {entry.name}; rename one of them"
            )
    return entries


def narrow_keys(
    live: Sequence[SecretStr | ApiKey], saved: Sequence[SecretStr | ApiKey]
) -> tuple[SecretStr | ApiKey, ...]:
    """Return the live keys that are saved as well, each with what both entries permit."""
    others = {key_digest(entry): entry for entry in saved}
    both = ((entry, others.get(key_digest(entry))) for entry in live)
    narrowed = (_narrow(entry, other) for entry, other in both if other is not None)
    return tuple(entry for entry in narrowed if entry is not None)


def permits_more(before: Sequence[SecretStr | ApiKey], after: Sequence[SecretStr | ApiKey]) -> bool:
    """Return whether a key is new, or may do more than before."""
    return narrow_keys(after, before) != tuple(after)


def _narrow(entry: SecretStr | ApiKey, other: SecretStr | ApiKey) -> SecretStr | ApiKey | None:
    if isinstance(entry, SecretStr):  # it permits everything
        return other
    return entry if isinstance(other, SecretStr) else entry.narrowed_by(other)


def _common_agents(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if one is None or other is None:
        return other if one is None else one
    return tuple(name for name in one if name in other)


def _lower_rate(one: str | None, other: str | None) -> str | None:
    """Return the rate that permits less; of two with different periods, the one with fewer requests a second."""
    rates = [rate for rate in (one, other) if rate is not None]
    return min(rates, key=lambda rate: Rate.parse(rate).count / Rate.parse(rate).seconds, default=None)
