# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of faults on one machine: real workers that restart as their unit does it, some in a network of their own.

Each test reports the message to the user and the time until it comes. It shows that the other worker did not suffer,
that the cluster is ready again by itself within a stated time, and that it answers as before.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run import progress

from support.harness import HANG_S, RELEASE, Release
from support.kept import LONG_PROMPT, Kept, Running, infer, kept, masters, ready_after, state_of, until
from support.small_disk import small_disk

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
STALL_S = 5
AT_SWITCH, BEHIND_CABLE = "10.99.9.1", "10.99.9.2"
# The address of a name service that never answers.
SILENT = "127.99.0.53"


@pytest.fixture(scope="session")
def release() -> Release:
    return RELEASE


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
        assert not masters(self.struck)
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


def test_killed_while_idle(cluster: Cluster, saw: Callable[..., None]) -> None:
    cluster.struck.kill()
    since = time.monotonic()
    # A look may come at any time: until the worker is back, its port refuses connections.
    state, sentence = state_of(cluster.struck)
    detected = time.monotonic() - since
    assert state == "refused", sentence
    assert "start the RPC server on that host" in sentence
    saw("worker killed while idle", HERE, sentence, detected, cluster.recovers(BACK_S, since))


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
        until(lambda: not (folder / "cgroup.procs").read_text(), BACK_S)
        folder.rmdir()


def test_restarted_between_verify_and_run(cluster: Cluster, saw: Callable[..., None], tmp_path: Path) -> None:
    pid = cluster.struck.pid
    listens = f"ss -tlnH | grep -q :{cluster.struck.port}"
    back = f'p=$(cat {cluster.struck.pid_file}) && [ "$p" != {pid} ] && {listens}'
    again = f"kill -9 {pid}; until {back}; do :; done"
    programs = wrapped(cluster.release, tmp_path / "programs", again)
    result = infer(cluster.release, cluster.model, cluster.workers, bin_folder=str(programs))
    assert result["failure"] is None, result["msg"]
    assert result["text"] == cluster.text
    assert cluster.struck.pid != pid
    saw(
        "worker restarted between verify and run",
        HERE,
        "No harm: the run is over the new process.",
        None,
        cluster.recovers(BACK_S),
    )


def wrapped(release: Release, folder: Path, script: str) -> Path:
    """Make a folder with a completion program that runs a script before each run over workers."""
    folder.mkdir()
    program = folder / "llama-completion"
    real = shlex.quote(str(release.bin / program.name))
    program.write_text(f'#!/bin/sh\ncase " $* " in *" --rpc "*)\n{script}\n;; esac\nexec {real} "$@"\n')
    program.chmod(0o755)
    return folder


# A worker or its host falls silent


@pytest.mark.parametrize("phase", [progress.LOADING, progress.PROMPT, progress.GENERATING])
def test_frozen_during(phase: str, large_cluster: Cluster, saw: Callable[..., None]) -> None:
    cluster = large_cluster
    given = ENDLESS if phase == progress.GENERATING else {"prompt": LONG_PROMPT, "ctx_size": 16384}
    run = cluster.run(stall_timeout=STALL_S, **given)
    run.reaches(phase, cluster.struck)
    run.strike(lambda: cluster.struck.kill(signal.SIGSTOP))
    result, detected = run.result()
    sentence = said(result, "timed_out", cluster.struck)
    assert f"The run stood still for {STALL_S} s and was ended" in sentence
    assert bool(result["text"]) == (phase == progress.GENERATING)
    # The test resumes the worker. On hosts a timer of systemd does that.
    cluster.struck.kill(signal.SIGCONT)
    saw(f"worker frozen while {phase} (stall_timeout: {STALL_S})", HERE, sentence, detected, cluster.recovers(BACK_S))


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
        sentence = said(result, "worker_lost", cluster.struck)
        assert detected < 60
        subprocess.run(reopen, check=True, timeout=HANG_S)
        saw(f"{cut} while {phase}", NETWORK, sentence, detected, cluster.recovers(LEFT_S))


@NEEDS_ROOT
def test_the_master_s_host_is_gone(release: Release, small: Path, tmp_path: Path, saw: Callable[..., None]) -> None:
    """The other way round: nobody tells the workers."""
    with network() as (_address, inside), ExitStack() as stack:
        workers = [stack.enter_context(kept(release, tmp_path, address=AT_SWITCH)) for _number in range(2)]
        cluster = Cluster(release, small, tmp_path, workers)
        run = cluster.run(prefix=inside, timeout=60, **ENDLESS)
        run.reaches(progress.GENERATING, cluster.struck)
        run.strike(lambda: subprocess.run(shlex.split(CUTS["worker's host gone"][0]), check=True, timeout=HANG_S))
        since = time.monotonic()
        # The master is gone, so look at the workers from their own host.
        until(lambda: not any(worker.held() for worker in workers), LEFT_S)
        sentence = "A worker gives up a client that is gone, and takes the next."
        ready = ready_after(workers, LEFT_S, since)
        result, _detected = run.result()
        assert result["failed"]
        subprocess.run(shlex.split(CUTS["worker's host gone"][1]), check=True, timeout=HANG_S)
        saw("master's host gone while generating", NETWORK, sentence, ready, ready)
        cluster.recovers(BACK_S)


# The master, and another master


def test_the_master_is_killed(cluster: Cluster, saw: Callable[..., None]) -> None:
    run = cluster.run(**ENDLESS)
    run.reaches(progress.GENERATING, cluster.struck)
    run.strike(lambda: os.kill(masters(cluster.struck)[0], signal.SIGKILL))
    result, detected = run.result()
    failure = result["failure"]
    assert (failure["kind"], failure["endpoint"]) == ("out_of_memory", None)
    saw("master killed", HERE, failure["message"], detected, cluster.recovers(BACK_S))


