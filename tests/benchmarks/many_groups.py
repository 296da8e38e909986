# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure what hundreds of groups in one inventory cost the controller; no host is contacted.

Twenty of all workers evaluate the playbooks' expressions that each worker evaluates many times in a play. First they do
it as roles by themselves do, which look at the variables of all hosts. Then they do it as playbooks do, which have
found the group of each host once. The target is that a host takes as long with four times the groups.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import CACHE, HERE, ROOT, BenchError, asked, machine, machine_line, run_to_end, say, table

HOSTS = 20
MOST_TIMES = 2.0
LIMIT_S = 600


def inventory(groups: int) -> dict[str, Any]:
    """Return groups of one master and two workers each, behind a gateway."""
    masters, workers = {}, {}
    for number in range(groups):
        place = f"10.{number // 250}.{number % 250}"
        masters[f"master{number}"] = {"ansible_host": f"{place}.10", "llama_group": f"group{number}"}
        for worker in (1, 2):
            known = {"ansible_host": f"{place}.{10 + worker}", "llama_group": f"group{number}"}
            workers[f"worker{number}-{worker}"] = known
    served = {"llama_server_alias": "chat", "llama_server_bind_address": "{{ ansible_host }}"}
    keys = [{"name": "client", "key": "key-of-the-first-client"}]
    gateway = {"llama_gateway_group_key": "key-of-the-group-alone", "llama_gateway_api_keys": keys}
    return {
        "llama_masters": {"hosts": masters, "vars": served},
        "llama_workers": {"hosts": workers},
        "llama_gateways": {"hosts": {"door": {"ansible_host": "10.9.9.9"}}, "vars": gateway},
    }


def seconds_of_tasks(groups: int, folder: Path) -> list[tuple[str, float]]:
    """Run the play over so many groups; return the name and the seconds of each task, in their order."""
    hosts, said = folder / "hosts.json", folder / "results"
    hosts.write_text(json.dumps(inventory(groups)))
    environment = {
        **os.environ,
        "ANSIBLE_CALLBACKS_ENABLED": "task_results",
        "ANSIBLE_CALLBACK_PLUGINS": str(HERE / "callbacks"),
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "TASK_RESULTS": str(said),
    }
    command = [Path(sys.executable).with_name("ansible-playbook"), "-i", hosts, HERE / "many_groups.yml"]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise BenchError(f"The play failed: {done.stdout[-2000:]}")
    spans: dict[str, tuple[str, float, float]] = {}
    for line in map(json.loads, said.read_text().splitlines()):
        began = line["began_s"] or line["ended_s"]
        name, first, last = spans.get(line["id"], (line["task"], began, 0.0))
        spans[line["id"]] = (name, min(first, began), max(last, line["ended_s"]))
    return [(name, last - first) for name, first, last in spans.values()]


def by_task(found: list[tuple[str, float]]) -> dict[str, float]:
    """Return milliseconds: for one host, without the cost of an empty task, or in all if a task runs once."""
    rows: dict[str, float] = {}
    nothing = 0.0
    for name, seconds in found:
        if name == "Set an empty fact":
            nothing = seconds
        elif name.startswith("Find for one host "):
            what = name.removeprefix("Find for one host ")
            way = "playbooks" if f"{what}, roles by themselves" in rows else "roles by themselves"
            rows[f"{what}, {way}"] = 1000 * (seconds - nothing) / HOSTS
        else:
            rows[f"once: {name.rpartition(' : ')[2]}"] = 1000 * seconds
    return rows


def main() -> int:
    args = asked(__doc__, "few groups: only that it runs", rounds=1)
    few, many = (10, 20) if args.smoke else (75, 300)
    say(f"groups of one master and two workers each: {few}, then {many}")
    with tempfile.TemporaryDirectory(prefix="many-groups-") as folder:
        found = [by_task(seconds_of_tasks(groups, Path(folder))) for groups in (few, many)]
    cases = {name: {"few_ms": found[0][name], "many_ms": found[1][name]} for name in found[0]}
    rows = [(name, f"{case['few_ms']:.0f}", f"{case['many_ms']:.0f}") for name, case in cases.items()]
    facts = machine()
    print(f"\n{machine_line(facts)}\n\n{table(('ms', f'{few} groups', f'{many} groups'), rows)}")
    own = [case for name, case in cases.items() if name.endswith(", playbooks")]
    times = sum(case["many_ms"] for case in own) / sum(case["few_ms"] for case in own)
    missed = times > MOST_TIMES
    print(f"\n{'Missed' if missed else 'Met'}: {times:.2f} times as long for a host, at most {MOST_TIMES}.")
    output = CACHE / "benchmarks/many_groups/many_groups.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    report = {"machine": facts, "groups": [few, many], "cases": cases, "times": times}
    output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"All of it: {output}")
    return 1 if missed and not args.smoke else 0


if __name__ == "__main__":
    run_to_end(main)
