# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmarks that need no test hosts run and report figures; the speeds in these figures are not checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.harness import CACHE, HANG_S, RELEASE, ROOT

pytestmark = pytest.mark.llama
ONE_CORE = {"1 of one core", "2 of one core", "1 of one core, kept awake"}
MODES = ("", ", kept awake", ", GGML_RPC_SPIN=0")


def smoke(name: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Run a benchmark with a cache of its own and the tests' release, and return its table and its values."""
    release = RELEASE
    (folder / "llama_cpp").mkdir()
    (folder / "llama_cpp" / release.version).symlink_to(release.prefix)
    (CACHE / "debian").mkdir(exist_ok=True)
    (folder / "debian").symlink_to(CACHE / "debian")
    done = subprocess.run(
        [sys.executable, ROOT / "tests/benchmarks" / f"{name}.py", "--smoke"],
        env={**os.environ, "LLAMA_CPP_CLUSTER_CACHE": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    path = folder / "benchmarks" / name / f"{name}.json"
    assert str(path) in done.stdout
    return done.stdout, json.loads(path.read_text())


@pytest.mark.usefixtures("release_7")
def test_what_the_module_costs(tmp_path: Path) -> None:
    said, found = smoke("module_overhead", tmp_path)
    assert "task more than by hand, s" in said
    assert len(found["extra_seconds"]["values"]) + found["repeated_runs"] == 2
    assert 0 < found["hand_seconds"]["min"] <= found["hand_seconds"]["max"]
    assert all(ratio > 0 for ratio in found["generation_ratio"]["values"])


@pytest.mark.usefixtures("release_7")
def test_what_rpc_costs_and_more_workers_bring(tmp_path: Path) -> None:
    said, found = smoke("throughput", tmp_path)
    assert "What more workers bring" in said
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
    assert list(of_one_core["1 of one core"]) == ["prompt ub64", "prompt ub512", "generation"]
    assert list(of_one_core["2 on the same core"]) == ["generation"]
    assert all(list(tests) == ["generation"] for tests in found["heavy_layers"]["cases"].values())
    # The report names the cases that lack cores on this machine or rights of this account.
    for part, names in (
        (
            "workers_of_one_core",
            {
                *ONE_CORE,
                "4 of one core",
                "4 on 2 cores",
                "2 on the same core",
                *(f"2 of one core{also}" for also in MODES),
            },
        ),
        ("heavy_layers", {*ONE_CORE, *(f"2 of one core, split mode tensor{also}" for also in MODES)}),
    ):
        not_run = found[part]["not_run"]
        assert {*found[part]["cases"], *not_run} == names
        assert all(f"not run: {why}" in said for why in not_run.values())
    assert "What dividing a model costs" in said
    assert all(ratio["median"] > 0 for ratio in found["dividing"].values())
    # Targets are checked, but they do not apply to a model as small as this.
    assert all(sentence in said for sentence in found["missed"])
    measured = 2 if of_one_core.keys().isdisjoint({"2 of one core"}) else 5
    rows = [line for line in said.partition("\nTargets\n")[2].splitlines() if line.endswith(("met", "missed"))]
    assert len(rows) == measured


@pytest.mark.usefixtures("release_7")
def test_what_split_mode_tensor_sends_and_where_its_time_goes(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two workers of one core each")
    said, found = smoke("tensor_trace", tmp_path)
    per_token = found["per_token"]
    # There are two sums in each of four layers; the messages also include the result.
    assert per_token["partial results asked of a worker"] == 8
    assert per_token["messages to a worker: GRAPH_COMPUTE"] == 9
    assert "messages to a worker: GRAPH_RECOMPUTE" not in per_token
    assert 0 < per_token["bytes to a worker: graphs"] < per_token["bytes to a worker"]
    assert per_token["bytes from a worker"] > 4 * 512 * 8
    for parts in found["times"].values():
        shares = [parts[name]["ms"]["median"] for name in ("both run", "one runs", "none")]
        assert sum(shares) == pytest.approx(parts["a token"]["ms"]["median"], abs=0.05)
    assert {*found["times"], *found["not_run"]} == {"cores as they are", "cores kept awake"}
    assert "partial results asked of a worker" in said


@pytest.mark.long
@pytest.mark.usefixtures("release_7")
def test_how_long_verification_takes(tmp_path: Path) -> None:
    said, found = smoke("verification", tmp_path)
    assert "Endpoints are stand-ins on loopback" in said
    cases = found["cases"]
    assert [case["endpoints"] for case in cases.values()] == [5, 20, 20, 2]
    silent = cases["20 endpoints, 5 of them silent"]
    for way in ("task_seconds", "probe_seconds"):
        assert silent[way]["min"] >= found["timeout_s"]
        assert all(case[way]["min"] > 0 for case in cases.values())


@pytest.mark.usefixtures("release_7")
def test_how_fast_tensors_are_hashed(tmp_path: Path) -> None:
    said, found = smoke("hashing", tmp_path)
    assert "four tensors at a time" in said
    assert all(case["hashing"]["mb_per_second"]["min"] > 0 for case in found["cases"].values())
    assert set(found["cases"]["rpc-cache, one tensor"]["hashing"]["ratio"]["values"]) == {1.0}


@pytest.mark.usefixtures("release_7")
def test_how_long_a_load_takes(tmp_path: Path) -> None:
    said, found = smoke("load", tmp_path)
    assert "over the wire, MB/s" in said
    loopback = found["links"]["loopback"]
    assert found["model_bytes"] > loopback["first"]["weights_mb"]["median"] * 1e6 > 0.9 * found["model_bytes"]
    # Other programs may also send over loopback.
    assert loopback["first"]["sent_mb"]["min"] >= loopback["first"]["weights_mb"]["min"]
    assert all(loopback[kind]["seconds"]["min"] > 0 for kind in ("first", "cached", "seeded"))
    assert loopback["seed_seconds"]["min"] > 0
    assert list(found["ratios"]) == ["loopback: from the cache / first", "loopback: first, seeded / first"]


@pytest.mark.long
@pytest.mark.usefixtures("release_7")
def test_how_long_requests_wait_at_a_gateway(tmp_path: Path) -> None:
    said, found = smoke("balancing", tmp_path)
    assert "times the ideal" in said
    assert set(found["p95_wait_s"]) == {"one queue, computed", "the gateway", "least connections", "round robin"}
    assert found["cost"]["streams_mib"] > found["cost"]["idle_mib"] > 0


@pytest.mark.long
@pytest.mark.usefixtures("release_7")
def test_how_many_tokens_of_prompts_chats_cost(tmp_path: Path) -> None:
    said, found = smoke("conversations", tmp_path)
    assert "tokens processed in a chat" in said
    for ways in found["cases"].values():
        assert all(0 < case["processed"] <= case["prompts"] for case in ways.values())


@pytest.mark.long
@pytest.mark.usefixtures("release_7")
def test_what_speculation_brings(tmp_path: Path) -> None:
    said, found = smoke("speculation", tmp_path)
    assert "tokens of a batch" in said
    assert "ngram-mod, 8" in said
    for rounds, cases in (("rounds", 13), ("repeating", 7)):
        (done,) = found[rounds]
        assert len(done) == cases
        assert all(rate["generation"] > 0 for case, rate in done.items() if case != "batch")


@pytest.mark.long
def test_what_bad_clients_do_to_the_others(tmp_path: Path) -> None:
    said, found = smoke("bad_clients", tmp_path)
    assert "times as before" in said
    assert all(case["p95_ms"] > 0 for case in found["cases"].values())


@pytest.mark.long
def test_what_many_groups_cost(tmp_path: Path) -> None:
    said, found = smoke("many_groups", tmp_path)
    assert "groups" in said
    assert found["times"] > 0


@pytest.mark.long
@pytest.mark.usefixtures("release_7")
def test_what_a_tunnel_costs(tmp_path: Path) -> None:
    said, found = smoke("tunnel", tmp_path)
    assert found["kind"] in said
    (done,) = found["rounds"]
    assert len(done) == 4
    assert all(case["round trip, ms"] > 0 and case["generation, tokens/s"] > 0 for case in done.values())
    assert done["tunnel"]["round trip, ms"] > done["no tunnel"]["round trip, ms"]


@pytest.mark.long
@pytest.mark.usefixtures("release_7")
def test_what_distance_costs(tmp_path: Path) -> None:
    said, found = smoke("distance", tmp_path)
    assert "each behind a relay that delays" in said
    (done,) = found["rounds"]
    # For a token, each of two workers gets at least one request.
    assert all(done[f"{mode}, 50 ms"]["a token, ms"] > 50 for mode in ("layer", "tensor"))
