# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the records that a playbook keeps of a sweep's runs, and the run that comes after them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, Sequence

from .tuning_figures import Measured, Outcome, Rate, Run
from .tuning_search import steps
from .tuning_settings import Settings
from .tuning_sweep import Sweep, new_sweep, patience_s


def _rate(test: Mapping[str, Any]) -> Rate:
    rate = test["tokens_per_second"]
    return Rate(float(rate["mean"]), float(rate["stddev"] or 0.0))


def _outcome(run: Run, record: Mapping[str, Any]) -> Outcome:
    split = tuple(float(share) for share in record.get("tensor_split") or run.config.tensor_split)
    by_size: dict[tuple[int, int], dict[str, Rate]] = {}
    for test in record.get("tests") or ():
        by_size.setdefault((test["batch_size"], test["ubatch_size"]), {})[test["kind"]] = _rate(test)
    measured = tuple(
        Measured(
            replace(
                run.config,
                tensor_split=split,
                batch_size=batch if run.batch_sizes else run.config.batch_size,
                ubatch_size=ubatch if run.ubatch_sizes else run.config.ubatch_size,
            ),
            rates.get("prompt"),
            rates.get("generation"),
        )
        for (batch, ubatch), rates in by_size.items()
    )
    return Outcome(
        measured,
        record.get("failure") or None,
        float(record.get("wall_time_ms") or 0.0) / 1000,
        float(record.get("elapsed_s") or 0.0),
    )


def replay(settings: Settings, records: Sequence[Mapping[str, Any]]) -> tuple[Sweep, Run | None]:
    """Return the sweep after these records, and its next run."""
    sweep = new_sweep(settings)
    search = steps(sweep)
    try:
        run = next(search)
        for record in records:
            run = search.send(_outcome(run, record))
    except StopIteration:
        return sweep, None
    return sweep, run


def run_dict(sweep: Sweep, run: Run) -> dict[str, Any]:
    """Return a run as arguments of llama_bench and what else it takes."""
    settings, config = sweep.settings, run.config
    return {
        "stage": run.stage,
        "title": run.title,
        "workers": list(run.workers),
        "n_prompt": [settings.n_prompt] if run.prompt else [],
        "n_gen": [settings.n_gen] if run.generation else [],
        "batch_size": list(run.batch_sizes or (config.batch_size,)),
        "ubatch_size": list(run.ubatch_sizes or (config.ubatch_size,)),
        # Old builds do not know auto.
        "flash_attn": None if config.flash_attn == "auto" else config.flash_attn,
        "cache_type_k": config.cache_type_k,
        "cache_type_v": config.cache_type_v,
        "split_mode": config.split_mode,
        "tensor_split": list(config.tensor_split),
        "weights": list(run.weights),
        "worker_threads": config.worker_threads,
        "restarts": run.restarts,
        "timeout_s": patience_s(sweep, run),
    }
