# SPDX-License-Identifier: GPL-3.0-or-later
"""A master with our patches sends workers what upstream's sends, and gets the same results to the last bit."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest

from performance.results import OTHER_KERNELS, SHAPES, results
from support.builds import Build
from support.logits import compare, same
from support.quantised_models import Type, write_quantised
from support.watched_worker import Watched, watched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.logits import Comparison, Logits

pytestmark = pytest.mark.llama

TENSOR = ("-sm", "tensor", "-fa", "on")
# Differences may be this many times the rounding that the test measures beside them. Seen: 1.1 at most.
NOISE = 2


def exactly(first: Logits, second: Logits) -> None:
    assert np.array_equal(first.values, second.values)


@pytest.fixture
def mixed(stock: Build, patched: Build, tmp_path: Path) -> Iterator[list[int]]:
    """Yield the ports of four workers, of which every second one is upstream's."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(watched(stock if number % 2 else patched, tmp_path / str(number))).port
            for number in range(4)
        ]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_K, Type.Q8_0], ids=lambda kind: kind.name)
def test_split_mode_tensor_computes_what_it_does_with_upstreams_master(
    stock: Build, patched: Build, mixed: list[int], tmp_path: Path, kind: Type, shape: str
) -> None:
    """Test sums of two to four parts, of equal and other sizes.

    If a worker has no part of a weight, upstream multiplies what lies in its memory by zero, which may give no number.
    With the patch the result is as if that worker were not there.
    """
    model, _tokens = write_quantised(tmp_path / "model", (kind,), width=1024, **SHAPES[shape])
    for ports, more in (mixed[:2], ()), (mixed[:2], ("-ts", "3,1")), (mixed[:4], ()):
        exactly(*(results(master, model, ports, options=TENSOR + more) for master in (stock, patched)))
    with_it = results(patched, model, mixed[:3], options=(*TENSOR, "-ts", "1,0,1"))
    exactly(with_it, results(patched, model, [mixed[0], mixed[2]], options=TENSOR))
    assert np.isfinite(with_it.values).all()


@pytest.mark.parametrize("many", [2, 3, 4])
def test_many_small_batches_are_what_they_are_with_upstreams_master(
    stock: Build, patched: Build, mixed: list[int], tmp_path: Path, many: int
) -> None:
    """Compute ten batches of sixteen tokens and twenty of eight, of which llama.cpp has four under way."""
    model, _tokens = write_quantised(tmp_path / "model", (Type.Q4_0,), layers=4, width=2560)
    for tokens in "16", "8":
        found = [results(master, model, mixed[:many], options=("-ub", tokens)) for master in (stock, patched)]
        exactly(*found)


@pytest.mark.parametrize("master", ["stock", "patched"])
def test_slices_of_weights_are_repacked(stock: Build, patched: Build, tmp_path: Path, master: str) -> None:
    """Upstream's master sends a slice row by row, ours as a whole."""
    model, _tokens = write_quantised(tmp_path / "model", (Type.Q4_0,), width=1024)
    with ExitStack() as stack:
        workers = [stack.enter_context(watched(patched, tmp_path / str(number))) for number in range(2)]
        ports = [worker.port for worker in workers]
        results({"stock": stock, "patched": patched}[master], model, ports, options=TENSOR)
        for worker in workers:
            # All but a slice of the vocabulary, whose rows are no multiple of eight.
            assert worker.repack["weights"] >= worker.repack["of_weights"] - 1 > 1


@pytest.mark.parametrize("shape", ["dense", "experts"])
@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_K], ids=lambda kind: kind.name)
def test_repacked_slices_compute_what_plain_ones_and_local_inference_do(
    patched: Build, tmp_path: Path, kind: Type, shape: str
) -> None:
    """Measure the rounding that is allowed with the same model, without repacked slices and without slices.

    Split mode tensor adds two sums where others add one, which plain weights show. Repacked weights have other kernels,
    which split mode layer shows. Both effects together do not add up to twice either one.
    """
    model, _tokens = write_quantised(tmp_path / "model", (kind,), layers=4, width=1024, **SHAPES[shape])

    def computed(*environment: str) -> tuple[Logits, Logits]:
        with ExitStack() as stack:
            folder = tmp_path / "-".join(("workers", *environment))
            found = [stack.enter_context(watched(patched, folder / str(number), *environment)) for number in range(2)]
            ports = [worker.port for worker in found]
            divided = results(patched, model, ports, options=TENSOR)
            for worker in found:
                assert (worker.repack["weights"] > 0) is (kind in worker.kernels and not environment)
            return divided, results(patched, model, ports)

    def within(noise: Comparison, first: Logits, second: Logits) -> None:
        found = compare(first, second, OTHER_KERNELS)
        assert noise.typical < OTHER_KERNELS
        assert found.typical <= NOISE * noise.typical, str(found)
        assert found.relative.max() <= NOISE * noise.relative.max(), str(found)

    (repacked, by_layers), (plain, plain_by_layers) = computed(), computed("GGML_RPC_REPACK=0")
    here = results(patched, model)
    same(here, by_layers)
    sums = compare(plain_by_layers, plain, OTHER_KERNELS)
    kernels = compare(by_layers, plain_by_layers, OTHER_KERNELS)
    within(kernels, plain, repacked)
    within(sums, by_layers, repacked)
    within(sums, here, repacked)


