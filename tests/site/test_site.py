# SPDX-License-Identifier: GPL-3.0-or-later
"""The built site in a browser: on a phone and on a desk, light and dark, opened as files."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import Page, browser, installed_browser
from support.harness import CACHE

SITE = Path(os.environ.get("SITE", "build/docs/html")).resolve()
AXE = "axe-core@4.14.1"
AXE_SHA512 = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
# One page of each kind; all of them take half an hour.
PAGES = (
    "index.html",
    "development.html",
    "how-to/index.html",
    "how-to/troubleshoot.html",
    "reference/compatibility.html",
    "reference/collection/inference_role.html",
    "reference/collection/gguf_info_module.html",
    "search.html",
)
WIDTHS = {"phone": 390, "desktop": 1280}


@pytest.fixture(scope="session")
def axe() -> str:
    """Return axe-core's script, which npm fetches once."""
    place = CACHE / "npm" / AXE.replace("@", "-")
    script = place / "axe.min.js"
    if not script.exists():
        if shutil.which("npm") is None:
            pytest.fail("axe-core is fetched with npm, which is not installed: install the package npm")
        place.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["npm", "pack", "--silent", "--json", AXE],
            cwd=place,
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
        )
        packed = (place / json.loads(done.stdout)[0]["filename"]).read_bytes()
        assert base64.b64encode(hashlib.sha512(packed).digest()).decode() == AXE_SHA512
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            found = archive.extractfile("package/axe.min.js")
            assert found is not None
            text = found.read()
        kept = script.with_suffix(".part")
        kept.write_bytes(text)
        kept.rename(script)
    return script.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert (SITE / "index.html").exists(), f"there is no site in {SITE}: run make docs"
    with browser(installed_browser(), tmp_path_factory.mktemp("browser") / "profile") as page:
        yield page


def fetched_elsewhere(page: Page) -> list[str]:
    """Return the addresses that the page has asked for and that are no files of this machine."""
    asked = [said["request"]["url"] for said in page.said("Network.requestWillBeSent")]
    return [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]


def violations(page: Page, axe: str) -> list[str]:
    page.run(f"{axe};0")
    page.run("window.found = null; axe.run(document, {resultTypes: ['violations']}).then(r => found = r.violations); 0")
    page.wait("window.found !== null")
    found: list[dict[str, Any]] = page.run(
        "found.map(v => ({id: v.id, impact: v.impact, help: v.help, where: v.nodes.map(n => n.target.join(' '))}))"
    )
    return [
        f"{v['impact']}: {v['id']} ({v['help']}): {', '.join(v['where'][:4])}"
        for v in found
        if v["impact"] in {"serious", "critical"}
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_fits_and_fetches_nothing(
    opened: Page, axe: str, name: str, width: str, scheme: str
) -> None:
    opened.show(WIDTHS[width], scheme)
    opened.open(SITE / name)
    opened.wait("document.readyState === 'complete'")
    assert violations(opened, axe) == []
    assert opened.run("document.documentElement.scrollWidth") <= WIDTHS[width], "the page is wider than the screen"
    assert fetched_elsewhere(opened) == []
    pictures = CACHE / "screenshots"
    pictures.mkdir(parents=True, exist_ok=True)
    opened.screenshot(pictures / f"site-{name.replace('/', '-')[:-5]}-{width}-{scheme}.png")


@pytest.mark.parametrize("words", ["troubleshoot", "gguf_info", "llama_server_port"])
def test_search_finds_pages_offline(opened: Page, words: str) -> None:
    opened.show(WIDTHS["desktop"])
    opened.events.clear()
    opened.call("Page.navigate", url=f"{(SITE / 'search.html').as_uri()}?q={words}")
    first = opened.wait("document.querySelector('#search-results li a')?.href")
    assert first.startswith(SITE.as_uri())
    assert fetched_elsewhere(opened) == []


def test_the_sections_are_in_the_navigation(opened: Page) -> None:
    opened.show(WIDTHS["desktop"])
    opened.open(SITE / "index.html")
    sections = opened.run(
        "[...document.querySelectorAll('.sidebar-tree .toctree-l1 > a')].map(a => a.innerText.trim())"
    )
    assert [name for name in sections if name in {"How-to guides", "Explanation", "Reference"}] == [
        "How-to guides",
        "Explanation",
        "Reference",
    ]
