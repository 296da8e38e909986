# SPDX-License-Identifier: GPL-3.0-or-later
"""What others reported of llama.cpp over RPC, tried with this release: runs that stop, and runs that crash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.harness import completed
from support.quantised_models import Type, write_quantised

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.harness import Release, Worker

pytestmark = pytest.mark.llama
RUNS = 20
OWN = {"GGML_RPC_NO_COMM": "1", "GGML_NO_BACKTRACE": "1"}


@pytest.mark.long
@pytest.mark.parametrize("count", [3, 5, 8])
def test_runs_over_many_workers_come_to_their_end(
    release: Release, model: Path, start: Callable[..., Worker], count: int
) -> None:
    """https://github.com/ggml-org/llama.cpp/issues/28487: with three and more of them, a run stopped within minutes."""
    over = ["--rpc", ",".join(start().endpoint for _number in range(count)), "-ngl", "999", "-t", "2"]
    for _run in range(RUNS):
        tests = ["-p", "64", "-n", "32", "-r", "3", "-o", "jsonl"]
        done = completed(release.bin / "llama-bench", "-m", model, *over, *tests, **OWN)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count('"avg_ts"') == 2


def test_experts_may_be_elsewhere_than_their_layers(
    release: Release, tmp_path: Path, start: Callable[..., Worker]
) -> None:
    """https://github.com/ggml-org/llama.cpp/issues/25644: tensors that contradicted the split crashed the run."""
    path, _tokens = write_quantised(tmp_path / "model", (Type.Q4_0,), layers=4, experts=4)
    first, second = (start().endpoint for _number in range(2))
    command = [release.bin / "llama-completion", "-m", path, "--rpc", f"{first},{second}", "--device", "RPC0,RPC1"]
    command += ["-ngl", "99", "-no-cnv", "-p", "the river", "-n", "8", "--temp", "0"]
    texts = set()
    for shares, placed in (
        ("1,1", ""),
        ("3,1", rf"blk\.(0|1)\.ffn_.*_exps=RPC0[{second}]"),
        ("1,3", rf"blk\.(2|3)\.ffn_.*_exps=RPC0[{first}]"),
        ("1,9", rf"blk\.(0|1)\..*=RPC0[{first}],blk\.(2|3)\..*=RPC0[{second}]"),
        ("9,1", rf"blk\.(0|1)\..*=RPC0[{first}],blk\.(2|3)\..*=RPC0[{second}]"),
        ("9,1", r".*_exps=CPU"),
    ):
        done = completed(*command, "--tensor-split", shares, *(["--override-tensor", placed] if placed else []), **OWN)
        assert done.returncode == 0, f"{shares} {placed}: {done.stderr}"
        texts.add(done.stdout)
    assert len(texts) == 1, texts
