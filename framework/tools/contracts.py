"""Remembers what tools of servers said of themselves when they were first seen: a change afterwards is worth a look."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from framework.tools.tool import Tool
from framework.types.errors import ConfigError, did_you_mean

VERSION = 1
_log = logging.getLogger(__name__)


class Contracts:
    """The accepted contract of each tool, in a JSON file that several processes may share."""

    def __init__(self, path: Path) -> None:
        """Use this file, which need not be there."""
        self._path = path
        self._accepted: dict[str, str] = {}
        self._seen: dict[str, str] = {}

    def changed(self, tools: Iterable[Tool]) -> list[Tool]:
        """Those whose contract is not the accepted one; that of a tool never seen before is accepted."""
        self._read()
        now = {tool.name: tool for tool in tools}
        self._seen |= {name: tool.contract for name, tool in now.items()}
        new = now.keys() - self._accepted.keys()
        if new:
            self._write({name: self._seen[name] for name in new})
        return [tool for name, tool in now.items() if self._accepted[name] != self._seen[name]]

    def accept(self, names: Iterable[str]) -> None:
        """Accept the contracts that these tools were last seen with.

        Raises:
            ConfigError: a tool of such a name was not seen.
        """
        chosen = tuple(names)
        for name in chosen:
            if name not in self._seen:
                raise ConfigError(f"there is no tool {name!r} whose contract could be accepted{self._meant(name)}")
        self._read()
        self._write({name: self._seen[name] for name in chosen})

    def _meant(self, name: str) -> str:
        return did_you_mean(name, sorted(self._seen))

    def _read(self) -> None:
        """What another process accepted in the meantime counts too."""
        try:
            document = json.loads(self._path.read_bytes())
            known = document["contracts"]
            if document["version"] != VERSION or not all(isinstance(part, str) for part in (*known, *known.values())):
                raise ValueError("it has another form")
        except FileNotFoundError:
            return
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            told = "%s cannot be read (%s): the tools of servers are taken as they are now; delete it if this goes on"
            _log.warning(told, self._path, error)
            return
        self._accepted |= known

    def _write(self, more: dict[str, str]) -> None:
        self._accepted |= more
        content = json.dumps({"version": VERSION, "contracts": dict(sorted(self._accepted.items()))}, indent=2) + "\n"
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(content, "utf-8")
            fresh.replace(self._path)
        except OSError as error:
            told = "%s cannot be written (%s): what is accepted now is forgotten at the end of this process"
            _log.warning(told, self._path, error)
        finally:
            with suppress(OSError):
                fresh.unlink()
