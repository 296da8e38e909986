# SPDX-License-Identifier: GPL-3.0-or-later
"""The split of a model, compared with llama.cpp's rounding and with all possible splits, and its messages.

tests/integration/test_split_plan.py compares the sizes with those of llama.cpp.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import time
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import Header, Tensor
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import SHAPES
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.assignment import assign
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.hints import TYPED
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.inputs import Cluster, Load, SplitError, Worker
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.result import plan
from hypothesis import given, settings
from hypothesis import strategies as st

from support import sizes
from support.templates import loaded
from support.tree import ROOT

GIB, MIB = 1 << 30, 1 << 20
WIDTH, FORWARD, VOCABULARY = 4096, 14336, 128256
Q8_0, F32 = 8, 0


def weight(name: str, *shape: int) -> Tensor:
    elements = int(np.prod(shape))
    if len(shape) == 1:
        return Tensor(name, shape, F32, 0, elements, 4 * elements)
    return Tensor(name, shape, Q8_0, 0, elements, elements // 32 * 34)


def header(layers: int = 32, *, architecture: str = "llama", tied: bool = False, **numbers: Any) -> Header:
    """Return the header of a model like Llama 3.1 8B in Q8_0: 8.5 GB, of which each layer has 0.23 GB."""
    tensors = [weight("token_embd.weight", WIDTH, VOCABULARY), weight("output_norm.weight", WIDTH)]
    if not tied:
        tensors.append(weight("output.weight", WIDTH, VOCABULARY))
    for layer in range(layers):
        shapes = {
            "attn_norm": (WIDTH,), "attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH, 1024), "attn_v": (WIDTH, 1024),
            "attn_output": (WIDTH, WIDTH), "ffn_norm": (WIDTH,), "ffn_gate": (WIDTH, FORWARD),
            "ffn_up": (WIDTH, FORWARD), "ffn_down": (FORWARD, WIDTH),
        }  # fmt: skip
        tensors += [weight(f"blk.{layer}.{name}.weight", *shape) for name, shape in shapes.items()]
    metadata: dict[str, Any] = {
        "block_count": layers,
        "context_length": 131072,
        "embedding_length": WIDTH,
        "feed_forward_length": FORWARD,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        "vocab_size": VOCABULARY,
        **numbers,
    }
    return Header(
        version=3,
        tensor_count=len(tensors),
        end_bytes=0,
        metadata={
            "general.architecture": architecture,
            **{f"{architecture}.{name}": value for name, value in metadata.items() if value is not None},
        },
        arrays={},
        lengths={},
        tensors=tuple(tensors),
    )


def workers(*memory: float, weights: tuple[float, ...] = (), hosts: tuple[str, ...] = ()) -> tuple[Worker, ...]:
    """Return workers with so many GiB."""
    return tuple(
        Worker(
            f"w{index}:50052",
            int(size * GIB),
            weights[index] if weights else None,
            hosts[index] if hosts else None,
        )
        for index, size in enumerate(memory)
    )


def counts(result: dict[str, Any]) -> list[int]:
    return [worker["layers"] for worker in result["workers"]]


SMALL = Load(ctx_size=8192)
SEVENTY = sizes.header(next(shape for shape in SHAPES if shape.name == "70B"))


def upstream(layers: int, n_gpu_layers: int, shares: list[float]) -> list[int | None]:
    """Return the split of layers as in src/llama-model.cpp, with a float type that is independent of ours."""
    splits, total = [], np.float32(0)
    for share in shares:
        total = np.float32(total + np.float32(share))
        splits.append(total)
    points = [np.float32(split / total) for split in splits]
    active = min(n_gpu_layers, layers + 1)
    start = max(layers + 1 - n_gpu_layers, 0)
    devices: list[int | None] = []
    for layer in range(layers + 1):
        at = np.float32(np.float32(layer - start) / np.float32(active))
        devices.append(None if layer < start else int(np.searchsorted(np.array(points), at, side="right")))
    return devices


@given(
    layers=st.integers(1, 200),
    n_gpu_layers=st.integers(1, 250),
    shares=st.lists(st.floats(2**-10, 1000), min_size=1, max_size=15),
)
@settings(deadline=None, max_examples=150)
def test_layers_go_where_upstream_puts_them(layers: int, n_gpu_layers: int, shares: list[float]) -> None:
    mine = assign(layers, n_gpu_layers, shares)
    assert len(mine) == layers + 1
    assert mine == [None if it is None else min(it, len(shares) - 1) for it in upstream(layers, n_gpu_layers, shares)]


@given(
    parts=st.lists(st.integers(1, 60), min_size=1, max_size=15),
    local=st.integers(0, 20),
)
@settings(deadline=None, max_examples=150)
def test_whole_numbers_of_layers_are_given_exactly(parts: list[int], local: int) -> None:
    # One of these layers is the output.
    layers = sum(parts) - 1 + local
    got = assign(layers, sum(parts), [float(part) for part in parts])
    assert got == [None] * local + [index for index, part in enumerate(parts) for _layer in range(part)]


@pytest.mark.parametrize(
    ("memory", "load"),
    [
        ((8, 8), SMALL),
        ((16, 4), SMALL),
        ((4, 16), SMALL),
        ((3, 5, 9), SMALL),
        ((9, 5, 3), Load(ctx_size=32768)),
        ((4, 4, 4, 4), SMALL),
        ((6, 6, 6), Load(ctx_size=8192, n_gpu_layers=9)),
        ((1, 1), SMALL),
    ],
)
def test_the_fullest_worker_is_as_empty_as_can_be(memory: tuple[float, ...], load: Load) -> None:
    """Compares with all possible splits, each of which the planner judges as if it was given."""
    model = [header(12)]
    cluster = Cluster(workers(*memory))
    chosen = plan(model, load, cluster)

    def fullest(result: dict[str, Any]) -> float:
        assert all(it["layers"] >= 1 for it in result["workers"])
        return max(it["total_bytes"] / it["memory_available_bytes"] for it in result["workers"])

    active = min(load.n_gpu_layers, 13)
    every = [
        parts
        for parts in itertools.product(range(1, active + 1), repeat=len(memory))
        if sum(parts) == active and parts[-1] > 1
    ]
    # A plan that does not fit takes long, because it has suggestions.
    roomy = replace(cluster, workers=tuple(replace(it, memory_available_bytes=1 << 50) for it in cluster.workers))
    best = min(
        max(
            it["total_bytes"] / worker.memory_available_bytes
            for it, worker in zip(plan(model, load, replace(roomy, tensor_split=parts))["workers"], cluster.workers)
        )
        for parts in every
    )
    assert fullest(chosen) == pytest.approx(best, rel=1e-4)


def test_a_chosen_split_is_judged_the_same_when_given() -> None:
    model, cluster = [header()], Cluster(workers(9, 5, 3), reserve_bytes=GIB // 4)
    chosen = plan(model, SMALL, cluster)
    given_ = plan(model, SMALL, replace(cluster, tensor_split=tuple(map(float, chosen["tensor_split"]))))
    assert chosen["fits"]
    assert given_ == chosen


def test_the_output_goes_to_the_last_and_counts_there() -> None:
    result = plan([header()], SMALL, Cluster(workers(10, 10)))
    first, last = result["workers"]
    assert (first["has_output"], last["has_output"]) == (False, True)
    assert sum(result["tensor_split"]) == 33
    assert sum(counts(result)) == 32
    # The output has more bytes than two layers, so the last worker has fewer layers.
    assert counts(result)[0] > counts(result)[1]
    assert first["first_layer"] == 0
    assert last["first_layer"] == counts(result)[0]
    output = VOCABULARY * WIDTH // 32 * 34 + 4 * WIDTH
    layer = first["weights_bytes"] // counts(result)[0]
    assert last["weights_bytes"] == pytest.approx(output + layer * counts(result)[1])


def test_tied_embeddings_are_held_twice() -> None:
    result = plan([header(tied=True)], SMALL, Cluster(workers(10, 10)))
    untied = plan([header()], SMALL, Cluster(workers(10, 10)))
    assert result["master"]["weights_bytes"] == VOCABULARY * WIDTH // 32 * 34
    for name in ("workers", "master"):
        assert result[name] == untied[name]


def test_local_layers_are_the_first_and_the_masters() -> None:
    result = plan([header()], replace(SMALL, n_gpu_layers=23), Cluster(workers(10, 10)))
    whole = plan([header()], SMALL, Cluster(workers(10, 10)))
    assert result["master"]["layers"] == 10
    assert result["workers"][0]["first_layer"] == 10
    assert sum(counts(result)) == 22
    of_all = [
        sum(it[name] for it in [*plan_["workers"], plan_["master"]])
        for plan_ in (result, whole)
        for name in ("weights_bytes", "kv_bytes")
    ]
    assert of_all[:2] == of_all[2:]


def test_speed_comes_before_memory_and_memory_is_kept() -> None:
    slow_first = plan([header()], SMALL, Cluster(workers(64, 16, weights=(1, 3))))
    assert slow_first["fits"]
    assert 3 * counts(slow_first)[0] == pytest.approx(counts(slow_first)[1], abs=4)
    # The quick worker gets as much as it has room for, and no more.
    tight = plan([header()], SMALL, Cluster(workers(64, 4, weights=(1, 3))))
    assert tight["fits"]
    assert counts(tight)[1] < counts(slow_first)[1]
    assert 0 <= tight["workers"][1]["headroom_bytes"] < 2 * tight["workers"][0]["weights_bytes"] / counts(tight)[0]


@pytest.mark.parametrize("order", [(1, 3), (3, 1)])
def test_of_equal_weights_each_gets_what_memory_says_nothing_of(order: tuple[int, int]) -> None:
    result = plan([header()], SMALL, Cluster(workers(20.0 * order[0], 20.0 * order[1], weights=(1, 1))))
    assert abs(result["workers"][0]["weights_bytes"] - result["workers"][1]["weights_bytes"]) < GIB // 4


def test_workers_of_a_host_share_its_memory() -> None:
    apart = plan([header()], SMALL, Cluster(workers(6, 6)))
    shared = plan([header()], SMALL, Cluster(workers(12, 12, hosts=("a", "a"))))
    # A worker that is alone on the host has all of the host's memory.
    assert [worker.pop("fits_alone") for worker in apart["workers"] + shared["workers"]] == [False, False, True, True]
    assert apart["workers"] == shared["workers"]
    # The master's share comes from the same memory.
    master = shared["master"]["total_bytes"]
    cluster = Cluster(workers(12, 12, hosts=("a", "a")), master_host="a", master_memory_available_bytes=12 * GIB)
    with_master = plan([header()], SMALL, cluster)
    assert with_master["workers"][0]["memory_available_bytes"] == (12 * GIB - master) // 2
    assert with_master["master"]["reserve_bytes"] == 0


def test_a_limit_of_the_worker_counts_if_it_is_smaller() -> None:
    limited = [replace(worker, memory_max_bytes=5 * GIB) for worker in workers(12, 12, hosts=("a", "a"))]
    limited[1] = replace(limited[1], memory_max_bytes=90 * GIB)
    result = plan([header()], SMALL, Cluster(tuple(limited)))
    assert [worker["memory_available_bytes"] for worker in result["workers"]] == [5 * GIB, 6 * GIB]


@pytest.mark.parametrize(
    ("reserve", "expected"),
    [
        ({}, 0),
        ({"reserve_bytes": GIB}, GIB),
        ({"reserve_percent": 10}, 2 * GIB),
        ({"reserve_bytes": GIB, "reserve_percent": 10}, 2 * GIB),
        ({"reserve_bytes": 3 * GIB, "reserve_percent": 10}, 3 * GIB),
    ],
    ids=str,
)
def test_the_greater_reserve_counts(reserve: dict[str, Any], expected: int) -> None:
    worker = plan([header()], SMALL, Cluster(workers(20), **reserve))["workers"][0]
    assert worker["reserve_bytes"] == expected
    assert worker["headroom_bytes"] == 20 * GIB - expected - worker["total_bytes"]


# Plans that do not fit


def short(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    assert result["fits"] is False
    assert result["message"].startswith("It does not fit, ")
    assert result["message"].count(". ") == 0
    assert result["shortfall"]
    return {it["kind"]: it for it in result["suggestions"]}


def applied(suggestion: dict[str, Any], load: Load, cluster: Cluster) -> tuple[Load, Cluster]:
    """Return the load and the cluster with what a suggestion changes."""
    options = {it.name for it in fields(Load)}
    load = replace(load, **{name: value for name, value in suggestion.items() if name in options})
    more = tuple(
        Worker(f"new{number}:50052", suggestion["memory_available_bytes"])
        for number in range(suggestion.get("workers", 0))
    )
    without = bool(more) or suggestion["kind"] == "tensor_split"
    return load, replace(
        cluster, workers=(*cluster.workers, *more), tensor_split=() if without else cluster.tensor_split
    )


CLUSTERS = {
    "too long a context": (Load(ctx_size=65536), Cluster(workers(6, 6))),
    "too little memory": (SMALL, Cluster(workers(3, 3), reserve_bytes=GIB // 2)),
    "one that lacks a little": (SMALL, Cluster(workers(5, 4))),
    "a split by hand": (SMALL, Cluster(workers(8, 8), tensor_split=(1, 20))),
    "the master": (Load(ctx_size=65536), Cluster(workers(16, 16), master_memory_available_bytes=GIB // 2)),
    "the master, for prompts": (
        Load(ctx_size=8192, parallel=4, master_other_bytes=3 * GIB),
        Cluster(workers(16, 16), master_memory_available_bytes=2 * GIB),
    ),
    "the master and a worker": (
        Load(ctx_size=8192, parallel=4, master_other_bytes=3 * GIB),
        Cluster(workers(5), master_memory_available_bytes=2 * GIB),
    ),
}


@pytest.mark.parametrize(("load", "cluster"), CLUSTERS.values(), ids=CLUSTERS)
def test_what_is_suggested_fits_and_less_does_not(load: Load, cluster: Cluster) -> None:
    model = [header()]
    kinds = short(plan(model, load, cluster))
    assert kinds
    for kind, suggestion in kinds.items():
        if "bits_per_weight" in suggestion:
            assert 2 <= suggestion["bits_per_weight"] < 8.5
            continue
        changed, changed_cluster = applied(suggestion, load, cluster)
        assert plan(model, changed, changed_cluster)["fits"], suggestion
        if kind == "context":
            assert not plan(model, replace(changed, ctx_size=changed.ctx_size + 256), cluster)["fits"]
        if kind == "prompts":
            more = replace(changed, master_other_bytes=changed.master_other_bytes + MIB)
            assert not plan(model, more, cluster)["fits"]
        if kind == "workers" and suggestion["workers"] > 1:
            assert not plan(model, load, replace(changed_cluster, workers=changed_cluster.workers[:-1]))["fits"]


def test_each_kind_is_suggested_where_it_helps() -> None:
    assert set(short(plan([header()], *CLUSTERS["too long a context"]))) == {
        "context", "cache_type", "workers", "quantisation"
    }  # fmt: skip
    assert "tensor_split" in short(plan([header()], *CLUSTERS["a split by hand"]))
    # The weights alone are too large, so no context is short enough.
    assert set(short(plan([header()], *CLUSTERS["too little memory"]))) == {"workers", "quantisation"}
    assert set(short(plan([header()], *CLUSTERS["the master, for prompts"]))) == {"prompts"}
    # The master needs less for prompts, and the worker less for weights.
    both = plan([header()], *CLUSTERS["the master and a worker"])["suggestions"]
    assert [set(it) - {"kind", "message"} for it in both] == [
        {"master_other_bytes", "workers", "memory_available_bytes"},
        {"master_other_bytes", "bits_per_weight"},
    ]
    assert {it["kind"] for it in both} == {"pair"}
    message = plan([header()], *CLUSTERS["the master and a worker"], variables_of="size")["message"]
    assert re.search(
        r": it fits with llama_server_cache_ram=\d+ and with size_hosts=\d; or with llama_server_cache_ram=\d+ and "
        r"with a model of at most \S+ bits per weight instead of 8\.5\.$",
        message,
    )


# The sentence for this cluster was "the master lacks 884.5 MiB, whatever is changed", while llama_server_cache_ram=0
# made the model fit.
@pytest.mark.parametrize("typed", TYPED)
def test_what_is_kept_for_prompts_is_a_hint_as_its_user_types_it(typed: str) -> None:
    load, memory = Load(ctx_size=4 * 4096, parallel=4, master_other_bytes=GIB), int(1057.1 * MIB)
    cluster = Cluster(workers(64, 64), 256 * MIB, 5, master_memory_available_bytes=memory)
    result = plan([SEVENTY], load, cluster, variables_of=typed)
    [hint] = result["suggestions"]
    word = {
        "module": f"master_other_bytes={hint['master_other_bytes']}",
        "inference": f"master_other_bytes={hint['master_other_bytes']}",
    }.get(typed, f"llama_server_cache_ram={hint['master_other_bytes'] // MIB}")
    assert result["message"] == f"It does not fit, the master lacks 884.5 MiB: it fits with {word}."
    assert plan([SEVENTY], replace(load, master_other_bytes=0), cluster)["fits"]


@pytest.mark.parametrize("typed", [it for it in TYPED if it != "module"])
def test_hints_name_variables_that_there_are(typed: str) -> None:
    named = set(re.findall(r"\b(\w+)=", " ".join(TYPED[typed].values()))) | {"inference_extra_args"}
    known = {name for path in (ROOT / "roles").glob("*/defaults/main.yml") for name in loaded(path)}
    known |= loaded(ROOT / "playbooks/size.yml")[0]["vars"].keys()
    # Role inference has neither slots nor prompts.
    assert named - known <= {"master_other_bytes", "parallel", "ctx_size"}
    assert typed == "inference" or named <= known


def test_hints_say_what_is_typed() -> None:
    load, cluster = CLUSTERS["too long a context"]
    load = replace(load, parallel=4)
    said = {typed: plan([header()], load, cluster, variables_of=typed)["message"] for typed in TYPED}
    found = short(plan([header()], load, cluster))
    context, slots, more = found["context"]["ctx_size"], found["parallel"]["parallel"], found["workers"]["workers"]
    assert f"with llama_server_ctx_size={context // 4}, with llama_server_parallel={slots}" in said["llama_server"]
    assert f"with kubernetes_size={2 + more + 1}" in said["kubernetes"]
    assert f"with size_ctx_size={context // 4}, with size_parallel={slots}" in said["size"]
    assert f"with size_cache_type=q4_0, with size_hosts={2 + more} or with a model of at most" in said["size"]
    assert "with --cache-type-k q4_0 --cache-type-v q4_0 in inference_extra_args" in said["inference"]
    by_hand = plan([header()], *CLUSTERS["a split by hand"], variables_of="inference")["message"]
    assert "with inference_tensor_split=[]" in by_hand


def test_the_shortfall_is_named_by_host() -> None:
    result = plan([header()], SMALL, Cluster(workers(8, 2), tensor_split=(1, 1), master_memory_available_bytes=GIB))
    assert [it["host"] for it in result["shortfall"]] == ["w1:50052"]
    assert result["shortfall"][0]["bytes"] == -result["workers"][1]["headroom_bytes"]
    assert "w1:50052 lacks " in result["message"]
    nothing = plan([header()], SMALL, Cluster(workers(0, 0), master_memory_available_bytes=0))
    assert [it["host"] for it in nothing["shortfall"]] == ["the master", "w0:50052", "w1:50052"]
    assert nothing["suggestions"] == []
    assert nothing["message"].endswith(
        "; these changes were tried, alone and in pairs, and none is enough: a shorter context, a smaller cache type, "
        "more workers and a smaller quantisation."
    )


def test_a_worker_without_a_layer_is_named() -> None:
    result = plan([header()], SMALL, Cluster(workers(20, 20, 20), tensor_split=(1, 0, 1)))
    assert result["fits"] is False
    assert counts(result)[1] == 0
    assert result["message"] == (
        "The tensor_split leaves worker w1:50052 without a layer: it fits with tensor_split=[]."
    )
    assert [it["kind"] for it in result["suggestions"]] == ["tensor_split"]
    # Without it, the model does not fit either.
    small = plan([header()], SMALL, Cluster(workers(2, 2, 2), tensor_split=(1, 0, 1)))
    assert "tensor_split" not in {it["kind"] for it in small["suggestions"]}
    assert "tensor_split=[]" not in small["message"]


@pytest.mark.parametrize(
    ("layers", "n_gpu_layers", "said"), [(2, 999, "the model has 2"), (32, 3, "n_gpu_layers (3) leaves them 2")]
)
def test_more_workers_than_layers(layers: int, n_gpu_layers: int, said: str) -> None:
    load = replace(SMALL, n_gpu_layers=n_gpu_layers)
    result = plan([header(layers)], load, Cluster(workers(9, 9, 9)))
    assert (result["fits"], result["tensor_split"], result["workers"]) == (False, [], [])
    begin = f"There are more workers (3) than layers ({said})"
    assert result["message"] == f"{begin}: it fits with the first 2 of these workers alone."
    little = plan([header(layers)], load, Cluster(workers(0.1, 0.1, 9)), variables_of="size")["message"]
    assert little == f"{begin}, and it does not fit on the first 2 either."
    assert plan([header(layers)], load, Cluster(workers(9, 9, 9)), variables_of="size")["message"] == (
        f"{begin}: it fits with size_hosts=2."
    )
    assert plan([header(layers)], load, Cluster(workers(99, 99)))["fits"]


def test_the_output_alone_goes_to_one_worker() -> None:
    load = replace(SMALL, n_gpu_layers=1)
    result = plan([header()], load, Cluster(workers(9), master_memory_available_bytes=20 * GIB))
    assert (result["fits"], result["tensor_split"], result["master"]["layers"]) == (True, [1], 32)
    worker = result["workers"][0]
    assert (worker["layers"], worker["first_layer"], worker["has_output"]) == (0, None, True)
    assert (worker["weights_bytes"], worker["kv_bytes"]) == (VOCABULARY * WIDTH // 32 * 34 + 4 * WIDTH, 0)
    assert plan([header()], load, Cluster(workers(0.1)))["shortfall"]
    assert plan([header()], load, Cluster(workers(9, 9)))["message"] == (
        "There are 2 workers, and n_gpu_layers (1) leaves them only the output: it fits with the first 1 of these "
        "workers alone or with n_gpu_layers=3."
    )
    assert plan([header()], replace(load, n_gpu_layers=3), Cluster(workers(9, 9)))["fits"]
    assert plan([header(1)], load, Cluster(workers(9, 9)))["message"].endswith(
        " leaves them only the output: it fits with the first 1 of these workers alone."
    )


# One host is enough


@pytest.mark.parametrize(
    ("cluster", "endpoint"),
    [
        (Cluster(workers(6, 20)), "w1:50052"),
        (Cluster(workers(8, 8)), None),
        (Cluster(workers(20)), None),
        (Cluster(workers(8, 8), master_memory_available_bytes=20 * GIB), "the master"),
        (Cluster(workers(8, 8), master_memory_available_bytes=4 * GIB), None),
        (Cluster(workers(14, 14, hosts=("a", "a")), reserve_bytes=3 * GIB), "w0:50052"),
    ],
    ids=["a worker", "none", "there is but one", "the master", "neither", "what two workers of a host share"],
)
def test_it_is_said_if_one_host_would_do(cluster: Cluster, endpoint: str | None) -> None:
    result = plan([header()], SMALL, cluster)
    assert result["fits"], result["message"]
    if endpoint is None:
        assert result["fits_on_one"] is None
    else:
        assert result["fits_on_one"]["endpoint"] == endpoint
        assert f"It would fit on {endpoint} alone. " in result["message"]
        assert "does not make generation faster" in result["message"]


def test_it_is_said_of_each_worker_whether_it_would_do_alone() -> None:
    for cluster, alone in (
        (Cluster(workers(6, 20, 18)), [False, True, True]),
        (Cluster(workers(14, 14, hosts=("a", "a")), reserve_bytes=3 * GIB), [True, True]),
        (Cluster(workers(20)), [True]),
        (Cluster(workers(1, 2)), [False, False]),
    ):
        found = plan([header()], SMALL, cluster)["workers"]
        assert [worker["fits_alone"] for worker in found] == alone
        for index, worker in enumerate(cluster.workers):
            assert plan([header()], SMALL, replace(cluster, workers=(worker,)))["fits"] is alone[index]


# Unknown values


def test_a_cache_that_is_not_known_is_said() -> None:
    result = plan([header(architecture="glm-dsa")], SMALL, Cluster(workers(20, 20)))
    assert (result["fits"], result["kv_known"], result["compute_known"]) == (None, False, False)
    assert "not known" in result["message"]
    assert any("cache" in note for note in result["notes"])
    small = plan([header(architecture="glm-dsa")], SMALL, Cluster(workers(2, 2)))
    assert small["fits"] is False
    assert ": it fits, without the cache, whose size is not known, with " in small["message"]


def test_compute_that_is_not_followed_is_estimated_higher() -> None:
    known = plan([header()], SMALL, Cluster(workers(20, 20)))
    unknown = plan([header(architecture="stablelm")], SMALL, Cluster(workers(20, 20)))
    assert (known["compute_known"], known["notes"]) == (True, [])
    assert unknown["compute_known"] is False
    assert "upper estimate" in unknown["notes"][0]
    for mine, more in zip(known["workers"], unknown["workers"]):
        assert more["compute_bytes"] > mine["compute_bytes"]
    short = plan([header(architecture="stablelm")], SMALL, Cluster(workers(1)))
    assert short["message"].startswith("It does not fit by an upper estimate of the compute buffers, w0:50052 lacks ")


# Bad input


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workers": ()}, "workers has 0 entries; llama.cpp uses at least 1"),
        ({"workers": workers(*[1] * 16)}, "workers has 16 entries"),
        ({"workers": (*workers(1), *workers(1))}, "w0:50052 is named twice"),
        ({"workers": workers(-1)}, "memory_available_bytes of worker w0:50052 is -1073741824"),
        ({"workers": workers(1, weights=(0,))}, "weight of worker w0:50052 is 0"),
        ({"workers": workers(1, weights=(float("nan"),))}, "weight of worker w0:50052 is nan"),
        ({"workers": (replace(workers(1)[0], memory_max_bytes=-1),)}, "memory_max_bytes of worker w0:50052 is -1"),
        ({"reserve_bytes": -1}, "reserve_bytes is -1"),
        ({"reserve_percent": -1}, "reserve_percent is -1"),
        ({"reserve_percent": 101}, "reserve_percent is 101"),
        ({"tensor_split": (1,)}, "tensor_split has 1 entries for 2 workers"),
        ({"tensor_split": (1, -1)}, "the share -1"),
        ({"tensor_split": (1, float("inf"))}, "the share inf"),
        ({"tensor_split": (1, float("nan"))}, "the share nan"),
        ({"tensor_split": (0, 0)}, "no share above 0"),
        # Values that a C float cannot hold.
        ({"tensor_split": (1e39, 1)}, "the share 1e+39; give a number above 0, from 1e-30 to 1e+30"),
        ({"tensor_split": (3e38, 3e38)}, "the share 3e+38"),
        ({"tensor_split": (1e-50, 1e-50)}, "the share 1e-50"),
        ({"master_memory_available_bytes": -1}, "master_memory_available_bytes is -1"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_bad_clusters(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SplitError) as error:
        plan([header(2)], SMALL, replace(Cluster(workers(9, 9)), **change))
    assert said in str(error.value)
    assert str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ctx_size": -1}, "ctx_size is -1"),
        ({"ctx_size": 1 << 31}, "ctx_size is 2147483648"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"ubatch_size": 0}, "ubatch_size is 0"),
        ({"n_gpu_layers": 0}, "n_gpu_layers is 0"),
        ({"flash_attn": "off", "cache_type_v": "q8_0"}, "cache_type_v is q8_0 and flash_attn is off"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_bad_loads(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SplitError) as error:
        plan([header(2)], replace(SMALL, **change), Cluster(workers(9)))
    assert said in str(error.value)
    assert str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("bad", "load", "said"),
    [
        (header(2, context_length=None), Load(), "does not say its context length; give ctx_size."),
        (header(2, block_count=None), SMALL, "has no layers that could be divided. llama.block_count is missing"),
        (header(2, **{"attention.key_length": 80, "attention.value_length": 80}),
         replace(SMALL, cache_type_k="q8_0"), "cache_type_k is q8_0, whose blocks do not fit"),
        (header(2, expert_count=1025), SMALL, "says that it has 1025 experts, and llama.cpp takes 1024"),
        # A loop over each of these experts would take hours.
        (header(2, expert_count=8, expert_used_count=(1 << 32) - 1), SMALL, "uses 4294967295 of 8 experts"),
        (header(2, expert_used_count=(1 << 32) - 1), SMALL, "uses 4294967295 of 0 experts"),
    ],
    ids=["no context", "no layers", "heads of no whole block", "experts", "more experts used", "no experts"],
)  # fmt: skip
def test_models_that_cannot_be_planned(bad: Header, load: Load, said: str) -> None:
    with pytest.raises(SplitError) as error:
        plan([bad], load, Cluster(workers(9)))
    assert said in str(error.value)
    assert str(error.value).endswith(".")


NAMES = """
attn_norm attn_q attn_k attn_v attn_qkv attn_output attn_q_norm post_attention_norm ffn_norm ffn_gate ffn_up ffn_down
ffn_gate_inp ffn_gate_exps ffn_up_exps ffn_down_exps ffn_down_shexp post_ffw_norm
""".split()
SHAPES = st.lists(st.sampled_from([0, 1, 2, 32, 96, 4096, 1 << 31, 1 << 62]), max_size=4).filter(
    lambda shape: math.prod(shape) < 1 << 63
)
# Numbers as small as in models, and as large as a file can hold.
NUMBERS = st.fixed_dictionaries(
    {},
    optional={
        "block_count": st.integers(1, 4),
        **{
            name: st.sampled_from([0, 1, 7, 64, 512, (1 << 32) - 1])
            for name in (
                "embedding_length",
                "vocab_size",
                "attention.head_count",
                "attention.head_count_kv",
                "attention.key_length",
                "attention.value_length",
                "attention.sliding_window",
            )
        },
    },
)
EXPERTS = st.sampled_from([(0, 0), (0, 0), (8, 2), (8, 0), (1024, 1024), (1, 2)])
SHARES = st.sampled_from([0.0, 1e-50, 1e-30, 0.5, 1.0, 3.0, 1e30, 3e38, 1e39, math.inf, math.nan, -1.0])


@given(
    architecture=st.sampled_from(["llama", "gemma2", "command-r", "qwen2moe", "stablelm", "mamba"]),
    tensors=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 2), SHAPES), max_size=12),
    outer=st.dictionaries(st.sampled_from(["token_embd", "output", "output_norm", "rope_freqs"]), SHAPES),
    numbers=NUMBERS,
    experts=EXPERTS,
    shares=st.one_of(st.just([]), st.lists(SHARES, max_size=3)),
    speeds=st.lists(st.floats(0, exclude_min=True), max_size=3),
    memory=st.lists(st.floats(0, 100), min_size=1, max_size=3),
    load=st.builds(
        Load,
        ctx_size=st.sampled_from([1, 512, 8192, (1 << 31) - 1]),
        flash_attn=st.sampled_from(["auto", "off"]),
        cache_type_k=st.sampled_from(["f16", "q8_0"]),
        n_gpu_layers=st.integers(1, 4),
    ),
)
@settings(deadline=5000, max_examples=300)
def test_no_model_and_no_share_makes_it_fail(
    architecture: str,
    tensors: list[tuple[str, int, list[int]]],
    outer: dict[str, list[int]],
    numbers: dict[str, int],
    experts: tuple[int, int],
    shares: list[float],
    speeds: list[float],
    memory: list[float],
    load: Load,
) -> None:
    shapes = {f"blk.{layer}.{name}.weight": shape for name, layer, shape in tensors}
    shapes.update({f"{name}.weight": shape for name, shape in outer.items()})
    of = replace(
        header(3, architecture=architecture, expert_count=experts[0], expert_used_count=experts[1], **numbers),
        tensors=tuple(
            Tensor(name, tuple(shape), F32, 0, math.prod(shape), 4 * math.prod(shape)) for name, shape in shapes.items()
        ),
    )
    speeds = (*speeds, 1.0, 1.0, 1.0)[: len(memory)] if speeds else ()
    cluster = Cluster(workers(*memory, weights=tuple(speeds)), tensor_split=tuple((shares * 3)[: len(memory)]))
    result: dict[str, Any] = {"workers": []}
    with suppress(SplitError):
        result = plan([of], load, cluster)
    json.dumps(result, allow_nan=False)
    for it in result["workers"]:
        assert min(it["weights_bytes"], it["kv_bytes"], it["compute_bytes"]) >= 0


def test_weights_of_a_later_type_are_not_guessed() -> None:
    whole = header(2)
    unknown = whole.tensors[-1]._replace(type_number=999, bytes=None)
    with pytest.raises(SplitError, match="The bytes of the model's weights are not known"):
        plan([replace(whole, tensors=(*whole.tensors[:-1], unknown))], SMALL, Cluster(workers(9)))


def test_a_large_model_that_does_not_fit_is_planned_at_once() -> None:
    begin = time.process_time()
    result = plan([header(126)], Load(ctx_size=131072), Cluster(workers(*range(2, 14))))
    assert result["fits"] is False
    assert result["suggestions"]
    assert time.process_time() - begin < 5
