# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark page in a real browser, and the playbook over real workers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.filter.benchmark_report import benchmark_report

from support.benchmark_sample import HOSTILE, history, hostile, results, run
from support.browser import Page, browser, installed_browser
from support.harness import CACHE, play_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.harness import Release, Worker

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

# Finds elements that are wider than the window, except inside a box that scrolls by itself.
BEYOND = """
[document.documentElement.scrollWidth > innerWidth ? "the page" : "",
 ...[...document.body.querySelectorAll("*")].filter(element => {
   const box = element.getBoundingClientRect();
   return box.width && !element.parentElement.closest(".scroll") && (box.right > innerWidth + 0.5 || box.left < -0.5);
 }).map(element => element.tagName + " " + element.textContent.slice(0, 40))].filter(Boolean)
"""
# Finds text whose colour has too little contrast to its background (WCAG 2.2, 1.4.3: 4.5 to 1).
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
ALIVE = """
[...document.querySelectorAll("script, img, iframe, object, embed, link, base, form, [style], [onerror]")]
  .map(element => element.tagName)
"""
LIGHTNESS = (
    "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b)"
)


@pytest.fixture(scope="session")
def chromium() -> str:
    return installed_browser()


@pytest.fixture
def page(chromium: str, tmp_path: Path) -> Iterator[Page]:
    with browser(chromium, tmp_path / "profile") as opened:
        yield opened


def looked_at(page: Page, path: Path) -> dict[str, Any]:
    """Return the faults of a page by kind, without the kinds that have none."""
    page.open(path)
    found: dict[str, Any] = {}
    for width in (320, 390, 1200):
        page.show(width)
        found[f"beyond {width} px"] = page.run(BEYOND)
    for scheme in ("light", "dark"):
        page.show(1200, scheme)
        found[f"pale when {scheme}"] = page.run(PALE)
    assert page.run(LIGHTNESS) < 150, "it is not dark"
    # A4 without its margins, at 96 px to the inch. A reader who prefers dark must still get white paper.
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
    found["alive"] = page.run(ALIVE)
    return {what: places for what, places in found.items() if places}


