# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of faults on one machine: real workers that restart as their unit does it, some in a network of their own.

Each test reports the message to the user and the time until it comes. It shows that the other worker did not suffer,
that the cluster is ready again by itself within a stated time, and that it answers as before.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run import progress

from faults.kept import LONG_PROMPT, Kept, Running, infer, kept, ready_after
from support.harness import HANG_S, Release
from support.runs import masters, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.llama

HERE = "loopback"
NETWORK = "a network of its own"
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="networks, control groups and file systems are made by root")
ENDLESS = {"ctx_size": 16384, "n_predict": 16000, "extra_args": ["--ignore-eos"]}
# Limit for a worker that was killed: a second, the start, and a look each second, on a machine with much else to do.
BACK_S = 30
# Limit for a worker whose client is gone without a word: 60 s, or the time of the next look.
LEFT_S = 100
AT_SWITCH, BEHIND_CABLE = "10.99.9.1", "10.99.9.2"
# The address of a name service that never answers.
SILENT = "127.99.0.53"


class Cluster:
    """Two workers; the faults strike the second one."""

    def __init__(self, release: Release, model: Path, folder: Path, workers: list[Kept]) -> None:
        self.release, self.model, self.folder, self.workers = release, model, folder, workers
        self.spared, self.struck = workers
        self.spared_pid = self.spared.pid
        self.text = self.answer()

    def answer(self) -> str:
        """Return the text that both workers generate together."""
        result = infer(self.release, self.model, self.workers)
        assert result["failure"] is None, result["msg"]
        return str(result["text"])

    def run(self, **given: Any) -> Running:
        return Running(self.release, self.model, self.workers, self.folder, given)

    def recovers(self, limit_s: float, since: float | None = None) -> float:
        """Return the seconds until all are ready; check that the run has left nothing, and the answer is as before."""
        seconds = ready_after(self.workers, limit_s, since)
        assert not masters(self.struck.endpoint)
        assert self.spared.pid == self.spared_pid, "the other worker has not suffered"
        assert self.answer() == self.text
        return seconds


@pytest.fixture
def cluster(release: Release, small: Path, tmp_path: Path) -> Iterator[Cluster]:
    with kept(release, tmp_path) as one, kept(release, tmp_path) as other:
        yield Cluster(release, small, tmp_path, [one, other])


@pytest.fixture
def large_cluster(release: Release, large: Path, tmp_path: Path) -> Iterator[Cluster]:
    with kept(release, tmp_path) as one, kept(release, tmp_path) as other:
        yield Cluster(release, large, tmp_path, [one, other])


def said(result: dict[str, Any], kind: str, worker: Kept) -> str:
    """Return the sentence of a failure, which names the worker unless it was back when it was looked at."""
    failure = result["failure"]
    assert failure is not None, result["text"]
    back = kind == "worker_lost" and "all answer again" in failure["message"]
    assert (failure["kind"], failure["endpoint"]) == (kind, None if back else worker.endpoint), failure
    return str(failure["message"])


# A worker is killed


@pytest.mark.parametrize("phase", [progress.LOADING, progress.PROMPT, progress.GENERATING])
def test_killed_during(phase: str, large_cluster: Cluster, saw: Callable[..., None]) -> None:
    cluster = large_cluster
    long = {"prompt": LONG_PROMPT, "ctx_size": 16384}
    run = cluster.run(**(ENDLESS if phase == progress.GENERATING else long))
    run.reaches(phase, cluster.struck)
    run.strike(cluster.struck.kill)
    since = time.monotonic()
    result, detected = run.result()
    sentence = said(result, "worker_lost", cluster.struck)
    assert bool(result["text"]) == (phase == progress.GENERATING)
    saw(f"worker killed while {phase}", HERE, sentence, detected, cluster.recovers(BACK_S, since))


