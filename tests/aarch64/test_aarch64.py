# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of a cluster of aarch64 hosts and a worker of another architecture: the promises to its users.

The short form, part of `make test`, has Arm hosts of one CPU class. The long form adds a host of a second class.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aarch64 import hosts
from aarch64.hosts import (
    ARM,
    EIGHT_BITS,
    EIGHT_BITS_AGAIN,
    FLOATS,
    MASTER,
    OTHER,
    STRANGER,
    WORKERS,
    endpoint,
)
from support.logits import SUMS, Logits, compare, first_choices
from support.quantised_models import Type, write_quantised

PROMPT = "Once upon a time"
TOKENS = 12
ELF_AARCH64 = 183
# CPU features by host. arm-worker has its features in addition to those of arm-master.
FEATURES = {"arm-master": {"asimddp", "asimdhp"}, "arm-worker": {"i8mm", "sve", "sve2", "bf16"}}
# llama.cpp's names of the features that a program was compiled for (ggml/src/ggml-cpu/ggml-cpu.c, ggml_cpu_has_...).
USED = {MASTER: {"NEON", "DOTPROD", "FP16_VA"}, "arm-worker": {"NEON", "DOTPROD", "FP16_VA", "MATMUL_INT8", "SVE"}}
# Features that only programs of the second class may be compiled for.
ONLY_SECOND = {"MATMUL_INT8", "SVE"}
# Types for which both classes have kernels, and the interleaved layouts of their weights.
# tests/performance/test_aarch64.py covers other lengths of vectors and other treatment of weights.
QUANTISED = (Type.Q4_0, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.Q8_0, Type.IQ4_NL, Type.MXFP4)
INTERLEAVED = {
    "arm-master": {"q4_0_4x4", "q4_K_8x4", "q5_K_8x4", "q6_K_8x4", "q8_0_4x4", "iq4_nl_4x4", "mxfp4_4x4"},
    "arm-worker": {"q4_0_4x8", "q4_K_8x8", "q5_K_8x8", "q6_K_8x8", "q8_0_4x8", "iq4_nl_4x4", "mxfp4_4x4"},
}
# The hosts of USED that are in this scenario.
THERE = [host for host in USED if host in ARM]
# An x86-64 processor differs from itself if its attention adds in another order. The limit is that difference times
# this, as samples vary.
ALLOWANCE = 1.3
# Limit for an emulated host to start again, and then for its worker to serve again by itself.
BACK_LIMIT_S = 240

by_emulation_only = pytest.mark.skipif(
    hosts.NATIVE,
    reason="this machine is aarch64: its hosts are of one class, and there is none of another architecture",
)

# The reference is a worker of this machine's architecture.
KIND = platform.machine()
# The workers that compute, in the order in which the master gets them.
MIXED = pytest.param((OTHER, "arm-master"), id=f"mixed-{KIND}-aarch64")
ALONE = [pytest.param((worker,), id=name) for worker, name in zip(ARM, ("neoverse-n1", "i8mm-sve2"), strict=False)]
BOTH = [pytest.param(ARM, id="both")] if hosts.TWO_CLASSES else []
Show = Callable[[str], None]
Seen = dict[str, dict[str, Any]]


def named(workers: tuple[str, ...]) -> str:
    return " + ".join(workers)


# --- The hosts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ARM)
def test_a_host_is_an_aarch64_system(host: str, seen: Seen, show: Show) -> None:
    found = seen[host]
    show(f"{host}: {found['uname']}; {found['system']}; {found['processors']} processors; on {found['virtualization']}")
    show(f"{host}: Features: {' '.join(found['features'])}")
    assert found["machine"] == "aarch64"
    assert found["init"].endswith("/systemd")
    assert FEATURES["arm-master"] <= set(found["features"])
    if not hosts.NATIVE:
        assert found["virtualization"] == "qemu"
        assert (FEATURES["arm-worker"] <= set(found["features"])) is (host == "arm-worker")


@pytest.mark.parametrize("host", ARM)
def test_its_programs_are_of_its_architecture(host: str, seen: Seen) -> None:
    assert set(seen[host]["programs"].values()) == {ELF_AARCH64}
    assert seen[host]["running_elf"] == ELF_AARCH64
    assert re.fullmatch(r".*/(ggml-)?rpc-server", seen[host]["running"])


