# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests that after an upgrade to another RPC protocol all hosts have the new release, or all have what they had: with a
fault at each step, and with the controller killed at each step."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from support.harness import ARCHIVES
from support.lab.hosts import (
    ADDRESS,
    INVENTORY,
    NUMBER,
    PORT,
    ROOT,
    UNIT,
    WORKERS,
    ask,
    at_once,
    eventually,
    module,
    play,
    ssh,
    ssh_command,
)
from support.pinned_source import NEW, OLD, label

HOSTS = ("master", *WORKERS)
ENDPOINTS = [f"{ADDRESS[worker]}:{PORT}" for worker in WORKERS]
# Prints the release in use, the worker's program and start, the note of an upgrade, and anything half made.
STATE = f"""
readlink /opt/llama_cpp/current
readlink /proc/$(systemctl show --property=MainPID --value {UNIT})/exe
systemctl show --property=InvocationID {UNIT}
cd /opt/llama_cpp && ls upgrade.json 2>/dev/null
ls -dA .[!.]* releases/.[!.]* 2>/dev/null | sed 's/^/half made: /'
"""

# The speed of a run depends on what else the machine does.
UNHURRIED = ("-e", "upgrade_canary_tolerance_percent=99")

Upgrade = Callable[..., "subprocess.CompletedProcess[str]"]


def said(run: subprocess.CompletedProcess[str]) -> str:
    """Return the output with its lines joined: Ansible folds long sentences."""
    return re.sub(r"\s+", " ", run.stdout)


@pytest.fixture
def upgrade(versions: Path) -> Upgrade:
    def run(version: str, *options: str, text: str = "any", check: bool = True) -> subprocess.CompletedProcess[str]:
        asked = ["-e", f"llama_cpp_version={version}"] if version else ["-e", "rollback=true"]
        asked += [*UNHURRIED, "-e", f"upgrade_canary_text={text}"]
        return play("upgrade", "-i", str(versions), *asked, *options, timeout=3600, check=check)

    return run


def states(hosts: Sequence[str] = HOSTS) -> dict[str, str]:
    return at_once(lambda host: ssh(host, "sh", "-c", STATE, check=False).stdout, hosts)


def everywhere(version: str) -> None:
    """Check that all hosts have a release, all workers run it and serve, and nothing is left of an upgrade."""
    for host, state in states().items():
        found = re.findall(r"releases/([b0-9.]+)-", state)
        assert found == [version] * (1 if host == "master" else 2), f"{host}: {state}"
        assert "upgrade.json" not in state, host
        assert "half made" not in state, f"{host}: {state}"
    assert ask("master", *ENDPOINTS) == dict.fromkeys(ENDPOINTS, "ready")
    answer = module(
        "master", "distributed_inference",
        model="/srv/models/random-weights.gguf", prompt="Who is there?", workers=ENDPOINTS, n_predict=8, ctx_size=512,
        threads=1,
    )  # fmt: skip
    assert answer.get("text"), answer


@pytest.fixture
def old(upgrade: Upgrade) -> None:
    """Bring the old release to all hosts, whatever the test before has left."""
    if not all(f"releases/{OLD}-" in state and "upgrade.json" not in state for state in states().values()):
        upgrade(OLD)
    everywhere(OLD)


@pytest.mark.usefixtures("old")
def test_a_part_of_the_cluster_is_refused(upgrade: Upgrade) -> None:
    run = upgrade(NEW, "--limit", "master,worker1", check=False)
    assert run.returncode != 0
    assert "change together, but --limit leaves out worker2: run this without it" in said(run)
    everywhere(OLD)


@pytest.mark.usefixtures("old")
def test_without_a_host_nothing_is_done_anywhere(upgrade: Upgrade, tmp_path: Path) -> None:
    further = tmp_path / "down.json"
    further.write_text(json.dumps({"all": {"hosts": {"worker2": {"ansible_host": f"10.87.{NUMBER}.99"}}}}))
    before = states()
    run = upgrade(NEW, "-i", str(further), check=False)
    assert run.returncode != 0
    assert states() == before
    assert "worker2 failed, and the hosts of a cluster change together, so nothing was changed anywhere." in said(run)
    assert "It cannot be reached over SSH" in said(run)
    everywhere(OLD)


def release(host: str, version: str) -> str:
    return ssh(host, "sh", "-c", f"ls -d /opt/llama_cpp/releases/{version}-*").stdout.split()[0]


def kept() -> dict[str, list[str]]:
    """Return the versions of the releases that each host has."""
    there = at_once(lambda host: ssh(host, "ls", "/opt/llama_cpp/releases").stdout, HOSTS)
    return {host: sorted(re.findall(r"^(b?[0-9.]+)-", names, re.MULTILINE)) for host, names in there.items()}


