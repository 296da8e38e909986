# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the cost of module distributed_inference: the task in a play against its own command, run by hand.

The benchmark runs both in turn over the same two workers. It measures how much longer the task takes, and whether the
program generates as fast in it. The workers share a core. If each had its own core, these would rest in turn during
generation; on a virtual machine, runs would then differ by more than the effect to measure. With two cores or more, the
program and Ansible have a core that no worker uses, as in a cluster. Needs the release that `make test` builds, and no
root.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.loopback import CORES, in_rounds, keep, model, ratios, release, repeated, task, timed_task, workers
from benchmarks.measure import BenchError, asked, parser_of, run_to_end, say, shown, spread, table
from support.collection import ENVIRONMENT, parse_log
from support.harness import Worker

# Number of generated tokens.
TOKENS = 128
RUN_LIMIT_S = 600
# A run that lost its last lines has no figures, by hand as in the module. On a busy machine that can be every second
# run.
ATTEMPTS = 20
MOST_SECONDS, MOST_SHARE = 1.5, 0.02
LEAST_RATIO, MOST_RATIO = 0.98, 1.02


def rates(perf: dict[str, Any] | None) -> dict[str, float] | None:
    """Return the program's tokens per second; None if it lost these lines."""
    if not perf:
        return None
    found = {"generation": perf["eval"]["tokens_per_second"], "prompt": perf["prompt_eval"]["tokens_per_second"]}
    return found if all(found.values()) else None


def by_hand(command: list[str]) -> dict[str, float] | None:
    """Run the command as a person does in a shell; return its seconds and its speed."""
    began = time.monotonic()
    done = subprocess.run(
        command, env={**os.environ, **ENVIRONMENT}, stdin=subprocess.DEVNULL, capture_output=True,
        timeout=RUN_LIMIT_S, check=False,
    )  # fmt: skip
    seconds = time.monotonic() - began
    if done.returncode:
        raise BenchError(f"The command failed by hand with status {done.returncode}.")
    found = rates(parse_log(done.stderr.decode(errors="replace"), require_perf=False)["perf"])
    return {"seconds": seconds, **found} if found else None


def in_a_play(arguments: dict[str, Any], folder: Path) -> dict[str, float] | None:
    """Run the task in a play on this machine; return its seconds, those of the program in it, and its speed."""
    seconds, run = timed_task("distributed_inference", arguments, folder)
    found = rates(run["perf"])
    about = {"seconds": seconds, "program": run["wall_time_ms"] / 1000, "attempts": run["attempts"]}
    return {**about, **found} if found else None


def measure(found: list[Worker], path: Path, repetitions: int, folder: Path) -> dict[str, Any]:
    arguments = {
        "model": str(path),
        "prompt": "the river and the stone " * 20,
        "workers": [worker.endpoint for worker in found],
        "n_predict": TOKENS,
        "bin_folder": str(release().bin),
        "extra_args": ["--ignore-eos"],
    }
    command = task("distributed_inference", arguments, check=True)["command"]
    cases = {
        "hand": lambda: repeated(lambda: by_hand(command), ATTEMPTS),
        "task": lambda: repeated(lambda: in_a_play(arguments, folder), ATTEMPTS),
    }
    say("one run before the others: afterwards the workers have the weights in their caches")
    cases["hand"]()
    return summary(in_rounds(cases, repetitions, "by hand and in a play"))


def summary(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    hand, tasks = ([done[name] for done in rounds] for name in ("hand", "task"))
    # A run that lost its last lines is repeated and takes as long again. Such runs are left out.
    once = [n for n, done in enumerate(tasks) if done["attempts"] == 1] or list(range(len(tasks)))
    extra = [tasks[n]["seconds"] - hand[n]["seconds"] for n in once]
    return {
        "hand_seconds": spread([done["seconds"] for done in hand]),
        "task_seconds": spread([done["seconds"] for done in tasks]),
        "extra_seconds": spread(extra, 4),
        # The part of it outside of the program: Ansible and the module, without the noise of two runs.
        "around_the_program_seconds": spread([tasks[n]["seconds"] - tasks[n]["program"] for n in once], 4),
        "repeated_runs": len(tasks) - len(once),
        "generation_ratio": ratios([done["generation"] for done in tasks], [done["generation"] for done in hand]),
        "prompt_ratio": ratios([done["prompt"] for done in tasks], [done["prompt"] for done in hand]),
    }


def report(found: dict[str, Any]) -> bool:
    allowed = MOST_SECONDS + MOST_SHARE * found["hand_seconds"]["median"]
    quick = found["extra_seconds"]["median"] <= allowed
    same = LEAST_RATIO <= found["generation_ratio"]["median"] <= MOST_RATIO
    rows = [
        ["by hand, s", "hand_seconds", ""],
        ["task in a play, s", "task_seconds", ""],
        ["task more than by hand, s", "extra_seconds", f"at most {allowed:.2f}: {'yes' if quick else 'NO'}"],
        ["task outside of the program, s", "around_the_program_seconds", ""],
        ["generation, task / by hand", "generation_ratio", f"{LEAST_RATIO} to {MOST_RATIO}: {'yes' if same else 'NO'}"],
        ["prompt, task / by hand", "prompt_ratio", ""],
    ]
    rows = [[what, shown(found[key], 3), target] for what, key, target in rows]
    print(table(["what", "median (range)", "target"], rows))
    return quick and same


def main() -> int:
    smoke = "a small model, twice: whether it runs, not what it costs"
    args = asked(parser_of(__doc__), smoke, rounds=7, smoke_rounds=2)
    path = model(smoke=args.smoke)
    with workers(*[(1, CORES[-1:])] * 2, cached=True) as found, tempfile.TemporaryDirectory() as folder:
        results = measure(found, path, args.repetitions, Path(folder))
    kept = keep("module_overhead", args, {"tokens": TOKENS, "model": path.name, **results})
    met = report(results)
    print(f"\nAll values: {kept}")
    return 0 if met or args.smoke else 1


if __name__ == "__main__":
    run_to_end(main)
