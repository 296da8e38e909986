# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of a benchmark in a real browser, and the playbook over real workers."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.filter.benchmark_report import benchmark_report
from benchmark_sample import HOSTILE, history, hostile, results, run
from browser import Page, browser
from harness import CACHE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PICTURES = CACHE / "screenshots"
SAMPLES = {
    "report": results(),
    "hostile": hostile(),
    "first-run": results(history=[]),
    "many-runs": results(
        history=[*(run(f"2025-10-{1 + day:02}T02:10:00Z", 30, 2, f"commit{day % 7}") for day in range(28)), *history()],
        hosts=[{**host, "name": host["name"] + "x" * 80} for host in results()["hosts"]],
    ),
    "only-bench": {"time": "2026-11-21T19:42:02Z", "bench": results()["bench"]},
}

# What is wider than the window, other than in a box that scrolls by itself.
BEYOND = """
[document.documentElement.scrollWidth > innerWidth ? "the page" : "",
 ...[...document.body.querySelectorAll("*")].filter(element => {
   const box = element.getBoundingClientRect();
   return box.width && !element.parentElement.closest(".scroll") && (box.right > innerWidth + 0.5 || box.left < -0.5);
 }).map(element => element.tagName + " " + element.textContent.slice(0, 40))].filter(Boolean)
"""
# Text whose colour is too near to that of what is behind it (WCAG 2.2, 1.4.3: 4.5 to 1).
PALE = """
(() => {
  const numbers = color => color.match(/[\\d.]+/g).map(Number);
  const light = color => {
    const [r, g, b] = numbers(color).map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if (numbers(color)[3] !== 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const found = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || ["TITLE", "DESC"].includes(element.tagName.toUpperCase())) continue;
    const style = getComputedStyle(element), color = element.tagName === "text" ? style.fill : style.color;
    const [a, b] = [light(color), light(behind(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.add(element.tagName + " " + color + " on " + behind(element));
  }
  return [...found];
})()
"""
ALIVE = (
    "document.scripts.length + document.images.length + document.querySelectorAll('iframe, object, embed, link').length"
)
LIGHTNESS = (
    "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b)"
)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser; as root it is installed, where Debian's packages are."""
    for attempt in range(2):
        found = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if found:
            return found
        if attempt or os.geteuid() != 0 or shutil.which("apt-get") is None:
            break
        wait = ("-o", "DPkg::Lock::Timeout=120")
        subprocess.run(["apt-get", "-qq", *wait, "update"], check=False, timeout=300)
        subprocess.run(
            ["apt-get", "-qqy", *wait, "install", "--no-install-recommends", "chromium"],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            check=False,
            timeout=600,
            stdout=subprocess.DEVNULL,
        )
    pytest.skip("there is no Chromium here, and it could not be installed (as root, with apt-get)")


@pytest.fixture
def page(chromium: str, tmp_path: Path) -> Iterator[Page]:
    with browser(chromium, tmp_path / "profile") as opened:
        yield opened


def looked_at(page: Page, path: Path) -> dict[str, Any]:
    """What is wrong with a page; each list is empty if nothing is."""
    page.open(path)
    found: dict[str, Any] = {}
    for width in (320, 390, 1200):
        page.show(width)
        found[f"beyond {width} px"] = page.run(BEYOND)
    for scheme in ("light", "dark"):
        page.show(1200, scheme)
        found[f"pale when {scheme}"] = page.run(PALE)
    assert page.run(LIGHTNESS) < 150, "it is not dark"
    # A4 without its margins, at 96 px to the inch; who prefers dark prints on white nevertheless.
    page.show(680, "dark", "print")
    assert page.run(LIGHTNESS) == 3 * 255, "the paper is not white"
    found["pale in print"] = page.run(PALE)
    found["cut in print"] = page.run(BEYOND.replace(".scroll", ".none"))
    assert page.run(
        "[...document.querySelectorAll('tr, figure')].every(e => getComputedStyle(e).breakInside === 'avoid')"
    )
    found["said"] = page.said("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    found["dialogs"] = page.said("Page.javascriptDialogOpening")
    asked = [event["request"]["url"] for event in page.said("Network.requestWillBeSent")]
    found["asked for"] = [url for url in asked if url != path.as_uri()]
    assert len(asked) == 1
    assert page.run(ALIVE) == 0
    return {what: places for what, places in found.items() if places}


def pictures(page: Page, path: Path, name: str) -> None:
    """Leave pictures of a page for a person to look at."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.open(path)
    for kind, width, scheme in (("wide", 1200, "light"), ("dark", 1200, "dark"), ("phone", 390, "light")):
        page.show(width, scheme)
        picture = PICTURES / f"{name}-{kind}.png"
        page.screenshot(picture)
        assert picture.stat().st_size > 20_000, "there is next to nothing on it"


def test_the_page_in_a_browser(page: Page, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name, sample in SAMPLES.items():
        path = tmp_path / f"{name}.html"
        path.write_text(benchmark_report(sample)["html"])
        assert (name, looked_at(page, path)) == (name, {})
        if name == "hostile":
            shown = page.run("document.querySelector('h1').textContent")
            assert shown == HOSTILE.replace("\x1b", "\ufffd").replace("\u202e", "\ufffd").strip()
    page.show(1200)
    assert page.pdf().startswith(b"%PDF-")
    pictures(page, tmp_path / "report.html", "benchmark-sample")
    with capfd.disabled():
        os.write(2, f"\npictures of the report: {PICTURES}\n".encode())