@pytest.mark.usefixtures("old")
def test_to_another_protocol_and_back(upgrade: Upgrade) -> None:
    before = states()
    run = upgrade(NEW, "--check")
    assert f"All hosts would go from llama.cpp {OLD}" in said(run)
    assert states() == before

    run = upgrade(NEW)
    old, new = (f"{label(it)} (RPC protocol {ARCHIVES[it]['protocol']})" for it in (OLD, NEW))
    assert f"from llama.cpp {old} to {new}" in said(run)
    for host in HOSTS:
        assert f"{host} has llama.cpp {label(NEW)}, and had llama.cpp {label(OLD)}." in said(run)
    everywhere(NEW)

    now = states()
    assert "There was nothing to do." in said(upgrade(NEW))
    assert states() == now, "a second run has started workers anew"
    upgrade("")
    everywhere(OLD)
    # A roll back is an upgrade, too: another roll back returns to what it left.
    upgrade("")
    everywhere(NEW)


@pytest.mark.usefixtures("old")
def test_the_oldest_releases_go(upgrade: Upgrade) -> None:
    for host in HOSTS:
        forget(host)
        ssh(host, "sh", "-c", "cd /opt/llama_cpp/releases && mkdir -p 0.0.1-0 && touch -d 2001-01-01 0.0.1-0")
    upgrade(NEW, "-e", "llama_cpp_keep_releases=2")
    everywhere(NEW)
    assert kept() == {host: [OLD, NEW] for host in HOSTS}
    upgrade("")
    everywhere(OLD)


def forget(host: str) -> None:
    """Remove what an earlier test has left of the new release on a host."""
    ssh(host, "sh", "-c", f"rm -rf /opt/llama_cpp/releases/{NEW}-*")


@contextmanager
def full_disk() -> Iterator[None]:
    """Give the releases of worker2 room for those that are there, without the new one, and for no more."""
    forget("worker2")
    script = (
        "cd /opt/llama_cpp; cp -a releases /var/tmp/releases; "
        "mount -t tmpfs -o mode=0755,size=$(($(du -sk releases | cut -f 1) + 600))k none releases; "
        "cp -a /var/tmp/releases/. releases/; rm -rf /var/tmp/releases; systemctl restart " + UNIT
    )
    ssh("worker2", "sh", "-ec", script)
    try:
        yield
    finally:
        ssh("worker2", "sh", "-c", f"systemctl stop {UNIT}; umount /opt/llama_cpp/releases; systemctl start {UNIT}")


@contextmanager
def unit_with(lines: str) -> Iterator[None]:
    """Add these lines to the worker's unit on worker1."""
    folder = f"/etc/systemd/system/{UNIT}.d"
    ssh("worker1", "mkdir", "-p", folder)
    ssh("worker1", "tee", f"{folder}/fault.conf", text_in=f"[Service]\n{lines}\n")
    ssh("worker1", "systemctl", "daemon-reload")
    try:
        yield
    finally:
        ssh("worker1", "rm", "-r", folder)
        ssh("worker1", "systemctl", "daemon-reload")


def unit_that_does_not_start() -> AbstractContextManager[None]:
    """Let the worker's unit on worker1 fail with the new release."""
    return unit_with(f"ExecStartPre=/bin/sh -c '! readlink /opt/llama_cpp/current | grep -q {NEW}'")


@contextmanager
def another_protocol() -> Iterator[None]:
    """Put the old server into the new release of worker2."""
    server, other = f"{release('worker2', NEW)}/bin/rpc-server", f"{release('worker2', OLD)}/bin/rpc-server"
    ssh("worker2", "mv", server, f"{server}.kept")
    ssh("worker2", "cp", other, server)
    try:
        yield
    finally:
        ssh("worker2", "mv", f"{server}.kept", server)


