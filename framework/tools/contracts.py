"""Pins the definitions of server tools as they were accepted: a later change waits for an operator.

The first look at a server accepts its tools. After that, a tool whose description or schema changes, and a tool that
appears, wait for `agentsd tools accept`; so does a lower risk. A higher risk takes effect at once.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from framework.tools.tool import Tool
from framework.tools.tool_source import source_of
from framework.types.digest import matches_digest
from framework.types.errors import ConfigError
from framework.types.private_folder import make_private_folder
from framework.types.spec import RISKS, Risk
from framework.types.text import did_you_mean

_VERSION = 2
_log = logging.getLogger(__name__)

ContractChange = Literal["changed", "new", "lower risk"]
"""What waits for an operator: another contract, a tool that appeared, or a lower risk than the accepted one."""


@dataclass(frozen=True, slots=True)
class AcceptedContract:
    """What an operator agreed to."""

    contract: str
    """Digest of name, description and schema; versions before 2 recorded a shorter one."""
    risk: Risk | None = None
    """As the server claimed it; None: not known."""
    idempotent: bool | None = None
    """Whether it claimed that repeating a call is harmless; None: not known."""


class Contracts:
    """The accepted contract of each tool, in a JSON file that several processes may share."""

    def __init__(self, path: Path) -> None:
        """Use this file, which need not be there."""
        self._path = path
        self._accepted: dict[str, AcceptedContract] = {}
        self._seen: dict[str, AcceptedContract] = {}

    def compare(self, tools: Iterable[Tool], rated: Collection[str] = ()) -> list[tuple[Tool, ContractChange | None]]:
        """Compare tools with what was accepted; the tools of a server that was never seen are accepted.

        While the file cannot be read, nobody knows which servers were seen: then nothing is accepted.

        Args:
            tools: as their servers describe them now.
            rated: sources whose risk the project states, so that their own claims do not count.

        Returns:
            Each tool with no lower risk than the accepted one, and repeatable only if that was accepted; and what of it
            waits for an operator.
        """
        is_readable = self._read()
        now = {tool.name: (tool, _claims(tool, rated)) for tool in tools}
        known = {source_of(name) for name in self._accepted}
        news: dict[str, AcceptedContract] = {}
        for name, (tool, claims) in now.items():
            accepted = self._accepted.get(name)
            if (is_readable and source_of(name) not in known) or (
                accepted is not None and _is_earlier(accepted, claims, tool)
            ):
                news[name] = claims
        self._seen |= {name: claims for name, (_, claims) in now.items()}
        if news and is_readable:
            self._write(news)
        return [_compared(tool, claims, self._accepted.get(name)) for name, (tool, claims) in now.items()]

    def accept(self, patterns: Iterable[str]) -> list[str]:
        """Accept tools as they were last seen, by their names or globs; returns their names.

        Raises:
            ConfigError: no tool of such a name was seen.
        """
        chosen: list[str] = []
        for pattern in patterns:
            matching = sorted(name for name in self._seen if fnmatchcase(name, pattern))
            if not matching:
                meant = did_you_mean(pattern, sorted(self._seen))
                raise ConfigError(f"there is no tool {pattern!r} whose contract could be accepted{meant}")
            chosen += matching
        self._read()
        self._write({name: self._seen[name] for name in chosen})
        return list(dict.fromkeys(chosen))

    def _read(self) -> bool:
        """Add what another process has accepted in the meantime; returns False if the file is there but unreadable."""
        try:
            self._accepted |= dict(_entries(json.loads(self._path.read_bytes())))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            waiting = (
                "tools of servers wait for `agentsd tools accept`; restore the file, or delete it to accept them all"
            )
            _log.warning("%s cannot be read (%s): %s", self._path, error, waiting)
            return False
        return True

    def _write(self, more: Mapping[str, AcceptedContract]) -> None:
        self._accepted |= more
        entries = {name: asdict(entry) for name, entry in sorted(self._accepted.items())}
        content = json.dumps({"version": _VERSION, "contracts": entries}, indent=2) + "\n"
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            make_private_folder(self._path.parent)
            fresh.touch(mode=0o600)
            fresh.write_text(content, "utf-8")
            fresh.replace(self._path)
        except OSError as error:
            told = "%s cannot be written (%s): what is accepted now is forgotten at the end of this process"
            _log.warning(told, self._path, error)
        finally:
            with suppress(OSError):
                fresh.unlink()


def _claims(tool: Tool, rated: Collection[str]) -> AcceptedContract:
    return AcceptedContract(tool.contract, None if source_of(tool.name) in rated else tool.risk, tool.idempotent)


def _is_earlier(accepted: AcceptedContract, claims: AcceptedContract, tool: Tool) -> bool:
    """Whether an entry lacks what is recorded today, and is this very tool's."""
    lacks = len(accepted.contract) != len(claims.contract) or accepted.idempotent is None
    lacks = lacks or (accepted.risk is None and claims.risk is not None)
    return lacks and matches_digest(accepted.contract, tool.definition.canonical_json)


def _compared(
    tool: Tool, claims: AcceptedContract, accepted: AcceptedContract | None
) -> tuple[Tool, ContractChange | None]:
    if accepted is None:
        return tool, "new"
    risk = tool.risk if claims.risk is None else max(tool.risk, accepted.risk or tool.risk, key=RISKS.index)
    idempotent = tool.idempotent and accepted.idempotent is not False
    is_held = (risk, idempotent) != (tool.risk, tool.idempotent)
    held = replace(tool, risk=risk, idempotent=idempotent) if is_held else tool
    if not matches_digest(accepted.contract, tool.definition.canonical_json):
        return held, "changed"
    return held, "lower risk" if is_held else None


def _entries(document: Any) -> Iterable[tuple[str, AcceptedContract]]:
    """The entries of a file; raises ValueError, LookupError, TypeError or AttributeError for any other form."""
    if document["version"] not in (1, _VERSION):
        raise ValueError("it has another form")
    for name, entry in document["contracts"].items():
        if document["version"] == 1 and isinstance(entry, str):
            yield name, AcceptedContract(entry)
            continue
        risk, idempotent = entry["risk"], entry["idempotent"]
        if not isinstance(entry["contract"], str):
            raise ValueError(f"the entry of {name!r} has another form")
        if risk not in (None, *RISKS) or idempotent not in (None, True, False):
            raise ValueError(f"the entry of {name!r} has another form")
        yield name, AcceptedContract(entry["contract"], risk, idempotent)
