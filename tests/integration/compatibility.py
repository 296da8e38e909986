# SPDX-License-Identifier: GPL-3.0-or-later
"""How masters and workers of the generations of the RPC protocol work together, as the tables of a page.

As a program, it runs all combinations (`make test-matrix` builds them) and rewrites docs/reference/compatibility.md.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from support.collection import FilterModule, parse_endpoint, probe
from support.harness import GENERATIONS, HANG_S, ROOT, Release, Worker, run_module, running_worker

PAGE = ROOT / "docs/reference/compatibility.md"
BEGINS = "<!-- `scripts/matrix.sh write` writes what follows. -->\n"
NAMES = ("node1:50052", "node2:50052")
REFUSED = "protocol_mismatch"

_ARCHIVES = yaml.safe_load((ROOT / "roles/llama_cpp/vars/main.yml").read_text(encoding="utf-8"))["__llama_cpp_archives"]

# The tables by their heading. Each table maps the first cell of a row to the other cells of that row.
Tables = dict[str, dict[str, list[str]]]

READS = "What the collection reads"
WORKS = "Which master works with which worker"
SAID = "What the failed runs say"
EVERY = "every master with a worker of another protocol"
# The placeholders in a sentence for the protocols of the master and of the worker.
_MASTER, _WORKER = "MASTER", "WORKER"
_COLUMNS = {
    READS: [
        "llama.cpp", "RPC protocol", "`rpc_worker_info`", "program of the master", "devices in the log",
        "figures in the log",
    ],
    WORKS: ["master \\ worker", *GENERATIONS],
    SAID: ["master and worker", "workers asked before the run (`verify: true`)", "not asked (`verify: false`)"],
}  # fmt: skip
_INTRODUCTION = {SAID: f"{_MASTER} and {_WORKER} stand for the protocols of the master and of the worker.\n\n"}


def infer(release: Release, model: Path, workers: list[Worker], **arguments: Any) -> dict[str, Any]:
    """Run the module on this machine."""
    given = {
        "model": str(model),
        "prompt": "Here's a knock knock joke for children:",
        "workers": [worker.endpoint for worker in workers],
        "bin_folder": str(release.bin),
        "n_predict": 8,
        "timeout": 60,
    }
    return run_module("distributed_inference", {**given, **arguments})


def state(worker: Worker) -> str:
    """Return the state of a worker according to the prober."""
    return probe([parse_endpoint(worker.endpoint)], 20)[0].state


def reads(release: Release, model: Path) -> list[str]:
    """Return a table row: the collection's data from a worker, a program and its log, all of one release."""
    with running_worker(release, model.with_name("reads.log")) as worker:
        status = probe([parse_endpoint(worker.endpoint)], 20)[0]
        result = infer(release, model, [worker])
        assert result["failure"] is None, result["msg"]
        # Current builds sometimes end before they have written their last lines.
        for _attempt in range(10):
            done = subprocess.run(
                result["command"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG_S, check=True
            )
            found = FilterModule().filters()["llama_perf"](done.stdout + done.stderr)
            if found["perf"]["graphs_reused"] is not None:
                break
    device = next(device for device in found["devices"] if device["endpoint"] == worker.endpoint)
    figures = [
        name
        for name, figure in found["perf"].items()
        if (any(value is not None for value in figure.values()) if isinstance(figure, dict) else figure is not None)
    ]
    commit = _ARCHIVES[release.version]["commit"]
    return [
        f"{commit[:9]} (llama-cpp-python {release.version})",
        (status.protocol or {})["version"],
        f"`{status.state}`, {len(status.devices)} device",
        f"`{Path(result['command'][0]).name}`",
        ", ".join(f"`{name}`" for name in ("layers", *(n for n in device if n.endswith("_mib"))) if device[name]),
        ", ".join(f"`{name}`" for name in figures),
    ]


def meet(master: str, worker: str, model: Path) -> dict[str, Any]:
    """Let a master of one generation use a worker of another beside one of its own; return two results.

    Of the results, True has the one with verification, and False the one without. The function also asserts that both
    workers are ready after each run.
    """
    ours, theirs = GENERATIONS[master], GENERATIONS[worker]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(running_worker(release, model.with_name(f"{name[:5]}.log")))
            for release, name in zip((ours, theirs), NAMES)
        ]
        ends = {}
        for verify in (True, False):
            result = infer(ours, model, workers, verify=verify)
            failure = result["failure"]
            said = failure["message"] if failure else "works"
            for running, name in zip(workers, NAMES):
                said = said.replace(running.endpoint, name)
            kind = failure["kind"] if failure else None
            ends[verify] = {"kind": kind, "endpoint": (failure or {}).get("endpoint"), "said": said}
            assert kind is None or failure["endpoint"] == workers[1].endpoint, failure
            assert [state(running) for running in workers] == ["ready", "ready"], said
    return ends


