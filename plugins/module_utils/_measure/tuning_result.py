# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the records of a sweep's runs, the run that comes after them, and everything as data at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, Sequence

from .tuning_figures import Measured, Outcome, Rate, Run
from .tuning_search import steps
from .tuning_settings import GOALS, STAGES, Settings, settings_of
from .tuning_sweep import Sweep, most, new_sweep, patience_s
from .tuning_variables import drift_percent, render, summary, variables


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


# Of the JSON file. A change that readers of it would notice makes it another number.
SCHEMA_VERSION = 1


def _measured_dict(measured: Measured | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    return {
        "options": measured.config.as_dict(),
        "prompt": measured.prompt._asdict() if measured.prompt else None,
        "generation": measured.generation._asdict() if measured.generation else None,
    }


def figures(
    sweep: Sweep, given: Mapping[str, Any], records: Sequence[Mapping[str, Any]], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything as data."""
    settings = sweep.settings
    prompt, generation = GOALS[settings.goal]
    return {
        "schema_version": SCHEMA_VERSION,
        **about,
        "workers": list(settings.workers),
        "goal": {"name": settings.goal, "prompt": prompt, "generation": generation},
        "n_prompt": settings.n_prompt,
        "n_gen": settings.n_gen,
        "repetitions": settings.repetitions,
        "time_limit_s": settings.time_limit_s,
        "estimate_s": sweep.estimate_s,
        "start": _measured_dict(sweep.start),
        "again": _measured_dict(sweep.again),
        "winner": _measured_dict(sweep.best),
        "drift_percent": drift_percent(sweep),
        "summary": summary(sweep),
        "left_out": {STAGES[name]: why for name, why in sweep.left_out.items()},
        "notes": sweep.notes,
        "variables": variables(sweep, given),
        "runs": list(records),
    }


def advice(given: Mapping[str, Any], records: Sequence[Mapping[str, Any]], time: str = "") -> dict[str, Any]:
    """Return what is to be measured next, and all that is known by now; raises TuningError for what is asked for."""
    settings = settings_of(given)
    sweep, run = replay(settings, records)
    first = records[0] if records else {}
    about = {"time": time, "build": first.get("build"), "model": first.get("model")}
    stages = [*(name for name in sweep.stages if name != "worker_threads"), "again"]
    if "worker_threads" in sweep.stages:
        stages.append("worker_threads")
    plan = [
        {
            "stage": name,
            "title": STAGES.get(name, "what there is and what won, once more"),
            "runs": most(sweep, name)[0],
            "tests": most(sweep, name)[1],
        }
        for name in stages
    ]
    done = run is None and bool(records)
    return {
        "next": None if run is None or sweep.refusal else run_dict(sweep, run),
        "refusal": sweep.refusal,
        "stages": plan,
        "runs_at_most": 1 + sum(most(sweep, name)[0] for name in stages),
        "estimate_s": sweep.estimate_s,
        "left_out": [f"{STAGES[name]}: {why}" for name, why in sweep.left_out.items()],
        "notes": sweep.notes,
        "worker_threads": sweep.threads,
        "summary": summary(sweep),
        "variables": render(sweep, given, about) if done and not sweep.refusal else "",
        "figures": figures(sweep, given, records, about) if done and not sweep.refusal else {},
    }