@by_emulation_only
def test_a_release_is_made_for_its_class_and_elsewhere(seen: Seen, show: Show) -> None:
    classes = {host: found["manifest"]["cpu_class"] for host, found in seen.items()}
    for host, cpu_class in classes.items():
        show(f"{host}: release {seen[host]['manifest']['id']}: {cpu_class['name']}")
    first = classes[MASTER]
    assert first["name"] != classes[OTHER]["name"]
    assert FEATURES["arm-worker"].isdisjoint(first["features"])
    if hosts.TWO_CLASSES:
        second = classes["arm-worker"]
        assert second["name"] != first["name"]
        assert FEATURES["arm-worker"] <= set(second["features"])
    assert classes[OTHER]["machine"] == "x86_64"
    # Without a compiler on any host, the programs were compiled elsewhere.
    assert [found["compilers"] for found in seen.values()] == [[]] * len(seen)
    assert len({found["manifest"]["source"]["commit"] for found in seen.values()}) == 1


@pytest.mark.parametrize("host", THERE)
def test_llama_cpp_uses_what_the_processor_has(host: str, models: None, show: Show) -> None:  # noqa: ARG001
    _text, log = hosts.text(host, EIGHT_BITS, PROMPT, tokens=1)
    line = next(line for line in log.splitlines() if "system_info:" in line)
    show(f"{host}: {line[line.index('system_info:') :]}")
    used = {name for name, value in re.findall(r"(\w+) = (\d+)", line) if value != "0"}
    assert USED[host] <= used
    if not hosts.NATIVE:
        assert not (ONLY_SECOND - USED[host]) & used


# --- Results of inference ---------------------------------------------------------------------------------------------


# The workers compute all layers. The master looks up the tokens' embeddings and picks the largest logit.
@pytest.fixture(scope="session")
def reference(models: None) -> str:  # noqa: ARG001
    """Return the greedy text of the worker on this machine's architecture, with weights in floats."""
    return hosts.text(MASTER, FLOATS, PROMPT, (OTHER,), TOKENS)[0]


@pytest.fixture(scope="session")
def exact(reference: str) -> Logits:
    return hosts.logits(MASTER, FLOATS, PROMPT + reference, (OTHER,))


@pytest.fixture(scope="session")
def usual(reference: str) -> tuple[Logits, float]:
    """Return the logits of the same text with eight-bit weights, and the limit for their differences by rounding."""
    found, again = (
        hosts.logits(MASTER, model, PROMPT + reference, (OTHER,)) for model in (EIGHT_BITS, EIGHT_BITS_AGAIN)
    )
    return found, ALLOWANCE * compare(found, again, 1.0).typical


def test_the_text_is_what_the_logits_prefer(reference: str, exact: Logits) -> None:
    chosen, preferred = first_choices(exact, TOKENS)
    assert chosen == preferred
    assert len(reference.split()) == TOKENS


@pytest.mark.parametrize("workers", [*ALONE, MIXED])
def test_sums_in_floats_agree(workers: tuple[str, ...], reference: str, exact: Logits, show: Show) -> None:
    found = compare(exact, hosts.logits(MASTER, FLOATS, PROMPT + reference, workers), SUMS)
    show(f"weights in floats, {KIND} alone | {named(workers)}:\n  " + str(found).replace("\n", "\n  "))
    assert found.is_rounding


@pytest.mark.parametrize("workers", [*BOTH, MIXED])
def test_weights_of_eight_bits_differ_by_rounding(
    workers: tuple[str, ...], reference: str, usual: tuple[Logits, float], show: Show
) -> None:
    first, limit = usual
    found = compare(first, hosts.logits(MASTER, EIGHT_BITS, PROMPT + reference, workers), limit)
    show(f"weights of 8 bits, {KIND} alone | {named(workers)}:\n  " + str(found).replace("\n", "\n  "))
    assert found.is_rounding


@pytest.mark.parametrize("workers", [*BOTH, MIXED])
def test_the_greedy_text_is_that_of_one_worker(workers: tuple[str, ...], reference: str, show: Show) -> None:
    found, log = hosts.text(MASTER, FLOATS, PROMPT, workers, TOKENS)
    show(f"greedy text, {KIND} alone: {reference}\n  {named(workers)}: {found}")
    assert found == reference
    for worker in workers:
        held = re.search(rf"\[{re.escape(endpoint(worker))}\] model buffer size = +([\d.]+) MiB", log)
        assert held, f"{worker} has worked\n{log}"
        assert float(held[1]) > 1


