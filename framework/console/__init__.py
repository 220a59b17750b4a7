"""The console: a web page with the agents, runs and approvals of a server. Static files only.

Browsers can load its ES modules as they are. `build.mjs` joins and minifies them into `built/` together with the
libraries that `package.json` names; wheels contain only that (`hatch_build.py` in the repository). `main.js` starts
the page:

- `core/`: elements, requests, event streams, routes, languages: what every page uses
- `libraries/`: what a built console uses from npm: Markdown, colours of code, the editor's text field
- `shell/`: the frame around the pages: navigation, palette, toasts, the request for a key
- `widgets/`: pieces that several pages show
- `chat/`: conversations with agents
- `approvals/`: the runs that wait for a decision
- `runs/`: stored runs and their traces
- `compare/`: two runs side by side
- `agents/`: agents, their policies and prompts
- `memory/`: the notes that agents keep
- `config/`: the live configuration and its history
- `editor/`: the files, read and edited
- `fleet/`: the processes that share the store, and what waits
- `usage/`: runs, tokens and cost over time
- `zh/`: Chinese texts
- `css/`: design tokens, controls and the styles of each page
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

BUILT = "built"
"""Folder of the built console below that of its modules."""
SOURCES = "sources.txt"
"""File of the built console with the digest of the modules that it is of."""
_SUFFIXES = {".css", ".html", ".js", ".mjs", ".svg"}


def sources_digest(folder: Path) -> str:
    """Return the digest of the files that a build of the console reads."""
    digest = sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (path.suffix in _SUFFIXES or name == "package.json") and not name.startswith(f"{BUILT}/") and path.is_file():
            content = path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def has_current_build(folder: Path) -> bool:
    """Return whether the console is built, from the modules that are in the folder if there are any."""
    file = folder / BUILT / SOURCES
    if not file.is_file():
        return False
    return not (folder / "main.js").is_file() or file.read_text("utf-8") == sources_digest(folder)