def row(ends: dict[bool, dict[str, Any]]) -> list[str]:
    """Return the table cells of such a meeting: the result with verification, and the one without."""
    return [f"`{end['kind']}`: {end['said']}" if end["kind"] else str(end["said"]) for end in ends.values()]


def pair(master: str, worker: str) -> str:
    return f"{master} with {worker}"


def gathered(said: dict[tuple[str, str], list[str]]) -> dict[str, list[str]]:
    """Return one row for all pairs of a master and a worker whose cells differ only in their protocols."""
    alike: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for (master, worker), cells in said.items():
        general = tuple(
            cell.replace(f"protocol {worker}", f"protocol {_WORKER}").replace(f"master {master}", f"master {_MASTER}")
            for cell in cells
        )
        alike.setdefault(general, []).append((master, worker))
    others = list(itertools.permutations(GENERATIONS, 2))
    return {
        EVERY if sorted(pairs) == sorted(others) else ", ".join(itertools.starmap(pair, pairs)): list(cells)
        for cells, pairs in alike.items()
    }


def said_of(tables: Tables, master: str, worker: str) -> list[list[str]]:
    """Return the page's messages for a master and a worker: the cells of each row about both."""
    return [
        [cell.replace(_MASTER, master).replace(_WORKER, worker) for cell in cells]
        for about, cells in tables[SAID].items()
        if pair(master, worker) in about.split(", ") or (about == EVERY and master != worker)
    ]


def seen(model: Path) -> Tables:
    """Run everything; return the tables."""
    ends = {both: meet(*both, model) for both in itertools.product(GENERATIONS, repeat=2)}
    return {
        READS: {cells[0]: cells[1:] for release in GENERATIONS.values() for cells in [reads(release, model)]},
        WORKS: {
            master: ["works" if ends[master, worker][True]["kind"] is None else "refused" for worker in GENERATIONS]
            for master in GENERATIONS
        },
        SAID: gathered({both: row(found) for both, found in ends.items() if found[True]["kind"]}),
    }


def rendered(tables: Tables) -> str:
    text = BEGINS
    for heading, rows in tables.items():
        columns = _COLUMNS[heading]
        text += (
            f"\n## {heading}\n\n{_INTRODUCTION.get(heading, '')}| {' | '.join(columns)} |\n|{'--|' * len(columns)}\n"
        )
        text += "".join(f"| {' | '.join([about, *cells])} |\n" for about, cells in rows.items())
    return text


def documented() -> Tables:
    """Return the tables of the page."""
    tables: Tables = {}
    for line in PAGE.read_text(encoding="utf-8").partition(BEGINS)[2].splitlines():
        if line.startswith("## "):
            tables[line[3:]] = rows = {}
        elif line.startswith("| "):
            cells = line.strip("| ").split(" | ")
            if cells != _COLUMNS[list(tables)[-1]]:
                rows[cells[0]] = cells[1:]
    return tables


def main() -> None:
    """Write the page."""
    missing = [release.version for release in GENERATIONS.values() if not release.rpc_server.exists()]
    if missing:
        sys.exit(f"error: llama.cpp of archive {', '.join(missing)} is not built: run `make test-matrix`.")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "random.gguf"
        subprocess.run([sys.executable, ROOT / "playbooks/files/random_model.py", model], check=True, timeout=120)
        tables = seen(model)
    PAGE.write_text(PAGE.read_text(encoding="utf-8").partition(BEGINS)[0] + rendered(tables), encoding="utf-8")


if __name__ == "__main__":
    main()
