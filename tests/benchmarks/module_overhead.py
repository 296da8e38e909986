# SPDX-License-Identifier: GPL-3.0-or-later
"""What module distributed_inference costs: the task in a play against its own command, run by hand.

Both are run in turn over the same two workers, as often as is asked for: how much longer the task takes, and whether
the program generates as fast in it. The workers share a core: where each has its own, these rest in turn while tokens
are generated, and on a virtual machine that makes one run differ from the next by more than what is looked for. From
two cores on, the program and Ansible have one that no worker uses, as they have in a cluster. Needs the release that
`make test` builds, and no root.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from loopback import CORES, keep, model, precise, ratios, release, shown_ratio, task, timed_task, workers
from measure import BenchError, end_on_signals, say, spread, table

# The paths of what follows were added by loopback.
# isort: split
from ansible_collections.llama_cpp.cluster.plugins.module_utils._perf_log import parse_log
from ansible_collections.llama_cpp.cluster.plugins.module_utils._worker_run import ENVIRONMENT
from harness import Worker

RUN_LIMIT_S = 600
# By hand as in the module, a run that lost its last lines says nothing. On a busy machine that can be every second one.
ATTEMPTS = 20
MOST_SECONDS, MOST_SHARE = 1.5, 0.02
LEAST_RATIO, MOST_RATIO = 0.98, 1.02


def by_hand(command: list[str]) -> dict[str, float]:
    """Run the command as a person does in a shell, and return its time and its speed."""
    for _attempt in range(ATTEMPTS):
        began = time.monotonic()
        done = subprocess.run(
            command, env={**os.environ, **ENVIRONMENT}, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=RUN_LIMIT_S, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - began
        perf = parse_log(done.stderr.decode(errors="replace"), require_perf=False)["perf"]
        if done.returncode:
            raise BenchError(f"The command failed by hand with status {done.returncode}.")
        if perf and perf["eval"]["tokens_per_second"] and perf["prompt_eval"]["tokens_per_second"]:
            rates = perf["eval"]["tokens_per_second"], perf["prompt_eval"]["tokens_per_second"]
            return {"seconds": seconds, "generation": rates[0], "prompt": rates[1]}
    raise BenchError(f"The command lost its figures {ATTEMPTS} times in a row.")


def in_a_play(arguments: dict[str, Any], folder: Path) -> dict[str, float]:
    """Run the task in a play on this machine, and return its time, that of the program in it, and its speed."""
    for _attempt in range(ATTEMPTS):
        seconds, run = timed_task("distributed_inference", arguments, folder)
        perf = run["perf"]
        if perf and perf["eval"]["tokens_per_second"] and perf["prompt_eval"]["tokens_per_second"]:
            break
    else:
        raise BenchError(f"The task lost its figures {ATTEMPTS} times in a row.")
    return {
        "seconds": seconds,
        "program": run["wall_time_ms"] / 1000,
        "attempts": run["attempts"],
        "generation": perf["eval"]["tokens_per_second"],
        "prompt": perf["prompt_eval"]["tokens_per_second"],
    }


def measure(found: list[Worker], path: Path, tokens: int, repetitions: int, folder: Path) -> dict[str, Any]:
    arguments = {
        "model": str(path),
        "prompt": "the river and the stone " * 20,
        "workers": [worker.endpoint for worker in found],
        "n_predict": tokens,
        "bin_dir": str(release().bin),
        "extra_args": ["--ignore-eos"],
    }
    command = task("distributed_inference", arguments, check=True)["command"]
    say("one run before the others: afterwards the workers have the weights in their caches")
    by_hand(command)
    rounds = []
    for number in range(1, repetitions + 1):
        # Which comes first changes, so that neither profits from a machine that warms up.
        order = ("hand", "task") if number % 2 else ("task", "hand")
        done = {name: by_hand(command) if name == "hand" else in_a_play(arguments, folder) for name in order}
        say(f"{number} of {repetitions}: by hand {done['hand']['seconds']:.2f} s, task {done['task']['seconds']:.2f} s")
        rounds.append(done)
    return summary(rounds)


def summary(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    hand, tasks = ([done[name] for done in rounds] for name in ("hand", "task"))
    # A run that was repeated, since it lost its last lines, takes as long again: that is not what is measured here.
    once = [n for n, done in enumerate(tasks) if done["attempts"] == 1] or list(range(len(tasks)))
    extra = [tasks[n]["seconds"] - hand[n]["seconds"] for n in once]
    return {
        "hand_seconds": spread([done["seconds"] for done in hand]),
        "task_seconds": spread([done["seconds"] for done in tasks]),
        "extra_seconds": precise(extra),
        # Of that, what is outside of the program: Ansible and the module, without the noise of two runs.
        "around_the_program_seconds": precise([tasks[n]["seconds"] - tasks[n]["program"] for n in once]),
        "repeated_runs": len(tasks) - len(once),
        "generation_ratio": ratios([done["generation"] for done in tasks], [done["generation"] for done in hand]),
        "prompt_ratio": ratios([done["prompt"] for done in tasks], [done["prompt"] for done in hand]),
    }


def report(found: dict[str, Any]) -> bool:
    allowed = MOST_SECONDS + MOST_SHARE * found["hand_seconds"]["median"]
    quick = found["extra_seconds"]["median"] <= allowed
    same = LEAST_RATIO <= found["generation_ratio"]["median"] <= MOST_RATIO
    rows = [
        ["by hand, s", shown_ratio(found["hand_seconds"]), ""],
        ["task in a play, s", shown_ratio(found["task_seconds"]), ""],
        [
            "task more than by hand, s",
            shown_ratio(found["extra_seconds"]),
            f"at most {allowed:.2f}: {'yes' if quick else 'NO'}",
        ],
        ["task outside of the program, s", shown_ratio(found["around_the_program_seconds"]), ""],
        [
            "generation, task / by hand",
            shown_ratio(found["generation_ratio"]),
            f"{LEAST_RATIO} to {MOST_RATIO}: {'yes' if same else 'NO'}",
        ],
        ["prompt, task / by hand", shown_ratio(found["prompt_ratio"]), ""],
    ]
    print(table(["what", "median (range)", "target"], rows))
    return quick and same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=7, help="of each, in turn (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="that are generated (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="a small model, twice: whether it runs, not what it costs")
    args = parser.parse_args()
    if args.repetitions < 1 or args.tokens < 2:
        parser.error("--repetitions must be 1 or more, --tokens 2 or more.")
    end_on_signals()
    repetitions = 2 if args.smoke else args.repetitions
    try:
        path = model(smoke=args.smoke)
        with workers(*[(1, CORES[-1:])] * 2, cached=True) as found, tempfile.TemporaryDirectory() as folder:
            results = measure(found, path, args.tokens, repetitions, Path(folder))
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    kept = keep(
        "module_overhead",
        {"smoke": args.smoke, "repetitions": repetitions, "tokens": args.tokens, "model": path.name, **results},
    )
    met = report(results)
    print(f"\nAll values: {kept}")
    return 0 if met or args.smoke else 1


if __name__ == "__main__":
    sys.exit(main())