def test_short_of_memory(release: Release, small: Path, large: Path, tmp_path: Path, saw: Callable[..., None]) -> None:
    if os.geteuid() != 0:
        pytest.skip("control groups are made by root")
    with memory_limit(50 << 20) as limit, kept(release, tmp_path) as one, kept(
        release, tmp_path, prefix=limit
    ) as other:
        # The small model fits into the limit.
        cluster = Cluster(release, small, tmp_path, [one, other])
        began, pid = time.monotonic(), other.pid
        result = infer(release, large, cluster.workers)
        detected = time.monotonic() - began
        sentence = said(result, "worker_lost", other)
        ready = cluster.recovers(BACK_S)
        assert other.pid != pid, "the kernel has ended it, and it was started again"
        assert infer(release, large, [one])["failure"] is None
        saw("worker out of memory (limit of its control group)", HERE, sentence, detected, ready)


@contextmanager
def memory_limit(size: int) -> Iterator[tuple[str, ...]]:
    """Make a group with a limit of memory; yield the command prefix that starts a program in it."""
    name = f"llama-fault-{secrets.token_hex(4)}"
    old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    folder, file = (old / name, "memory.limit_in_bytes") if old.is_dir() else (new / name, "memory.max")
    folder.mkdir()
    try:
        if not (folder / file).exists():
            pytest.skip(f"{folder.parent} has no memory controller for the groups in it")
        (folder / file).write_text(str(size))
        yield "sh", "-c", f'echo $$ >{folder}/cgroup.procs && exec "$@"', "sh"
    finally:
        wait_for(lambda: not (folder / "cgroup.procs").read_text(), BACK_S)
        folder.rmdir()


# A worker or its host falls silent


