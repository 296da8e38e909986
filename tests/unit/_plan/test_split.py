# SPDX-License-Identifier: GPL-3.0-or-later
"""The split of a model, compared with llama.cpp's rounding and with all possible splits, and its messages.

A model here is what a release would say of it. tests/integration/test_split_plan.py asks a release.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.ggml_types import CACHE_TYPES
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.assignment import Part, assign, parts_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.hints import TYPED
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.inputs import Cluster, Load, SplitError, Worker
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.options import number_of, value_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.result import plan
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.sizes import Need, Sizes
from hypothesis import given, settings
from hypothesis import strategies as st

from support.templates import loaded
from support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB, MIB = 1 << 30, 1 << 20
# A model like Llama 3.1 8B in Q8_0: 32 layers, and as many bytes for its input as for its output.
LAYER, OUTPUT, LAYERS = 220 * MIB, 532 * MIB, 32
TOKEN = 1 << 12  # bytes of a token in the cache of a layer, of F16
COMPUTE, LOGITS, OF_MASTER = 120 * MIB, 256 * MIB, 16 * MIB


class Model:
    """What a release would say of a model. It keeps what it was asked."""

    tail, bits = 1, 8.5

    def __init__(self, layers: int = LAYERS, *, wide: int = 999, slot: int = MIB) -> None:
        """Layers from `wide` on take 1 GiB more to compute; each slot takes `slot` bytes beside the output."""
        self.layers, self.wide, self.slot, self.notes = layers, wide, slot, list[str]()
        self.asked: set[tuple[object, ...]] = set()

    def sizes(self, load: Load, devices: int, shares: Sequence[float]) -> Sizes:
        self.asked.add((load.options, devices, tuple(shares)))
        context, slots = number_of(load.options, "-c", 1 << 17), number_of(load.options, "-np", 1)
        offloaded = number_of(load.options, "-ngl", 999)
        kinds = [CACHE_TYPES[value_of(load.options, name, "f16")] for name in ("-ctk", "-ctv")]
        of_cache = sum(kind.block_bytes / kind.block for kind in kinds) / 4
        layers = [Need(LAYER, round(context * TOKEN * of_cache))] * self.layers + [Need(OUTPUT)]
        sums = list(accumulate(layers, Need.plus, initial=Need()))
        local = self.layers + 1 - min(offloaded, self.layers + 1)
        logits = LOGITS + slots * self.slot
        if load.spread:
            parts = [Part(0, self.layers + 1)] * devices
            held = [Need(*(int(it * share / sum(shares)) for it in sums[-1])) for share in shares]
        else:
            parts = parts_of(self.layers, offloaded, shares)
            held = [sums[part.end].less(sums[part.first]) for part in parts]
        computes = [
            COMPUTE + (logits if part.end > self.layers else 0) + (GIB if part.end > self.wide else 0) for part in parts
        ]
        return Sizes(
            context=context,
            slots=slots,
            layers=tuple(layers),
            local=local,
            parts=tuple(parts),
            held=tuple(need.plus(Need(compute=compute)) for need, compute in zip(held, computes)),
            master=sums[local].plus(Need(OUTPUT, 0, OF_MASTER, load.other_bytes)),
        )


def workers(*memory: float, hosts: tuple[str, ...] = ()) -> tuple[Worker, ...]:
    """Return workers with so many GiB."""
    return tuple(
        Worker(f"w{index}:50052", int(size * GIB), hosts[index] if hosts else None) for index, size in enumerate(memory)
    )


def counts(result: dict[str, Any]) -> list[int]:
    return [worker["layers"] for worker in result["workers"]]


SMALL = Load(("-c", "8192"))


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


@pytest.mark.parametrize(
    ("memory", "load", "wide"),
    [
        ((8, 8), SMALL, 999),
        ((16, 4), SMALL, 999),
        ((4, 16), SMALL, 999),
        ((3, 5, 9), SMALL, 999),
        ((9, 5, 3), Load(("-c", "32768")), 999),
        ((4, 4, 4, 4), SMALL, 999),
        ((6, 6, 6), SMALL.with_options("-ngl", 9), 999),
        ((1, 1), SMALL, 999),
        # The part that equal shares let expect for the first one takes more to compute.
        ((6, 4), SMALL, 8),
    ],
)
def test_the_fullest_worker_is_as_empty_as_can_be(memory: tuple[float, ...], load: Load, wide: int) -> None:
    """Compares with all possible splits, each of which the planner judges as if it was given."""
    model = Model(12, wide=wide)
    cluster = Cluster(workers(*memory))
    chosen = plan(model, load, cluster)
    assert all(it["layers"] >= 1 for it in chosen["workers"])
    active = min(number_of(load.options, "-ngl", 999), 13)
    every = [
        parts
        for parts in itertools.product(range(1, active + 1), repeat=len(memory))
        if sum(parts) == active and parts[-1] > 1
    ]
    # A plan that does not fit takes long, because it has suggestions.
    roomy = replace(cluster, workers=tuple(replace(it, memory_available_bytes=1 << 50) for it in cluster.workers))

    def full(result: dict[str, Any]) -> float:
        return max(
            it["total_bytes"] / worker.memory_available_bytes for it, worker in zip(result["workers"], cluster.workers)
        )

    best = min(full(plan(model, load, replace(roomy, tensor_split=parts))) for parts in every)
    assert full(chosen) == pytest.approx(best, rel=1e-4)


def test_a_chosen_split_is_judged_the_same_when_given() -> None:
    model, cluster = Model(), Cluster(workers(9, 5, 3), reserve_bytes=GIB // 4)
    chosen = plan(model, SMALL, cluster)
    given_ = plan(model, SMALL, replace(cluster, tensor_split=tuple(map(float, chosen["tensor_split"]))))
    assert chosen["fits"]
    assert given_ == chosen


def test_workers_of_a_host_share_its_memory() -> None:
    apart = plan(Model(), SMALL, Cluster(workers(6, 6)))
    shared = plan(Model(), SMALL, Cluster(workers(12, 12, hosts=("a", "a"))))
    assert apart["workers"] == shared["workers"]
    # The master's share comes from the same memory.
    master = shared["master"]["total_bytes"]
    cluster = Cluster(workers(12, 12, hosts=("a", "a")), master_host="a", master_memory_available_bytes=12 * GIB)
    with_master = plan(Model(), SMALL, cluster)
    assert with_master["workers"][0]["memory_available_bytes"] == (12 * GIB - master) // 2
    assert with_master["master"]["reserve_bytes"] == 0


def test_a_limit_of_the_worker_counts_if_it_is_smaller() -> None:
    limited = [replace(worker, memory_max_bytes=5 * GIB) for worker in workers(12, 12, hosts=("a", "a"))]
    limited[1] = replace(limited[1], memory_max_bytes=90 * GIB)
    result = plan(Model(), SMALL, Cluster(tuple(limited)))
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
    worker = plan(Model(), SMALL, Cluster(workers(20), **reserve))["workers"][0]
    assert worker["reserve_bytes"] == expected
    assert worker["headroom_bytes"] == 20 * GIB - expected - worker["total_bytes"]


# Workers with several devices, and tensors that are spread


def test_each_device_of_a_worker_gets_its_part_and_they_share_its_memory() -> None:
    two, one = workers(12, 6)
    result = plan(Model(), SMALL, Cluster((replace(two, devices=2), one)))
    equal = plan(Model(), SMALL, Cluster(workers(6, 6, 6)))
    first, second, last = equal["workers"]
    assert result["tensor_split"] == equal["tensor_split"]
    assert counts(result) == [first["layers"] + second["layers"], last["layers"]]
    assert result["workers"][0]["total_bytes"] == first["total_bytes"] + second["total_bytes"]
    assert result["workers"][0]["memory_available_bytes"] == 12 * GIB
    # Alone, it has the model on one device: on two there would be more to compute.
    tight = plan(Model(), SMALL, Cluster((replace(workers(8.8)[0], devices=2), one)))
    assert "It would fit on w0:50052 alone. " in tight["message"]
    idle = plan(Model(), SMALL, Cluster((replace(two, devices=2), one), tensor_split=(1, 0, 1)))
    assert idle["message"].startswith("The tensor_split leaves worker w0:50052 without a layer: it fits with")


SPREAD = SMALL.with_options("-sm", "tensor")


@pytest.mark.parametrize(
    ("cluster", "ratio"),
    [
        (Cluster(workers(20, 40)), 1),
        # Equal parts do not fit.
        (Cluster(workers(3, 12)), 3 / 12),
    ],
)
def test_tensors_are_spread_equally_or_by_memory(cluster: Cluster, ratio: float) -> None:
    result = plan(Model(), SPREAD, cluster)
    assert result["fits"], result["message"]
    assert result["tensor_split"][0] / result["tensor_split"][1] == pytest.approx(ratio, rel=0.2)
    assert counts(result) == [32, 32]
    # With more workers than layers, each has a part too.
    assert plan(Model(1), SPREAD, Cluster(workers(9, 9, 9)))["fits"]


# Plans that do not fit


def short(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    assert result["fits"] is False
    assert result["message"].startswith("It does not fit, ")
    assert result["message"].count(". ") == 0
    return {it["kind"]: it for it in result["suggestions"]}


OPTION = {"--ctx-size": "-c", "--parallel": "-np", "--cache-type-k": "-ctk", "--cache-type-v": "-ctv"}


def applied(suggestion: dict[str, Any], load: Load, cluster: Cluster) -> tuple[Load, Cluster]:
    """Return the load and the cluster with what the words of a suggestion change."""
    words = suggestion["message"]
    for option, value in re.findall(r"(--[\w-]+) (\w+)", words):
        load = load.with_options(OPTION[option], value)
    for other in re.findall(r"master_other_bytes=(\d+)", words):
        load = replace(load, other_bytes=int(other))
    largest = max(worker.memory_available_bytes for worker in cluster.workers)
    more = tuple(Worker(f"new{number}:50052", largest) for number in range(suggestion["workers"]))
    without = bool(more) or "tensor_split=[]" in words
    return load, replace(
        cluster, workers=(*cluster.workers, *more), tensor_split=() if without else cluster.tensor_split
    )


FOUR = SMALL.with_options("-np", 4)
CLUSTERS = {
    "too long a context": (Load(("-c", "65536")), Cluster(workers(6, 6))),
    "too many slots": (Load(("-c", "65536", "-np", "16")), Cluster(workers(6, 6))),
    "too little memory": (SMALL, Cluster(workers(3, 3), reserve_bytes=GIB // 2)),
    "one that lacks a little": (SMALL, Cluster(workers(5, 4))),
    "a split by hand": (SMALL, Cluster(workers(8, 8), tensor_split=(1, 20))),
    "several devices": (SMALL, Cluster((replace(workers(5)[0], devices=3), Worker("w1:50052", 2 * GIB)))),
    "more layers than devices": (SMALL, Cluster((replace(workers(1.5)[0], devices=4),))),
    "tensors that are spread": (SPREAD, Cluster(workers(3, 3))),
    "the master": (
        Load(("-c", "65536", "-ngl", "30")), Cluster(workers(16, 16), master_memory_available_bytes=3 * GIB // 2)
    ),
    "the master, for prompts": (
        replace(FOUR, other_bytes=3 * GIB), Cluster(workers(16, 16), master_memory_available_bytes=2 * GIB)
    ),
    "the master, for prompts, and a split by hand": (
        replace(FOUR, other_bytes=3 * GIB),
        Cluster(workers(16, 16), tensor_split=(1, 1), master_memory_available_bytes=2 * GIB),
    ),
    "the master and a worker": (
        replace(FOUR, other_bytes=3 * GIB), Cluster(workers(5), master_memory_available_bytes=2 * GIB)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("load", "cluster"), CLUSTERS.values(), ids=CLUSTERS)
def test_what_is_suggested_fits_and_less_does_not(load: Load, cluster: Cluster) -> None:
    model = Model()
    kinds = short(plan(model, load, cluster))
    assert kinds
    for kind, suggestion in kinds.items():
        bits = re.search(r"at most ([\d.]+) bits per weight", suggestion["message"])
        if bits:
            assert 2 <= float(bits[1]) < 8.5
            continue
        changed, changed_cluster = applied(suggestion, load, cluster)
        assert plan(model, changed, changed_cluster)["fits"], suggestion
        if kind == "context":
            # The cache of a slot consists of blocks of 256 tokens.
            more = number_of(changed.options, "-c") + 256 * number_of(changed.options, "-np", 1)
            assert not plan(model, changed.with_options("-c", more), cluster)["fits"]
        if kind == "parallel":
            slots = number_of(changed.options, "-np")
            each = suggestion["ctx_size"] // slots
            assert each == number_of(load.options, "-c") // number_of(load.options, "-np")
            more_slots = changed.with_options("-np", slots + 1, "-c", (slots + 1) * each)
            assert not plan(model, more_slots, cluster)["fits"]
        if kind == "prompts":
            assert not plan(model, replace(changed, other_bytes=changed.other_bytes + MIB), cluster)["fits"]
        if kind == "workers" and suggestion["workers"] > 1:
            assert not plan(model, load, replace(changed_cluster, workers=changed_cluster.workers[:-1]))["fits"]


def test_no_change_is_proposed_with_which_the_chosen_division_does_not_fit() -> None:
    result = plan(Model(12, wide=8), SMALL, Cluster(workers(2, 2)))
    assert "quantisation" not in short(result)


def test_fewer_slots_and_fewer_tokens_for_each_are_a_pair() -> None:
    model, load, cluster = Model(slot=64 * MIB), Load(("-c", "524288", "-np", "16")), Cluster(workers(4.4, 4.6))
    result = plan(model, load, cluster)
    pair = next(it for it in result["suggestions"] if "--parallel" in it["message"])
    changed = applied(pair, load, cluster)[0]
    slots = number_of(changed.options, "-np")
    assert (pair["kind"], pair["ctx_size"] % slots) == ("pair", 0)
    assert plan(model, changed, cluster)["fits"]
    more = changed.with_options("-c", pair["ctx_size"] + 256 * slots)
    assert not plan(model, more, cluster)["fits"]


CONTEXT = {"context", "cache_type", "workers", "quantisation"}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("too long a context", CONTEXT),
        ("too many slots", {*CONTEXT, "parallel"}),
        # The weights alone are too large, so no context is short enough.
        ("too little memory", {"workers", "quantisation"}),
        ("the master, for prompts", {"prompts"}),
        ("the master and a worker", {"pair"}),
    ],
)
def test_each_kind_is_suggested_where_it_helps(name: str, kinds: set[str]) -> None:
    assert set(short(plan(Model(), *CLUSTERS[name]))) == kinds


# The sentence for such a cluster was "the master lacks 884.5 MiB, whatever is changed", while llama_server_cache_ram=0
# made the model fit.
@pytest.mark.parametrize("typed", TYPED)
def test_what_is_kept_for_prompts_is_a_hint_as_its_user_types_it(typed: str) -> None:
    cluster = Cluster(workers(64, 64), 256 * MIB, 5, master_memory_available_bytes=int(944.5 * MIB))
    result = plan(Model(), replace(FOUR, other_bytes=GIB), cluster, variables_of=typed)
    by_bytes = typed in ("module", "inference")
    word = f"master_other_bytes={140 * MIB}" if by_bytes else "llama_server_cache_ram=140"
    assert result["message"] == f"It does not fit, the master lacks 883.5 MiB: it fits with {word}."


@pytest.mark.parametrize(
    ("load", "cluster", "said"),
    [
        (
            *CLUSTERS["too many slots"],
            "with llama_server_parallel=8, with size_cache_type=q4_0, with size_hosts=3 or with a mo",
        ),
        (*CLUSTERS["the master and a worker"], r": it fits with llama_server_cache_ram=\d+ and with size_hosts=\d; or"),
        (
            SMALL,
            Cluster(workers(0, 0), master_memory_available_bytes=0),
            "the master lacks .* and w1:50052 lacks .*none is enough: a shorter context, a smaller cache type,",
        ),
        (
            SMALL,
            Cluster(workers(20, 20, 20), tensor_split=(1, 0, 1)),
            "leaves worker w1:50052 without a layer: it fits",
        ),
        (SMALL, Cluster(workers(2, 2, 2), tensor_split=(1, 0, 1)), "without a layer: it fits with size_hosts="),
        (SMALL.with_options("-ngl", 3), Cluster(workers(9, 9, 9)), "than layers .*leaves them 2.: it fits with size_h"),
        (SMALL.with_options("-ngl", 3), Cluster(workers(0.1, 0.1, 9)), "and it does not fit on the first 2 either"),
        (
            SMALL.with_options("-ngl", 1),
            Cluster(workers(9, 9)),
            "only the output: .*size_hosts=1 or with inference_n_gpu",
        ),
    ],
    ids=["slots", "pair", "nothing helps", "no layer", "no layer, nor room", "layers", "neither", "the output"],
)
def test_the_sentence_names_who_lacks_what_and_each_hint(load: Load, cluster: Cluster, said: str) -> None:
    result = plan(Model(), load, cluster, variables_of="size")
    assert re.search(said, result["message"]), result["message"]


@pytest.mark.parametrize("typed", sorted(set(TYPED) - {"module"}))
def test_hints_name_variables_that_there_are(typed: str) -> None:
    named = set(re.findall(r"\b(\w+)=", " ".join(TYPED[typed].values()))) | {"inference_extra_args"}
    known = {name for path in (ROOT / "roles").glob("*/defaults/main.yml") for name in loaded(path)}
    known |= loaded(ROOT / "playbooks/size.yml")[0]["vars"].keys()
    # Role inference has no prompts.
    assert named - known <= ({"master_other_bytes"} if typed == "inference" else set())


def test_the_output_alone_goes_to_one_worker() -> None:
    load = SMALL.with_options("-ngl", 1)
    result = plan(Model(), load, Cluster(workers(9), master_memory_available_bytes=20 * GIB))
    assert (result["fits"], result["tensor_split"], result["master"]["layers"]) == (True, [1], 32)
    part = [result["workers"][0][name] for name in ("layers", "first_layer", "has_output", "weights_bytes", "kv_bytes")]
    assert part == [0, None, True, OUTPUT, 0]


# One host is enough


@pytest.mark.parametrize(
    ("cluster", "named"),
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
def test_it_is_said_if_one_host_would_do(cluster: Cluster, named: str | None) -> None:
    result = plan(Model(), SMALL, cluster)
    assert re.findall("It would fit on (.*) alone[.] ", result["message"]) == ([named] if named else [])


# Bad input


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workers": workers(*[1] * 16)}, "workers has 16 entries"),
        ({"workers": (*workers(1), *workers(1))}, "w0:50052 is named twice"),
        ({"workers": (replace(workers(1)[0], memory_max_bytes=-1),)}, "memory_max_bytes of worker w0:50052 is -1"),
        ({"workers": (replace(workers(1)[0], devices=0),)}, "devices of worker w0:50052 is 0; give a number from 1"),
        ({"workers": (replace(workers(1)[0], devices=2),), "tensor_split": (1,)}, "1 entries for 2 devices of the w"),
        ({"reserve_percent": 101}, "reserve_percent is 101"),
        ({"tensor_split": (1, -1)}, "the share -1"),
        ({"tensor_split": (1, float("nan"))}, "the share nan"),
        ({"tensor_split": (0, 0)}, "no share above 0"),
        # Values that a C float cannot hold.
        ({"tensor_split": (1e39, 1)}, "the share 1e+39; give a number above 0, from 1e-30 to 1e+30"),
        ({"tensor_split": (1e-50, 1e-50)}, "the share 1e-50"),
        ({"master_memory_available_bytes": -1}, "master_memory_available_bytes is -1"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_bad_clusters(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SplitError, match=re.escape(said)):
        plan(Model(2), SMALL, replace(Cluster(workers(9, 9)), **change))


def test_split_mode_none_takes_one_device() -> None:
    with pytest.raises(SplitError, match="Split mode none uses one of the 2 devices"):
        plan(Model(2), SMALL.with_options("-sm", "none"), Cluster(workers(9, 9)))


# What it costs


def test_a_large_model_that_does_not_fit_is_planned_at_once() -> None:
    """Each question takes a release a while."""
    begin, model = time.process_time(), Model(126)
    result = plan(model, Load(("-c", "131072")), Cluster(workers(*range(2, 14))))
    assert result["fits"] is False
    assert result["suggestions"]
    assert time.process_time() - begin < 5
    assert len(model.asked) < 40
    json.dumps(result, allow_nan=False)
