# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the state of a sweep from the records of its runs: the next run, and at the end the winner.

The winner becomes a YAML file of role variables with the figures as comments. The whole sweep becomes data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Iterator, Mapping, Sequence

from .tuning_search import steps
from .tuning_settings import GOALS, OPTIONS, SERVING, TITLES, Config, ServingConfig, Settings, settings_of, start_of
from .tuning_sweep import Measured, Outcome, Rate, Run, Sweep, gain, most, new_sweep, patience_s


def _shares(split: Sequence[float]) -> str:
    return " : ".join(f"{share:g}" for share in split)


def _shown(rate: Rate | None) -> str:
    return "not measured" if rate is None else f"{rate.mean:.1f} ± {rate.stddev:.1f}"


def rates_of(measured: Measured) -> list[tuple[str, Rate | None]]:
    """Return the rates of a configuration with their names; the goal serving measures only the last one."""
    return [
        ("prompt", measured.prompt),
        ("generation", measured.generation),
        ("all clients together", measured.serving),
    ]


def summary(sweep: Sweep) -> str:
    """Return the outcome in a sentence."""
    start, best = sweep.start, sweep.best
    if start is None or not start.is_whole(sweep.settings.goal):
        return sweep.refusal or "Nothing was measured yet."
    changes = changed(sweep)
    if not changes:
        shown = ", ".join(f"{name} {_shown(rate)}" for name, rate in rates_of(start) if rate is not None)
        return f"Nothing was faster than the current settings by more than the spread ({shown} tokens per second)."
    parts = []
    for (name, now), (_name, before) in zip(rates_of(best), rates_of(start)):
        if now is not None and before is not None:
            factor = now.mean / before.mean
            change = f"{abs(factor - 1):.0%} {'more' if factor >= 1 else 'less'}"
            parts.append(f"{name} {before.mean:.1f} → {now.mean:.1f} tokens per second ({change})")
    return f"{', '.join(changes)}: {', '.join(parts)}."


def changed(sweep: Sweep) -> list[str]:
    """Return the options in which the winner differs from the start, in words."""
    start, best = sweep.settings.start.as_dict(), sweep.best.config.as_dict()
    return [
        f"{name} {_shares(value) if isinstance(value, list) else value}"
        for name, value in best.items()
        if value != start[name] and not (name == "tensor_split" and not value)
    ]


def drift_percent(sweep: Sweep) -> float | None:
    """Return how much faster the first configuration was at the end than at the start, in percent."""
    if sweep.start is None or sweep.again is None:
        return None
    return round(100 * (gain(sweep.settings.goal, sweep.again, sweep.start) - 1), 2)


def arguments(config: Config, rest: Sequence[str], old: bool) -> list[str]:
    """Return `rest` and the options of a configuration that differ from upstream's defaults."""
    default = Config()
    words = list(rest)
    for option, name in OPTIONS.items():
        if option.startswith("--") and name != "flash_attn" and getattr(config, name) != getattr(default, name):
            words += [option, str(getattr(config, name))]
    if old:
        words += ["--flash-attn"] if config.flash_attn == "on" else []
    elif config.flash_attn != default.flash_attn:
        words += ["--flash-attn", config.flash_attn]
    return words


def serving_arguments(config: ServingConfig, rest: Sequence[str], old: bool) -> list[str]:
    """Return the options of llama-server for which role llama_server has no variable."""
    # The role has a variable for the physical batch.
    words = arguments(replace(config, ubatch_size=Config().ubatch_size), rest, old)
    return words + (["--kv-unified"] if config.kv_unified else [])


