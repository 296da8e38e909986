# SPDX-License-Identifier: GPL-3.0-or-later
"""More of tests/integration/test_retries.py: when a run is not repeated, or not without the worker that failed."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from support.harness import RELEASE, running_worker
from support.repeated_runs import Play, kills, reaped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.llama


@pytest.fixture
def play(small: Path, tmp_path: Path) -> Iterator[Play]:
    release = RELEASE
    with ExitStack() as stack:
        logs = [tmp_path / f"worker{number}.log" for number in range(3)]
        yield Play(release, small, tmp_path, [stack.enter_context(running_worker(release, log)) for log in logs])


def test_a_worker_that_the_others_cannot_replace_is_waited_for(play: Play) -> None:
    lost = play.workers[1]
    reaped(lost)
    # Enough for a third of the model, with what the estimate adds for computing, and too little for half of it.
    little = {worker.endpoint: 268 << 20 for worker in play.workers}
    done, report = play(
        kills(lost), inference_retries=1, rpc_server_ready_timeout=1, inference_retry_without_failed=True,
        inference_worker_memory_bytes=little,
    )  # fmt: skip
    assert done.returncode == 2
    assert report["left_out"] == []
    assert f"Without {lost.endpoint} the run is not possible: It does not fit" in done.stdout


def test_what_fails_again_is_not_tried_again(play: Play) -> None:
    done, report = play("", inference_retries=3, inference_extra_args=["--no-such-flag"])
    assert done.returncode == 2
    assert report["tries"] == []
    assert "no option --no-such-flag" in done.stdout
