# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures around real llama.cpp processes. `make test` builds the releases before these tests run."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import RELEASES, Release, Worker, running_worker
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdist.remote import Producer

# Begun first: nothing is left for the other process when it is the last.
LONGEST = "test_safetensors_are_converted_and_quantised_and_run"
# What these tests look at is one long play, which is not to run in each process.
TOGETHER = "test_role_gguf_model.py::test_bad_input"
ROOT = Path(__file__).resolve().parents[2]


class OneByOne(LoadScopeScheduling):
    """With `pytest -n` each process gets the next test when it is done with one."""

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER if TOGETHER in nodeid else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneByOne:
    return OneByOne(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.name != LONGEST)


def _release(protocol: str) -> Release:
    release = RELEASES[protocol]
    if not release.rpc_server.exists():
        pytest.fail(f"llama.cpp of archive {release.version} is not built: run `make test`, which builds it first")
    return release


@pytest.fixture(scope="session")
def release_7() -> Release:
    """Protocol 7.0.0, the default pin."""
    return _release("7.0.0")


@pytest.fixture(scope="session")
def release_2() -> Release:
    """Protocol 2.0.0, the oldest supported."""
    return _release("2.0.0")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 25 MB model of random weights: 8 layers, 512 wide."""
    path = tmp_path_factory.mktemp("model") / "random.gguf"
    subprocess.run([sys.executable, ROOT / "playbooks/files/random_model.py", path], check=True, timeout=120)
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
