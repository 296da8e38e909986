# SPDX-License-Identifier: GPL-3.0-or-later
"""A group as its pods run it: real processes with the variables and names that Kubernetes would give.

There is no Kubernetes. The names of pods are in a file of these processes' namespace, and their addresses are loopback
addresses.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.cpu_topology import read_topology

from support.api_client import Client
from support.api_service import ALIAS, KEY
from support.harness import ROOT, Release, free_port, talking
from support.runs import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.llama

PROGRAM = ROOT / "roles/kubernetes/files/llama_pod.py"
LEADER, SUFFIX = "127.0.0.1", "llama.default"
# The folders that the program imports from.
PARTS = ("plugins/module_utils", "plugins", "roles/llama_server/files")


@dataclass
class Pod:
    """A running pod, and its output."""

    process: subprocess.Popen[str]
    lines: list[str]

    def said(self, start: str) -> str | None:
        return next((line for line in list(self.lines) if line.startswith(start)), None)


class Group:
    """A leader and two workers, each started by the test as Kubernetes starts a pod."""

    def __init__(self, release: Release, model: Path, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.port, self.ready_port, self.worker_port = free_port(), free_port(), free_port()
        names = "".join(f"127.0.0.{number + 1} llama-0-{number}.{SUFFIX}\n" for number in (1, 2))
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        (folder / "keys").write_text(f"{KEY}\n")
        arguments = ["--model", str(model), "--alias", ALIAS, "--host", "$(POD_IP)", "--port", str(self.port)]
        arguments += ["--parallel", "2", "--ctx-size", "1024", "--n-gpu-layers", "999", "--fit", "off", "--metrics"]
        arguments += ["--api-key-file", str(folder / "keys"), "--cache-ram", "64", "--no-ui"]
        api = {
            "program": str(release.bin / "llama-server"),
            "arguments": arguments,
            "workers": [],
            "model": str(model),
            "alias": ALIAS,
            "address": "$(POD_IP)",
            "port": self.port,
            "keys_file": str(folder / "keys"),
            "stall_timeout_s": 60,
            "metrics_file": None,
            "ready_port": self.ready_port,
        }
        plan = {"options": ["--parallel", "2", "--ctx-size", "1024", "--n-gpu-layers", "999"]}
        written = {
            "service": api,
            "rpc_server": str(release.rpc_server),
            "worker_port": self.worker_port,
            "worker_memory_bytes": 1 << 30,
            "leader_memory_bytes": 1 << 30,
            "plan": {**plan, "master_other_bytes": 64 << 20, "tensor_split": []},
            "drain_timeout_s": 5,
        }
        (folder / "pod.json").write_text(json.dumps(written))

    def command(self, part: str) -> list[str]:
        # As in a pod, the program is not root.
        as_pod = 'exec unshare --user --map-user=10001 --map-group=10001 -- "$@"'
        own_names = f"mount --bind {self.folder}/hosts /etc/hosts; {as_pod}"
        return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", own_names, "sh",
                sys.executable, "-B", "-s", str(PROGRAM), part, str(self.folder / "pod.json")]  # fmt: skip

    def environment(self, number: int) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": ":".join(str(ROOT / part) for part in PARTS),
            "PYTHONUNBUFFERED": "1",
            "LWS_LEADER_ADDRESS": f"llama-0.{SUFFIX}",
            "LWS_GROUP_SIZE": "3",
            "LWS_WORKER_INDEX": str(number),
            "POD_IP": f"127.0.0.{number + 1}",
            "LLAMA_CACHE": str(self.folder / f"cache{number}"),
        }

    @contextmanager
    def running(self, number: int) -> Iterator[Pod]:
        command = self.command("worker" if number else "leader")
        with talking(command, self.environment(number)) as (process, lines):
            yield Pod(process, lines)

    def start(self, number: int) -> Pod:
        return self.stack.enter_context(self.running(number))

    def probe_worker(self, number: int) -> int:
        """Return the exit status of the worker's probe, as the kubelet runs it in the pod."""
        done = subprocess.run(self.command("listens"), env=self.environment(number), timeout=300, check=False)
        return done.returncode

    def probe_leader(self, path: str) -> int | None:
        """Return the HTTP status that the kubelet gets from the leader; None if the connection is refused."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ready_port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return None
        finally:
            connection.close()

    @property
    def client(self) -> Client:
        return Client("127.0.0.1", self.port, KEY)


@pytest.fixture
def group(release: Release, model: Path, tmp_path: Path) -> Iterator[Group]:
    with ExitStack() as stack:
        yield Group(release, model, tmp_path, stack)


@pytest.mark.long
def test_a_group_comes_up_in_any_order_and_ends_with_a_worker(group: Group) -> None:
    leader = group.start(0)
    # No worker is there. The leader is alive and not ready, and keeps waiting.
    wait_for(lambda: leader.said("Waiting for 2 of 2 workers"), 60)
    assert (group.probe_leader("/live"), group.probe_leader("/ready")) == (200, 503)
    assert group.probe_worker(1) == 1
    first = group.start(1)
    wait_for(lambda: group.probe_worker(1) == 0, 60)
    wait_for(lambda: leader.said(f"Waiting for 1 of 2 workers, llama-0-2.{SUFFIX}:{group.worker_port}"), 60)
    assert group.probe_leader("/live") == 200
    group.start(2)
    wait_for(lambda: leader.said("Serving"), 120)
    assert leader.said("It fits")
    assert group.probe_leader("/ready") == 200
    assert group.client.text()
    # If nobody sets a number of threads, llama-server gets one for each core that the leader may use.
    [server] = Path(f"/proc/{leader.process.pid}/task/{leader.process.pid}/children").read_text().split()
    command = Path(f"/proc/{server}/cmdline").read_text().split("\0")
    topology = read_topology()
    assert command[command.index("--threads") + 1] == str(topology.count_cores(topology.select()))

    # A probe of a worker in use opens no connection, and the API continues to serve.
    with group.client.stream(50) as answer:
        assert [group.probe_worker(number) for number in (1, 2)] == [0, 0]
        assert (group.probe_leader("/live"), group.probe_leader("/ready")) == (200, 200)
        assert answer.read().decode().rstrip().endswith("data: [DONE]")

    # When a worker ends, the leader ends too, so that LeaderWorkerSet makes the group anew.
    first.process.kill()
    assert leader.process.wait(30) == 1
    assert "has ended, so llama-server is ended" in "".join(leader.lines)


def test_a_model_that_does_not_fit_is_said_and_the_group_stays(group: Group) -> None:
    settings = group.folder / "pod.json"
    # Each pod keeps more memory free than this.
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "worker_memory_bytes": 64 << 20}))
    leader = group.start(0)
    for number in (1, 2):
        group.start(number)
    wait_for(lambda: leader.said("It does not fit"), 120)
    assert (group.probe_leader("/live"), group.probe_leader("/ready")) == (200, 503)
    assert leader.process.poll() is None
    assert leader.said("Loading") is None


def test_a_worker_listens_at_the_address_of_its_pod_alone_with_its_threads(group: Group) -> None:
    worker = group.start(1)
    wait_for(lambda: group.probe_worker(1) == 0, 60)
    # No process listens at the addresses of other pods.
    assert group.probe_worker(2) == 1
    started = worker.said("Starting an RPC server with ")
    assert started is not None
    threads = int(started.split()[5])
    command = Path(f"/proc/{worker.process.pid}/cmdline").read_text().split("\0")
    assert command[command.index("-t") + 1] == str(threads)
    assert 1 <= threads <= len(os.sched_getaffinity(0))
    # The RPC server is the first process of the pod itself, and a client that gives up does not end it.
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    assert ignored & 1 << (signal.SIGPIPE - 1)
