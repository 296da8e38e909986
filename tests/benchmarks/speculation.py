# SPDX-License-Identifier: GPL-3.0-or-later
"""Find how many accepted tokens make speculative decoding pay over two workers of one core each, and why.

First comes the batch cost: the time of a batch of 1, 2, 3, 5 and 9 tokens, against one token (llama-bench). Then the
benchmark compares llama-server with a small draft model on the master to the same server without a draft, by the number
of accepted and of drafted tokens. The server accepts as many drafted tokens as --spec-synth-len says, which counts the
token that comes without a draft. The texts mean nothing, but the times are real. Models with more tokens than these of
random weights (1,100) take longer for the output of a batch. Each round measures all cases once and begins with another
case. Ratios compare figures of the same round. Master and workers share the cores, as the master computes while the
workers wait. Needs the release that `make test` builds.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.loopback import CORES, Case, Rates, in_rounds, keep, model, obstacle, ratio, ratios, release, workers
from benchmarks.measure import BenchError, NotRunError, asked, run_to_end, shown, table
from benchmarks.throughput import measured, planned
from support.collection import load
from support.harness import end, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BATCHES = [1, 2, 3, 5, 9]
ACCEPTED, DRAFTED = [1.5, 2.0, 3.0, 4.0], [2, 4, 8]
TOKENS, SMOKE_TOKENS = 64, 8
# Passes of a batch. Their median leaves out disturbances of the machine.
PASSES = 8
START_LIMIT_S, ANSWER_LIMIT_S = 120, 300
PLAIN, BATCH = "without a draft", "batch"


def named(accepted: float, drafted: int) -> str:
    return f"{accepted:g} of {drafted} + 1"


def batches(path: Path, endpoints: str, names: str, shares: Sequence[int]) -> Rates:
    """Return the milliseconds of a batch by its tokens."""
    options = ("--rpc", endpoints, "-dev", names.replace(",", "/"), "-ts", "/".join(map(str, shares)), "-ngl", "999")
    sizes = ",".join(map(str, BATCHES))
    tests = measured(path, "-p", sizes, "-n", "0", "-t", "1", "-r", str(PASSES), *options)
    return {str(test["n_prompt"]): sorted(test["samples_ns"])[PASSES // 2] / 1e6 for test in tests}


@contextmanager
def served(path: Path, options: Sequence[str]) -> Iterator[int]:
    """Run llama-server on the cores, wait until it serves, and yield its port."""
    port = free_port()
    command = ["taskset", "-c", ",".join(map(str, CORES)), release().bin / "llama-server", "-m", path, "-t", "1"]
    command += ["--port", str(port), "-np", "1", "-c", "1024", "-ngl", "999", "--fit", "off", "--no-ui", *options]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        )
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while not load.Server("127.0.0.1", port).serves():
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise BenchError(f"llama-server did not start: {log.read().decode(errors='replace')[-600:]}")
                time.sleep(0.1)
            yield port
        finally:
            end(process)


def generated(port: int, tokens: int) -> dict[str, Any]:
    """Let the server generate so many tokens, and return its timings."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_LIMIT_S)
    wanted = {"prompt": "the quiet river", "n_predict": tokens, "temperature": 0, "ignore_eos": True}
    try:
        connection.request("POST", "/completion", json.dumps({**wanted, "cache_prompt": False}))
        answer = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    times: dict[str, Any] = answer["timings"]
    return times


def speed(path: Path, options: Sequence[str], tokens: int) -> Rates:
    with served(path, options) as port:
        generated(port, 4)
        times = generated(port, tokens)
    found = {"generation": times["predicted_per_second"]}
    if times.get("draft_n"):
        # Each step but the last ones drafts as many tokens as it may.
        found["accepted"] = times["draft_n_accepted"] / times["draft_n"]
    return found


def cases_of(path: Path, draft: Path, endpoints: list[str], *, smoke: bool) -> dict[str, Case]:
    names = ",".join(f"RPC{number}" for number in range(len(endpoints)))
    shares = planned(path, len(endpoints))
    over = ["--rpc", ",".join(endpoints), "--device", names, "-ts", ",".join(map(str, shares))]
    tokens = SMOKE_TOKENS if smoke else TOKENS
    cases: dict[str, Case] = {
        BATCH: lambda: batches(path, ",".join(endpoints), names, shares),
        PLAIN: lambda: speed(path, over, tokens),
    }
    small = ["-md", str(draft), "--spec-draft-device", "none", "--spec-type", "draft-simple"]
    for drafted in DRAFTED:
        for accepted in ACCEPTED:
            if accepted <= drafted + 1:
                told = ["--spec-draft-n-max", str(drafted), "--spec-synth-len", str(accepted)]
                options = [*over, *small, *told]
                cases[named(accepted, drafted)] = lambda options=options: speed(path, options, tokens)
    return cases


def texts(rounds: list[dict[str, Rates]]) -> str:
    """Return the two tables."""
    times = [done[BATCH] for done in rounds]
    one = [time_of["1"] for time_of in times]
    costs = [[str(size), shown(ratios([time_of[str(size)] for time_of in times], one), 2)] for size in BATCHES]
    rows = []
    for accepted in ACCEPTED:
        row = [f"{accepted:g}"]
        for drafted in DRAFTED:
            case = named(accepted, drafted)
            found = case in rounds[0]
            row.append(shown(ratio(rounds, case, PLAIN, "generation"), 2) if found else "")
        rows.append(row)
    return "\n\n".join(
        [
            table(["tokens of a batch", "its time / that of one token, median (range)"], costs),
            table(["tokens a step", *(f"{drafted} drafted" for drafted in DRAFTED)], rows),
        ]
    )


def main() -> int:
    """Measure, print the tables, and write all values as JSON."""
    args = asked(__doc__, "a tiny model and few tokens, which only show that it runs", rounds=2)
    if why := obstacle(2):
        raise NotRunError(f"speculation; {why}.")
    path, draft = model(smoke=args.smoke), model(smoke=True)
    with workers(*((1, [core]) for core in CORES[:2]), cached=True) as found:
        cases = cases_of(path, draft, [worker.endpoint for worker in found], smoke=args.smoke)
        rounds = in_rounds(cases, args.repetitions, "speculation")
    print(f"\nGeneration over two workers of one core, against the same {PLAIN}, by what is accepted and drafted\n")
    print(texts(rounds))
    print(f"\nAll of it: {keep('speculation', args, {'rounds': rounds})}")
    return 0


if __name__ == "__main__":
    run_to_end(main)
