"""Hostile reads and edits of files over HTTP: nothing outside the project's files is read or written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.api_keys import KEY, key_entry
from tests.support.projects import agent, write
from tests.support.served import Served, served

ONE = "agents.d/one.yaml"
FILES = "/agent/config/files"
SECRET = "outside-of-the-project"
ROLES = {role: f"{role}-key-0123456789" for role in ("chat", "decide", "read", "admin")}
LIMITED = "limited-key-0123456789"
ENTRIES = [
    KEY,
    *(key_entry(role, key, roles=[role]) for role, key in ROLES.items()),
    key_entry("limited", LIMITED, agents=["one"], roles=[*ROLES]),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """A server whose project has links to files outside, and files that are not part of it."""
    folder = tmp_path_factory.mktemp("hostile")
    outside = write(folder / "outside", {"one.yaml": SECRET, "x.j2": SECRET})
    root = write(
        folder / "project",
        {
            ONE: agent("one", model="offline"),
            "agents.d/.inner.yaml": agent("inner", model="offline"),
            "prompts/own.j2": "hello",
            "agentsd.yaml": f"server: {{api_keys: {json.dumps(ENTRIES)}, allow_edit: true}}\n",
            ".env": SECRET,
            "data/notes.yaml": SECRET,
            "agents.d/notes.txt": SECRET,
            ".agentsd/contracts.json": json.dumps({"secret": SECRET}),
        },
    )
    (root / "agents.d/link.yaml").symlink_to(outside / "one.yaml")
    (root / "prompts/folder").symlink_to(outside)
    (root / "prompts/.hidden").symlink_to(outside)
    (root / "agents.d/inner.yaml").symlink_to(root / "agents.d/.inner.yaml")
    with served(root, key=KEY) as server:
        yield server, root


def files_below(folder: Path) -> dict[Path, bytes]:
    """Return all files but those of the store, which the server writes at any time."""
    found = (file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("state.db"))
    return {file: file.read_bytes() for file in found}


PATHS = [
    "../outside/one.yaml",
    "agents.d/../../outside/one.yaml",
    "agents.d/%2e%2e/%2e%2e/outside/one.yaml",
    "agents.d%2f..%2f..%2foutside%2fone.yaml",
    "%2e%2e%2foutside%2fone.yaml",
    "%252e%252e/outside/one.yaml",
    "/etc/passwd",
    "//etc/passwd",
    "%2fetc%2fpasswd",
    "agents.d/link.yaml",
    "prompts/folder/x.j2",
    "prompts/.hidden/x.j2",
    ".env",
    "data/notes.yaml",
    "agents.d/notes.txt",
    "agents.d/one.yaml%00.yaml",
    "agents.d/one.yaml%00",
    "agents.d%5cone.yaml",
    "agents.d/one.yaml/",
    "agents.d//one.yaml",
    "./agents.d/one.yaml",
    ".agentsd/contracts.json",
    ".agentsd/state.db",
    "proc/self/environ",
    "~/.ssh/id_rsa",
    "agents.d/one\u202e.yaml",
    "AGENTS.D/one.yaml",
    "agents.d/" + "x/" * 2000 + "one.yaml",
    "agents.d/%ff%fe.yaml",
]


@pytest.mark.hostile(11)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:30])
def test_llm02_only_files_of_the_project_are_read(world: tuple[Served, Path], path: str) -> None:
    server, _ = world
    response = server.request("GET", f"{FILES}/{quote(path, safe='/%~')}")
    assert SECRET not in response.text
    if response.status_code == 200:  # a client may have resolved the path itself, or the link is listed as unreadable
        assert response.json()["path"] in (ONE, "agents.d/link.yaml")
        assert response.json().get("text") != SECRET
    else:
        assert response.status_code in {400, 404, 405}


@pytest.mark.hostile(13)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:30])
def test_asi05_only_files_of_the_project_are_written(world: tuple[Served, Path], path: str) -> None:
    server, root = world
    everything = files_below(root.parent)
    for condition in ({"if-none-match": "*"}, {"if-match": '"0000000000000000"'}):
        address = f"{FILES}/{quote(path, safe='/%~')}"
        response = server.request("PUT", address, json={"text": agent("evil", model="offline")}, headers=condition)
        assert response.status_code in {400, 403, 404, 405, 409, 412}, response.text
        assert SECRET not in response.text
    after = files_below(root.parent)
    assert after == everything
    assert server.get("/agent/config")["generation"] == 1


@pytest.mark.hostile(13)
def test_asi05_a_link_inside_the_project_is_not_replaced(world: tuple[Served, Path]) -> None:
    server, root = world
    version = server.get(f"{FILES}/agents.d/inner.yaml")["digest"]
    response = server.request(
        "PUT",
        f"{FILES}/agents.d/inner.yaml",
        json={"text": (root / "agents.d/inner.yaml").read_text() + "# changed\n"},
        headers={"if-match": f'"{version}"'},
    )
    assert response.status_code == 409
    assert (root / "agents.d/inner.yaml").is_symlink()


@pytest.mark.hostile(16)
@pytest.mark.parametrize(
    "path", ["plugins/evil.py", "plugins/evil.yaml", "agentsd.yaml", "agents.d/evil.py", "evil.py"]
)
def test_asi05_code_and_settings_are_neither_written_nor_checked(world: tuple[Served, Path], path: str) -> None:
    server, root = world
    text = "open('/tmp/evil-was-here', 'w')"
    for condition in ({"if-none-match": "*"}, {"if-match": '"0000000000000000"'}):
        response = server.request("PUT", f"{FILES}/{path}", json={"text": text}, headers=condition)
        assert (response.status_code, response.json()["error"]["code"]) == (403, "edit_refused")
    response = server.request("POST", "/agent/config/check", json={"files": {path: text}})
    assert (response.status_code, response.json()["error"]["code"]) == (403, "edit_refused")
    assert not (root / "plugins").exists()
    assert not Path("/tmp/evil-was-here").exists()


@pytest.mark.hostile(38)
def test_asi03_only_admins_of_all_agents_write_and_check(world: tuple[Served, Path]) -> None:
    server, root = world
    before = (root / ONE).read_bytes()
    edit = {"json": {"text": agent("one", model="offline", description="Taken over.")}}
    version = server.get(f"{FILES}/{ONE}")["digest"]
    for key in (ROLES["chat"], ROLES["decide"], ROLES["read"], LIMITED, "unknown-key-0123456789"):
        headers = {"authorization": f"Bearer {key}", "if-match": f'"{version}"'}
        status = 401 if key.startswith("unknown") else 403
        assert server.request("PUT", f"{FILES}/{ONE}", headers=headers, **edit).status_code == status
        assert server.request("POST", "/agent/config/check", headers=headers).status_code == status
    for key in (ROLES["chat"], ROLES["decide"], ROLES["admin"], LIMITED):
        headers = {"authorization": f"Bearer {key}"}
        for path in (
            FILES,
            f"{FILES}/{ONE}",
            f"{FILES}/agentsd.yaml",
            "/agent/config/history/1",
            "/agent/config/schema",
        ):
            assert server.request("GET", path, headers=headers).status_code == 403
    assert (root / ONE).read_bytes() == before


@pytest.mark.hostile(10)
def test_llm02_keys_of_the_settings_are_in_no_answer(world: tuple[Served, Path]) -> None:
    server, _ = world
    answers = [server.request("GET", path).text for path in (FILES, f"{FILES}/agentsd.yaml", "/agent/config/history/1")]
    hashes = [entry["sha256"] for entry in ENTRIES if isinstance(entry, dict)]
    assert not [word for word in (KEY, *hashes) for answer in answers if word in answer]


@pytest.mark.hostile(41)
@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b'{"text": "' + b"x" * 5_000_000 + b'"}', "application/json", 413),
        (b'{"text": "' + b"x" * 2_000_000 + b'"}', "application/json", 400),
        (b'{"text": "\xff\xfe"}', "application/json", 400),
        (b'{"text": "\\ud800"}', "application/json", 400),
        (b'{"text": "a\\u0000b"}', "application/json", 400),
        (b'{"text": "a", "text": "b"}', "application/json", 400),
        (b'{"text": "a", "mode": 511}', "application/json", 400),
        (b'{"text": ["a"]}', "application/json", 400),
        (b'{"text": null}', "application/json", 400),
        (b"[]", "application/json", 400),
        (b"", "application/json", 400),
        (b'{"text": "a"}', "text/plain", 400),
        (b"text=a", "application/x-www-form-urlencoded", 400),
    ],
    ids=lambda value: str(value)[:24],
)
def test_llm10_bodies_that_are_no_text_are_refused(
    world: tuple[Served, Path], body: bytes, content_type: str, status: int
) -> None:
    server, root = world
    before = (root / ONE).read_bytes()
    version = server.get(f"{FILES}/{ONE}")["digest"]
    headers = {"content-type": content_type, "if-match": f'"{version}"'}
    response = server.request("PUT", f"{FILES}/{ONE}", content=body, headers=headers)
    assert response.status_code == status, response.text
    assert (root / ONE).read_bytes() == before


@pytest.mark.hostile(42)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"host": "evil.example"},
    ],
    ids=str,
)
def test_asi03_web_pages_do_not_edit_the_files_of_a_local_server(tmp_path: Path, headers: dict[str, str]) -> None:
    root = write(tmp_path, {ONE: agent("one", model="offline"), "agentsd.yaml": "server: {allow_edit: true}\n"})
    with served(root) as server:
        version = server.get(f"{FILES}/{ONE}")["digest"]
        sent = {**headers, "if-match": f'"{version}"'}
        assert server.request("GET", f"{FILES}/{ONE}", headers=sent).status_code == 403
        assert server.request("PUT", f"{FILES}/{ONE}", headers=sent, json={"text": "x"}).status_code == 403
        assert server.request("POST", "/agent/config/check", headers=sent, json={"files": {}}).status_code == 403
        assert server.get("/agent/config")["generation"] == 1
