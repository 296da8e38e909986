# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the cost of another run of playbook site with nothing to do, over 2, 4 and 8 equal workers.

The figures are the seconds of a run, with and without the inference at its end; the tasks of each host, and the
programs that Ansible starts on it over SSH; the longest tasks; and the seconds that one more worker adds. With
--against, the benchmark also measures another checkout of the collection, in turn with this one: before and after a
change. Needs root.
"""

from __future__ import annotations

import os
import statistics
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from benchmarks.measure import (
    CACHE,
    ROOT,
    BenchError,
    Hosts,
    Run,
    asked_of_hosts,
    lab,
    machine,
    machine_line,
    parser_of,
    random_model,
    reported,
    run_to_end,
    say,
    shown,
    spread,
    table,
)
from support.lab.hosts import inventory_of
from support.lab.round_trips import counted, round_trips

WORKERS = tuple(f"worker{number}" for number in (1, 3, 4, 5, 6, 7, 8, 9))
MASTER = "master"
FORKS = 10  # no fewer than there are hosts
FIRST_LIMIT_S = 3600
AGAIN_LIMIT_S = 900
LONGEST = 10
# More programs for a host are a step back: each takes seconds on a slow host. The time of a run over workers on this
# machine does not show that. The worker's last program asks after inference which weights the worker has repacked.
MOST_ROUND_TRIPS = {"worker": 7, "master": 9}
# Layers and width. There are more layers than workers.
SIZE = (16, 256)
FOLDER = CACHE / "benchmarks" / "site_again"
SHARED = (
    "The hosts are containers on this one machine: they share its cores with each other and with Ansible, so that what "
    "hosts do at once takes turns, and their network is a bridge."
)


def site(hosts: Hosts, size: int, **more: Any) -> Run:
    variables = {
        "gguf_model_source": str(random_model(*SIZE)),
        "inference_report_path": str(hosts.scratch / "report.json"),
    }
    checkout = more.get("checkout", ROOT)
    inventory = inventory_of(hosts.scratch / f"{size}.yml", *WORKERS[:size])
    given = {"forks": FORKS, "limit_s": AGAIN_LIMIT_S, "inventories": [inventory], **more}
    return hosts.play(checkout / "playbooks/site.yml", variables, **given)


# --- figures of a run -----------------------------------------------------------------------------------------------


def steps(run: Run) -> list[dict[str, Any]]:
    """Return the tasks of a run in their order, with the seconds from the first host's start to the last host's end."""
    found: dict[str, dict[str, Any]] = {}
    for line in run.results:
        step = found.setdefault(line["id"], {"task": line["task"], "action": line["action"], "began": [], "ended": []})
        step["began"].append(line["ended_s"] if line["began_s"] is None else line["began_s"])
        step["ended"].append(line["ended_s"])
    return [
        {"task": step["task"], "action": step["action"], "seconds": max(step["ended"]) - min(step["began"])}
        for step in found.values()
    ]


def inference_s(run: Run) -> float:
    """Return the seconds of the inference itself, which no change of a playbook makes shorter."""
    return sum(step["seconds"] for step in steps(run) if step["action"].endswith("distributed_inference"))


def seconds_by(run: Run, part: str) -> dict[str, float]:
    """Return the seconds by task or by role; a task that comes several times counts together."""
    found: dict[str, float] = defaultdict(float)
    for step in steps(run):
        role, separator, _name = step["task"].rpartition(" : ")
        key = step["task"] if part == "task" else (role.rpartition(".")[2] if separator else "of the playbook")
        found[key] += step["seconds"]
    return dict(found)


def tasks_of(run: Run, host: str) -> dict[str, int]:
    """Return how many tasks Ansible went through for a host, and how many of these it skipped."""
    statuses = Counter(line["status"] for line in run.results if line["host"] == host)
    return {"all": sum(statuses.values()), "skipped": statuses["skipped"]}


def medians(found: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each value, largest first."""
    each = {key: statistics.median([one.get(key, 0.0) for one in found]) for one in found for key in one}
    return {key: round(value, 2) for key, value in sorted(each.items(), key=lambda item: -item[1])}


def costs(runs: dict[int, list[Run]], trips: dict[int, dict[str, int]]) -> dict[str, Any]:
    """Return the figures of one checkout for each number of workers, and the seconds that one more worker adds."""
    without = {size: [run.seconds - inference_s(run) for run in taken] for size, taken in runs.items()}
    found: dict[str, Any] = {"sizes": {}, "one_more_worker_s": {}}
    for size, taken in runs.items():
        found["sizes"][str(size)] = {
            "seconds": spread([run.seconds for run in taken]),
            "inference_s": spread([inference_s(run) for run in taken]),
            "without_inference_s": spread(without[size]),
            "tasks": {"worker": tasks_of(taken[0], WORKERS[0]), "master": tasks_of(taken[0], MASTER)},
            "round_trips": {
                "worker": max(trips[size].get(name, 0) for name in WORKERS[:size]),
                "master": trips[size].get(MASTER, 0),
            },
            "seconds_by_role": medians([seconds_by(run, "role") for run in taken]),
            "longest_tasks_s": dict(list(medians([seconds_by(run, "task") for run in taken]).items())[:LONGEST]),
        }
    sizes = sorted(runs)
    for fewer, more in zip(sizes, sizes[1:]):
        each = [(after - before) / (more - fewer) for before, after in zip(without[fewer], without[more])]
        found["one_more_worker_s"][f"{fewer} to {more}"] = spread(each)
    return found


