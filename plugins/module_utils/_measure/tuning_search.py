# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: a bounded search for the fastest options of a cluster.

The search varies one option at a time and keeps the winner. It is a generator that yields runs and receives their
outcomes; it measures nothing itself. The caller keeps a record of each run and replays all records after each run, so
that the search keeps no state in between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Generator, Iterable

from . import tuning_choices as choices
from .tuning_settings import SERVING, STAGES, Config, TuningError
from .tuning_sweep import (
    LEAST_GAIN,
    Measured,
    Outcome,
    Run,
    Sweep,
    beats,
    comparable,
    cost_s,
    gain,
    in_time,
    keep_to_time,
    load_s,
    metrics,
    sizes_of_mode,
    speeds_from_shifts,
    test_s,
)

# To learn a worker's speed, the search moves a quarter (1 / SHIFTED) of its layers to the last worker.
SHIFTED = 4
Steps = Generator[Run, Outcome, None]


def steps(sweep: Sweep) -> Steps:
    """Yield one run after the other, and receive the outcome of each."""
    outcome = yield from _measure(sweep, _run(sweep, "start", "current settings", sweep.best.config))
    if outcome.failure or not outcome.measured:
        sweep.refusal = outcome.failure or "The first run gave no figures."
        return
    sweep.start = sweep.best = outcome.measured[0]
    keep_to_time(sweep)
    if sweep.refusal:
        return
    for name in sweep.stages:
        if sweep.settings.goal == SERVING:
            yield from _serving(sweep, name)
        elif name != "worker_threads":
            yield from _ATTEMPTS[name](sweep)
    yield from _confirm(sweep)
    if "worker_threads" in sweep.stages:
        yield from _worker_threads(sweep)


def _run(sweep: Sweep, name: str, title: str, config: Config) -> Run:
    """Return a run of a stage over all workers."""
    prompt, generation = metrics(sweep.settings, name)
    return Run(name, title, config, sweep.settings.workers, prompt=prompt, generation=generation)


def _measure(sweep: Sweep, run: Run) -> Generator[Run, Outcome, Outcome]:
    outcome = yield run
    sweep.runs.append((run, outcome))
    return outcome


def _try(sweep: Sweep, run: Run) -> Generator[Run, Outcome, tuple[Measured, ...]]:
    """Measure a run; return nothing, and add a note, if there is no time for it or it fails."""
    if not in_time(sweep, run.stage):
        return ()
    outcome = yield from _measure(sweep, run)
    if outcome.failure:
        sweep.notes.append(f"{run.title[0].upper()}{run.title[1:]} cannot be used: {outcome.failure}")
        return ()
    return outcome.measured


def _judge(sweep: Sweep, candidates: Iterable[Measured]) -> None:
    """Keep the fastest candidate if it is faster than the best so far by more than chance."""
    goal, best = sweep.settings.goal, sweep.best
    found = [candidate for candidate in candidates if any(comparable(goal, candidate, best))]
    if not found:
        return
    first = max(found, key=lambda candidate: gain(goal, candidate, best))
    if beats(goal, first, best):
        sweep.best = Measured(
            first.config, first.prompt or best.prompt, first.generation or best.generation, first.serving
        )


# The stages


def _serving(sweep: Sweep, name: str) -> Steps:
    """Measure each candidate of a stage with its own server. The base is the best configuration before the stage."""
    found: list[Measured] = []
    for title, config in choices.serving(sweep.settings, sweep.best.config, name):
        found += yield from _try(sweep, _run(sweep, name, title, config))
    _judge(sweep, found)


def _sizes(sweep: Sweep, name: str, sizes: tuple[int, ...]) -> Steps:
    run = _run(sweep, name, f"{STAGES[name]} of {', '.join(map(str, sizes))}", sweep.best.config)
    run = replace(run, ubatch_sizes=sizes) if name == "ubatch_size" else replace(run, batch_sizes=sizes)
    found = yield from _try(sweep, run)
    now = min(getattr(sweep.best.config, name), max(sizes))
    for measured in found:
        # The current size was measured again beside the others, which gives a fairer figure.
        if getattr(measured.config, name) == now:
            sweep.best = replace(sweep.best, prompt=measured.prompt)
    _judge(sweep, (measured for measured in found if getattr(measured.config, name) != now))


