# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo as a user runs it, with real workers: its output, the files that it leaves, and its errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from support.harness import RELEASE, completed
from support.runs import left_over
from trained_model import terms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.harness import Release

ROOT = Path(__file__).resolve().parents[2]
WORKERS = ROOT / "playbooks" / "files" / "demo_workers.py"
# Shells and templates would interpret this text.
PROMPT = 'Say "$HOME" {{ 1 + 1 }} \\n # é'


class Demo:
    """One demo with a folder of its own; llama.cpp is the release that all tests share."""

    def __init__(self, folder: Path, release: Release) -> None:
        self.folder = folder
        build = yaml.safe_load((ROOT / "tests/support/release_builds.yml").read_text())["for_tests"]
        self.variables = {
            "demo_folder": str(folder),
            "llama_cpp_prefix": str(release.prefix),
            "llama_cpp_targets": build["targets"],
            "llama_cpp_cmake_options": build["options"],
        }

    def start(self, typed: dict[str, str] | None = None, **variables: object) -> subprocess.Popen[str]:
        """Start `make demo` with the variables that a user types, and with further ones for the case.

        The model has random weights unless the user types another one.
        """
        return subprocess.Popen(
            [ROOT / "scripts/demo.sh", "-e", json.dumps({**self.variables, **variables})],
            env={**os.environ, "ANSIBLE_NOCOLOR": "1", "MODEL": "random", **(typed or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, typed: dict[str, str] | None = None, **variables: object) -> tuple[int, str]:
        process = self.start(typed, **variables)
        output = process.communicate(timeout=300)[0]
        return process.returncode, output

    def processes(self) -> list[str]:
        """Return the commands of this demo's supervisor and workers that still run."""
        return left_over(self.folder / "workers")


@pytest.fixture
def demo(tmp_path: Path, release: Release) -> Iterator[Demo]:
    made = Demo(tmp_path, release)
    yield made
    subprocess.run([sys.executable, WORKERS, "stop", f"--state={tmp_path}/workers"], check=True, timeout=30)


def test_prints_tables_writes_the_report_and_leaves_nothing_running(demo: Demo) -> None:
    code, output = demo.run({"WORKERS": "3", "PROMPT": PROMPT}, inference_n_predict=16)
    assert code == 0, output
    report = json.loads((demo.folder / "report.json").read_text())
    assert report["prompt"] == PROMPT
    assert [worker["state"] for worker in report["workers"]] == ["ready"] * 3
    assert all(worker["protocol"]["version"] == RELEASE.protocol for worker in report["workers"])
    inference = report["inference"]
    assert inference["failure"] is None
    assert inference["perf"]["eval"]["runs"] == 15
    assert inference["wall_time_ms"] > 0
    offloaded = {device["endpoint"] for device in inference["devices"] if device["endpoint"]}
    assert offloaded == {worker["endpoint"] for worker in report["workers"]}
    for endpoint in offloaded:
        assert endpoint in output
    assert inference["text"].split()[0] in output
    for row in ("load", "prompt eval", "eval", "sampling", "total", "wall time"):
        assert row in output
    assert f"{demo.folder}/report.json" in output
    assert "It fits; " in output
    assert "Continue the prompt over all workers" in output
    assert "The model has random weights: its text is noise" in output
    assert demo.processes() == []


def test_without_the_package_the_demo_says_so_and_takes_a_model_of_random_weights(demo: Demo) -> None:
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_EXTRA_INDEX_URL": ""}
    code, output = demo.run({"MODEL": "", **nowhere, "PIP_FIND_LINKS": "", "PIP_RETRIES": "0"}, inference_n_predict=2)
    assert code == 0, output
    assert (
        "The trained model cannot be had: pip could not fetch the model's packages: No matching distribution" in output
    )
    assert "A model of random weights takes its place: its text is noise" in output
    assert "error:" not in output
    assert "random-weights" in " ".join(json.loads((demo.folder / "report.json").read_text())["inference"]["command"])


@pytest.mark.parametrize(
    ("typed", "variables", "sentence"),
    [
        ({}, {"inference_extra_args": ["--no-such-flag"]}, "--no-such-flag"),
        # No machine has memory for this context.
        pytest.param({}, {"inference_ctx_size": 1 << 26}, "It does not fit", marks=pytest.mark.long),
    ],
    ids=["option-rejected", "model-too-large"],
)
def test_a_failing_step_is_a_sentence_and_the_workers_are_stopped(
    demo: Demo, typed: dict[str, str], variables: dict[str, object], sentence: str
) -> None:
    code, output = demo.run(typed, **variables)
    assert code != 0
    error = next(line for line in output.splitlines() if line.startswith("error: "))
    assert sentence in error
    assert "Traceback" not in output
    assert demo.processes() == []


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ({"WORKERS": "0"}, "WORKERS is 0; give a number from 1 to 15"),
        ({"WORKERS": "16"}, "WORKERS is 16; give a number from 1 to 15"),
        ({"WORKERS": "1.5"}, "WORKERS is 1.5; give a number from 1 to 15"),
        ({"MODEL": "/nonexistent/a model.gguf"}, "MODEL is /nonexistent/a model.gguf, which is not a file"),
        ({"MODEL": "docs"}, f"MODEL is {ROOT}/docs, which is not a file"),
        ({"PROMPT": "\udcff"}, "PROMPT is not UTF-8 text"),
        ({"MODEL": "README.md"}, f"MODEL is {ROOT}/README.md, which is not a GGUF file"),
        ({"LLAMA_CPP_CLUSTER_CACHE": "cache"}, 'the cache folder is "cache"; set LLAMA_CPP_CLUSTER_CACHE'),
        ({"LLAMA_CPP_CLUSTER_CACHE": "/nonexistent/a b"}, 'the cache folder is "/nonexistent/a b"; set'),
        ({"LLAMA_CPP_CLUSTER_CACHE": "/proc/cache"}, "the cache folder /proc/cache cannot be made"),
        ({"HOME": "", "LLAMA_CPP_CLUSTER_CACHE": ""}, "HOME is not set"),
    ],
    ids=[
        "no-workers", "too-many-workers", "workers-not-whole", "model-missing", "model-a-folder", "prompt-not-text",
        "model-a-text", "cache-relative", "cache-with-a-blank", "cache-cannot-be-made", "no-home",
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_before_anything_is_fetched_or_built(typed: dict[str, str], sentence: str) -> None:
    # Remove the variables of a `make test` around this test, which a user does not have.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "demo"],
        cwd=ROOT,
        env={**environment, **typed},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    assert sentence in done.stderr
    assert done.stdout == ""


def test_a_missing_haproxy_is_installed_or_named_before_anything_is_fetched_or_built(tmp_path: Path) -> None:
    haproxy, apt_get = Path("/usr/sbin/haproxy"), tmp_path / "apt-get"
    apt_get.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\nexit 100\n')
    apt_get.chmod(0o755)
    root = os.geteuid() == 0
    hidden = f"[ ! -e {haproxy} ] || mount --bind /dev/null {haproxy}; exec make serve GROUPS=2"
    if not root and haproxy.exists():
        pytest.skip("only root can hide the installed HAProxy from this test")
    # As if nobody had typed `make test`: make says more if another make started it.
    by_make = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in by_make}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hidden] if root else ["make", "serve", "GROUPS=2"],
        cwd=ROOT,
        env={**environment, "PATH": f"{tmp_path}:{os.environ['PATH']}", "LLAMA_CPP_CLUSTER_CACHE": f"{tmp_path}/cache"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    assert "install the package haproxy, or leave out GROUPS" in done.stderr
    assert done.stdout == ("==> Installing haproxy, which stands before several groups\n" if root else "")
    if root:
        assert (tmp_path / "asked").read_text().splitlines()[-1] == "-qqy install --no-install-recommends haproxy"
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_an_interrupted_run_leaves_no_workers(demo: Demo, how: signal.Signals) -> None:
    process = demo.start(inference_n_predict=2000, inference_extra_args=["--ignore-eos"])
    deadline = time.monotonic() + 120
    while not (demo.folder / "workers" / "worker2.log").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert demo.processes()
    os.killpg(process.pid, how)
    process.communicate(timeout=120)
    deadline = time.monotonic() + 60
    while demo.processes() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert demo.processes() == []


def test_a_second_demo_at_the_same_time_is_refused_and_the_first_goes_on(demo: Demo, release: Release) -> None:
    state = f"--state={demo.folder}/workers"
    command = [sys.executable, WORKERS, "start", f"--server={release.rpc_server}", "--count=1", "--threads=1", state]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    running = demo.processes()
    second = completed(*command)
    assert second.returncode == 1
    assert "Another demo is running" in second.stderr
    assert demo.processes() == running


def test_a_trained_model_continues_the_sentence_and_it_is_said_whose_terms_apply(
    demo: Demo, trained_model: Path
) -> None:
    for path in (trained_model, terms(trained_model)):
        (demo.folder / path.name).symlink_to(path)
    code, output = demo.run({"MODEL": ""}, inference_n_predict=12, inference_temperature=0)
    assert code == 0, output
    inference = json.loads((demo.folder / "report.json").read_text())["inference"]
    assert inference["text"].startswith(" the capital of the country of France.")
    assert "Prompt: The capital of France is" in output
    assert f"Google's terms apply to it: {demo.folder}/gemma-terms.html" in output
    assert "noise" not in output
