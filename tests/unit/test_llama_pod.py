# SPDX-License-Identifier: GPL-3.0-or-later
"""The start of a pod, from its environment, its settings and the reports of its workers."""

from __future__ import annotations

import importlib
import json
import re
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from support.synthetic_models import write_synthetic
from support.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture(scope="module")
def pod() -> ModuleType:
    """Return the program, with its parts as in the image."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in "plugins/module_utils", "plugins", "roles/llama_server/files", "roles/kubernetes/files":
            patch.syspath_prepend(ROOT / folder)
        return importlib.import_module("llama_pod")


def environment(address: str = "llama-1.llama.prod", size: str = "3") -> dict[str, str]:
    return {"LWS_LEADER_ADDRESS": address, "LWS_GROUP_SIZE": size, "POD_IP": "10.1.2.3"}


def settings(
    model: Path, worker_mib: int = 200, leader_mib: int = 400, program: str = "/none/bin/llama-server", **plan: Any
) -> dict[str, Any]:
    """Return the settings that role kubernetes writes, as far as a plan needs them. There is no release to ask."""
    return {
        "service": {"model": str(model), "program": program},
        "worker_memory_bytes": (worker_mib + 256) * MIB,
        "leader_memory_bytes": (leader_mib + 256) * MIB,
        "plan": {
            "options": ["--parallel", "1", "--ctx-size", "512", "--n-gpu-layers", "999", *plan.pop("options", [])],
            "master_other_bytes": 0,
            "tensor_split": [],
            **plan,
        },
    }


def workers(pod: ModuleType, *free_mib: int, devices: int = 1) -> list[Any]:
    """Return workers that are ready and report this free memory for each device."""
    return [
        pod.service.WorkerStatus(
            endpoint=f"llama-0-{number}.llama.prod:50052",
            host=f"llama-0-{number}.llama.prod",
            port=50052,
            state="ready",
            devices=[
                {"index": index, "memory_free_bytes": free * MIB, "memory_total_bytes": free * MIB}
                for index in range(devices)
            ],
        )
        for number, free in enumerate(free_mib, 1)
    ]


def test_a_worker_with_a_full_queue_is_still_held(pod: ModuleType) -> None:
    (worker,) = workers(pod, 1)
    held: dict[str, str] = {}
    told = []
    silent = ("unreachable", "No answer.")
    for worker.state, worker.message in (
        silent,
        ("busy", "A client holds it."),
        silent,
        ("refused", "Start it."),
        silent,
    ):
        held = pod.service.still_held([worker], held)
        told.append(held.get(worker.endpoint, worker.message))
    assert told == ["No answer.", "A client holds it.", "A client holds it.", "Start it.", "No answer."]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_synthetic(tmp_path / "m.gguf", "window, five of six")


def test_workers_are_named_after_their_leader(pod: ModuleType) -> None:
    assert pod.worker_endpoints(environment(), 50052) == [
        "llama-1-1.llama.prod:50052",
        "llama-1-2.llama.prod:50052",
    ]
    assert len(pod.worker_endpoints(environment(size="16"), 50052)) == 15


@pytest.mark.parametrize(
    "given",
    [{}, environment(address=""), environment(address="llama-1"), environment(size="1"), environment(size="17")],
)
def test_without_a_group_it_says_what_makes_one(pod: ModuleType, given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="a LeaderWorkerSet with a size from 2 to 16 sets both") as error:
        pod.worker_endpoints(given, 50052)
    assert str(error.value).endswith(".")


def test_the_address_of_the_pod_is_put_in(pod: ModuleType) -> None:
    api = {
        "program": "llama-server",
        "arguments": ["--host", "$(POD_IP)", "--port", "8080"],
        "workers": ["worker1"],
        "model": "/models/m.gguf",
        "alias": "m",
        "address": "$(POD_IP)",
        "port": 8080,
        "keys_file": "keys",
        "stall_timeout_s": 600,
        "metrics_file": None,
        "ready_port": 8081,
    }
    found = pod.leader_settings({"service": api, "worker_port": 50052}, environment())
    assert (found.address, found.arguments[1]) == ("10.1.2.3", "10.1.2.3")
    assert found.workers == ["llama-1-1.llama.prod:50052", "llama-1-2.llama.prod:50052"]


@pytest.mark.parametrize(
    ("plan", "devices", "split"),
    [({}, 1, ["--tensor-split", "3,4"]), ({}, 2, ["--tensor-split", "2,2,1,2"]), ({"tensor_split": [5.0, 2.0]}, 1, [])],
    ids=["equal-parts", "each-device-gets-one", "a-split-by-hand-stays"],
)
def test_the_model_is_divided(
    pod: ModuleType, model: Path, plan: dict[str, Any], devices: int, split: list[str]
) -> None:
    assert pod.divide(settings(model, **plan), workers(pod, 64000, 64000, devices=devices)) == split


@pytest.mark.parametrize(
    ("given", "free_mib", "said"),
    [
        ({}, 1, "^It does not fit by an estimate, llama-0-2.llama.prod:50052 lacks"),
        # They report the memory of their nodes, and have a limit.
        ({"worker_mib": 1}, 64000, "llama-0-1.llama.prod:50052 lacks .* llama-0-2.llama.prod:50052 lacks"),
        ({"master_other_bytes": 500 * MIB}, 64000, "the master lacks .*with llama_server_cache_ram="),
    ],
    ids=["what-a-worker-reports", "its-limit", "what-is-kept-on-the-leader"],
)
def test_what_lacks_memory_is_named(
    pod: ModuleType, model: Path, given: dict[str, Any], free_mib: int, said: str
) -> None:
    fits, sentence, _split = pod.divided(settings(model, **given), workers(pod, 64000, free_mib))
    assert not fits
    assert re.search(said, sentence), sentence


def test_the_release_of_the_image_is_asked(pod: ModuleType, model: Path, tmp_path: Path) -> None:
    program = tmp_path / "libexec/llama-plan"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nread -r _ && echo "{\\"error\\": \\"$*\\"}"\n')
    program.chmod(0o755)
    given = settings(model, program=str(tmp_path / "bin/llama-server"))
    said = f"llama.cpp cannot load it: --seconds 120 --stand-ins 1,2 -m {model}."
    assert pod.divided(given, [*workers(pod, 64000), *workers(pod, 0, 64000, devices=2)[1:]]) == (False, said, [])


def test_the_plan_goes_by_the_options_that_a_user_adds(pod: ModuleType, model: Path) -> None:
    def least_mib(*options: str) -> int:
        """Return the least memory of a worker, in MiB, with which the plan fits."""
        asked = (settings(model, worker_mib=mib, options=["-c", "16384", *options]) for mib in range(100))
        return [pod.divided(it, workers(pod, 64000, 64000))[0] for it in asked].index(True)

    default = least_mib("--split-mode", "layer")
    assert least_mib("--cache-type-k", "q8_0") < default
    # llama.cpp uses the last of several options.
    assert least_mib("--cache-type-k", "q8_0", "-ctk", "f16") == default


def test_it_waits_for_a_model_that_is_not_there_yet(
    pod: ModuleType, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    later = tmp_path / "later.gguf"
    pauses: list[float] = []

    def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 2:
            model.rename(later)

    monkeypatch.setattr(pod.time, "sleep", sleep)
    assert pod.divide(settings(later), workers(pod, 64000, 64000)) == ["--tensor-split", "3,4"]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{later} is not a complete GGUF model: there is no such file."
    assert said[1].startswith("It fits")
    assert len(said) == 2, "the same sentence is said once"


def test_before_it_is_stopped_a_leader_lets_its_requests_end(
    pod: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(pod.os, "execv", lambda _program, command: started.append(command))
    monkeypatch.setenv("POD_IP", "10.1.2.3")
    (tmp_path / "pod.json").write_text(
        json.dumps({"service": {"port": 8080, "keys_file": "/etc/llama_server/8080.keys"}, "drain_timeout_s": 30,
                    "worker_port": 50052})
    )  # fmt: skip
    pod.main(["drain", str(tmp_path / "pod.json")])
    program, *options = started[0][started[0].index("-s") + 1 :]
    assert program.endswith("/llama_server_drain.py")
    # In a pod the leader is the first process.
    assert options == ["1", "10.1.2.3", "8080", "/etc/llama_server/8080.keys", "30"]
