"""The hold of a rollback, kept in a file: what was rolled back to, and which files on the disk it holds back.

A process that starts on the same files begins with the generation that was rolled back to, instead of what an operator
has rejected. The first change of the files ends the hold.
"""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from framework.config.files.snapshot import Snapshot, build_snapshot
from framework.config.generations.history import ArchivedGeneration
from framework.types.errors import ConfigError
from framework.types.private_folder import DATA_FOLDER, write_private_file

log = logging.getLogger(__name__)

HOLD_FILE = f"{DATA_FOLDER}/hold.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Hold:
    """A rollback that holds until the files change."""

    generation: int
    """Number of the generation that was rolled back to, in the process that did it."""
    digest: str
    """The digest of its files."""
    at: datetime
    ignored: str
    """The digest of the files on the disk, which are ignored."""
    files: Mapping[str, bytes]
    """The files of the generation, by path."""

    @classmethod
    def of(cls, archived: ArchivedGeneration, ignored: str) -> Hold:
        """Return the hold of a rollback to an archived generation."""
        generation = archived.without_agents
        # An agent with an invalid file has its last good version, unless the file restricts it: then it is left out.
        stale = {archived.paths[name]: archived.sources[name] for name in archived.stale.keys() - archived.restricted}
        files = {**generation.files, **stale}
        return cls(generation.number, generation.digest, datetime.now(UTC), ignored, files)

    @property
    def snapshot(self) -> Snapshot:
        """The files of the generation, to build it again."""
        return build_snapshot(self.files, (), {})

    def __str__(self) -> str:
        rollback = f"a rollback to generation {self.generation} at {self.at:%Y-%m-%d %H:%M:%S} UTC"
        return f"the files are held since {rollback}: they go live when they change"


class HoldFile:
    """The file of the hold, which a restart finds again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Hold | None:
        """Return the hold; None if there is none. Raises ConfigError if the file cannot be read."""
        try:
            return _hold_of(json.loads(self._path.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self._path} cannot be read ({error}): it says which files a rollback holds back; "
                "delete it to let the files on the disk go live"
            ) from None

    def write(self, hold: Hold) -> None:
        """Save a hold. If that fails, it ends with this process, which is logged."""
        files = {path: b64encode(content).decode() for path, content in hold.files.items()}
        head = {"generation": hold.generation, "digest": hold.digest, "at": hold.at.isoformat()}
        content = json.dumps({"version": _VERSION, **head, "ignored": hold.ignored, "files": files}) + "\n"
        try:
            write_private_file(self._path, content)
        except OSError as error:
            log.warning("%s cannot be written (%s): the rollback is lost when this process ends", self._path, error)

    def delete(self) -> None:
        """Delete the hold, which has ended."""
        try:
            self._path.unlink(missing_ok=True)
        except NotADirectoryError:
            pass
        except OSError as error:
            log.warning("%s cannot be deleted (%s): the hold of the rollback has ended", self._path, error)


def _hold_of(document: Any) -> Hold:
    if document["version"] != _VERSION:
        raise ValueError(f"unknown format {document['version']!r}")
    files = {path: b64decode(content, validate=True) for path, content in document["files"].items()}
    number, digest, at = int(document["generation"]), str(document["digest"]), datetime.fromisoformat(document["at"])
    return Hold(number, digest, at, str(document["ignored"]), files)
