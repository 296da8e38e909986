# SPDX-License-Identifier: GPL-3.0-or-later
"""split_plan_info's figures for llama-server, compared with the buffers that it allocates: slots, drafts, adapters."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import read_header, read_model
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.model import describe
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.inputs import Cluster, Load
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.inputs import Worker as Planned
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.result import plan

from random_model import vocabulary
from support import synthetic_models
from support.harness import Release, Worker, running_worker
from support.server_buffers import adapter, allocated, server_log
from support.synthetic_models import LAYERS, write_synthetic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.llama

MIB = 1 << 20
GIB = 1 << 30
DRAFT = re.compile("loading draft model|creating MTP draft context")


@pytest.fixture(scope="module")
def workers(release_7: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    folder = tmp_path_factory.mktemp("workers")
    with ExitStack() as stack:
        yield [stack.enter_context(running_worker(release_7, folder / f"{index}.log")) for index in range(2)]


CASES: dict[str, tuple[str, Load, list[str]]] = {
    "slots": ("dense", Load(4096, parallel=4), []),
    "slots that share a cache": ("dense", Load(4096, parallel=4, kv_unified=True), ["-kvu"]),
    "slots of no round size": ("tied embeddings", Load(2100, ubatch_size=200, parallel=3), []),
    "slots without flash attention": ("grouped queries", Load(2048, parallel=2, flash_attn="off"), []),
    "windows": ("window, five of six", Load(6144, parallel=4), []),
    "windows that share a cache": ("window, five of six", Load(6144, parallel=4, kv_unified=True), ["-kvu"]),
    "states": ("recurrent", Load(2048, parallel=4), []),
    "states and a cache": ("hybrid, every fourth", Load(2048, parallel=4), []),
    "n-grams": ("dense", Load(2048, parallel=2, outputs_per_slot=49), ["--spec-type", "ngram-simple"]),
    "embeddings": ("dense", Load(2048, parallel=2, outputs_per_slot=65536), ["--embeddings", "--pooling", "mean"]),
    "a draft model": ("dense", Load(4096, parallel=4, outputs_per_slot=5), ["--spec-draft-n-max", "4"]),
    "a draft model with tied embeddings": ("tied embeddings", Load(2048, parallel=2, outputs_per_slot=4), []),
    "a draft of many tokens": (
        "dense",
        Load(2048, parallel=2, outputs_per_slot=17),
        ["--spec-draft-n-max", "16"],
    ),
    "many tokens to choose from": ("dense", Load(2048, parallel=2), []),
    "an adapter": ("dense", Load(2048, parallel=2), []),
    "layers that predict": (
        "a layer that predicts",
        Load(8192, parallel=4, outputs_per_slot=4, spec_type="draft-mtp"),
        ["--spec-draft-n-max", "3"],
    ),
    "layers that predict, of a file": (
        "window, other heads",
        Load(4096, parallel=2, outputs_per_slot=4, spec_type="draft-mtp"),
        [],
    ),
    # As was reported: two workers with 1.9 and 1.6 GiB of cache and states.
    "layers that predict, of a large model": (
        "layers and states of a 27B",
        Load(16384, parallel=4, outputs_per_slot=4, spec_type="draft-mtp"),
        [],
    ),
}
LAYERS_OF = {"a layer that predicts": 5, "layers and states of a 27B": 65}


def far(mine: int, theirs: float, allowed: float) -> bool:
    """Return whether bytes differ from llama.cpp's MiB, which have two decimal places for each buffer."""
    return abs(mine / MIB - theirs) > theirs * allowed + 0.02


def later_logits(path: Path, load: Load) -> int:
    """Return how many bytes the output buffer grows by with the first request for as much output as possible."""
    vocabulary = describe(read_model(path)).shape.vocabulary or 0
    outputs = min(load.ubatch_size, load.parallel * load.outputs_per_slot)
    return 4 * vocabulary * (outputs - load.parallel)


