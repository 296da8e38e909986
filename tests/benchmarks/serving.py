# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the cost of serving: one to sixteen clients of a llama-server over workers on loopback, against no RPC.

Clients ask for answers of a fixed length, all at the same time, each once. The figures are the tokens of all clients a
second, the time to the first token and the time between two tokens, by number of clients and length of prompt. A setup
is a division of this machine's cores. `local` is llama-server without workers, with a thread for each core; `whole` is
one worker with a thread for each core; a number is so many workers of one core each, in one split mode or another. Each
setup runs once in each round, with a server and workers of its own. Every round begins with another setup, and ratios
compare figures of the same round. The master and the clients have no core of their own: they share those of the
workers.

    python -m benchmarks.serving --smoke                                   # does it run
    python -m benchmarks.serving --workers 1,2 --clients 1,8 --prompt short --repetitions 1     # a quick look
    python -m benchmarks.serving --bin ours=FOLDER --bin upstream --workers 2 --split-mode layer,tensor
    python -m benchmarks.serving --server-args="" --server-args="--kv-unified --ubatch-size 4"

Without options it measures the cases of the targets, and its status is 1 if a median misses a target.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.loopback import CORES, in_rounds, keep, model, obstacle, ratios, release, workers
from benchmarks.measure import BenchError, parser_of, run_to_end, say, spread, table
from support.builds import Build, build
from support.collection import load as serving_load
from support.harness import end, free_port

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from benchmarks.loopback import Case, Rates

# Words of a prompt, and tokens of an answer. With long prompts, reading is most of the work.
PROMPTS = {"short": (1, 64), "medium": (70, 32), "long": (256, 32)}
CLIENTS, SMOKE_CLIENTS = [1, 2, 4, 8, 16], [1, 2]
WORKERS = ["local", "whole", "1", "2"]
START_LIMIT_S, LOAD_LIMIT_S = 120, 600
# Tokens of a slot beside those of a prompt and its answer.
SPARE_TOKENS = 64
TITLES = ("tokens_per_second", "first_token_ms", "between_tokens_ms")


@dataclass(frozen=True)
class Programs:
    """A named folder with llama-server and the worker's program."""

    name: str
    bin: Path

    @property
    def rpc_server(self) -> Path:
        found = [self.bin / name for name in ("rpc-server", "ggml-rpc-server") if (self.bin / name).exists()]
        if not found:
            raise BenchError(f"There is no rpc-server in {self.bin}; give a folder that has one with --bin.")
        return found[0]

    @property
    def llama_server(self) -> Path:
        if not (self.bin / "llama-server").exists():
            raise BenchError(f"There is no llama-server in {self.bin}; give a folder that has one with --bin.")
        return self.bin / "llama-server"


@dataclass(frozen=True)
class Setup:
    """One way to serve the model on these cores."""

    programs: Programs
    division: str
    split_mode: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        what = {
            "local": "without workers",
            "whole": f"one worker of {len(CORES)} threads",
            "1": "one worker of one core",
        }.get(self.division, f"{self.division} workers of one core, {self.split_mode}")
        return " ".join([what, *self.arguments, f"({self.programs.name})" if self.programs.name else ""]).strip()

    @property
    def of_each(self) -> list[tuple[int, list[int]]]:
        """Threads and cores of each worker."""
        if self.division == "local":
            return []
        if self.division == "whole":
            return [(len(CORES), CORES)]
        return [(1, [core]) for core in CORES[: int(self.division)]]

    @property
    def obstacle(self) -> str:
        return "" if self.division in ("local", "whole") else obstacle(int(self.division))


