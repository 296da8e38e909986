# SPDX-License-Identifier: GPL-3.0-or-later
"""The layers that a result gives each worker are those that llama.cpp assigns to it, for models of any architecture."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._status.report import render_report

from support.harness import Release, Worker, log_of, over, run_module
from support.synthetic_models import write_synthetic

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.llama


MODELS = ("trained", "recurrent", "hybrid, every fourth")
# The number of workers, their shares (or none, which leaves the division to llama.cpp), and the layers to offload.
DIVISIONS: tuple[tuple[int, list[float], int], ...] = ((2, [], 999), (3, [3, 2, 1.1], 999), (2, [1, 2], 5))


@pytest.fixture(params=MODELS)
def any_model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "trained":
        return request.getfixturevalue("trained_model")
    return write_synthetic(tmp_path / "model.gguf", request.param)


def assigned(release: Release, model: Path, workers: list[Worker], shares: list[float], offloaded: int) -> list[int]:
    """Return how many layers llama.cpp's debug output says that it assigns to each worker and, last, to the master."""
    options = [*over([worker.port for worker in workers]), "-ngl", str(offloaded), "-lv", "5"]
    split = options.index("-ts")
    options[split : split + 2] = ["-ts", ",".join(f"{share:g}" for share in shares)] if shares else []
    log = log_of(release, model, *options)
    found = Counter(dict(re.findall(r"layer +(\d+) assigned to device (\w+)", log)).values())
    assert found.keys() <= {"CPU", *(f"RPC{index}" for index in range(len(workers)))}
    return [*(found[f"RPC{index}"] for index in range(len(workers))), found["CPU"]]


def test_layers_are_those_that_llama_cpp_assigns(release: Release, any_model: Path, workers: list[Worker]) -> None:
    for many, shares, offloaded in DIVISIONS:
        used = workers[:many]
        given: dict[str, Any] = {"bin_folder": str(release.bin), "model": str(any_model), "prompt": "the river"}
        result = run_module(
            "distributed_inference",
            {
                **given,
                "workers": [worker.endpoint for worker in used],
                "tensor_split": shares,
                "n_gpu_layers": offloaded,
                "n_predict": 2,
            },
        )
        assert result["failure"] is None, result["msg"]
        layers = {device["endpoint"]: device["layers"] for device in result["devices"]}
        wanted = assigned(release, any_model, used, shares, offloaded)
        assert [layers[worker.endpoint] for worker in used] + [layers[None]] == wanted
        report = render_report(result).splitlines()
        for worker in used:
            (row,) = (line for line in report if worker.endpoint in line)
            assert row.split()[-1] == str(layers[worker.endpoint])