@contextmanager
def client() -> Iterator[None]:
    """Hold worker1 from the master, as a run does."""
    hold = (
        f"import socket, sys; worker = socket.create_connection(('{ADDRESS['worker1']}', {PORT}), timeout=10); "
        "worker.sendall(bytes([14, 24]) + bytes(7 + 24)); assert worker.recv(1); print('held', flush=True); "
        "sys.stdin.read()"
    )
    process = subprocess.Popen(
        [*ssh_command("master"), f"python3 -c {shlex.quote(hold)}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield
    finally:
        process.communicate(timeout=20)


FAULTS: dict[str, tuple[Callable[[], AbstractContextManager[None]], list[str], str]] = {
    "disk-full": (full_disk, [], "worker2: The disk that holds /opt/llama_cpp/releases on worker2 is full"),
    "busy": (client, ["-e", "upgrade_drain_timeout=0"], "A worker of worker1 is serving"),
    "unit-that-does-not-start": (
        unit_that_does_not_start,
        ["-e", "rpc_server_ready_timeout=20"],
        "worker1: The worker worker1:50052 did not answer within 20 s",
    ),
    "another-protocol": (another_protocol, [], f"speaks RPC protocol {ARCHIVES[OLD]['protocol']}"),
    # The prompt differs each time, as if the model answered otherwise.
    "canary-that-differs": (nullcontext, ["-e", '{"inference_prompt": "{{ 9999999999 | random }}"}'], "instead of"),
}
# These faults are found before the first host changes.
SOON = ("disk-full", "busy")


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_leaves_every_host_with_what_it_had(upgrade: Upgrade, fault: str) -> None:
    inject, options, sentence = FAULTS[fault]
    with inject():
        before = states()
        run = upgrade(NEW, *options, text="same" if fault == "canary-that-differs" else "any", check=False)
        assert run.returncode != 0
        assert sentence in said(run), run.stdout
        if fault in SOON:
            assert "did not start: every host has its previous release." in said(run)
            assert states() == before
        else:
            assert "failed. Every host has its previous release." in said(run)
            everywhere(OLD)
    everywhere(OLD)
    print(run.stdout.partition("TASK [Show the outcome]")[2])


def during(versions: Path, task: str, act: Callable[[subprocess.Popen[str]], None], *options: str, nth: int = 1) -> str:
    """Upgrade to the new release, act when a task begins for the nth time, and return what was printed."""
    process = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(INVENTORY), "-i", str(versions),
            str(ROOT / "playbooks/upgrade.yml"), "-e", f"llama_cpp_version={NEW}", "-e", "upgrade_canary_text=any",
            *UNHURRIED, *options,
        ],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
        env={
            **os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "NO_COLOR": "1",
            # This notices sooner than ansible.cfg that a host has fallen silent.
            "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=3",
        },
    )  # fmt: skip
    limit = threading.Timer(900, process.kill)
    limit.start()
    printed = []
    try:
        for line in process.stdout or ():
            printed.append(line)
            if f"TASK [{task}]" in line or f"RUNNING HANDLER [{task}]" in line:
                nth -= 1
                if nth == 0:
                    act(process)
            if process.poll() is not None:
                break
        process.wait()
    finally:
        limit.cancel()
        if process.stdout:
            process.stdout.close()
    assert nth <= 0, "".join(printed)
    return re.sub(r"\s+", " ", "".join(printed))


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


BROUGHT = "llama_cpp.cluster.llama_cpp : Unpack the artifact"
WORKERS_START = "llama_cpp.cluster.rpc_server : Restart the workers"
COMPARED = "llama_cpp.cluster.inference : Continue the prompt over all workers"
# When to kill the controller: the task that has begun, and whether the upgrade counts by then.
KILLED = {
    "once-it-is-noted": ("Record the release to go back to", False),
    "while-workers-change": (WORKERS_START, False),
    "before-masters-change": ("Check that the workers speak the release's RPC protocol", False),
    "while-it-is-compared": ("Continue the prompt with the new release", False),
    "after-the-good-end": ("Find whether the hosts keep the new release", True),
}


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("moment", KILLED)
def test_the_run_after_one_that_was_killed_ends_it(versions: Path, upgrade: Upgrade, moment: str) -> None:
    task, good = KILLED[moment]
    during(versions, task, kill)
    # Modules that were started go on to their end.
    eventually(lambda: (before := states()) and (time.sleep(3), states() == before)[1], 60, "nothing changes any more")
    assert any("upgrade.json" in state for state in states().values())

    run = play("verify", "-i", str(versions), check=False)
    assert "An upgrade was interrupted, and has not ended on" in said(run)
    before = states()
    run = play("site", "-i", str(versions), check=False)
    assert "An upgrade was interrupted, and has not ended on" in said(run)
    assert states() == before

    run = upgrade("" if moment == "while-workers-change" else NEW)
    assert "was interrupted and has not ended on" in said(run)
    assert ("the new release was good, so it is completed" in said(run)) is good
    everywhere(OLD if moment == "while-workers-change" else NEW)


# When to kill the controller: as this task begins for the nth time. Then the release to ask for at once, or a roll
# back.
AT_ONCE = {
    "while-it-is-brought": (BROUGHT, 1, NEW),
    "while-a-worker-changes": (WORKERS_START, 1, NEW),
    "while-it-is-compared": (COMPARED, 2, ""),
    "while-old-ones-go": ("llama_cpp.cluster.llama_cpp : Remove the oldest releases", 1, ""),
}


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("moment", AT_ONCE)
def test_a_run_that_follows_at_once_does_not_meet_what_the_killed_one_still_does(
    versions: Path, upgrade: Upgrade, moment: str
) -> None:
    task, nth, wanted = AT_ONCE[moment]
    for host in HOSTS:
        forget(host)
        # As many releases as are kept, so that one has to go for the new one.
        ssh(host, "sh", "-c", "cd /opt/llama_cpp/releases; mkdir -p 0.0.1-0 0.0.2-0; touch -d 2001-01-01 0.0.[12]-0")
    during(versions, task, kill, nth=nth)
    upgrade(wanted)
    everywhere(wanted or OLD)