def variables(sweep: Sweep, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the role variables that set the winner."""
    config = sweep.best.config
    _now, rest = start_of(given)
    old = bool(given.get("old"))
    # If the winner has no tensor split of its own, the role plans the split before each load.
    planned = config.tensor_split == sweep.settings.start.tensor_split and not given.get("tensor_split_given")
    split = [] if planned else [int(x) if x == int(x) else x for x in config.tensor_split]
    found: dict[str, Any]
    if isinstance(config, ServingConfig):
        found = {
            "llama_server_parallel": config.parallel,
            "llama_server_ubatch_size": config.ubatch_size,
            "llama_server_extra_args": serving_arguments(config, rest, old),
            "llama_server_tensor_split": split,
        }
        if config.speculation != getattr(sweep.settings.start, "speculation", None):
            found["llama_server_spec_type"] = config.speculation
            kinds = given.get("speculation", {})
            drafting = {kind for kind in kinds if "--spec-draft-model" in kinds[kind]["arguments"]}
            if drafting and config.speculation not in {"none", *drafting}:
                # No other kind takes the draft model of the service.
                found["llama_server_draft_model"] = ""
        return found
    found = {"inference_extra_args": arguments(config, rest, old), "inference_tensor_split": split}
    if sweep.threads is not None:
        found["rpc_server_threads"] = sweep.threads
    return found


def _quoted(value: object) -> str:
    """Return a value as YAML, with text always in quotes: YAML reads a bare `on` or `off` as a boolean."""
    if isinstance(value, list):
        return f"[{', '.join(map(_quoted, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, int) else _text(value)


def _text(value: object) -> str:
    shown = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isascii() and c.isprintable() else f"\\U{ord(c):08x}" for c in shown) + '"'


def _comment(text: str) -> str:
    """Return text as one line of comment, whatever it contains."""
    return "# " + " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _tried(settings: Settings, run: Run, outcome: Outcome) -> Iterator[str]:
    """Yield a line for each figure of a run, or a line with the reason why it has none."""
    if outcome.failure or not outcome.measured:
        yield f"{run.title}: {outcome.failure or 'this is the current setting'}"
    title = run.title
    if run.stage in ("ubatch_size", "batch_size") and (run.ubatch_sizes or run.batch_sizes):
        mode = run.config.split_mode
        title = TITLES[run.stage] + (f" with split mode {mode}" if mode != settings.start.split_mode else "")
    for measured in outcome.measured:
        split = f" ({_shares(measured.config.tensor_split)})" if run.weights else ""
        size = "".join(
            f", {name} {getattr(measured.config, name)}"
            for name, sizes in (("ubatch_size", run.ubatch_sizes), ("batch_size", run.batch_sizes))
            if sizes
        )
        shown = ", ".join(f"{name} {_shown(rate)}" for name, rate in rates_of(measured) if rate is not None)
        yield f"{title}{split}{size}: {shown}"


def _counts(settings: Settings) -> str:
    """Return the goal and the tokens that are measured for it, in words."""
    if settings.goal == SERVING:
        asked = f"{len(settings.prompts)} prompts" if settings.prompts else f"prompts of {settings.n_prompt} words"
        return f"serving; {settings.clients} clients at a time, {asked}, {settings.n_gen} tokens generated for each"
    prompt, generation = GOALS[settings.goal]
    what = f"(weight of prompt {prompt:g}, of generation {generation:g})"
    return f"{settings.goal} {what}; {settings.n_prompt} tokens read, {settings.n_gen} generated"


def render(sweep: Sweep, given: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Return the file of variables, with the figures as comments and the winner as YAML."""
    settings = sweep.settings
    build, model = about.get("build") or {}, about.get("model") or {}
    lines = [
        _comment(f"Written by playbook llama_cpp.cluster.tune on {about.get('time', '')}; the next sweep replaces it."),
        _comment(summary(sweep)),
        "#",
        _comment(f"Build: {build.get('version') or 'llama.cpp'}, commit {build.get('commit') or 'unknown'}"),
        _comment(f"Model: {', '.join(filter(None, (model.get('type'), model.get('path')))) or 'unknown'}"),
        _comment(f"Workers: {', '.join(settings.workers)}"),
        _comment(f"Goal: {_counts(settings)}, {settings.repetitions} times each"),
    ]
    drift = drift_percent(sweep)
    if drift is not None:
        way = "faster" if drift >= 0 else "slower"
        lines.append(_comment(f"Drift: at the end, the first settings were {abs(drift):.1f} % {way} than at the start"))
    lines += ["#", _comment("What was tried, in tokens per second:")]
    lines += [_comment(f"- {tried}") for run, outcome in sweep.runs for tried in _tried(settings, run, outcome)]
    lines += [_comment(f"- not tried, {TITLES[name]}: {why}") for name, why in sweep.left_out.items()]
    lines += [_comment(f"- {note}") for note in sweep.notes]
    lines.append("---")
    lines += [f"{name}: {_quoted(value)}" for name, value in variables(sweep, given).items()]
    return "\n".join(lines) + "\n"


def _served(run: Run, record: Mapping[str, Any], split: tuple[float, ...]) -> Iterator[Measured]:
    for test in record.get("tests") or ():
        rate = Rate(*(float(test["tokens_per_second"][name] or 0.0) for name in ("mean", "stddev")))
        yield Measured(replace(run.config, tensor_split=split), None, None, rate)


def _outcome(run: Run, record: Mapping[str, Any]) -> Outcome:
    split = tuple(float(share) for share in record.get("tensor_split") or run.config.tensor_split)
    failure = record.get("failure") or None
    wall_s, elapsed_s = float(record.get("wall_time_ms") or 0.0) / 1000, float(record.get("elapsed_s") or 0.0)
    if isinstance(run.config, ServingConfig):
        return Outcome(tuple(_served(run, record, split)), failure, wall_s, elapsed_s)
    by_size: dict[tuple[int, int], dict[str, Rate]] = {}
    for test in record.get("tests") or ():
        mean, stddev = (float(test["tokens_per_second"][name] or 0.0) for name in ("mean", "stddev"))
        by_size.setdefault((test["batch_size"], test["ubatch_size"]), {})[test["kind"]] = Rate(mean, stddev)
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
    return Outcome(measured, failure, wall_s, elapsed_s)


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


def run_dict(sweep: Sweep, run: Run, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run as arguments of llama_bench or llama_server_bench, with the other facts that the playbook needs."""
    settings, config = sweep.settings, run.config
    serving = {}
    if isinstance(config, ServingConfig):
        _now, rest = start_of(given)
        speculation = given["speculation"][config.speculation]["arguments"] if config.speculation != "none" else []
        serving = {
            "clients": settings.clients,
            "prompts": list(settings.prompts),
            "extra_args": [
                *serving_arguments(config, rest, bool(given.get("old"))),
                *("--ubatch-size", str(config.ubatch_size)),
                *speculation,
            ],
        }
    return {
        **config.as_dict(),
        **serving,
        "stage": run.stage,
        "title": run.title,
        "workers": list(run.workers),
        "n_prompt": [settings.n_prompt] if run.prompt or serving else [],
        "n_gen": [settings.n_gen] if run.generation or serving else [],
        "batch_size": list(run.batch_sizes or (config.batch_size,)),
        "ubatch_size": list(run.ubatch_sizes or (config.ubatch_size,)),
        # Old builds do not know auto.
        "flash_attn": None if config.flash_attn == "auto" else config.flash_attn,
        "weights": list(run.weights),
        "restarts": run.restarts,
        "timeout_s": patience_s(sweep, run),
    }


# The version of the JSON file. Every change that its readers would notice raises it.
SCHEMA_VERSION = 1


def _measured_dict(measured: Measured | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    return {
        "options": measured.config.as_dict(),
        "prompt": measured.prompt._asdict() if measured.prompt else None,
        "generation": measured.generation._asdict() if measured.generation else None,
        "serving": measured.serving._asdict() if measured.serving else None,
    }


def figures(
    sweep: Sweep, given: Mapping[str, Any], records: Sequence[Mapping[str, Any]], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the whole sweep as data."""
    settings = sweep.settings
    prompt, generation = GOALS[settings.goal]
    return {
        "schema_version": SCHEMA_VERSION,
        **about,
        "workers": list(settings.workers),
        "goal": {"name": settings.goal, "prompt": prompt, "generation": generation},
        "n_prompt": settings.n_prompt,
        "n_gen": settings.n_gen,
        "clients": settings.clients if settings.goal == SERVING else None,
        "repetitions": settings.repetitions,
        "time_limit_s": settings.time_limit,
        "estimate_s": sweep.estimate_s,
        "start": _measured_dict(sweep.start),
        "again": _measured_dict(sweep.again),
        "winner": _measured_dict(sweep.best),
        "drift_percent": drift_percent(sweep),
        "summary": summary(sweep),
        "left_out": {TITLES[name]: why for name, why in sweep.left_out.items()},
        "notes": sweep.notes,
        "variables": variables(sweep, given),
        "runs": list(records),
    }


def advice(given: Mapping[str, Any], records: Sequence[Mapping[str, Any]], time: str = "") -> dict[str, Any]:
    """Return the next run and all results so far; raises TuningError for settings that make no sweep."""
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
            "title": TITLES.get(name, "the first settings and the winners, again"),
            "runs": most(sweep, name)[0],
            "tests": most(sweep, name)[1],
        }
        for name in stages
    ]
    done = run is None and bool(records)
    return {
        "next": None if run is None or sweep.refusal else run_dict(sweep, run, given),
        "refusal": sweep.refusal,
        "stages": plan,
        "runs_at_most": 1 + sum(most(sweep, name)[0] for name in stages),
        "estimate_s": sweep.estimate_s,
        "left_out": [f"{TITLES[name]}: {why}" for name, why in sweep.left_out.items()],
        "notes": sweep.notes,
        "worker_threads": sweep.threads,
        "summary": summary(sweep),
        "variables": render(sweep, given, about) if done and not sweep.refusal else "",
        "figures": figures(sweep, given, records, about) if done and not sweep.refusal else {},
    }