@contextmanager
def network() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Make a network that a cable joins to a switch of this host; yield its address and the prefix into it."""
    inside = ("ip", "netns", "exec", "llama-fault")
    remove_network()
    for command in (
        "ip netns add llama-fault",
        # A switch with nothing connected to it would be off.
        "ip link add llf-switch type bridge",
        "ip link add llf-other type veth peer name llf-end",
        "ip link add llf-cable type veth peer name eth0 netns llama-fault",
        "ip link set llf-end up",
        "ip link set llf-other master llf-switch up",
        "ip link set llf-cable master llf-switch up",
        f"ip address add {AT_SWITCH}/24 dev llf-switch",
        "ip link set llf-switch up",
        f"ip netns exec llama-fault ip address add {BEHIND_CABLE}/24 dev eth0",
        "ip netns exec llama-fault ip link set eth0 up",
        "ip netns exec llama-fault ip link set lo up",
    ):
        subprocess.run(shlex.split(command), check=True, timeout=HANG_S)
    try:
        yield BEHIND_CABLE, inside
    finally:
        remove_network()


def remove_network() -> None:
    for command in ("ip netns delete llama-fault", "ip link delete llf-switch", "ip link delete llf-other"):
        subprocess.run(shlex.split(command), capture_output=True, check=False, timeout=HANG_S)


# How to cut off the network of the struck worker, and how to undo that. Nothing comes back, not even an RST.
CUTS = {
    "worker's host gone": ("ip link set llf-cable down", "ip link set llf-cable up"),
    "firewall closed": (
        (
            "ip netns exec llama-fault nft 'add table ip llama; "
            "add chain ip llama input { type filter hook input priority 0; policy drop; }'"
        ),
        "ip netns exec llama-fault nft delete table ip llama",
    ),
}


@NEEDS_ROOT
@pytest.mark.parametrize("phase", [progress.LOADING, progress.GENERATING])
@pytest.mark.parametrize("cut", CUTS)
def test_cut_off_during(
    cut: str, phase: str, release: Release, large: Path, tmp_path: Path, saw: Callable[..., None]
) -> None:
    close, reopen = (shlex.split(command) for command in CUTS[cut])
    with network() as (address, inside), ExitStack() as stack:
        workers = [
            stack.enter_context(kept(release, tmp_path)),
            stack.enter_context(kept(release, tmp_path, prefix=inside, address=address)),
        ]
        cluster = Cluster(release, large, tmp_path, workers)
        run = cluster.run(**ENDLESS)
        run.reaches(phase, cluster.struck)
        run.strike(lambda: subprocess.run(close, check=True, timeout=HANG_S))
        result, detected = run.result()
        # While it loads, the master also opens connections.
        kind = result["failure"]["kind"] if phase == progress.LOADING else "worker_lost"
        assert kind in ("worker_lost", "worker_unreachable")
        sentence = said(result, kind, cluster.struck)
        assert detected < 60
        subprocess.run(reopen, check=True, timeout=HANG_S)
        saw(f"{cut} while {phase}", NETWORK, sentence, detected, cluster.recovers(LEFT_S))


# Clock and name service


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long ahead(void) {
    const char *file = getenv("CLOCK_JUMPED");
    return file && access(file, F_OK) == 0 ? 86400 : 0;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += ahead();
    return result;
}
time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *where, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    where->tv_sec = now.tv_sec;
    where->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler for the clock")
def test_the_clock_jumps(release: Release, small: Path, tmp_path: Path, saw: Callable[..., None]) -> None:
    """Let the clock jump by a day for the workers, the master and the module, in the middle of a run."""
    library, jumped = tmp_path / "clock.so", tmp_path / "jumped"
    source = tmp_path / "clock.c"
    source.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=HANG_S)
    prefix = ("env", f"LD_PRELOAD={library}", f"CLOCK_JUMPED={jumped}")
    with kept(release, tmp_path, prefix=prefix) as one, kept(release, tmp_path, prefix=prefix) as other:
        workers = [one, other]
        given = {"ctx_size": 2048, "n_predict": 400, "extra_args": ["--ignore-eos"]}
        expected = infer(release, small, workers, **given)["text"]
        run = Running(release, small, workers, tmp_path, {"prefix": prefix, **given})
        run.reaches(progress.GENERATING, other)
        run.strike(jumped.touch)
        seen = subprocess.run([*prefix, "date", "+%s"], capture_output=True, text=True, check=True).stdout
        assert int(seen) > time.time() + 80_000
        result, _seconds = run.result()
        assert result["failure"] is None, result["msg"]
        assert result["text"] == expected
        assert 0 < result["wall_time_ms"] < HANG_S * 1000
        saw(
            "clock jumps by a day",
            HERE,
            "No harm: the run goes on, and its times are right.",
            None,
            ready_after(workers, BACK_S),
        )


@contextmanager
def names(cluster: Cluster, folder: Path) -> Iterator[tuple[tuple[str, ...], list[str], Path]]:
    """Yield the prefix that starts a program with a silent name service, the workers' names, and the file with them."""
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 worker-1.example worker-2.example\n")
    (folder / "resolv.conf").write_text(f"nameserver {SILENT}\noptions timeout:30\n")
    (folder / "nsswitch.conf").write_text("hosts: files dns\n")
    files = ("hosts", "resolv.conf", "nsswitch.conf")
    script = "".join(f"mount --bind {folder / name} /etc/{name}; " for name in files)
    named = [f"worker-{number}.example:{worker.port}" for number, worker in enumerate(cluster.workers, 1)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((SILENT, 53))
        yield ("unshare", "-m", "sh", "-ec", script + 'exec "$@"', "sh"), named, hosts


def unresolved(cluster: Cluster, named: list[str], gone: tuple[str, ...]) -> str:
    """Return the failure message of a run whose names nobody knows."""
    failure = infer(cluster.release, cluster.model, cluster.workers, workers=named, prefix=gone)["failure"]
    assert (failure["kind"], failure["endpoint"]) == ("worker_unreachable", named[0])
    assert "no answer from the resolver within 5 s" in failure["message"]
    return str(failure["message"])


@NEEDS_ROOT
def test_the_name_service_is_gone(cluster: Cluster, saw: Callable[..., None], tmp_path: Path) -> None:
    with names(cluster, tmp_path) as (gone, named, hosts):
        hosts.write_text("")
        began = time.monotonic()
        sentence = unresolved(cluster, named, gone)
        detected = time.monotonic() - began
        # Addresses need no name service.
        assert infer(cluster.release, cluster.model, cluster.workers, prefix=gone)["failure"] is None
    saw("name service gone", HERE, sentence, detected, cluster.recovers(BACK_S))
