# SPDX-License-Identifier: GPL-3.0-or-later
"""Workers that all tests of a file share."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from support.harness import Release, Worker, running_worker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def workers(release_7: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    folder = tmp_path_factory.mktemp("workers")
    with ExitStack() as stack:
        yield [stack.enter_context(running_worker(release_7, folder / f"{index}.log")) for index in range(3)]