@contextlib.contextmanager
def serving(setup: Setup, path: Path, slots: int, context: int) -> Iterator[serving_load.Server]:
    """Start workers and a llama-server on these cores; end them by their own process ids."""
    key, port = secrets.token_hex(16), free_port()
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(workers(*setup.of_each, build=setup.programs)) if setup.of_each else []
        command = ["taskset", "-c", ",".join(map(str, CORES)), setup.programs.llama_server, "--model", path]
        command += ["--host", "127.0.0.1", "--port", str(port), "--parallel", str(slots), "--no-ui", "--fit", "off"]
        command += ["--ctx-size", str(slots * context), "--cache-ram", "0"]
        if found:
            names = ",".join(f"RPC{number}" for number in range(len(found)))
            command += ["--rpc", ",".join(worker.endpoint for worker in found), "--device", names, "--threads", "1"]
            command += ["--n-gpu-layers", "999", "--tensor-split", ",".join("1" for _worker in found)]
            command += ["--split-mode", setup.split_mode]
        else:
            command += ["--n-gpu-layers", "0", "--threads", str(len(CORES))]
        log = stack.enter_context(tempfile.NamedTemporaryFile("w+", suffix=".log"))
        process = subprocess.Popen(
            [*map(str, command), *setup.arguments],
            env={**os.environ, "GGML_NO_BACKTRACE": "1", "LLAMA_API_KEY": key},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            server = serving_load.Server("127.0.0.1", port, key)
            deadline = time.monotonic() + START_LIMIT_S
            while not server.serves():
                if process.poll() is not None or time.monotonic() > deadline:
                    said = Path(log.name).read_text(errors="replace")[-1500:]
                    raise BenchError(f"llama-server does not serve ({setup}): {said}")
                time.sleep(0.1)
            yield server
        finally:
            end(process)


def measured(setup: Setup, path: Path, args: argparse.Namespace) -> Rates:
    """Serve once, and return the figures of all loads, by their names."""
    longest = max(words + tokens for words, tokens in args.loads.values())
    found = {}
    with serving(setup, path, args.slots or max(args.clients), longest + SPARE_TOKENS) as server:
        serving_load.warm_up(server, LOAD_LIMIT_S)
        for name, (words, tokens) in args.loads.items():
            for clients in args.clients:
                load = serving_load.Load(clients, words, tokens, limit_s=LOAD_LIMIT_S)
                try:
                    figures = serving_load.figures(serving_load.run(server, load))
                except serving_load.LoadError as error:
                    raise BenchError(f"{setup}, {clients} clients: {error}") from error
                rate, first, between = (figures[title] for title in TITLES)
                found[f"{name} {clients}"] = rate
                for what, figure in (("first", first), ("between", between)):
                    found[f"{name} {clients} {what} median"] = figure["median"]
                    found[f"{name} {clients} {what} p95"] = figure["p95"]
                say(f"  {setup}: {clients} clients, {name} prompts: {rate:.1f} tokens/s")
    return found


def base_of(setup: Setup, setups: Sequence[Setup]) -> Setup:
    """Return the setup to compare this one to: the same programs and arguments, local or with one worker."""
    division = {"local": "local", "whole": "local", "1": "1"}.get(setup.division, "1")
    alike = [
        other
        for other in setups
        if (other.division, other.programs, other.arguments) == (division, setup.programs, setup.arguments)
    ]
    return alike[0] if alike else setup


def first_of(setup: Setup, setups: Sequence[Setup]) -> Setup:
    """Return the first setup of the same cores and split mode, whatever its programs and arguments."""
    return next(other for other in setups if (other.division, other.split_mode) == (setup.division, setup.split_mode))


def results_of(rounds: list[dict[str, Rates]], setups: Sequence[Setup], args: argparse.Namespace) -> dict[str, Any]:
    """Return all figures by setup and load, with their ratios in the same round."""

    def ratio(setup: Setup, other: Setup, test: str) -> dict[str, Any]:
        return ratios(*([done[str(which)][test] for done in rounds] for which in (setup, other)))

    return {
        str(setup): {
            test: {
                "tokens_per_second": spread([done[str(setup)][test] for done in rounds]),
                **{
                    f"{what}_{which}_ms": spread([done[str(setup)][f"{test} {what} {which}"] for done in rounds])
                    for what in ("first", "between")
                    for which in ("median", "p95")
                },
                "base": str(base_of(setup, setups)),
                "ratio_to_base": ratio(setup, base_of(setup, setups), test),
                "first": str(first_of(setup, setups)),
                "ratio_to_first": ratio(setup, first_of(setup, setups), test),
            }
            for name in args.loads
            for clients in args.clients
            for test in [f"{name} {clients}"]
        }
        for setup in setups
    }


def shown(figure: dict[str, Any], digits: int) -> str:
    """Return a median, with its range if there is one."""
    text = f"{figure['median']:.{digits}f}"
    return text if len(figure["values"]) == 1 else f"{text} ({figure['min']:.{digits}f}-{figure['max']:.{digits}f})"


def row(setup: str, clients: int, figures: dict[str, Any]) -> list[object]:
    """Return a line of a table."""
    times = [
        f"{figures[f'{what}_median_ms']['median']:.0f} / {figures[f'{what}_p95_ms']['median']:.0f}"
        for what in ("first", "between")
    ]
    compared = [
        shown(figures[f"ratio_to_{which}"], 2) if figures[which] != setup else "" for which in ("base", "first")
    ]
    return [clients, setup, shown(figures["tokens_per_second"], 1), *times, *compared]


def report(found: dict[str, Any], args: argparse.Namespace) -> str:
    """Return a table for each length of prompt."""
    head = ["clients", "setup", "tokens/s", "first token ms", "between ms", "to one or local", "to first like it"]
    parts = []
    for name, (words, tokens) in args.loads.items():
        rows = [
            row(setup, clients, tests[f"{name} {clients}"])
            for clients in args.clients
            for setup, tests in found.items()
        ]
        title = f"Prompts of {words} words, {tokens} tokens generated (ms: median / p95)"
        parts.append(f"{title}\n{table(head, rows)}")
    return "\n\n".join(parts)


def missed(found: dict[str, Any], setups: Sequence[Setup]) -> list[str]:
    """Return a sentence for each target that a median misses."""
    sentences = []
    best: dict[str, float] = {}
    for setup in setups:
        for test, figures in found[str(setup)].items():
            if figures["base"] == str(setup):
                continue
            median = figures["ratio_to_base"]["median"]
            least = 0.95 if setup.division == "whole" else 0.0
            if setup.division == "2" and test.endswith(" 8"):
                least = 1.35 if setup.split_mode == "layer" else 0.0
                best[test] = max(best.get(test, 0.0), median)
            if median < least:
                sentences.append(f"{setup} / {figures['base']}, {test} clients: {median:.3f}, less than {least}.")
    sentences += [
        f"Two workers / one, {test} clients, in the better split mode: {median:.3f}, less than 1.5."
        for test, median in best.items()
        if median < 1.5
    ]
    return sentences


def programs_of(text: str) -> Programs:
    """Return the programs that --bin names: a folder, NAME=FOLDER, or upstream for a build without patches."""
    if text == "upstream":
        say("building upstream's programs of the same source, if they are not in the cache")
        made: Build = build("native", {"LLAMA_BUILD_SERVER": "ON"}, ["ggml-rpc-server", "llama-server"], ())
        return Programs("upstream", made.bin)
    name, equals, folder = text.rpartition("=")
    return Programs(name if equals else "", Path(folder).expanduser().absolute())


def listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


OPTIONS: dict[str, dict[str, Any]] = {
    "--bin": {"action": "append", "help": "a folder of programs, NAME=FOLDER, or upstream; may be repeated"},
    "--model": {"type": Path, "help": "a GGUF file (default: one of random weights, 0.4 GB in Q4_0)"},
    "--workers": {"type": listed, "default": WORKERS, "help": "of local, whole, 1, 2, ... (default: all of these)"},
    "--split-mode": {"type": listed, "default": ["layer", "tensor"], "help": "from two workers on (default: both)"},
    "--clients": {"type": listed, "default": CLIENTS, "help": "numbers (default: 1,2,4,8,16)"},
    "--prompt": {"type": listed, "default": ["short", "long"], "help": f"of {', '.join(PROMPTS)}, or words"},
    "--generate": {"type": int, "help": "tokens of an answer, in place of those that belong to the prompts"},
    "--slots": {"type": int, "help": "slots of the server (default: the most clients)"},
    "--server-args": {"action": "append", "help": "options of llama-server; may be repeated, for a setup each"},
    "--repetitions": {"type": int, "default": 3, "help": "rounds (default: %(default)s)"},
    "--smoke": {"action": "store_true", "help": "a small model, once: whether it runs, not what it costs"},
}


def asked() -> argparse.Namespace:
    """Return the arguments; `loads` are words of a prompt and tokens of an answer by their names."""
    parser = parser_of(__doc__)
    for option, about in OPTIONS.items():
        parser.add_argument(option, **about)
    args = parser.parse_args()
    if args.smoke:
        args.repetitions, args.clients, args.generate, args.prompt = 1, SMOKE_CLIENTS, 4, ["short", "8"]
    try:
        args.clients = [int(count) for count in args.clients]
        args.loads = {name: PROMPTS.get(name) or (int(name), PROMPTS["long"][1]) for name in args.prompt}
        counts = [int(name) for name in args.workers if name not in ("local", "whole")]
    except ValueError as error:
        parser.error(f"a list holds what is no number ({error}).")
    if min([*counts, *args.clients, args.repetitions]) < 1:
        parser.error("there is at least one worker, one client and one repetition.")
    if args.generate:
        args.loads = {name: (words, args.generate) for name, (words, _tokens) in args.loads.items()}
    return args


def setups_of(args: argparse.Namespace) -> list[Setup]:
    programs = [programs_of(text) for text in args.bin or [str(release("llama-server").bin)]]
    return [
        Setup(which, division, mode, tuple(shlex.split(arguments)))
        for division in args.workers
        for mode in (args.split_mode if division not in ("local", "whole", "1") else ["layer"])
        for which in programs
        for arguments in args.server_args or [""]
    ]


def main() -> int:
    args = asked()
    path = args.model or model(smoke=args.smoke)
    asked_for = setups_of(args)
    setups = [setup for setup in asked_for if not setup.obstacle]
    not_run = {str(setup): setup.obstacle for setup in asked_for if setup.obstacle}

    def case(setup: Setup) -> Case:
        return lambda: measured(setup, path, args)

    rounds = in_rounds({str(setup): case(setup) for setup in setups}, args.repetitions, "serving")
    found = results_of(rounds, setups, args)
    sentences = missed(found, setups)
    kept = keep("serving", args, {"model": path.name, "loads": args.loads, "not_run": not_run, "missed": sentences,
                                  "cases": found})  # fmt: skip
    print(f"\n{report(found, args)}\n")
    for setup, why in not_run.items():
        print(f"not run: {setup}: {why}")
    print("Missed:\n" + "\n".join(sentences) if sentences else "No target that was measured here is missed.")
    print(f"\nAll values: {kept}")
    return 1 if sentences and not args.smoke else 0


if __name__ == "__main__":
    run_to_end(main)
