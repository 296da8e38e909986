# SPDX-License-Identifier: GPL-3.0-or-later
"""Find how many accepted tokens make speculative decoding pay over two workers of one core each, and why.

First comes the batch cost: the time of a batch of 1, 2, 3, 5 and 9 tokens, against one token (llama-bench). Then the
benchmark compares llama-server with a small draft model on the master to the same server without a draft, by the number
of accepted and of drafted tokens. The server accepts as many drafted tokens as --spec-synth-len says, which counts the
token that comes without a draft. The texts mean nothing, but the times are real. Models with more tokens than these of
random weights (1,100) take longer for the output of a batch.

A trained model then repeats a section of the licence, as an answer that quotes a document does. Types of speculation
that draft what followed the same words are compared to none, by the number of drafted tokens. The same server is asked
about the section again, with and without its cache of prompts.

Each round measures all cases once and begins with another case. Ratios compare figures of the same round. Master and
workers share the cores, as the master computes while the workers wait. scripts/bench.sh builds the release.
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
from benchmarks.measure import CACHE, BenchError, NotRunError, asked, run_to_end, shown, spread, table
from benchmarks.throughput import measured, planned
from support.api_client import BEGINNING, SECTION
from support.api_service import speculation
from support.collection import load
from support.harness import end, free_port
from trained_model import NAME, ensure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BATCHES = [1, 2, 3, 5, 9]
ACCEPTED, DRAFTED = [1.5, 2.0, 3.0, 4.0], [2, 4, 8]
TOKENS, SMOKE_TOKENS = 64, 8
# Passes of a batch. Their median leaves out disturbances of the machine.
PASSES = 8
START_LIMIT_S, ANSWER_LIMIT_S = 120, 300
PLAIN, BATCH = "without a draft", "batch"
QUOTED, TYPES, N_GRAMS = "text that repeats", ("ngram-simple", "ngram-mod"), (4, 8, 16)


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


def generated(port: int, tokens: int, prompt: str = "the quiet river", *, cached: bool = False) -> dict[str, Any]:
    """Let the server generate so many tokens, and return its timings."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_LIMIT_S)
    wanted = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True}
    try:
        connection.request("POST", "/completion", json.dumps({**wanted, "cache_prompt": cached}))
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


def quoted(path: Path, options: Sequence[str], tokens: int, section: str) -> Rates:
    """Return the speed at which a model repeats a section, and the time of its prompt when it is asked again."""
    with served(path, options) as port:
        generated(port, 4)
        times = generated(port, tokens, f"{section}\n{BEGINNING}")
        again = [generated(port, 1, f"{section}\n", cached=cached) for cached in (False, True)]
    return {
        "generation": times["predicted_per_second"],
        "accepted": times.get("draft_n_accepted", 0) / times["draft_n"] if times.get("draft_n") else 0.0,
        "prompt": again[0]["prompt_ms"],
        "cached prompt": again[1]["prompt_ms"],
    }


def over_all(path: Path, endpoints: list[str]) -> tuple[list[str], str, list[int]]:
    """Return the options for a model over these workers, the names of their devices, and their shares."""
    names = ",".join(f"RPC{number}" for number in range(len(endpoints)))
    shares = planned(path, len(endpoints))
    return ["--rpc", ",".join(endpoints), "--device", names, "-ts", ",".join(map(str, shares))], names, shares


def quoting_cases(path: Path, endpoints: list[str], *, smoke: bool) -> dict[str, Case]:
    over, _names, _shares = over_all(path, endpoints)
    tokens, section = (SMOKE_TOKENS, SECTION[:99]) if smoke else (TOKENS, SECTION)
    cases: dict[str, Case] = {QUOTED: lambda: quoted(path, over, tokens, section)}
    for kind in TYPES:
        for drafted in N_GRAMS:
            told = speculation(llama_server_spec_type=kind, llama_server_spec_draft_n_max=drafted)
            options = [*over, *told]
            cases[f"{kind}, {drafted}"] = lambda options=options: quoted(path, options, tokens, section)
    return cases


def cases_of(path: Path, draft: Path, endpoints: list[str], *, smoke: bool) -> dict[str, Case]:
    over, names, shares = over_all(path, endpoints)
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


def quoting(rounds: list[dict[str, Rates]]) -> str:
    """Return the table of text that repeats, and what its cached prompt takes."""
    rows = [
        [
            case,
            shown(spread([done[case]["accepted"] for done in rounds], 2), 2),
            shown(ratio(rounds, case, QUOTED, "generation"), 2),
        ]
        for case in rounds[0]
        if case.startswith(TYPES)
    ]
    plain = [done[QUOTED] for done in rounds]
    cached = ratios([found["cached prompt"] for found in plain], [found["prompt"] for found in plain])
    head = ["type, tokens drafted", "share accepted, median (range)", f"generation / that {PLAIN}, median (range)"]
    return f"{table(head, rows)}\n\nThe prompt again / without the cache: {shown(cached, 3)}"


def trained(*, smoke: bool) -> Path:
    """Return the path of the trained model, or of a tiny one."""
    if smoke:
        return model(smoke=True)
    path = CACHE / "demo" / NAME
    try:
        ensure(path)
    except (RuntimeError, OSError) as error:
        raise BenchError(str(error)) from None
    return path


def main() -> int:
    """Measure, print the tables, and write all values as JSON."""
    args = asked(__doc__, "a tiny model and few tokens, which only show that it runs", rounds=2)
    if why := obstacle(2):
        raise NotRunError(f"speculation; {why}.")
    path, draft, real = model(smoke=args.smoke), model(smoke=True), trained(smoke=args.smoke)
    with workers(*((1, [core]) for core in CORES[:2]), cached=True) as found:
        endpoints = [worker.endpoint for worker in found]
        repeating = in_rounds(quoting_cases(real, endpoints, smoke=args.smoke), args.repetitions, QUOTED)
        cases = cases_of(path, draft, endpoints, smoke=args.smoke)
        rounds = in_rounds(cases, args.repetitions, "speculation")
    print(f"\nA trained model that repeats a text, over two workers of one core\n\n{quoting(repeating)}")
    print(f"\nGeneration over two workers of one core, against the same {PLAIN}, by what is accepted and drafted\n")
    print(texts(rounds))
    print(f"\nAll of it: {keep('speculation', args, {'rounds': rounds, 'repeating': repeating})}")
    return 0


if __name__ == "__main__":
    run_to_end(main)
