"""Pins the definitions of server tools: a changed tool waits until an operator accepts it.

The tools of a server seen for the first time are accepted. After that, changed descriptions and schemas, new tools and
lower risks wait for `agentsd tools accept`. A higher risk takes effect immediately.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from framework.tools.tool import Tool
from framework.tools.tool_source import source_of
from framework.types.errors import ConfigError
from framework.types.private_folder import write_private_file
from framework.types.spec import RISKS, Risk
from framework.types.text import did_you_mean

_VERSION = 2
_log = logging.getLogger(__name__)

ContractChange = Literal["changed", "new", "lower risk"]
"""A difference that waits for an operator: another definition, a new tool, or a lower risk than accepted."""


@dataclass(frozen=True, slots=True)
class AcceptedContract:
    """An accepted tool definition."""

    contract: str
    """Digest of name, description and schema."""
    risk: Risk | None = None
    """Risk claimed by the server; None if unknown."""
    idempotent: bool | None = None
    """Whether the server claimed that the tool is idempotent; None if unknown."""


class Contracts:
    """The accepted definitions of server tools, in a JSON file that several processes can share."""

    def __init__(self, path: Path) -> None:
        """Use the file at `path`, which does not need to exist."""
        self.path = path
        self._accepted: dict[str, AcceptedContract] = {}
        self._seen: dict[str, AcceptedContract] = {}
        self._documents: dict[str, str] = {}
        """Digests of the documents of which every chosen tool was accepted, by source."""

    def compare(
        self,
        tools: Iterable[Tool],
        rated: Collection[str] = (),
        documents: Mapping[str, str] = MappingProxyType({}),
        *,
        record: bool = True,
    ) -> list[tuple[Tool, ContractChange | None]]:
        """Compare tools with the accepted definitions. Tools of a server seen for the first time are accepted.

        If the file exists but cannot be read, nothing is accepted, because it is unknown which servers were seen.

        Args:
            tools: current tools of the servers.
            rated: sources whose risk the project sets, so that the risk claimed by the server is ignored.
            documents: digest of the document of each source that has one. A tool that is chosen later from a document
                that was accepted as a whole is not new.
            record: whether to write what is accepted.

        Returns:
            Each tool and its pending change, or None. The tool has at least the accepted risk, and is idempotent only
            if that was accepted.
        """
        is_readable = self._read()
        now = {tool.name: (tool, _claims(tool, rated)) for tool in tools}
        known = {source_of(name) for name in self._accepted}
        same = {source for source, digest in documents.items() if self._documents.get(source) == digest}
        news = {
            name: claims
            for name, (_, claims) in now.items()
            if is_readable
            and (source_of(name) not in known or (source_of(name) in same and name not in self._accepted))
        }
        self._seen |= {name: claims for name, (_, claims) in now.items()}
        accepted = self._accepted | news
        compared = [_compared(tool, claims, accepted.get(name)) for name, (tool, claims) in now.items()]
        waiting = {source_of(tool.name) for tool, change in compared if change}
        read = {source: digest for source, digest in documents.items() if source not in waiting and source not in same}
        if record and is_readable and (news or read):
            self._documents |= read
            self._write(news)
        return compared

    def accept(self, patterns: Iterable[str]) -> list[str]:
        """Accept the last seen definitions of tools, by names or globs. Return the names of the accepted tools.

        Raises:
            ConfigError: a pattern matches no tool.
        """
        chosen: list[str] = []
        for pattern in patterns:
            matching = sorted(name for name in self._seen if fnmatchcase(name, pattern))
            if not matching:
                meant = did_you_mean(pattern, sorted(self._seen))
                raise ConfigError(f"no server tool matches {pattern!r}{meant}")
            chosen += matching
        self._read()
        self._write({name: self._seen[name] for name in chosen})
        return list(dict.fromkeys(chosen))

    def _read(self) -> bool:
        """Add what other processes have accepted. Return False if the file exists but cannot be read."""
        try:
            content = json.loads(self.path.read_bytes())
            self._accepted |= dict(_entries(content))
            self._documents |= {str(source): str(digest) for source, digest in content.get("documents", {}).items()}
        except (FileNotFoundError, NotADirectoryError):
            return True
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            fix = "all server tools wait for `agentsd tools accept`; restore the file, or delete it to accept them all"
            _log.warning("%s cannot be read (%s): %s", self.path, error, fix)
            return False
        return True

    def _write(self, more: Mapping[str, AcceptedContract]) -> None:
        self._accepted |= more
        entries = {name: asdict(entry) for name, entry in sorted(self._accepted.items())}
        documents = {"documents": dict(sorted(self._documents.items()))} if self._documents else {}
        content = json.dumps({"version": _VERSION, "contracts": entries, **documents}, indent=2) + "\n"
        try:
            write_private_file(self.path, content)
        except OSError as error:
            message = "%s cannot be written (%s): accepted definitions are lost when this process ends"
            _log.warning(message, self.path, error)


def _claims(tool: Tool, rated: Collection[str]) -> AcceptedContract:
    if tool.source in ("a2a", "http"):  # the project's files set its risk, and whether it is idempotent
        return AcceptedContract(tool.contract)
    return AcceptedContract(tool.contract, None if source_of(tool.name) in rated else tool.risk, tool.idempotent)


def _compared(
    tool: Tool, claims: AcceptedContract, accepted: AcceptedContract | None
) -> tuple[Tool, ContractChange | None]:
    if accepted is None:
        return tool, "new"
    risk = tool.risk if claims.risk is None else max(tool.risk, accepted.risk or tool.risk, key=RISKS.index)
    idempotent = tool.idempotent and accepted.idempotent is not False
    is_held = (risk, idempotent) != (tool.risk, tool.idempotent)
    held = replace(tool, risk=risk, idempotent=idempotent) if is_held else tool
    if accepted.contract != tool.contract:
        return held, "changed"
    return held, "lower risk" if is_held else None


def _entries(document: Any) -> Iterable[tuple[str, AcceptedContract]]:
    """Yield the entries of a file. Raise ValueError, LookupError, TypeError or AttributeError if it is invalid."""
    if document["version"] != _VERSION:
        raise ValueError("unknown format")
    for name, entry in document["contracts"].items():
        risk, idempotent = entry["risk"], entry["idempotent"]
        if not isinstance(entry["contract"], str):
            raise ValueError(f"invalid entry for {name!r}")
        if risk not in (None, *RISKS) or idempotent not in (None, True, False):
            raise ValueError(f"invalid entry for {name!r}")
        yield name, AcceptedContract(entry["contract"], risk, idempotent)
