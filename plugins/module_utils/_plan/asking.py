# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: a plan of files on this host, by a release's engine if it has one, else by an estimate."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any, Mapping, Sequence

from .._gguf.header import Header, read_header, read_model
from .engine import PROGRAM
from .estimate import ByHeader
from .inputs import Cluster, Load, SplitError, Worker
from .options import planned_options, value_of
from .result import plan
from .sizes import ByEngine

# The layers that this draft has use the caches of the model's last two (src/llama-model.cpp).
_USES_TWO = "gemma4-assistant"


def _tail(load: Load) -> int:
    draft = value_of(load.options, "-md")
    return 2 if draft and read_header(Path(draft)).metadata.get("general.architecture") == _USES_TWO else 1


def _cluster(given: Mapping[str, Any]) -> Cluster:
    workers = []
    for worker in given["workers"]:
        if worker.get("memory_available_bytes") is None:
            raise SplitError(
                f"The memory of worker {worker['endpoint']} is not known; give its memory_available_bytes "
                "(MemAvailable of its host)."
            )
        workers.append(Worker(**worker))
    known = {field.name: given[field.name] for field in fields(Cluster) if field.name in given}
    return Cluster(**{**known, "workers": tuple(workers), "tensor_split": tuple(given.get("tensor_split") or ())})


def plan_of(
    given: Mapping[str, Any], *, kinds: Sequence[str] | None = None, at_workers: bool = False
) -> dict[str, Any]:
    """Return the plan for the options of module split_plan_info; raises GgufError, SplitError or OSError.

    `kinds` are the changes to try if it does not fit, all by default. If `at_workers`, the engine asks the workers,
    which nobody may use meanwhile.
    """
    if given.get("fewest_workers") and not given.get("tensor_split"):
        return _over_the_fewest({**given, "fewest_workers": False})
    model, bin_folder = str(given["model"]), given.get("bin_folder") or ""
    load = Load(tuple(planned_options(given.get("options") or ())), given.get("master_other_bytes") or 0)
    cluster, variables_of = _cluster(given), given.get("variables_of") or "module"
    headers = read_model(Path(model))
    program = Path(bin_folder or "none").parent / PROGRAM
    if not (bin_folder and os.access(program, os.X_OK)):
        why = f"{program} is missing" if bin_folder else "no release is named that could be asked"
        asker = ByHeader(headers, tail=_tail(load), why=why)
        return plan(asker, load, cluster, variables_of=variables_of, kinds=kinds)
    engine = ByEngine(
        str(program),
        model,
        [worker.devices for worker in cluster.workers],
        one_run=given.get("program") == "llama-completion",
        tail=_tail(load),
        bits=_bits(headers),
        endpoints=[worker.endpoint for worker in cluster.workers] if at_workers else (),
    )
    try:
        return plan(engine, load, cluster, variables_of=variables_of, kinds=kinds)
    finally:
        engine.close()


def _over_the_fewest(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan over as many of the workers as it takes, from the first; over all of them if it does not fit."""
    workers = given["workers"]
    for count in range(1, len(workers)):
        found = plan_of({**given, "workers": workers[:count]}, kinds=())
        if found["fits"]:
            return {**found, "spares": [worker["endpoint"] for worker in workers[count:]]}
    return plan_of(given)


def _bits(headers: Sequence[Header]) -> float:
    tensors = [tensor for header in headers for tensor in header.tensors]
    return 8 * sum(it.bytes or 0 for it in tensors) / max(1, sum(it.elements for it in tensors))
