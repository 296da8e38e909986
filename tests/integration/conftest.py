# SPDX-License-Identifier: GPL-3.0-or-later
"""Workers that all tests of a file share, and workers of one test."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from support.harness import Release, Worker, running_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def workers(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    folder = tmp_path_factory.mktemp("workers")
    with ExitStack() as stack:
        yield [stack.enter_context(running_worker(release, folder / f"{index}.log")) for index in range(3)]


@pytest.fixture
def start(release: Release, start_worker: Callable[..., Worker]) -> Callable[..., Worker]:
    """Start workers of the default release that end with the test: `start(*options, threads=1, prefix=())`."""
    return partial(start_worker, release)


@pytest.fixture
def two(start: Callable[..., Worker]) -> list[str]:
    """Start two workers; return their endpoints."""
    return [start().endpoint for _number in range(2)]


@pytest.fixture
def here(release: Release, model: Path, start: Callable[..., Worker]) -> dict[str, Any]:
    """Return this machine, for `play_here`, as master and as the host of two workers of one and two threads."""
    return {
        "rpc_server_address": "127.0.0.1",
        # The machine may have no private address.
        "rpc_server_bind_address": "127.0.0.1",
        "rpc_server_instances": [{"port": start(threads=threads).port} for threads in (1, 2)],
        "llama_cpp_prefix": str(release.prefix),
        "gguf_model_path": str(model),
    }