def faults(cost: dict[str, Any]) -> list[str]:
    """Return one sentence for each missed target."""
    return [
        f"Over {size} workers Ansible starts {figures['round_trips'][kind]} programs on a {kind}, over {most}."
        for size, figures in cost["sizes"].items()
        for kind, most in MOST_ROUND_TRIPS.items()
        if figures["round_trips"][kind] > most
    ]


def as_text(report: dict[str, Any]) -> str:
    where = f"{machine_line(report['machine'])}\n{SHARED}"
    heads = ["workers", "checkout", "seconds", "inference", "without it", "tasks: worker (skipped)", "master (skipped)"]
    heads += ["programs over SSH: worker", "master"]
    rows = [
        [
            size, name, shown(figures["seconds"]), shown(figures["inference_s"]), shown(figures["without_inference_s"]),
            *(f"{figures['tasks'][kind]['all']} ({figures['tasks'][kind]['skipped']})" for kind in MOST_ROUND_TRIPS),
            *(figures["round_trips"][kind] for kind in MOST_ROUND_TRIPS),
        ]
        for size in map(str, report["sizes"])
        for name, cost in report["checkouts"].items()
        for figures in [cost["sizes"][size]]
    ]  # fmt: skip
    parts = [
        where,
        f"site.yml with nothing to do, {FORKS} forks, new connections; median (min to max) of {report['repetitions']}\n"
        + table(heads, rows),
    ]
    more = [
        [step, name, shown(figure)]
        for name, cost in report["checkouts"].items()
        for step, figure in cost["one_more_worker_s"].items()
    ]
    if more:
        parts.append(
            "What one more worker adds, seconds without inference\n" + table(["workers", "checkout", "s"], more)
        )
    largest = str(max(report["sizes"]))
    for name, cost in report["checkouts"].items():
        figures = cost["sizes"][largest]
        parts.append(
            f"Where the seconds are with {largest} workers, {name}\n"
            + table(["s", "role"], [[value, key] for key, value in figures["seconds_by_role"].items()])
            + "\n\n"
            + table(["s", "task"], [[value, key] for key, value in figures["longest_tasks_s"].items()])
        )
    most = " and ".join(f"{most} for a {kind}" for kind, most in MOST_ROUND_TRIPS.items())
    parts.append("\n".join(report["missed"]) or f"Met: nothing changes, and at most {most} are started over SSH.")
    return "\n\n".join(parts)


# --- measuring ------------------------------------------------------------------------------------------------------


def named(checkout: Path) -> str:
    """Return the name of a checkout: its commit."""
    said = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(said, capture_output=True, text=True, check=True, timeout=AGAIN_LIMIT_S).stdout.strip()


def measured(hosts: Hosts, sizes: list[int], repetitions: int, checkouts: dict[str, Path]) -> dict[str, Any]:
    """Make a cluster of all hosts, run the playbook over every size once in each round, and return the costs."""
    hosts.ssh(MASTER, "sudo mkdir -p /srv/models")
    say(f"{sizes[-1]} workers and a master are made a cluster")
    site(hosts, sizes[-1], limit_s=FIRST_LIMIT_S, log=FOLDER / "first.log")
    runs: dict[str, dict[int, list[Run]]] = {name: {size: [] for size in sizes} for name in checkouts}
    trips: dict[str, dict[int, dict[str, int]]] = {name: {} for name in checkouts}
    # The first round counts programs and is not timed. It writes JSON: in output for people, the play
    # looks at the progress of inference, and the number of these looks depends on time.
    for repetition in range(repetitions + 1):
        for size in sizes:
            for name, checkout in checkouts.items():
                log = FOLDER / f"{name}-{size}-{repetition}.log"
                quiet = {"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"}
                count = {} if repetition else {**counted(hosts.scratch), **quiet}
                run = site(hosts, size, checkout=checkout, log=log, more_environment=count)
                if run.changed:
                    changed = sorted({line["task"] for line in run.results if line["changed"]})
                    raise BenchError(f"there was something to do: {', '.join(changed)} ({log}).")
                if not repetition:
                    trips[name][size] = round_trips(hosts.scratch, hosts.folder / "ssh_config")
                    continue
                runs[name][size].append(run)
                say(
                    f"  {name}, {size} workers, round {repetition}: {run.seconds:.1f} s (load {os.getloadavg()[0]:.1f})"
                )
    return {name: costs(runs[name], trips[name]) for name in checkouts}


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--against", type=Path, help="another checkout, with a .venv/collections of its own")
    args = asked_of_hosts(parser, FOLDER / "site_again.json", "workers", [2, 4, 8], len(WORKERS))
    # Name the checkout before the runs: a commit may come meanwhile.
    own = named(ROOT)
    checkouts = {named(args.against): args.against.resolve()} if args.against else {}
    if own in checkouts:
        parser.error(f"both checkouts are {own}: commit what is changed.")
    checkouts[own] = ROOT
    about = {"machine": machine(), "shared": SHARED, "sizes": args.sizes, "repetitions": args.repetitions}
    FOLDER.mkdir(parents=True, exist_ok=True)
    with lab(103, [MASTER, *WORKERS[: args.sizes[-1]]]) as hosts:
        found = measured(hosts, args.sizes, args.repetitions, checkouts)
    report = {**about, "checkouts": found, "missed": faults(found[own])}
    return reported(report, as_text(report), args.output)


if __name__ == "__main__":
    run_to_end(main)
