# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmarks that need no test hosts run and report figures; the speeds in these figures are not checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict

import pytest

from support.harness import CACHE, HANG_S, RELEASE, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.llama
Found = Dict[str, Any]
ONE_CORE = {"1 of one core", "2 of one core", "1 of one core, kept awake"}
MODES = ("", ", kept awake")


def throughput(found: Found) -> None:
    cases = found["one_worker"]["cases"]
    assert len(cases) == 6
    by_batch = {found["one_worker"]["reference"], "without RPC, repacked weights"}
    for name, tests in cases.items():
        wanted = ["prompt ub64", "prompt ub512", "generation"]
        assert list(tests) == (wanted if name in by_batch else wanted[1:])
        assert all(figures["tokens_per_second"]["median"] > 0 for figures in tests.values())
    assert set(cases[found["one_worker"]["reference"]]["prompt ub64"]["ratio"]["values"]) == {1.0}
    of_one_core = found["workers_of_one_core"]["cases"]
    assert next(iter(of_one_core)) == found["workers_of_one_core"]["reference"] == "1 of one core"
    # The figures name the cases that lack cores on this machine or rights of this account.
    more = {"4 of one core", "4 on 2 cores", "2 on the same core"}
    for part, names in (
        ("workers_of_one_core", {*ONE_CORE, *more, *(f"2 of one core{also}" for also in MODES)}),
        ("heavy_layers", {*ONE_CORE, *(f"2 of one core, split mode tensor{also}" for also in MODES)}),
    ):
        assert {*found[part]["cases"], *found[part]["not_run"]} == names
    assert all(ratio["median"] > 0 for ratio in found["dividing"].values())


def load(found: Found) -> None:
    loopback = found["links"]["loopback"]
    assert found["model_bytes"] > loopback["first"]["weights_mb"]["median"] * 1e6 > 0.9 * found["model_bytes"]
    # Other programs may also send over loopback.
    assert loopback["first"]["sent_mb"]["min"] >= loopback["first"]["weights_mb"]["min"]
    assert all(loopback[kind]["seconds"]["min"] > 0 for kind in ("first", "cached", "seeded"))
    assert loopback["seed_seconds"]["min"] > 0
    assert list(found["ratios"]) == ["loopback: from the cache / first", "loopback: first, seeded / first"]


@pytest.mark.usefixtures("release")
@pytest.mark.parametrize("check", [load, pytest.param(throughput, marks=pytest.mark.long)])
def test_a_benchmark_runs(check: Callable[[Found], None], tmp_path: Path) -> None:
    """Run a benchmark with a cache of its own and the tests' release, and check its figures."""
    name = check.__name__
    (tmp_path / "llama_cpp").mkdir()
    (tmp_path / "llama_cpp" / RELEASE.version).symlink_to(RELEASE.prefix)
    (CACHE / "debian").mkdir(exist_ok=True)
    (tmp_path / "debian").symlink_to(CACHE / "debian")
    done = subprocess.run(
        [sys.executable, ROOT / "tests/benchmarks" / f"{name}.py", "--smoke"],
        env={**os.environ, "LLAMA_CPP_CLUSTER_CACHE": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    path = tmp_path / "benchmarks" / name / f"{name}.json"
    assert str(path) in done.stdout
    check(json.loads(path.read_text()))