def _ubatch_size(sweep: Sweep) -> Steps:
    yield from _sizes(sweep, "ubatch_size", choices.ubatch_sizes(sweep.settings, sweep.best.config.batch_size))


def _batch_size(sweep: Sweep) -> Steps:
    yield from _sizes(sweep, "batch_size", choices.batch_sizes(sweep.settings, sweep.best.config))


def _split_mode(sweep: Sweep) -> Steps:
    for mode in choices.split_modes(sweep.settings):
        # The shares of layers mean nothing to the other mode, and a good physical batch for one mode may be bad for the
        # other. The two known sizes show whether a search is worthwhile.
        config = replace(sweep.best.config, split_mode=mode, tensor_split=())
        if config.flash_attn == "off" and choices.flash_attn_needed(config):
            config = replace(config, flash_attn="on")
        sizes = tuple(sorted({sweep.best.config.ubatch_size, sweep.settings.start.ubatch_size}))
        run = _run(sweep, "split_mode", f"split mode {mode}", config)
        _judge(sweep, (yield from _try(sweep, replace(run, ubatch_sizes=sizes))))
        if sweep.best.config.split_mode == mode and sizes_of_mode(sweep):
            yield from _sizes_of_mode(sweep, mode)


def _sizes_of_mode(sweep: Sweep, mode: str) -> Steps:
    """Search the physical batch of a split mode that won. The estimate leaves this out: most often none wins."""
    done = ("ubatch_size", "split_mode") if mode == "layer" else ("ubatch_size", "split_mode", "tensor_split")
    needed = load_s(sweep) + len(sizes_of_mode(sweep)) * test_s(sweep, "ubatch_size")
    needed += sum(cost_s(sweep, name) for name in (*sweep.stages, "again") if name not in done)
    if needed <= sweep.left_s:
        yield from _ubatch_size(sweep)
    else:
        sweep.notes.append(f"There was no time to search the physical batch again with split mode {mode}.")


def _flash_attn(sweep: Sweep) -> Steps:
    why = choices.no_flash_attn(sweep.settings, sweep.best.config)
    if why:
        sweep.left_out["flash_attn"] = why
    for value in choices.flash_attn(sweep.settings, sweep.best.config):
        config = replace(sweep.best.config, flash_attn=value)
        _judge(sweep, (yield from _try(sweep, _run(sweep, "flash_attn", f"flash attention {value}", config))))


def _cache_type(sweep: Sweep) -> Steps:
    for kind in choices.cache_types(sweep.settings, sweep.best.config):
        config = replace(sweep.best.config, cache_type_k=kind, cache_type_v=kind)
        if choices.flash_attn_needed(config):
            config = replace(config, flash_attn="on")
        _judge(sweep, (yield from _try(sweep, _run(sweep, "cache_type", f"cache type {kind}", config))))


def _tensor_split(sweep: Sweep) -> Steps:
    if sweep.best.config.split_mode != "layer":
        sweep.left_out["tensor_split"] = "it is planned only for split mode layer"
        return
    speeds_of = _speeds_alone if all(sweep.settings.fits_alone) else _speeds_shifted
    try:
        speeds = yield from speeds_of(sweep)
    except TuningError as reason:
        sweep.notes.append(f"The speed of each worker is not known: {reason}.")
        return
    if not speeds:
        return
    shown = " : ".join(f"{speed / max(speeds):.2f}" for speed in speeds)
    if max(speeds) / min(speeds) - 1 <= LEAST_GAIN:
        sweep.notes.append(f"The workers are equally fast ({shown}).")
        return
    run = _run(sweep, "tensor_split", f"tensor split by speed, {shown}", sweep.best.config)
    _judge(sweep, (yield from _try(sweep, replace(run, weights=tuple(speeds)))))


