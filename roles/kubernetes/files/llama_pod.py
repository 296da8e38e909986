# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a pod of a LeaderWorkerSet group: the leader's API, or a worker.

The image has this program beside those of role llama_server and the packages of the collection that they import. Role
kubernetes writes the settings. LeaderWorkerSet sets variables of the environment from which the leader knows its group.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Mapping, NoReturn, Sequence

import llama_server_service as service
from _rpc.listeners import addresses_of

from module_utils._gguf.header import GgufError
from module_utils._host.cpu_topology import read_topology
from module_utils._plan.asking import plan_of
from module_utils._plan.estimate import NoEstimateError
from module_utils._plan.inputs import SplitError

LOOK_AGAIN_S = 15
# The memory that a plan leaves free in each pod for the program itself, as split_plan_info does by default.
RESERVE_BYTES, RESERVE_PERCENT = 1 << 28, 5.0


def worker_endpoints(environment: Mapping[str, str], port: int) -> list[str]:
    """Return the endpoints of this leader's workers, as LeaderWorkerSet names their pods.

    Raises ValueError with a sentence.
    """
    leader, dot, rest = environment.get("LWS_LEADER_ADDRESS", "").partition(".")
    size = environment.get("LWS_GROUP_SIZE", "")
    if not dot or not re.fullmatch(r"[2-9]|1[0-6]", size):
        message = (
            f"LWS_LEADER_ADDRESS is {environment.get('LWS_LEADER_ADDRESS')!r} and LWS_GROUP_SIZE {size!r}: "
            "a LeaderWorkerSet with a size from 2 to 16 sets both."
        )
        raise ValueError(message)
    return [f"{leader}-{number}.{rest}:{port}" for number in range(1, int(size))]


def core_count() -> int:
    """Return how many threads the processors of the pod can run at full speed."""
    topology = read_topology()
    return topology.count_cores(topology.select())


def leader_settings(written: Mapping[str, Any], environment: Mapping[str, str]) -> service.Settings:
    """Return the role's settings of the service, with the pod's address and threads, and the group's workers."""
    settings = json.loads(json.dumps(written["service"]).replace("$(POD_IP)", environment["POD_IP"]))
    settings["workers"] = worker_endpoints(environment, written["worker_port"])
    # LeaderWorkerSet starts all pods of a group anew when one of them is lost, so there are no others to serve over.
    settings.update(spares=[], degrade=[])
    # By default, llama.cpp would start a thread for each core of the node.
    if "--threads" not in settings["arguments"]:
        settings["arguments"] += ["--threads", str(core_count())]
    return service.Settings(**settings)


def divided(written: Mapping[str, Any], workers: Sequence[service.WorkerStatus]) -> tuple[bool, str, list[float]]:
    """Return whether the model can be loaded, the plan as a sentence, and each worker's share; no shares if no plan."""
    wanted, model, limit = written["plan"], written["service"]["model"], written["worker_memory_bytes"]
    given = {
        "model": model,
        "bin_folder": str(Path(written["service"]["program"]).parent),
        "options": wanted["options"],
        "master_other_bytes": wanted["master_other_bytes"],
        "tensor_split": wanted["tensor_split"],
        "workers": [
            # A worker on a CPU reports the memory of its node, but may only take the limit of its pod.
            {
                "endpoint": str(it.endpoint),
                "memory_available_bytes": min([limit, *(device["memory_free_bytes"] for device in it.devices)]),
                "devices": max(1, len(it.devices)),
            }
            for it in workers
        ],
        "reserve_bytes": RESERVE_BYTES,
        "reserve_percent": RESERVE_PERCENT,
        "master_memory_available_bytes": written["leader_memory_bytes"],
        "variables_of": "kubernetes",
    }
    try:
        result = plan_of(given)
    except NoEstimateError as error:
        return True, str(error), []
    except (GgufError, SplitError) as error:
        return False, str(error), []
    except OSError as error:
        return False, f"{error.filename or model} cannot be read: {error.strerror}.", []
    return result["fits"], result["message"], result["tensor_split"]


def divide(written: Mapping[str, Any], workers: Sequence[service.WorkerStatus]) -> list[str]:
    """Return the options with which llama-server divides the model; wait while the model is not there or does not fit.

    If the group ended instead, it would be recreated at once, again and again, and its log would be lost each time.
    """
    said = ""
    while True:
        fits, sentence, split = divided(written, workers)
        if sentence != said:
            service.say(sentence)
            said = sentence
        if fits:
            shares = ",".join(f"{share:g}" for share in split)
            return ["--tensor-split", shares] if shares and not written["plan"]["tensor_split"] else []
        time.sleep(LOOK_AGAIN_S)


def become_worker(written: Mapping[str, Any], environment: Mapping[str, str]) -> NoReturn:
    """Replace this program with an RPC server that has a thread for each core that the pod may use."""
    threads = core_count()
    place = ["-H", environment["POD_IP"], "-p", str(written["worker_port"])]
    # Without stdbuf, the server writes blocks of 4 KiB into a pipe. The server inherits from Python that SIGPIPE is
    # ignored. Otherwise a client that gives up while it waits would end the server.
    command = ["stdbuf", "-oL", written["rpc_server"], *place, "-t", str(threads), "-d", "CPU", "-c"]
    service.say(f"Starting an RPC server with {threads} threads at {environment['POD_IP']}:{written['worker_port']}.")
    os.execvp(command[0], command)  # noqa: S606 - no shell


def become_drain(written: Mapping[str, Any], environment: Mapping[str, str]) -> NoReturn:
    """Replace this program with the one that lets the requests of the leader end."""
    api = written["service"]
    program = str(Path(__file__).with_name("llama_server_drain.py"))
    options = ["1", environment["POD_IP"], str(api["port"]), api["keys_file"], str(written["drain_timeout_s"])]
    os.execv(sys.executable, [sys.executable, "-B", "-s", program, *options])  # noqa: S606 - no shell


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the part of the pod that is named, and return the exit status."""
    parser = argparse.ArgumentParser(description="Run a pod of a group of llama.cpp RPC workers and their leader.")
    parser.add_argument("part", choices=["leader", "worker", "listens", "drain"])
    parser.add_argument("settings", type=Path, help="the file that role kubernetes has written")
    args = parser.parse_args(arguments)
    written = json.loads(args.settings.read_text(encoding="utf-8"))
    if args.part == "leader":
        return service.run(lambda: leader_settings(written, os.environ), lambda workers: divide(written, workers))
    if args.part == "worker":
        become_worker(written, os.environ)
    if args.part == "drain":
        become_drain(written, os.environ)
    # Do not connect: a worker serves one client at a time.
    return 0 if os.environ["POD_IP"] in addresses_of(written["worker_port"]) else 1


if __name__ == "__main__":
    sys.exit(main())