def stopping() -> bool:
    return ssh("worker1", "systemctl", "is-active", UNIT, check=False).stdout.strip() == "deactivating"


@pytest.mark.usefixtures("old")
def test_a_worker_that_is_still_being_started_anew_is_waited_for(versions: Path) -> None:
    def kill_late(process: subprocess.Popen[str]) -> None:
        eventually(stopping, 60, "worker1 is told to stop")
        kill(process)

    def look(_process: object) -> None:
        assert not stopping()

    with unit_with("ExecStop=/bin/sleep 30\nTimeoutStopSec=60"):
        during(versions, WORKERS_START, kill_late)
        assert stopping()
        said_then = during(versions, "Find how to complete an interrupted upgrade", look, "-e", "rollback=true")
    assert "was interrupted and has not ended on" in said_then
    everywhere(OLD)


@pytest.mark.usefixtures("old")
def test_a_run_that_is_killed_on_the_way_back_and_then_again_is_ended_by_the_one_after(
    versions: Path, upgrade: Upgrade
) -> None:
    # Workers change, one of them cannot start, and all of them are on their way back.
    with unit_that_does_not_start():
        during(versions, WORKERS_START, kill, "-e", "rpc_server_ready_timeout=20", nth=2)
    assert any("upgrade.json" in state for state in states().values())
    during(versions, "Find the workers that can answer", kill)
    assert any("upgrade.json" in state for state in states().values())
    run = upgrade("")
    assert "was interrupted and has not ended on" in said(run)
    everywhere(OLD)


@contextmanager
def silence(host: str) -> Iterator[Callable[[object], None]]:
    """Yield a function that makes a host silent for this machine: it neither answers nor refuses anything."""
    table = f"llama_fault{NUMBER}"
    # Not all versions of nft accept this on one line.
    chain = f"chain out {{\n type filter hook output priority 0\n ip daddr {ADDRESS[host]} drop\n }}"
    rules = f"table ip {table} {{\n {chain}\n}}"

    def fall(_process: object) -> None:
        subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)

    try:
        yield fall
    finally:
        subprocess.run(["nft", "delete", "table", "ip", table], check=False, capture_output=True)


@pytest.mark.usefixtures("old")
def test_a_host_that_is_lost_while_it_gets_the_release_leaves_all_others_alone(
    versions: Path, upgrade: Upgrade
) -> None:
    forget("worker2")
    before = states()
    with silence("worker2") as fall:
        printed = during(versions, BROUGHT, fall)
        assert "did not start: every host has its previous release. worker2 stopped answering." in printed
        assert "worker2 stopped answering before anything was changed there." in printed
        others = ("master", "worker1")
        assert states(others) == {host: before[host] for host in others}
    # Part of the release may be there.
    assert states()["worker2"].partition("half made")[0] == before["worker2"]
    upgrade(NEW)
    everywhere(NEW)


# The host that falls silent: as this task begins for the nth time.
LOST = {
    "worker2": (WORKERS_START, 1),
    "master": ("llama_cpp.cluster.llama_cpp : Switch the current link to the release", 2),
}


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("lost", LOST)
def test_a_host_that_is_lost_on_the_way_is_named_and_healed_by_the_next_run(
    versions: Path, upgrade: Upgrade, lost: str
) -> None:
    task, nth = LOST[lost]
    with silence(lost) as fall:
        printed = during(versions, task, fall, nth=nth)
        assert f"All hosts but {lost} have their previous release. {lost} stopped answering." in printed
        assert (
            f"{lost} stopped answering: bring it back, and run the playbook upgrade again, which takes it back to "
            f"llama.cpp {label(OLD)}." in printed
        )
        assert "worker1 is back at llama.cpp" in printed
        for host, state in states([host for host in HOSTS if host != lost]).items():
            found = re.findall(r"releases/([b0-9.]+)-", state)
            assert found == [OLD] * (1 if host == "master" else 2), f"{host}: {state}"
            assert "upgrade.json" not in state, host
    assert "upgrade.json" in states()[lost]
    before = states()
    site = play("site", "-i", str(versions), check=False)
    assert f"An upgrade was interrupted, and has not ended on {lost}: run the playbook upgrade" in said(site)
    assert states() == before
    run = upgrade("")
    assert f"was interrupted and has not ended on {lost}: all hosts go back" in said(run)
    everywhere(OLD)
