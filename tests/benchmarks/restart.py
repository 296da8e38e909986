# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure what a restart of the API costs a conversation: the time to the first token of its next turn.

A trained model serves over two workers. A conversation has 1,500 tokens. Then the service restarts, or a worker is
killed and comes back. `kept` saves the conversations of the slots (llama_server_cache_disk), `lost` does not. Each case
runs once in each round, and every round begins with another one.

    python -m benchmarks.restart --smoke    # does it run
"""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trained_model as trained_models
from benchmarks.loopback import CACHE, in_rounds, keep, release
from benchmarks.measure import NotRunError, asked, machine, machine_line, parser_of, run_to_end, shown, spread, table
from support.api_service import NO_PAGE, Service, healing_service
from support.harness import running_worker
from support.runs import wait_for

if TYPE_CHECKING:
    from benchmarks.loopback import Case, Rates

LIMIT_S = 300
TOKENS, SMOKE_TOKENS, ANSWER = 1500, 100, 16
# The names of the figures, in their order
FIRST, BACK, KNOWN = "next turn's first token, s", "the API serves again, s", "tokens known"


def ask(service: Service, prompt: list[int], tokens: int) -> tuple[list[int], int]:
    """Return the tokens of an answer, and how many of the prompt were known."""
    given = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    status, body = service.request("/completion", given, limit_s=LIMIT_S)
    if status != 200:
        raise RuntimeError(json.dumps(body))
    return body["tokens"], body["timings"]["cache_n"]


def case(model: Path, tokens: int, kept: bool, killed: bool) -> Rates:
    """Return the figures of one restart."""
    given: dict[str, Any] = {
        "cache_disk_mib": 4096 * kept,
        "save_after_s": 1,
        "degrade": [],
        "options": [*NO_PAGE, "--ctx-size", "4096"],
    }
    prompt = [1000 + (7 * number) % 5000 for number in range(tokens - ANSWER)]
    with ExitStack() as stack, tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        workers = [
            stack.enter_context(running_worker(release(), folder / f"{number}.log", "-c")) for number in range(2)
        ]
        start = partial(healing_service, release(), model, workers, folder, **given)
        with start() as service:
            service.wait_for("Serving noise over 2 workers at", LIMIT_S)
            talk = prompt + ask(service, prompt, ANSWER)[0]
            if kept:
                wait_for(lambda: list(folder.glob("prompts/*.slot")), LIMIT_S)
            if killed:
                lines = len(service.lines)
                workers[1].kill()
                began = time.monotonic()
                stack.enter_context(running_worker(release(), folder / "again.log", "-c", port=workers[1].port))
                wait_for(lambda: any("Serving noise" in line for line in service.lines[lines:]), LIMIT_S)
                return next_turn(service, talk, began)
        began = time.monotonic()
        with start() as service:
            service.wait_for("Serving noise over 2 workers at", LIMIT_S)
            return next_turn(service, talk, began)


def next_turn(service: Service, talk: list[int], began: float) -> Rates:
    back = time.monotonic()
    known = ask(service, [*talk, 1001, 1002, 1003], 1)[1]
    return {FIRST: time.monotonic() - back, BACK: back - began, KNOWN: float(known)}


def main() -> int:
    args = asked(parser_of(__doc__), "a short conversation, once: whether it runs")
    model, before = CACHE / "demo" / trained_models.NAME, machine()
    try:
        trained_models.ensure(model)
    except (RuntimeError, OSError) as error:
        raise NotRunError(f"there is no trained model: {error}") from error
    tokens = SMOKE_TOKENS if args.smoke else TOKENS
    cases: dict[str, Case] = {
        f"{'worker killed' if killed else 'restart'}, {'kept' if kept else 'lost'}": partial(
            case, model, tokens, kept, killed
        )
        for killed in (False, True)
        for kept in (False, True)
    }
    rounds = in_rounds(cases, args.repetitions, "restart")
    found = {
        name: {figure: spread([done[name][figure] for done in rounds]) for figure in (FIRST, BACK, KNOWN)}
        for name in cases
    }
    rows = [[name, *(shown(figures[figure], 2) for figure in (FIRST, BACK, KNOWN))] for name, figures in found.items()]
    print(f"{machine_line(before)}\n\n{table(['case', FIRST, BACK, KNOWN], rows)}")
    print(f"\nAll values: {keep('restart', args, {'tokens': tokens, 'cases': found})}")
    return 0


if __name__ == "__main__":
    run_to_end(main)