def pictures(page: Page, path: Path, name: str) -> None:
    """Save pictures of a page for a person to look at."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.open(path)
    for kind, width, scheme in (("wide", 1200, "light"), ("dark", 1200, "dark"), ("phone", 390, "light")):
        page.show(width, scheme)
        picture = PICTURES / f"{name}-{kind}.png"
        page.screenshot(picture)
        assert picture.stat().st_size > 20_000, "there is next to nothing on it"


@pytest.mark.long
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


def test_the_playbook_measures_reports_and_remembers(
    tmp_path: Path, release_7: Release, model: Path, start_worker: Callable[..., Worker]
) -> None:
    ports = [start_worker(release_7, threads=threads).port for threads in (1, 2)]
    folder = tmp_path / "benchmark"
    folder.mkdir()
    # This record is of another build, and its final line break is missing.
    before = json.dumps(run("2026-10-01T02:03:04Z", 30, 2, "4227c9be8"))
    (folder / "history.jsonl").write_text(before)
    host = {
        "rpc_server_address": "127.0.0.1",
        # The machine may have no private address.
        "rpc_server_bind_address": "127.0.0.1",
        "rpc_server_instances": [{"port": port} for port in ports],
        "llama_cpp_prefix": str(release_7.prefix),
        "gguf_model_path": str(model),
        "benchmark_title": "Two workers <here>",
    }
    numbers = ("-e", "benchmark_n_prompt=32", "-e", "benchmark_n_gen=4", "-e", "benchmark_repetitions=2")
    done = play_here("benchmark.yml", tmp_path, host, *numbers, "-e", "benchmark_n_predict=4")
    assert done.returncode == 0, done.stdout
    assert "the first run of this build, model and shape." in done.stdout
    assert "here : ok=" in done.stdout
    assert "changed=0" in done.stdout

    report = json.loads((folder / "report.json").read_text())
    lines = (folder / "history.jsonl").read_text().split("\n")
    assert (lines[0], len(lines), lines[2]) == (before, 3, "")
    assert json.loads(lines[1]) == report["history"][-1]
    assert [test["name"] for test in report["tests"]] == ["pp32", "tg4"]
    assert all(len(test["tokens_per_second"]["samples"]) == 2 for test in report["tests"])
    assert report["hosts"][0]["threads"] == [1, 2]
    assert report["hosts"][0]["memory_total_bytes"] > report["hosts"][0]["memory_available_bytes"] > 0
    endpoints = [f"127.0.0.1:{port}" for port in ports]
    assert [share["endpoint"] for share in report["split"]] == [*endpoints, None]
    for share in report["split"][:2]:
        for part, limit in (("weights", 2), ("kv", 2), ("compute", 25)):
            assert abs(share[part]["difference_percent"]) <= limit, (share["name"], part)
    assert "the plan was right within its limit of 1 %" in report["split_note"]
    assert report["model"]["layers"] == 8
    assert "<h1>Two workers &lt;here&gt;</h1>" in (folder / "report.html").read_text()
    assert "# Two workers &lt;here&gt;\n" in (folder / "report.md").read_text()
    assert sorted(path.name for path in folder.iterdir()) == [
        "history.jsonl",
        "report.html",
        "report.json",
        "report.md",
    ]

    # Make the earlier run look a thousand times as fast.
    quicker = json.loads(lines[1])
    for test in quicker["tests"]:
        test["tokens_per_second"]["mean"] *= 1000
    (folder / "history.jsonl").write_text(json.dumps(quicker) + "\n")
    given = ("-e", "benchmark_n_predict=4", "-e", "benchmark_tolerance_percent=90")
    slower = play_here("benchmark.yml", tmp_path, host, *numbers, *given)
    assert slower.returncode == 2, slower.stdout
    assert "Slower by more than 90 % than the median of 1 earlier run of the same build, model and" in slower.stdout
    assert len((folder / "history.jsonl").read_text().splitlines()) == 2
    assert json.loads((folder / "report.json").read_text())["time"] > report["time"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("plan", "extra_args", "expected"),
    [
        (True, "--split-mode tensor --flash-attn on -ub 64", {"split_mode": "tensor", "flash_attn": "on"}),
        (
            False,
            "--flash-attn off -ctk q8_0 -ub 64",
            {"split_mode": "layer", "flash_attn": "off", "cache_type_k": "q8_0"},
        ),
    ],
    ids=["without-a-plan-for-it", "told-not-to-plan"],
)
def test_what_is_measured_is_what_inference_runs_with(
    tmp_path: Path,
    release_7: Release,
    model: Path,
    start_worker: Callable[..., Worker],
    plan: bool,
    extra_args: str,
    expected: dict[str, Any],
) -> None:
    host = {
        "rpc_server_address": "127.0.0.1",
        "rpc_server_bind_address": "127.0.0.1",
        "rpc_server_instances": [{"port": start_worker(release_7).port} for _worker in range(2)],
        "llama_cpp_prefix": str(release_7.prefix),
        "gguf_model_path": str(model),
        "inference_plan": plan,
        "inference_extra_args": extra_args.split(),
        "benchmark_n_prompt": 16,
        "benchmark_n_gen": 2,
        "benchmark_repetitions": 1,
        "benchmark_n_predict": 2,
    }
    done = play_here("benchmark.yml", tmp_path, host)
    assert done.returncode == 0, done.stdout
    measured = json.loads((tmp_path / "benchmark" / "report.json").read_text())["history"][-1]
    assert {name: measured["options"][name] for name in expected} == expected
    assert measured["options"]["tensor_split"] == []
    assert {test["ubatch_size"] for test in measured["tests"]} == {64}


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {},
            "Line 2 of the history {folder}/history.jsonl is not a benchmark run (it is not JSON from column 10 on)",
        ),
        ({"benchmark_repetitions": "many"}, "benchmark_repetitions is many: give a whole number from 1 to 1000."),
        (
            {"benchmark_tolerance_percent": "5 %"},
            "benchmark_tolerance_percent is 5 %: give a whole number from 0 to 99.",
        ),
        (
            {"benchmark_folder": "no/such/folder"},
            "The report cannot be written to benchmark_folder, {parent}/no/such/folder: it is not a writable folder on",
        ),
    ],
    ids=["broken-history", "number", "percent", "folder"],
)
def test_what_stands_in_the_way_is_said_before_any_host_is_asked(
    tmp_path: Path, variables: dict[str, Any], sentence: str
) -> None:
    folder = tmp_path / "benchmark"
    folder.mkdir()
    broken = json.dumps(run("2026-10-01T02:03:04Z", 30, 2)) + '\n{"time": \n'
    (folder / "history.jsonl").write_text(broken)
    # Nobody answers at TEST-NET-1.
    host = {"ansible_connection": "ssh", "ansible_host": "192.0.2.1", "gguf_model_path": "/srv/model.gguf", **variables}
    done = play_here("benchmark.yml", tmp_path, host)
    assert done.returncode == 2
    assert sentence.format(folder=folder, parent=tmp_path) in done.stdout
    assert "UNREACHABLE" not in done.stdout
    assert (folder / "history.jsonl").read_text() == broken
    assert [path.name for path in folder.iterdir()] == ["history.jsonl"]