def compared(case: str, result: dict[str, Any], real: dict[str, dict[str, float]], later: int) -> list[str]:
    """Return the lines that do not match the plan; print a line for each worker and the master."""
    wrong = []
    for mine in [*result["workers"], {**result["master"], "endpoint": "CPU"}]:
        theirs = real[mine["endpoint"]]
        weights, kv, compute = (
            sum(theirs.get(kind, 0.0) for kind in kinds)
            for kinds in (("model", "LoRA"), ("KV", "RS"), ("compute", "output"))
        )
        of_compute = mine["compute_bytes"] - (later if mine["endpoint"] == "CPU" else 0)
        line = (
            f"{case}: {mine['endpoint']}: weights {mine['weights_bytes'] / MIB:.2f} as {weights:.2f}, cache "
            f"{mine['kv_bytes'] / MIB:.2f} as {kv:.2f}, compute {of_compute / MIB:.2f} as {compute:.2f} MiB"
        )
        print(line)
        if far(mine["weights_bytes"], weights, 0.02) or far(mine["kv_bytes"], kv, 0.02):
            wrong.append(line)
        if result["compute_known"] and far(of_compute, compute, 0.1):
            wrong.append(line)
        if of_compute / MIB < compute * 0.9 - 0.02:
            wrong.append(f"{line}; less than it takes")
    return wrong


def together(*parts: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return what contexts of one program allocate."""
    found: dict[str, dict[str, float]] = {}
    for part in parts:
        for device, kinds in part.items():
            for kind, size in kinds.items():
                found.setdefault(device, {})[kind] = found.get(device, {}).get(kind, 0.0) + size
    return found


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.long if "large" in name else ()) for name in CASES]
)
def test_llama_server_allocates_what_was_planned(
    release_7: Release, workers: list[Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    kind, load, options = CASES[case]
    if "many tokens" in case:
        tokens, scores, types = vocabulary()
        more = 16000 - len(tokens)
        large = (tokens + [b"word %d" % index for index in range(more)], scores + [0.0] * more, types + [1] * more)
        monkeypatch.setattr(synthetic_models, "vocabulary", lambda: large)
    path = write_synthetic(tmp_path / "m.gguf", kind, layers=LAYERS_OF.get(kind, LAYERS))
    given: dict[str, Any] = {}
    after: list[str] = []
    if "predict" in case:
        options = [*options, "--spec-type", "draft-mtp"]
    if "of a file" in case:
        file = write_synthetic(tmp_path / "d.gguf", "layers that predict for other heads", layers=2)
        given["draft"] = read_model(file)
        # The name of a device is known after --rpc.
        after = ["-md", str(file), "--spec-draft-device", "RPC1"]
    if "draft" in case:
        given["draft"] = read_model(path)
        options = [*options, "--spec-type", "draft-simple", "-md", str(path), "--spec-draft-device", "none"]
    if "adapter" in case:
        options = [*options, "--lora", str(adapter(tmp_path / "lora.gguf"))]
        given["adapters"] = [read_header(tmp_path / "lora.gguf")]
    cluster = Cluster(tuple(Planned(it.endpoint, GIB) for it in workers))
    result = plan(read_model(path), load, cluster, **given)
    split = ",".join(f"{share:g}" for share in result["tensor_split"])
    options += ["--rpc", ",".join(it.endpoint for it in workers), "-ts", split, "-ngl", "999", "--parallel"]
    options += [str(load.parallel), "-c", str(load.ctx_size), "-ub", str(load.ubatch_size), "-fa", load.flash_attn]
    log = server_log(release_7, path, tmp_path / "server.log", *options, *after)
    own, *more = (allocated(part) for part in DRAFT.split(log))
    assert len(more) == ("draft" in case or "predict" in case)
    real = together(own, *more) if "predict" in case else own
    wrong = compared(case, result, real, later_logits(path, load))
    if "predict" in case:
        assert real["CPU"]["model"] < 2, "the rest is on workers"
    if "draft" in case:
        (draft,) = more
        assert list(draft) == ["CPU"], "a draft model is the master's alone"
        line = f"{case}: {result['master']['other_bytes'] / MIB:.2f} as {sum(draft['CPU'].values()):.2f} MiB"
        print(line)
        if far(result["master"]["other_bytes"], sum(draft["CPU"].values()), 0.1):
            wrong.append(line)
    assert wrong == []
