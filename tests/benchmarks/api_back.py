# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how soon an API is back after the loss of a worker: from `kill -9` to the next answer's first token.

Role llama_server serves a model of 1.4 GB over two workers, on test hosts. A client reads a stream while the benchmark
kills the worker's process. Then the client asks again until a token comes. systemd restarts the worker, and the model
is loaded from the workers' caches. Needs root.
"""

from __future__ import annotations

import http.client
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import (
    CACHE,
    ROOT,
    BenchError,
    Hosts,
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
from support.api_client import Client

# The outsider takes no part in the benchmark, but the preparation looks at all hosts of the inventory.
MASTER, WORKERS, OUTSIDER = "master", ("worker1", "worker2"), "outsider"
API_PORT = 8080
WORKER_UNIT = "llama-rpc-server@50052.service"
# Layers and width: 1.4 GB, as in load.py.
SIZE = (7, 4096)
FORKS = 5
SITE_LIMIT_S = 3600
# More tokens than come before the worker is killed, and no more than a slot holds.
TOKENS = 800
BACK_LIMIT_S = 120
MOST_BACK_S = 20
# systemd delays the restart of a worker that was killed often.
PAUSE_S = 5
FOLDER = CACHE / "benchmarks" / "api_back"
WHAT = {"the client's stream fails": "noticed_s", "the next answer's first token": "back_s"}
SHARED = (
    "The hosts are containers on this one machine: they share its cores, memory and disk, and their network is a "
    "bridge. The programs are compiled with -O1."
)


def first_token(client: Client, limit_s: float) -> float:
    """Ask until a token comes; return how many seconds that took."""
    began = time.monotonic()
    while not client.answers():
        if time.monotonic() - began > limit_s:
            raise BenchError(f"The API did not answer within {limit_s:.0f} s.")
        time.sleep(0.1)
    return time.monotonic() - began


def failed_at(answer: http.client.HTTPResponse) -> float:
    """Read a stream until it fails; return the monotonic time of the failure."""
    try:
        answer.read()
    except (http.client.HTTPException, OSError):
        return time.monotonic()
    raise BenchError("The stream ended before the worker was killed: nothing was measured.")


def loss(hosts: Hosts, client: Client, worker: str) -> dict[str, float]:
    """Kill the worker while a client reads a stream; return the seconds until it fails and until the API is back."""
    with client.stream(TOKENS) as answer:
        hosts.ssh(worker, f"sudo systemctl kill --signal=SIGKILL {WORKER_UNIT}")
        killed = time.monotonic()
        noticed = failed_at(answer) - killed
    first_token(client, BACK_LIMIT_S)
    back = time.monotonic() - killed
    say(f"  {worker} killed: the client knew after {noticed:.1f} s, the next first token came after {back:.1f} s")
    return {"noticed_s": noticed, "back_s": back}


def cluster_with_api(hosts: Hosts) -> Client:
    """Make the cluster with its API; return a client with a key."""
    say("the hosts become a cluster with an API")
    inventories = [ROOT / "inventories/lab" / name for name in ("hosts.yml", "serving.yml")]
    variables = {"gguf_model_controller_path": str(random_model(*SIZE)), "gguf_model_path": "/srv/models/model.gguf"}
    for playbook in ("extensions/molecule/resources/prepare.yml", "playbooks/site.yml"):
        log = FOLDER / Path(playbook).with_suffix(".log").name
        hosts.play(ROOT / playbook, variables, forks=FORKS, limit_s=SITE_LIMIT_S, log=log, inventories=inventories)
    key = hosts.ssh(MASTER, f"sudo head -n1 /etc/llama_server/{API_PORT}.keys")
    return Client(f"10.87.{hosts.number}.10", API_PORT, key)


def as_text(report: dict[str, Any]) -> str:
    head = f"{machine_line(report['machine'])}\n{report['shared']}"
    rows = [[f"seconds until {what}", shown(report[key])] for what, key in WHAT.items()]
    met = f"Met: back within {MOST_BACK_S} s."
    return "\n\n".join(
        [head, table(["of a model of 1.4 GB", "median (range)"], rows), "\n".join(report["missed"]) or met]
    )


def main() -> int:
    args = asked_of_hosts(parser_of(__doc__), FOLDER / "api_back.json")
    FOLDER.mkdir(parents=True, exist_ok=True)
    about = {"machine": machine(), "shared": SHARED, "repetitions": args.repetitions}
    with lab(108, [MASTER, *WORKERS, OUTSIDER]) as hosts:
        client = cluster_with_api(hosts)
        first_token(client, BACK_LIMIT_S)
        found = []
        for turn in range(args.repetitions):
            found.append(loss(hosts, client, WORKERS[turn % len(WORKERS)]))
            time.sleep(PAUSE_S)
    figures = {key: spread([one[key] for one in found]) for key in WHAT.values()}
    missed = []
    if figures["back_s"]["median"] > MOST_BACK_S:
        missed = [f"The API was back after {figures['back_s']['median']} s, over {MOST_BACK_S} s."]
    report = {**about, **figures, "missed": missed}
    return reported(report, as_text(report), args.output)


if __name__ == "__main__":
    run_to_end(main)