def test_two_masters_at_once(cluster: Cluster, saw: Callable[..., None]) -> None:
    run = cluster.run(ctx_size=8192, n_predict=4000, extra_args=["--ignore-eos"])
    run.reaches(progress.GENERATING, cluster.struck)
    began = time.monotonic()
    second = infer(cluster.release, cluster.model, cluster.workers)
    detected = time.monotonic() - began
    failure = second["failure"]
    assert failure["kind"] == "worker_busy"
    assert "another client most likely holds it" in failure["message"]
    assert run.phase() == progress.GENERATING, "the first one goes on"
    first, _seconds = run.result()
    assert first["failure"] is None, first["msg"]
    saw("two masters at once", HERE, failure["message"], detected, cluster.recovers(BACK_S))


# Disk, cache, clock and name service


# Data that the disk loses by itself changes neither size nor time. The service that tidies the cache reads all of it at
# times.
UNNOTICED = "Not noticed: the next run has another text, and says nothing, until the cache is tidied."
# Messages of a worker with the patch rpc-safety. Nothing fails: the master sends what the cache does not have.
NOT_USED = "not used, as it is not what its name says"
NOT_KEPT = "not kept, as the disk has too little room"
# The unit's default options, but without the minute in which an entry may be on its way.
TIDY = ("--max", "50%", "--min-free", "10%", "--settle", "0")


def mended(cache: Path, release: Release, model: Path, workers: list[Kept], expected: str) -> float:
    """Tidy the cache as its timer does, and return the seconds until all is well."""
    state = cache.with_name("state")
    state.mkdir()
    since = time.monotonic()
    tidy = [release.rpc_cache, "tidy", cache / "rpc", state, *TIDY]
    subprocess.run(tidy, check=True, timeout=HANG_S, stdout=subprocess.DEVNULL)
    assert json.loads((state / "status.json").read_text())["corrupted"] > 0
    seconds = ready_after(workers, BACK_S, since)
    assert infer(release, model, workers)["text"] == expected
    return seconds


def entries(cache: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (cache / "rpc").glob("*")}


@NEEDS_ROOT
def test_the_disk_of_the_cache_is_full(release: Release, large: Path, tmp_path: Path, saw: Callable[..., None]) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(tmp_path / "cache", "size=30m"))
        workers = [
            stack.enter_context(kept(release, tmp_path)),
            stack.enter_context(kept(release, tmp_path, "-c", cache=disk)),
        ]
        expected = infer(release, large, workers[:1])["text"]
        for _round in range(2):
            began = time.monotonic()
            result = infer(release, large, workers)
            ended = time.monotonic()
            assert result["failure"] is None, result["msg"]
            assert result["text"] == expected
            assert len(set(entries(disk).values())) == 1, "what does not fit is not there, and what is there is whole"
        assert NOT_KEPT in workers[1].log.read_text()
        sentence = f"The worker's log, in a run that is right: {NOT_KEPT}"
        saw("disk of the cache full", HERE, sentence, ended - began, ready_after(workers, BACK_S, ended))


def damage(path: Path, how: str) -> None:
    before = path.stat()
    with path.open("r+b") as entry:
        if how == "cut off":
            entry.truncate(before.st_size // 2)
        else:
            entry.write(secrets.token_bytes(1 << 20))
    if how == "spoiled by the disk":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("how", ["cut off", "changed", "spoiled by the disk"])
def test_an_entry_of_the_cache_is(
    how: str, release: Release, large: Path, tmp_path: Path, saw: Callable[..., None]
) -> None:
    cache = tmp_path / "cache"
    with kept(release, tmp_path) as one, kept(release, tmp_path, "-c", cache=cache) as other:
        workers = [one, other]
        expected = infer(release, large, workers)["text"]
        assert entries(cache)
        for path in (cache / "rpc").glob("*"):
            damage(path, how)
        began = time.monotonic()
        result = infer(release, large, workers)
        ended = time.monotonic()
        assert result["failure"] is None, result["msg"]
        if how == "spoiled by the disk":
            assert result["text"] != expected
            sentence, detected, ready = UNNOTICED, None, mended(cache, release, large, workers, expected)
        else:
            assert result["text"] == expected
            assert NOT_USED in other.log.read_text()
            sentence = f"The worker's log, in a run that is right: {NOT_USED}"
            detected, ready = ended - began, ready_after(workers, BACK_S, ended)
        saw(f"entry of the cache {how}", HERE, sentence, detected, ready)


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


@NEEDS_ROOT
def test_the_name_service_goes_during_a_run(cluster: Cluster, saw: Callable[..., None], tmp_path: Path) -> None:
    with names(cluster, tmp_path) as (going, named, hosts):
        given = {"ctx_size": 2048, "n_predict": 400, "extra_args": ["--ignore-eos"]}
        expected = infer(cluster.release, cluster.model, cluster.workers, **given)["text"]
        run = cluster.run(workers=named, prefix=going, **given)
        run.reaches(progress.GENERATING, cluster.struck)
        run.strike(lambda: hosts.write_text(""))
        assert run.phase() == progress.GENERATING, "names were gone before it ended"
        result, _seconds = run.result()
        unresolved(cluster, named, going)
    assert result["failure"] is None, result["msg"]
    assert result["text"] == expected
    sentence = "No harm: a run that goes on needs no names."
    saw("name service gone while generating", HERE, sentence, None, cluster.recovers(BACK_S))
