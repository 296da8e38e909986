# SPDX-License-Identifier: GPL-3.0-or-later
"""The estimate from a model's header, for where there is no release to ask."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import Header, Tensor
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.asking import plan_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.estimate import ByHeader
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.inputs import Cluster, Load, SplitError, Worker
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.result import plan
from hypothesis import given, settings
from hypothesis import strategies as st

from support.synthetic_models import write_synthetic
from support.tiny_projector import write_projector

if TYPE_CHECKING:
    from pathlib import Path

GIB, MIB = 1 << 30, 1 << 20
WIDTH, FORWARD, VOCABULARY = 4096, 14336, 128256
Q8_0, F32 = 8, 0
SMALL = Load(("-c", "8192"))


def weight(name: str, *shape: int) -> Tensor:
    elements = math.prod(shape)
    if len(shape) == 1:
        return Tensor(name, shape, F32, 0, elements, 4 * elements)
    return Tensor(name, shape, Q8_0, 0, elements, elements // 32 * 34)


def header(layers: int = 32, *, tied: bool = False, **numbers: Any) -> Header:
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
            "general.architecture": "llama",
            **{f"llama.{name}": value for name, value in metadata.items() if value is not None},
        },
        arrays={},
        lengths={},
        tensors=tuple(tensors),
    )


def workers(*memory: float) -> tuple[Worker, ...]:
    """Return workers with so many GiB."""
    return tuple(Worker(f"w{index}:50052", int(size * GIB)) for index, size in enumerate(memory))


def estimated(of: Header, load: Load, *memory: float, tail: int = 1, **cluster: Any) -> dict[str, Any]:
    return plan(ByHeader([of], tail=tail, why="it is a test"), load, Cluster(workers(*memory), **cluster))


OUTPUT = VOCABULARY * WIDTH // 32 * 34


def test_local_layers_are_the_first_and_tied_embeddings_are_held_twice() -> None:
    result, whole = (estimated(header(tied=True), load, 10, 10) for load in (SMALL.with_options("-ngl", 23), SMALL))
    assert whole["master"]["weights_bytes"] == OUTPUT
    assert (result["master"]["layers"], result["workers"][0]["first_layer"]) == (10, 10)
    for name in ("weights_bytes", "kv_bytes"):
        sums = [sum(it[name] for it in [*plan_["workers"], plan_["master"]]) for plan_ in (result, whole)]
        assert sums[0] == sums[1]


@pytest.mark.parametrize(
    ("options", "numbers", "bytes_a_token"),
    [
        ((), {}, 2 * 2 * 1024),
        (("-ctk", "q8_0"), {}, 1024 * 2 + 1024 * 34 // 32),
        (("-ctk", "q8_0", "-ctv", "q4_0"), {}, 1024 * 34 // 32 + 1024 * 18 // 32),
        (("-ctk", "q8_0", "-ctk", "f32"), {}, 1024 * 4 + 1024 * 2),
        ((), {"attention.key_length": 64, "attention.value_length": 32}, 2 * 8 * (64 + 32)),
        # Latent attention keeps keys alone.
        ((), {"attention.key_length": 576, "attention.key_length_mla": 192, "attention.head_count_kv": 1}, 2 * 576),
        ((), {"attention.head_count_kv": 0}, 0),
    ],
    ids=str,
)
def test_the_cache_is_of_its_types_and_heads(
    options: tuple[str, ...], numbers: dict[str, Any], bytes_a_token: int
) -> None:
    result = estimated(header(4, **numbers), Load(("-c", "1024", *options)), 10)
    assert result["workers"][0]["kv_bytes"] == 4 * 1024 * bytes_a_token


@pytest.mark.parametrize(
    ("load", "of", "said"),
    [
        (Load(), header(2, context_length=None), "does not say its context length; give ctx_size."),
        (SMALL, header(2, block_count=None), "has no layers that could be divided. llama.block_count is missing"),
        (SMALL.with_options("-sm", "tensor"), header(2), "only split mode layer is estimated."),
        (SMALL.with_options("-ctv", "q3_K"), header(2), "A cache cannot be of f16 and q3_K; give one of f32, f16,"),
        (replace(SMALL, other_bytes=-1), header(2), "master_other_bytes is -1; give a number from 0."),
        (SMALL.with_options("-np", 0), header(2), "--parallel is 0; give a number from 1."),
        (
            SMALL,
            replace(header(1), tensors=(header(1).tensors[-1]._replace(type_number=999, bytes=None),)),
            "The bytes of the model's weights are not known. Tensors of ",
        ),
        (SMALL.with_options("-ngl", 0), header(2), "n_gpu_layers is 0, which leaves the workers nothing."),
    ],
    ids=[
        "no context",
        "no layers",
        "spread",
        "no cache",
        "less than nothing",
        "no slots",
        "later type",
        "nothing for workers",
    ],
)
def test_what_cannot_be_estimated_is_said(load: Load, of: Header, said: str) -> None:
    with pytest.raises(SplitError) as error:
        estimated(of, load, 0.1)
    assert said in str(error.value)
    assert str(error.value).endswith(".")


# Files


def given_files(folder: Path, options: list[str], **given: Any) -> dict[str, Any]:
    """Return the plan for a model with layers of 0.9 MiB, of which the master has 0.5 MiB of embeddings."""
    model = write_synthetic(folder / "m.gguf", "dense")
    memory = [
        {"endpoint": f"w{number}:50052", "memory_available_bytes": size * MIB} for number, size in ((0, 99), (1, 1))
    ]
    return plan_of({"model": str(model), "options": ["-c", "512", *options], "workers": memory, **given})


def test_a_draft_may_need_the_last_two_layers_together(tmp_path: Path) -> None:
    draft = write_synthetic(tmp_path / "d.gguf", "layers that predict for other heads", layers=2)
    counts = [
        [it["layers"] for it in given_files(tmp_path, options)["workers"]] for options in ([], ["-md", str(draft)])
    ]
    assert counts == [[5, 1], [4, 2]]


@pytest.mark.parametrize(
    ("options", "kind"),
    [(["--spec-type", "draft-simple", "--model-draft"], "speculation"), (["--mmproj"], "projector")],
)
def test_what_takes_memory_beside_the_model_can_be_left_out(tmp_path: Path, options: list[str], kind: str) -> None:
    file = write_projector(tmp_path / "p.gguf", 256)
    given: dict[str, Any] = {"workers": [{"endpoint": "w0:50052", "memory_available_bytes": 99 * MIB}]}
    needs = [given_files(tmp_path, more, **given)["master"]["total_bytes"] for more in ([], [*options, str(file)])]
    given["master_memory_available_bytes"] = sum(needs) // 2
    assert kind in [it["kind"] for it in given_files(tmp_path, [*options, str(file)], **given)["suggestions"]]
    assert given_files(tmp_path, [], **given)["fits"]


@pytest.mark.parametrize(
    ("mib", "used"), [((99, 99, 99), 1), ((3, 3, 99), 3), ((5, 5, 5), 2), ((1, 1, 1), 3)], ids=["1", "3", "2", "none"]
)
def test_the_fewest_workers_that_have_the_memory_are_used(tmp_path: Path, mib: tuple[int, ...], used: int) -> None:
    memory = [{"endpoint": f"w{number}:1", "memory_available_bytes": size * MIB} for number, size in enumerate(mib)]
    found = given_files(tmp_path, [], workers=memory, fewest_workers=True)
    assert (len(found["tensor_split"]), found["spares"]) == (used, [it["endpoint"] for it in memory[used:]])
    assert found["fits"] is (sum(mib) > 3)
    given = given_files(tmp_path, [], workers=memory, fewest_workers=True, tensor_split=[1, 1, 1])
    assert (given["tensor_split"], given["spares"]) == ([1, 1, 1], [])


# Any file


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
                "attention.key_length_mla",
            )
        },
    },
)


@given(
    tensors=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 2), SHAPES), max_size=12),
    outer=st.dictionaries(st.sampled_from(["token_embd", "output", "output_norm", "rope_freqs"]), SHAPES),
    numbers=NUMBERS,
    memory=st.lists(st.floats(0, 100), min_size=1, max_size=3),
)
@settings(deadline=5000, max_examples=300)
def test_no_model_makes_it_fail(
    tensors: list[tuple[str, int, list[int]]],
    outer: dict[str, list[int]],
    numbers: dict[str, Any],
    memory: list[float],
) -> None:
    shapes = {f"blk.{layer}.{name}.weight": shape for name, layer, shape in tensors}
    shapes.update({f"{name}.weight": shape for name, shape in outer.items()})
    of = replace(
        header(3, **numbers),
        tensors=tuple(
            Tensor(name, tuple(shape), F32, 0, math.prod(shape), 4 * math.prod(shape)) for name, shape in shapes.items()
        ),
    )
    result: dict[str, Any] = {"workers": []}
    with suppress(SplitError):
        result = estimated(of, SMALL, *memory)
    json.dumps(result, allow_nan=False)
    for it in result["workers"]:
        assert min(it["weights_bytes"], it["kv_bytes"], it["compute_bytes"]) >= 0
