# SPDX-License-Identifier: GPL-3.0-or-later
"""Workers that repack compute what local inference does: each type, dense and of experts, sent and from the cache."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest

from performance.results import OTHER_KERNELS, SHAPES, perplexity, results
from support.builds import Build
from support.logits import compare, same
from support.quantised_models import TYPES, Type, write_quantised
from support.watched_worker import Watched, watched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.llama


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_one_to_three_workers_say_what_local_inference_says(
    stock: Build, patched: Build, tmp_path: Path, kind: Type, shape: str
) -> None:
    model, _tokens = write_quantised(tmp_path / "model", (kind,), layers=4, **SHAPES[shape])
    here = results(stock, model)
    same(here, results(stock, model, threads=1))
    with ExitStack() as stack:
        workers = [stack.enter_context(watched(patched, tmp_path / str(number))) for number in range(3)]
        for many in 1, 2, 3:
            there = results(stock, model, [worker.port for worker in workers[:many]])
            same(here, there)
            assert f"{perplexity(there):.4g}" == f"{perplexity(here):.4g}"
        assert (workers[0].repack["weights"] > 0) is (kind in workers[0].kernels)
    with watched(stock, tmp_path / "stock") as upstream, watched(patched, tmp_path / "off", "GGML_RPC_REPACK=0") as off:
        plain = results(stock, model, [upstream.port])
        assert np.array_equal(plain.values, results(stock, model, [off.port]).values)
    found = compare(here, plain, OTHER_KERNELS)
    assert found.is_rounding, str(found)
    assert perplexity(plain) == pytest.approx(perplexity(here), rel=0.02)


def test_weights_from_the_cache_are_repacked_like_those_from_the_wire(
    stock: Build, patched: Build, tmp_path: Path
) -> None:
    """Use weights of more than 10 MiB: only these are cached."""
    model, _tokens = write_quantised(tmp_path / "model", (Type.Q4_0, Type.Q4_K), layers=1, width=3072)
    here = results(stock, model)

    def there(worker: Watched) -> None:
        same(here, results(stock, model, [worker.port]))
        assert worker.repack["weights"] == worker.repack["of_weights"] - 1 or not worker.kernels

    with watched(patched, tmp_path / "worker", options=("-c",)) as worker:
        there(worker)
        saved = worker.log.count("saved to")
        assert saved > 1
        there(worker)
        assert worker.log.count("saved to") == saved
    with watched(patched, tmp_path / "worker", options=("-c",)) as worker:
        there(worker)
        assert "saved to" not in worker.log


def test_a_worker_without_kernels_says_so_and_works(stock: Build, for_old_cpus: Build, tmp_path: Path) -> None:
    model, _tokens = write_quantised(tmp_path / "model", (Type.Q4_0, Type.Q4_K))
    with watched(for_old_cpus, tmp_path) as worker:
        found = compare(results(stock, model), results(stock, model, [worker.port]), OTHER_KERNELS)
        assert found.is_rounding, str(found)
        assert not worker.kernels
        assert worker.repack == {
            "enabled": True, "kernels": False, "weights": 0, "mib": 0, "of_weights": 0, "of_mib": 0,
        }  # fmt: skip
        assert worker.log.count("there is no kernel for this CPU") == 1
        assert "Repacked" not in worker.log