def test_the_run_of_the_playbook_used_all_workers(show: Show) -> None:
    report = json.loads((hosts.LAB / "report.json").read_text())
    for device in report["inference"]["devices"]:
        place = device["endpoint"] or MASTER
        show(
            f"site.yml: {place}: model {device['model_buffer_mib']} MiB, of it repacked {device['repacked_mib']} MiB, "
            f"KV {device['kv_buffer_mib']} MiB"
        )
    show(f"site.yml: {report['prompt']}{report['inference']['text']}")
    assert report["inference"]["failure"] is None
    assert report["inference"]["text"].strip()
    held = {device["endpoint"]: device for device in report["inference"]["devices"] if device["endpoint"]}
    assert set(held) == {endpoint(worker) for worker in WORKERS}
    assert min(device["model_buffer_mib"] for device in held.values()) > 0.1
    # Weights of 8 bits: both Arm classes have kernels for them (dotprod, i8mm), and x86-64 has none.
    for worker in WORKERS:
        assert (held[endpoint(worker)]["repacked_mib"] > 0) is worker.startswith("arm-"), worker
    assert {worker["state"] for worker in report["workers"]} == {"ready"}


# --- Repacked weights -------------------------------------------------------------------------------------------------


@by_emulation_only
@pytest.mark.parametrize("worker", ARM)
def test_a_worker_says_how_it_interleaves_weights(worker: str, show: Show) -> None:
    log = hosts.said(worker, "journalctl", "--boot", f"--unit={hosts.UNIT}", "--output=cat")
    line = next(line.strip() for line in reversed(log.splitlines()) if line.strip().startswith("repack "))
    show(f"{worker}: {line}")
    types = "|".join(kind.name for kind in QUANTISED)
    assert set(re.findall(rf"\b(?i:{types})_\w+", line)) == INTERLEAVED[worker]


@pytest.mark.parametrize("experts", [0, 4], ids=["dense", "experts"])
def test_repacked_weights_compute_what_local_inference_does(
    experts: int, reference: str, tmp_path: Path, show: Show
) -> None:
    """Check that each class computes what its own host does by itself, and reports the weights that it has repacked."""
    model = hosts.Model("/srv/quantised.gguf")
    path, _tokens = write_quantised(tmp_path / "model", QUANTISED, layers=len(QUANTISED), experts=experts)
    for host in ARM:
        hosts.send(host, path.read_bytes(), model.path)
    for worker in ARM:
        here = hosts.logits(worker, model, PROMPT + reference)
        found = compare(here, hosts.logits(MASTER, model, PROMPT + reference, (worker,)), SUMS)
        show(
            f"quantised weights, {'experts' if experts else 'dense'}, {worker} by itself | as a worker:\n  "
            + str(found).replace("\n", "\n  ")
        )
        assert found.is_rounding
        # verify.yml and the report of a run read this file.
        repacked = json.loads(hosts.said(worker, "cat", f"/var/lib/llama_cpp/status-{hosts.PORT}.json"))["repack"]
        show(f"  of which {worker} has repacked {repacked['weights']} of {repacked['of_weights']} weights")
        # Seven weights of each layer are repacked. The vocabulary's weight has no whole groups of rows, and the weights
        # that choose experts are floats.
        assert repacked["weights"] == 7 * len(QUANTISED)
        assert repacked["of_weights"] == 7 * len(QUANTISED) + 1 + (len(QUANTISED) if experts else 0)


# --- Access to the workers --------------------------------------------------------------------------------------------


def test_workers_are_open_to_the_master_and_to_no_stranger() -> None:
    assert hosts.reached(MASTER, *WORKERS) == ["connected"] * len(WORKERS)
    assert hosts.reached(STRANGER, *WORKERS, port=22) == ["connected"] * len(WORKERS), "the way there is open"
    assert "connected" not in hosts.reached(STRANGER, *WORKERS)


# --- Reboot -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_worker_survives_the_reboot_of_its_host(seen: Seen, reference: str, show: Show) -> None:
    host = ARM[-1]
    began = time.monotonic()
    hosts.ssh(host, "systemctl", "--no-block", "reboot", check=False)
    hosts.hang_up(host)

    def is_back() -> bool:
        try:
            done = hosts.ssh(host, "cat", "/proc/sys/kernel/random/boot_id", check=False, timeout=30)
        except subprocess.TimeoutExpired:
            hosts.hang_up(host)  # this connection is from the moment in which the host went down
            return False
        return done.returncode == 0 and done.stdout.decode().strip() != seen[host]["boot"]

    hosts.eventually(is_back, BACK_LIMIT_S, f"{host} has started again")
    hosts.eventually(lambda: hosts.answers(MASTER, host), BACK_LIMIT_S, f"{host} serves again")
    show(f"{host}: served again {time.monotonic() - began:.0f} s after its reboot was asked for")
    assert hosts.text(MASTER, FLOATS, PROMPT, ARM, TOKENS)[0] == reference
    assert "connected" not in hosts.reached(STRANGER, host)
