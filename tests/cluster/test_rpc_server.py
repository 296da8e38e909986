# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of role rpc_server on hosts with old and new systemd. Each leaves the workers as the defaults make them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cluster.role import BOTH, HOLD, ROLE, Role, recap, running, show
from support.lab.hosts import (
    ADDRESS,
    PORT,
    ROOT,
    UNIT,
    WORKERS,
    ask,
    at_once,
    eventually,
    module,
    refusals_in,
    refused,
    ssh,
    ssh_command,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIT_FILE = f"/etc/systemd/system/{UNIT}"
OTHER_PORT = PORT + 47
CACHE = "/var/cache/llama_cpp/rpc"
TIDY = f"llama-rpc-cache@{PORT}"
RESUME = "llama-rpc-resume"
# The name of a cache entry of 1 MiB of zeros: its FNV-1a hash.
ZEROS = "a96777069d622325"

# A client that does not wait: it sends its request, and closes the connection in good order.
GIVE_UP = """
import socket, sys, time
client = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)
client.sendall(bytes([14, 24] + [0] * 31))
time.sleep(0.5)
client.close()
"""
OCCUPY = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("bound", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Role:
    return Role(tmp_path_factory.mktemp("role"))


@pytest.fixture
def restored(role: Role) -> Iterator[Role]:
    """Yield the role for a test that changes workers, and restore these afterwards."""
    role.touched.clear()
    try:
        yield role
    finally:
        if role.touched:
            role(":".join(sorted(role.touched)), rpc_server_restart_when_busy=True)


def pid(worker: str, unit: str = UNIT) -> int:
    return int(show(worker, "MainPID", unit))


def status(worker: str, unit: str = UNIT) -> dict[str, str]:
    """Return what the kernel reports about the worker's process."""
    lines = ssh(worker, "cat", f"/proc/{pid(worker, unit)}/status").stdout.splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def units(worker: str) -> list[str]:
    return sorted(
        ssh(worker, "find", "/etc/systemd/system", "-maxdepth", "1", "-name", "llama-rpc-server@*").stdout.split()
    )


def traces(worker: str) -> tuple[object, ...]:
    """Return what any change or restart would alter."""
    return units(worker), ssh(worker, "stat", "--format=%Y %i", UNIT_FILE).stdout, pid(worker)


def answers(worker: str, port: int = PORT) -> str:
    """Return the state of a worker as its own host sees it."""
    (state,) = ask(worker, f"{ADDRESS[worker]}:{port}").values()
    return state


@pytest.mark.parametrize("worker", WORKERS)
def test_the_exposure_is_at_most_2(worker: str) -> None:
    said = ssh(worker, "systemd-analyze", "security", "--no-pager", UNIT).stdout
    assert float(said.rpartition(": ")[2].split()[0]) <= 2.0, said


@pytest.mark.parametrize("worker", WORKERS)
def test_the_process_has_no_privileges(worker: str) -> None:
    has = status(worker)
    assert {name: int(has[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {
        "CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0,
    }  # fmt: skip
    assert (has["NoNewPrivs"], has["Seccomp"]) == ("1", "2")
    account = ssh(worker, "getent", "passwd", "llama-rpc").stdout.strip().split(":")
    assert set(has["Uid"].split()) == {account[2]}
    assert (account[5], account[6]) == ("/nonexistent", "/usr/sbin/nologin")


@pytest.mark.parametrize("worker", WORKERS)
def test_the_process_sees_a_host_that_it_cannot_write_to(worker: str) -> None:
    def inside(*argv: str) -> subprocess.CompletedProcess[str]:
        return ssh(worker, "nsenter", f"--target={pid(worker)}", "--mount", *argv, check=False)

    for place in ("/etc", "/usr", "/opt/llama_cpp", "/var/log", "/srv", "/run"):
        said = inside("touch", f"{place}/llama-test")
        assert (said.returncode, "Read-only file system" in said.stderr) == (1, True), place
    assert inside("ls", "-A", "/home").stdout == "", "home folders are hidden"
    assert inside("test", "-e", "/dev/sda").returncode == inside("test", "-e", "/dev/kmsg").returncode == 1
    for place in ("/var/cache/llama_cpp", "/var/lib/llama_cpp"):
        assert inside("touch", f"{place}/llama-test").returncode == 0, place
        assert inside("cp", "/usr/bin/true", f"{place}/llama-test").returncode == 0
        assert inside(f"{place}/llama-test").returncode != 0, f"what is written to {place} cannot be run"
        assert inside("rm", f"{place}/llama-test").returncode == 0


@pytest.mark.parametrize("worker", WORKERS)
def test_its_lines_are_in_the_journal_when_they_are_said(worker: str) -> None:
    ssh(worker, "systemctl", "restart", UNIT)
    number = pid(worker)

    def banner() -> bool:
        said = ssh(worker, "journalctl", "--no-pager", "--output=cat", f"_PID={number}").stdout
        return f"endpoint       : {ADDRESS[worker]}:{PORT}" in said

    # Lines must not wait until 4 KiB have come together, which takes days.
    eventually(banner, 60, "the banner is in the journal")


@pytest.mark.parametrize("worker", WORKERS)
def test_its_memory_is_that_of_the_host(worker: str) -> None:
    found = module("master", "rpc_worker_info", endpoints=[f"{ADDRESS[worker]}:{PORT}"])
    total = int(ssh(worker, "grep", "MemTotal", "/proc/meminfo").stdout.split()[1]) * 1024
    assert found["workers"][0]["devices"][0]["memory_total_bytes"] == total


def test_one_look_says_whether_it_answers_and_what_cores_it_has() -> None:
    asked: dict[str, Any] = {"ports": [PORT, 22], "sets": [{}, {"numa_node": 99}], "ask": True}
    found = module("worker1", "rpc_server_info", **asked)
    # Only servers with a unit of the role are asked, and SSH has none.
    assert [server["state"] for server in found["servers"]] == ["ready", None]
    assert found["cores"][0]["usable_cores"] >= 1
    assert found["cores"][1]["problem"].startswith("there is no NUMA node 99 on this host")
    with running("master", HOLD, ADDRESS["worker1"], PORT):
        found = module("worker1", "rpc_server_info", **asked)
    assert len(found["servers"][0]["clients"]) == 1
    assert found["servers"][0]["state"] is None, "it would have stood in the queue"


@pytest.mark.parametrize("worker", WORKERS)
def test_it_comes_back_after_it_was_killed(worker: str) -> None:
    before = pid(worker)
    ssh(worker, "kill", "-9", str(before))
    eventually(lambda: pid(worker) not in (0, before), 60, "the worker runs again")
    eventually(lambda: answers(worker) == "ready", 60, "the worker answers again")


def test_it_goes_on_by_itself_after_it_was_stopped() -> None:
    def stop(worker: str) -> tuple[int, str]:
        # The half minute of the timer begins now.
        ssh(worker, "systemctl", "start", f"{RESUME}.service")
        ssh(worker, "systemctl", "kill", "--signal=SIGSTOP", UNIT)
        return pid(worker), status(worker)["State"]

    stopped = at_once(stop, WORKERS)
    assert {state for _pid, state in stopped.values()} == {"T (stopped)"}
    for worker in WORKERS:
        said = ssh(worker, "systemd-analyze", "security", "--no-pager", f"{RESUME}.service").stdout
        assert float(said.rpartition(": ")[2].split()[0]) <= 1.0, said
        eventually(lambda worker=worker: answers(worker) == "ready", 40, "the worker answers again")
        assert pid(worker) == stopped[worker][0]
        journal = ssh(worker, "journalctl", "--no-pager", "--output=cat", f"--unit={RESUME}.service").stdout
        assert "Finished" not in journal, "each of them would be two lines of the journal"


def test_a_change_restarts_the_worker_once(restored: Role) -> None:
    before = at_once(pid, WORKERS)
    done = restored(BOTH, "--diff", rpc_server_memory_max="20G")
    assert done.stdout.count("+MemoryMax=20G") == len(WORKERS)
    after = at_once(pid, WORKERS)
    for worker in WORKERS:
        # The test hosts have no memory controller: the limit is set here, but cannot be seen to bite.
        assert (show(worker, "MemoryMax"), after[worker] != before[worker]) == (str(20 << 30), True)
    assert recap(restored(BOTH, rpc_server_memory_max="20G")) == 0
    assert at_once(pid, WORKERS) == after
    assert {show(worker, "NRestarts") for worker in WORKERS} == {"0"}


def test_check_mode_shows_a_change_and_makes_none(role: Role) -> None:
    before = traces("worker1")
    done = role("worker1", "--check", "--diff", rpc_server_memory_max="20G")
    assert "+MemoryMax=20G" in done.stdout
    assert recap(done) == 2
    assert traces("worker1") == before


@pytest.mark.long
def test_what_was_left_half_done_is_caught_up(restored: Role) -> None:
    # The state after a run that ended between the new unit and the restart, and the state that an older collection
    # left.
    ssh("worker1", "systemctl", "disable", "--now", f"{RESUME}.timer")
    ssh("worker1", "rm", *(f"/etc/systemd/system/{RESUME}.{kind}" for kind in ("service", "timer")))
    ssh("worker1", "sed", "-i", "s/^Environment=LLAMA_CPP_CLUSTER_UNIT=.*/&0/", UNIT_FILE)
    ssh("worker1", "systemctl", "daemon-reload")
    ssh("worker1", "systemctl", "restart", UNIT)
    assert recap(restored("worker1")) == 4, "units of the worker and of the timer, and a start of both"
    assert recap(restored("worker1")) == 0
    assert ssh("worker1", "systemctl", "is-active", f"{RESUME}.timer").stdout.strip() == "active"
    assert ssh("worker1", "systemctl", "is-enabled", f"{RESUME}.timer").stdout.strip() == "enabled"
    ssh("worker1", "systemctl", "stop", UNIT)
    assert recap(restored("worker1")) == 2, "unit and start"
    assert answers("worker1") == "ready"


def test_a_worker_that_serves_is_not_restarted(restored: Role) -> None:
    before = at_once(traces, WORKERS)
    with ExitStack() as stack:
        clients = {worker: stack.enter_context(running("master", HOLD, ADDRESS[worker], PORT)) for worker in WORKERS}
        assert all(client.startswith(ADDRESS["master"]) for client in clients.values())
        assert recap(restored(BOTH)) == 0, "nothing is to be done, so the clients do not matter"
        done = restored(BOTH, rpc_server_memory_max="20G", check=False)
        assert done.returncode
        for worker, client in clients.items():
            assert f"{worker}:{PORT} is serving {client}" in done.stdout + done.stderr
        assert at_once(traces, WORKERS) == before
        restored(BOTH, rpc_server_memory_max="20G", rpc_server_restart_when_busy=True)
        assert all(pid(worker) != before[worker][-1] for worker in WORKERS)


@pytest.mark.parametrize("worker", WORKERS)
def test_a_client_that_gives_up_waiting_does_no_harm(worker: str) -> None:
    before = pid(worker)
    with running("master", HOLD, ADDRESS[worker], PORT):
        ssh("master", "python3", "-c", GIVE_UP, ADDRESS[worker], str(PORT))
    eventually(lambda: answers(worker) == "ready", 60, "the worker answers")
    assert pid(worker) == before


@pytest.mark.parametrize("worker", WORKERS)
def test_a_client_is_asked_whether_it_is_still_there(worker: str) -> None:
    with running("master", HOLD, ADDRESS[worker], PORT):
        seen = ssh(worker, "ss", "-tnoH", "state", "established", f"( sport = :{PORT} )").stdout
    assert "timer:(keepalive," in seen


def test_an_occupied_port_is_refused_with_the_name_of_its_owner(role: Role) -> None:
    before = traces("worker1")
    with running("worker1", OCCUPY, ADDRESS["worker1"], OTHER_PORT) as said:
        assert said == "bound"
        done = role("worker1", rpc_server_port=OTHER_PORT, check=False)
    assert re.search(
        rf"Port {OTHER_PORT} of worker1 is taken by /usr/bin/python3\S* \(pid \d+", done.stdout + done.stderr
    )
    assert (done.returncode != 0, recap(done), traces("worker1")) == (True, 0, before)


# Bad variables, and a part of the role's message about them.
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "port": ({"rpc_server_port": 70000}, "rpc_server_port 70000: a port is a number from 1 to 65535"),
    "no-threads": ({"rpc_server_threads": 0}, "rpc_server_threads 0: give auto"),
    "999-threads": (
        {"rpc_server_threads": 999},
        r"\d+ usable cores for it, and more threads than cores are slower",
    ),
    "ipv6": ({"rpc_server_bind_address": "fd00::1"}, "rpc_server_bind_address fd00::1: give an IPv4 address"),
    "no-address": ({"rpc_server_bind_address": "10.0.0.300"}, "rpc_server_bind_address 10.0.0.300: give an IPv4"),
    "address-of-another": (
        {"rpc_server_bind_address": "10.9.9.9"},
        r"10.9.9.9 is not an address of worker1, which has 10\.87\.\d+\.11",
    ),
    "port-twice": (
        {"rpc_server_instances": [{"port": 50052}, {"port": "50052"}]},
        "ports 50052, 50052: each instance needs a port of its own",
    ),
    "unknown-key": ({"rpc_server_instances": [{"port": 50052, "adress": "x"}]}, "has adress, which is unknown"),
    "no-port": ({"rpc_server_instances": [{"threads": 1}]}, "a list of dictionaries, each with its port"),
    "no-such-node": ({"rpc_server_instances": [{"port": 50052, "numa_node": 9}]}, "there is no NUMA node 9"),
    "no-release": (
        {"llama_cpp_prefix": "/opt/none"},
        "no program /opt/none/current/bin/rpc-server: run the role",
    ),
    "hidden-release": ({"llama_cpp_prefix": "/var/lib/x"}, "runs no program from home folders"),
    "memory": ({"rpc_server_memory_max": "lots"}, "rpc_server_memory_max lots: give bytes"),
    "relative-folder": ({"rpc_server_metrics_folder": "lib"}, "rpc_server_metrics_folder lib: give the absolute path"),
    "no-folder": (
        {"rpc_server_metrics_folder": "/var/lib/none"},
        "rpc_server_metrics_folder /var/lib/none is not a folder on worker1",
    ),
    "environment": (
        {"rpc_server_environment": {"LLAMA_CACHE": "/"}},
        "LLAMA_CACHE: give in rpc_server_environment names",
    ),
    "cache": ({"rpc_server_cache_max": "half"}, "rpc_server_cache_max half: give bytes"),
}


@pytest.fixture(scope="module")
def refusals(role: Role) -> dict[str, str]:
    """Return the role's message about each bad input, from one play that changes nothing."""
    before = traces("worker1")
    done = role.play("worker1", refused({name: (ROLE, variables) for name, (variables, _said) in BAD.items()}))
    assert (recap(done), traces("worker1")) == (0, before)
    return refusals_in(done.stdout)


@pytest.mark.parametrize(("case", "said"), [(case, said) for case, (_variables, said) in BAD.items()], ids=BAD.keys())
def test_bad_input_is_explained_and_changes_nothing(refusals: dict[str, str], case: str, said: str) -> None:
    assert re.search(said, refusals[case]), refusals[case]


@pytest.mark.long
def test_a_server_that_does_not_start_is_an_error_with_its_last_words(restored: Role) -> None:
    done = restored(
        "worker1", rpc_server_port=OTHER_PORT, rpc_server_device="GPU7", rpc_server_ready_timeout=4, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode
    assert f"worker1:{OTHER_PORT} did not answer within 4 s" in said
    assert "unknown device: GPU7" in said
    assert answers("worker1") == "ready", "the worker that is to go is there until the new one answers"


def cpus(listed: str) -> set[int]:
    """Read a list of the kernel such as 0-2,5."""
    spans = [span.partition("-") for span in listed.strip().split(",")]
    return {cpu for first, __, last in spans for cpu in range(int(first), int(last or first) + 1)}


def usable_cpus(worker: str) -> set[int]:
    """Return the processors that the host may use; they may be fewer than it has, as on test hosts."""
    return cpus(re.search(r"Cpus_allowed_list:(.*)", ssh(worker, "cat", "/proc/1/status").stdout).group(1))


@pytest.mark.long
@pytest.mark.parametrize("worker", WORKERS[1:])
def test_several_workers_on_one_host_and_one_less(restored: Role, worker: str) -> None:
    core = str(min(usable_cpus(worker)))
    wanted = [{"port": PORT}, {"port": OTHER_PORT, "cpu_affinity": core, "memory_max": "1G"}]
    other = f"llama-rpc-server@{OTHER_PORT}.service"
    restored(worker, rpc_server_instances=wanted)
    assert (answers(worker), answers(worker, OTHER_PORT)) == ("ready", "ready")
    assert (status(worker, other)["Cpus_allowed_list"], show(worker, "MemoryMax", other)) == (core, str(1 << 30))
    argv = ssh(worker, "cat", f"/proc/{pid(worker, other)}/cmdline").stdout.split("\0")
    assert argv[argv.index("-t") + 1] == "1"
    assert recap(restored(worker, rpc_server_instances=wanted)) == 0

    for unit in (UNIT, other):
        ssh(worker, "systemctl", "kill", "--signal=SIGSTOP", unit)
    ssh(worker, "systemctl", "start", f"{RESUME}.service")
    assert (answers(worker), answers(worker, OTHER_PORT)) == ("ready", "ready"), "one timer of the host is for both"

    before = pid(worker)
    restored(worker, rpc_server_instances=wanted[:1])
    assert (units(worker), pid(worker)) == ([UNIT_FILE], before)
    timers = ssh(worker, "systemctl", "list-timers", "--no-legend", "llama*").stdout
    assert sorted(re.findall(r"\S+[.]timer", timers)) == [f"{TIDY}.timer", f"{RESUME}.timer"]
    assert ssh(worker, "sh", "-c", f"ls /etc/systemd/system/*/*cache@{OTHER_PORT}*", check=False).stdout == ""
    assert answers(worker, OTHER_PORT) == "refused"

    restored(worker)
    assert answers(worker) == "ready"
    caches = ssh(worker, "ls", "/var/cache/llama_cpp").stdout.split()
    assert not {str(PORT), str(OTHER_PORT)}.intersection(caches), "nothing would clean the cache of an instance"


@pytest.mark.long
def test_the_cores_of_a_node_are_those_of_the_worker_pinned_to_it(restored: Role) -> None:
    restored("worker1", rpc_server_instances=[{"port": PORT, "numa_node": 0}])
    node = cpus(ssh("worker1", "cat", "/sys/devices/system/node/node0/cpulist").stdout)
    assert cpus(status("worker1")["Cpus_allowed_list"]) == node & usable_cpus("worker1")
    maps = ssh("worker1", "cat", f"/proc/{pid('worker1')}/numa_maps", check=False)
    assert maps.returncode or "bind:0" in maps.stdout  # a kernel without NUMA has no such file


@pytest.fixture
def model(tmp_path: Path) -> Iterator[str]:
    """Put a model on the master with tensors of more than 10 MiB, which workers keep; yield its path."""
    path = tmp_path / "wide.gguf"
    program = ROOT / "playbooks/files/random_model.py"
    # These weights are not those of the cluster's own model, which are in the caches.
    argv = [sys.executable, str(program), "--layers=1", "--width=2048", "--seed=2", str(path)]
    subprocess.run(argv, check=True, timeout=120)
    with path.open("rb") as data:
        subprocess.run(
            [*ssh_command("master"), "sudo tee /var/tmp/wide.gguf >/dev/null"],
            stdin=data, check=True, timeout=120,
        )  # fmt: skip
    try:
        yield "/var/tmp/wide.gguf"
    finally:
        ssh("master", "rm", "-f", "/var/tmp/wide.gguf")


def test_inference_leaves_large_tensors_in_the_cache(model: str) -> None:
    folder = "/var/cache/llama_cpp/rpc"
    cached = {}
    for worker in WORKERS:
        cached[worker] = set(ssh(worker, "find", folder, "-type", "f").stdout.split())
    try:
        run = module(
            "master", "distributed_inference", model=model, prompt="Once", n_predict=4, ctx_size=256,
            workers=[f"{ADDRESS['worker1']}:{PORT}"], bin_folder="/opt/llama_cpp/current/bin",
        )  # fmt: skip
        assert run["failure"] is None, run
        new = set(ssh("worker1", "find", folder, "-type", "f").stdout.split()) - cached["worker1"]
        assert len(new) == 3, "the feed-forward tensors of the one layer"
        owners = ssh("worker1", "stat", "--format=%U %a %s", *sorted(new)).stdout.split("\n")[:-1]
        assert {line.split()[0] for line in owners} == {"llama-rpc"}
        assert all(int(line.split()[2]) > 10 << 20 for line in owners)
        assert all(line.split()[1] == "600" for line in owners), "nobody else reads what a client sent"
    finally:
        left = set(ssh("worker1", "find", folder, "-type", "f").stdout.split()) - cached["worker1"]
        ssh("worker1", "rm", "-f", *sorted(left))


def tidied(worker: str) -> dict[str, Any]:
    """Tidy a worker's cache, and return the status of that."""
    ssh(worker, "systemctl", "start", f"{TIDY}.service")
    return dict(json.loads(ssh(worker, "cat", f"/var/lib/llama_rpc_cache/{PORT}/status.json").stdout))


def entry(worker: str, name: str, age_days: int) -> str:
    """Make a file of 1 MiB of zeros in a worker's cache, last used so long ago; return its path."""
    path = f"{CACHE}/{name}"
    ssh(worker, "sudo", "-u", "llama-rpc", "truncate", "--size=1M", path)
    ssh(worker, "touch", f"--date={age_days} days ago", path)
    return path


@pytest.mark.parametrize("worker", WORKERS)
def test_its_cache_is_kept_in_order_by_a_confined_timer(worker: str) -> None:
    assert ssh(worker, "systemctl", "is-active", f"{TIDY}.timer").stdout.strip() == "active"
    assert ssh(worker, "systemctl", "is-enabled", f"{TIDY}.timer").stdout.strip() == "enabled"
    said = ssh(worker, "systemd-analyze", "security", "--no-pager", f"{TIDY}.service").stdout
    assert float(said.rpartition(": ")[2].split()[0]) <= 1.0, said
    served, before = pid(worker), tidied(worker)
    damaged, zeros = entry(worker, "0123456789abcdef", 3), entry(worker, ZEROS, 3)
    after = tidied(worker)
    assert ssh(worker, "ls", damaged, zeros, check=False).stdout.split() == [zeros]
    assert after["corrupted"] == before["corrupted"] + 1
    journal = ssh(worker, "journalctl", "--no-pager", "--output=cat", f"--unit={TIDY}.service").stdout
    assert "1 corrupted and 0 surplus entries removed (1.0 MiB)" in journal
    assert "Finished" not in journal, "that nothing was to be done is not said every five minutes"
    assert pid(worker) == served, "the worker serves all the while"
    ssh(worker, "rm", zeros)


@pytest.mark.long
def test_what_the_cache_may_hold_can_change_while_a_worker_serves(restored: Role) -> None:
    served = at_once(pid, WORKERS)
    for worker in WORKERS:
        sizes = ssh(worker, "find", CACHE, "-type", "f", "-printf", "%s\\n").stdout.split()
        held = max(1, sum(map(int, sizes)))
        changed = restored(worker, rpc_server_cache_max=str(held), rpc_server_cache_min_free="1K")
        assert recap(changed) == 2, "the service's file, and its timer"
        before = tidied(worker)
        old, young = entry(worker, ZEROS, 400), f"{CACHE}/notes"
        ssh(worker, "cp", "--preserve", old, young)
        after = tidied(worker)
        assert ssh(worker, "ls", old, young, check=False).stdout.split() == [young], "what is no entry stays"
        assert after["evicted"] == before["evicted"] + 1
        ssh(worker, "rm", young)
    found = module("worker1", "rpc_server_info", ports=[PORT])["servers"][0]["cache"]
    assert (found["folder"], found["evicted"], found["max_bytes"] > 0, found["min_free_bytes"]) == (
        CACHE, tidied("worker1")["evicted"], True, 1024,
    )  # fmt: skip
    assert at_once(pid, WORKERS) == served


@pytest.mark.long
def test_removal_leaves_nothing_and_a_clean_host_is_checked_without_a_trace(restored: Role) -> None:
    worker = "worker2"

    def left() -> str:
        return ssh(
            worker, "sh", "-c", "ls -d /etc/systemd/system/*llama* /etc/systemd/system/*/*llama* /var/lib/llama_cpp; "
            "ls -d /var/lib/llama_rpc_cache; "
            "getent passwd llama-rpc; getent group llama-rpc; systemctl list-units -a --plain --no-legend 'llama-rpc*'",
            check=False,
        ).stdout  # fmt: skip

    assert restored(worker, "--check", entry="remove").stdout.count("changed=0") == 0
    assert answers(worker) == "ready"
    restored(worker, entry="remove")
    assert left() == ""
    assert ssh(worker, "test", "-d", "/var/cache/llama_cpp").returncode == 0, "the cache stays unless it is asked for"
    assert recap(restored(worker, entry="remove")) == 0

    restored(worker, "--check", "--diff")
    assert left() == ""

    restored(worker)
    restored(worker, entry="remove", rpc_server_remove_cache=True)
    assert ssh(worker, "test", "-e", "/var/cache/llama_cpp", check=False).returncode == 1