@pytest.mark.parametrize(
    ("many", "options"),
    [
        pytest.param(many, options, id=f"{many}-{how}")
        for how, options in {"mapped": (), "read": ("-lm", "none"), "tensor": TENSOR}.items()
        for many in (1, 2, 3)
        if (many, options) != (1, TENSOR)  # there is nothing to divide
    ],
)
def test_workers_are_given_what_upstreams_master_gives(
    stock: Build, patched: Build, tmp_path: Path, many: int, options: tuple[str, ...]
) -> None:
    """Check that workers get the same weights, and find those above 10 MiB in their caches again by the same hash."""
    model, _tokens = write_quantised(tmp_path / "model", (Type.Q4_0, Type.Q8_0), layers=2, width=4096)

    def kept(workers: list[Watched]) -> list[dict[str, str]]:
        return [
            {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
            for folder in (worker.status_file.parent / "cache/rpc" for worker in workers)
        ]

    def given(master: Build) -> tuple[Logits, list[dict[str, str]]]:
        with ExitStack() as stack:
            workers = [
                stack.enter_context(watched(patched, tmp_path / f"{master.bin.parts[-3]}-{number}", options=("-c",)))
                for number in range(many)
            ]
            ports = [worker.port for worker in workers]
            first = results(master, model, ports, options=options)
            sent = kept(workers)
            exactly(first, results(master, model, ports, options=options))
            assert kept(workers) == sent
        return first, sent

    (wanted, cached), (found, same) = given(stock), given(patched)
    exactly(wanted, found)
    if options == TENSOR:
        # Workers also keep slices that upstream sends row by row.
        assert all(set(mine) >= set(theirs) for mine, theirs in zip(same, cached))
    else:
        assert same == cached
    assert sum(len(files) for files in same) > 0


def test_the_threads_that_load_weights_and_copy_from_worker_to_worker_do_not_race(
    racing_master: Build, patched: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Load weights over the wire and then from the caches. Reports about threads without a part in it do not count."""
    monkeypatch.setenv("TSAN_OPTIONS", f"exitcode=0:log_path={tmp_path / 'races'}")
    model, _tokens = write_quantised(tmp_path / "model", (Type.Q4_0, Type.Q8_0), layers=2, width=4096)
    with ExitStack() as stack:
        ports = [
            stack.enter_context(watched(patched, tmp_path / str(number), options=("-c",))).port for number in range(3)
        ]
        # The sanitizer needs certain addresses, which a kernel may give to others if it chooses addresses at random.
        first, again = (
            results(racing_master, model, ports, under=("setarch", "-R"), options=("-ub", "16")) for _load in range(2)
        )
    exactly(first, again)
    assert b"__tsan_init" in (racing_master.bin / "llama-results").read_bytes()
    reports = [report for path in tmp_path.glob("races.*") for report in path.read_text().split("=" * 18)]
    ours = "rpc_load", "rpc_direct", "send_later", "send_input", "cpy_tensor_async"
    assert not [report for report in reports if any(name in report for name in ours)]


@pytest.mark.parametrize("options", [(), TENSOR], ids=["layer", "tensor"])
def test_the_sanitizers_are_silent_while_weights_are_loaded_and_used(
    sanitized_master: Build, patched: Build, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Load weights once over the wire and once from the caches; a sanitizer's report ends the master."""
    model, _tokens = write_quantised(tmp_path / "model", (Type.Q4_0, Type.Q8_0), layers=2, width=4096)
    with ExitStack() as stack:
        ports = [
            stack.enter_context(watched(patched, tmp_path / str(number), options=("-c",))).port for number in range(3)
        ]
        first = results(sanitized_master, model, ports, options=options)
        exactly(first, results(sanitized_master, model, ports, options=options))
