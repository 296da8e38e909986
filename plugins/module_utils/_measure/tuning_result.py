# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the state of a sweep after some runs, and everything as data after the last one."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from .tuning_figures import Measured
from .tuning_records import replay, run_dict
from .tuning_settings import GOALS, STAGES, settings_of
from .tuning_sweep import Sweep, most
from .tuning_variables import drift_percent, render, summary, variables

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