def _speeds_alone(sweep: Sweep) -> Generator[Run, Outcome, list[float]]:
    """Measure each worker alone with the whole model; return their relative speeds."""
    found: list[Measured] = []
    for worker in sweep.settings.workers:
        config = replace(sweep.best.config, tensor_split=())
        run = _run(sweep, "tensor_split", f"worker {worker} alone", config)
        measured = yield from _try(sweep, replace(run, workers=(worker,)))
        if not measured:
            return []
        found.append(measured[0])
    return [gain(sweep.settings.goal, measured, found[0]) for measured in found]


def _speeds_shifted(sweep: Sweep) -> Generator[Run, Outcome, list[float]]:
    """Measure with fewer layers on one worker after the other, for workers that cannot hold the whole model."""
    layers, workers = sweep.settings.layers, sweep.settings.workers
    shifted: list[tuple[int, float]] = []
    for index in range(len(layers) - 1):
        moved = max(1, layers[index] // SHIFTED)
        if layers[index] <= moved:
            raise TuningError(f"worker {workers[index]} has no layers to spare")
        split = [float(count) for count in layers]
        split[index] -= moved
        # The last worker also has the output, which counts as one more layer.
        split[-1] += moved + 1
        config = replace(sweep.best.config, tensor_split=tuple(split))
        title = f"worker {workers[index]} with {moved} layers fewer"
        measured = yield from _try(sweep, _run(sweep, "tensor_split", title, config))
        if not measured:
            return []
        shifted.append((moved, 1 / gain(sweep.settings.goal, measured[0], sweep.best)))
    return speeds_from_shifts(layers, 1.0, shifted)


# The threads of workers are not here: they come last, after the winner is confirmed.
_ATTEMPTS: dict[str, Callable[[Sweep], Steps]] = {
    "ubatch_size": _ubatch_size,
    "split_mode": _split_mode,
    "tensor_split": _tensor_split,
    "flash_attn": _flash_attn,
    "cache_type": _cache_type,
    "batch_size": _batch_size,
}


def _confirm(sweep: Sweep) -> Steps:
    """Measure all winners together, then the start once more; keep the start unless the winners beat both its runs.

    If the cluster itself becomes faster or slower meanwhile, one of the two comparisons shows it.
    """
    goal, first, won = sweep.settings.goal, sweep.start or sweep.best, sweep.best.config
    sweep.best = first
    if won != first.config:
        outcome = yield from _measure(sweep, _run(sweep, "again", "all winners together", won))
        sweep.confirmed = outcome.measured[0] if outcome.measured else None
        if outcome.failure or sweep.confirmed is None:
            sweep.notes.append(f"The winners cannot be used together: {outcome.failure}")
    outcome = yield from _measure(sweep, _run(sweep, "again", "first settings again", first.config))
    if outcome.failure or not outcome.measured:
        sweep.notes.append(f"The result is uncertain, because the first run could not be repeated: {outcome.failure}")
        return
    sweep.again = outcome.measured[0]
    if sweep.confirmed is None:
        return
    if beats(goal, sweep.confirmed, first) and beats(goal, sweep.confirmed, sweep.again):
        sweep.best = sweep.confirmed
    else:
        sweep.notes.append("Together, the winners are not faster than the first settings by more than the spread.")


def _worker_threads(sweep: Sweep) -> Steps:
    """Measure workers with other numbers of threads, and at last with their own; the best must beat both ends."""
    goal, before, config = sweep.settings.goal, sweep.best, sweep.best.config
    found: list[Measured] = []
    for count in choices.thread_counts(sweep.settings):
        title = f"workers with {count} thread{'s' if count > 1 else ''}"
        run = _run(sweep, "worker_threads", title, replace(config, worker_threads=count))
        found += yield from _try(sweep, replace(run, restarts=True))
    if not found:
        return
    run = _run(sweep, "worker_threads", "workers with the threads that they had", config)
    outcome = yield from _measure(sweep, replace(run, restarts=True))
    if outcome.failure or not outcome.measured:
        sweep.notes.append(f"No number of threads is certainly better: {outcome.failure}")
        return
    first = max(found, key=lambda candidate: gain(goal, candidate, before))
    if beats(goal, first, before) and beats(goal, first, outcome.measured[0]):
        sweep.best = first
        sweep.threads = first.config.worker_threads
