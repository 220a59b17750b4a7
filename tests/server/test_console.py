"""`/` and the assets of the console: headers, caching, edits of the files, and the setting that switches it off."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI

from framework import Runtime
from framework.console import sources_digest
from framework.server import router
from framework.server.process import console_routes, create_app
from framework.telemetry.metrics import ServerMetrics
from tests.support.projects import write

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
FILES = {
    "index.html": """
        <!doctype html>
        <link rel="stylesheet" href="{{base}}/css/base.css">
        <script type="module" src="{{base}}/main.js"></script>
        """,
    "main.js": 'import { h } from "./core/dom.js";\nexport const page = () => import("./chat/page.js");\n',
    "core/dom.js": "export const h = 1;\n",
    "chat/page.js": 'export const tag = "page-chat";\n',
    "css/base.css": "body { margin: 0 }\n",
    "icon.svg": "<svg/>\n",
    "types.d.ts": "export type A = 1;\n",
    "jsconfig.json": "{}\n",
    "package.json": "{}\n",
    "build.mjs": "build();\n",
    "__init__.py": "",
    "notes.pdf": "not served",
}
BUILT = {
    "built/index.html": '<link rel="stylesheet" href="{{base}}/styles.css"><script src="{{base}}/main.js"></script>',
    "built/main.js": "joined;",
    "built/styles.css": "body{margin:0}",
    "built/licenses.txt": "marked (MIT)\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "console", FILES)


def client(folder: Path) -> httpx2.AsyncClient:
    app = FastAPI()
    app.include_router(console_routes(folder))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1")


def get(folder: Path, path: str, method: str = "GET", **headers: str) -> httpx2.Response:
    async def main() -> httpx2.Response:
        async with client(folder) as http:
            return await http.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return asyncio.run(main())


def base_of(response: httpx2.Response) -> str:
    return "/".join(response.text.partition('stylesheet" href="')[2].split("/")[:3])


def build(folder: Path) -> None:
    """Write a build of the modules in the folder, as they are now."""
    write(folder, {**BUILT, "built/sources.txt": sources_digest(folder)})


def test_the_page_has_its_headers_and_the_url_of_its_assets(folder: Path) -> None:
    response = get(folder, "/")
    assert response.status_code == 200
    assert response.headers["content-security-policy"] == POLICY
    assert {name: response.headers[name] for name in response.headers} == {
        "cache-control": "no-cache",
        "content-length": str(len(response.content)),
        "content-security-policy": POLICY,
        "content-type": "text/html; charset=utf-8",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "etag": f'"{base_of(response).rpartition("/")[2]}"',
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    assert base_of(response).startswith("/console/")
    assert "{{" not in response.text


def test_modules_that_are_not_built_are_sent_as_they_are_and_it_is_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "framework.server"):
        base = base_of(get(folder, "/"))
    assert [record.message.partition(":")[0] for record in caplog.records] == ["the console is served as modules"]
    assert "`make console`" in caplog.text
    for name in ("main.js", "core/dom.js", "chat/page.js", "css/base.css"):
        assert get(folder, f"{base}/{name}").text == FILES[name]


def test_the_built_console_is_sent_while_it_is_of_the_modules_in_the_folder(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build(folder)
    with caplog.at_level("INFO", "framework.server"):
        base = base_of(get(folder, "/"))
        assert get(folder, f"{base}/main.js").text == "joined;"
        assert get(folder, f"{base}/licenses.txt").headers["content-type"] == "text/plain; charset=utf-8"
        assert caplog.records == []
    for name in ("core/dom.js", "built/main.js", "sources.txt"):
        assert get(folder, f"{base}/{name}").status_code == 404
    (folder / "core/dom.js").write_text("export const h = 2;\n", "utf-8")
    base = base_of(get(folder, "/"))
    assert get(folder, f"{base}/core/dom.js").text == "export const h = 2;\n", "an edit is seen without a build"
    assert get(folder, f"{base}/built/main.js").status_code == 404
    build(folder)
    assert get(folder, f"{base_of(get(folder, '/'))}/main.js").text == "joined;"


def test_a_wheel_has_only_the_built_console(tmp_path: Path) -> None:
    installed = write(tmp_path / "console", {**BUILT, "__init__.py": "", "built/sources.txt": "of another folder"})
    assert get(installed, f"{base_of(get(installed, '/'))}/main.js").text == "joined;"


def test_assets_are_compressed_for_clients_that_accept_it(folder: Path) -> None:
    path = f"{base_of(get(folder, '/'))}/main.js"
    for accepted, encoding in [("gzip, br", "gzip"), ("br", None), ("br, gzip;q=0", None), ("gzip;q=0.5", "gzip")]:
        response = get(folder, path, accept_encoding=accepted)
        assert response.headers.get("content-encoding") == encoding
        assert response.headers["vary"] == "accept-encoding"
        assert response.text == FILES["main.js"]


def test_a_client_that_has_the_page_gets_304(folder: Path) -> None:
    etag = get(folder, "/").headers["etag"]
    again = get(folder, "/", if_none_match=f'"x", W/{etag}')
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert again.headers["content-security-policy"] == POLICY
    assert get(folder, "/", if_none_match='"other"').status_code == 200


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("chat/page.js", "text/javascript; charset=utf-8"),
        ("css/base.css", "text/css; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
    ],
)
def test_an_asset_is_kept_for_good(folder: Path, name: str, content_type: str) -> None:
    base = base_of(get(folder, "/"))
    response = get(folder, f"{base}/{name}")
    assert response.status_code == 200
    assert response.text == FILES[name]
    assert response.headers["content-type"] == content_type
    assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert get(folder, f"{base}/{name}", "HEAD").headers == response.headers


@pytest.mark.parametrize(
    "path",
    [
        "types.d.ts",
        "jsconfig.json",
        "package.json",
        "build.mjs",
        "__init__.py",
        "notes.pdf",
        "index.html",
        "none.js",
        "",
    ],
)
def test_other_files_are_not_served(folder: Path, path: str) -> None:
    assert get(folder, f"{base_of(get(folder, '/'))}/{path}").status_code == 404


def test_a_reload_shows_an_edit_and_never_a_mixed_set_of_files(folder: Path) -> None:
    async def main() -> None:
        async with client(folder) as http:
            before = await http.get("/")
            (folder / "main.js").write_text("export const x = 1;\n", "utf-8")
            kept = await http.get(f"{base_of(before)}/main.js")
            assert kept.text == FILES["main.js"], "until the page is reloaded"
            after = await http.get("/")
            assert base_of(after) != base_of(before)
            assert (await http.get(f"{base_of(after)}/main.js")).text == "export const x = 1;\n"
            assert (await http.get(f"{base_of(before)}/main.js")).status_code == 404
            (folder / "new.svg").write_text("<svg/>", "utf-8")
            assert base_of(await http.get("/")) != base_of(after)
            (folder / "new.svg").unlink()
            assert base_of(await http.get("/")) == base_of(after), "the digest is of what is sent"

    asyncio.run(main())


def test_what_is_not_a_file_is_skipped(folder: Path) -> None:
    (folder / ".#main.js").symlink_to("ann@host.1234")
    (folder / "folder.js").mkdir()
    assert get(folder, "/").status_code == 200


def test_an_asset_is_served_without_a_request_for_the_page_before(folder: Path) -> None:
    """After a restart, open tabs continue to load the modules of pages."""
    base = base_of(get(folder, "/"))
    assert get(folder, f"{base}/chat/page.js").status_code == 200


def test_without_files_there_is_no_console(tmp_path: Path) -> None:
    assert get(tmp_path, "/").status_code == 404
    assert get(tmp_path, "/console/0123456789abcdef/main.js").status_code == 404


@pytest.mark.parametrize("console", [True, False])
def test_the_setting_switches_it_off(tmp_path: Path, console: bool) -> None:
    write(tmp_path, {"agentsd.yaml": f"server: {{console: {str(console).lower()}}}\n"})

    async def main() -> list[int]:
        async with Runtime.open(tmp_path, watch=False) as runtime:
            app = create_app(runtime, ServerMetrics())
            transport = httpx2.ASGITransport(app, client=("127.0.0.1", 1))
            async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
                page = await http.get("/")
                missing = await http.get("/console/0123456789abcdef/main.js")
                assert missing.json()["error"]["code"] == "not_found"
                assert missing.headers["cache-control"] == "no-store"
                if not console:
                    assert page.json()["error"]["code"] == "not_found"
                return [page.status_code, (await http.get("/health")).status_code, missing.status_code]

    assert asyncio.run(main()) == [200 if console else 404, 200, 404]


def test_an_app_of_its_own_has_no_console(tmp_path: Path) -> None:
    async def main() -> int:
        async with Runtime.open(tmp_path, watch=False) as runtime:
            app = FastAPI()
            app.router.routes.extend(router(runtime).routes)
            async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://x") as http:
                return (await http.get("/")).status_code

    assert asyncio.run(main()) == 404
