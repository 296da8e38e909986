# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever happens to an upgrade, all hosts have the new release in the end, or all have what they had: across the
generations of the RPC protocol, with a fault at each step, and with the controller killed at each step."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
from generations import MIDDLE, NEW, OLD
from harness import (
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
    play,
    ssh,
    ssh_command,
)

HOSTS = ("master", *WORKERS)
ENDPOINTS = [f"{ADDRESS[worker]}:{PORT}" for worker in WORKERS]
# The release in use, what its worker runs, and the notes of an upgrade.
STATE = f"""
readlink /opt/llama_cpp/current
readlink /proc/$(systemctl show --property=MainPID --value {UNIT})/exe
cd /opt/llama_cpp && ls upgrade.json 2>/dev/null
"""

Upgrade = Callable[..., "subprocess.CompletedProcess[str]"]


def said(run: subprocess.CompletedProcess[str]) -> str:
    """Return the output with its lines joined: Ansible folds long sentences."""
    return re.sub(r"\s+", " ", run.stdout)


@pytest.fixture
def upgrade(versions: Path) -> Upgrade:
    def run(version: str, *options: str, text: str = "any", **more: bool) -> subprocess.CompletedProcess[str]:
        asked = ["-e", f"llama_cpp_version={version}"] if version else ["-e", "rollback=true"]
        return play("upgrade", "-i", str(versions), *asked, "-e", f"upgrade_canary_text={text}", *options, **more)

    return run


def states() -> dict[str, str]:
    return at_once(lambda host: ssh(host, "sh", "-c", STATE, check=False).stdout, HOSTS)


def everywhere(version: str) -> None:
    """All hosts have a release, all workers run it and are ready, and no upgrade is under way."""
    for host, state in states().items():
        found = re.findall(r"releases/([0-9.]+)-", state)
        assert found == [version] * (1 if host == "master" else 2), f"{host}: {state}"
        assert "upgrade.json" not in state, host
    assert ask("master", *ENDPOINTS) == dict.fromkeys(ENDPOINTS, "ready")


@pytest.fixture
def old(upgrade: Upgrade) -> None:
    """Each test begins with the old release everywhere, whatever the one before has left."""
    if not all(f"releases/{OLD}-" in state and "upgrade.json" not in state for state in states().values()):
        upgrade(OLD)
    everywhere(OLD)


@pytest.mark.usefixtures("old")
def test_a_part_of_the_cluster_is_refused(upgrade: Upgrade) -> None:
    run = upgrade(NEW, "--limit", "master,worker1", check=False)
    assert run.returncode != 0
    assert "change together, and --limit leaves out worker2: run this without it" in said(run)
    everywhere(OLD)


@pytest.mark.usefixtures("old")
def test_without_a_host_nothing_is_done_anywhere(upgrade: Upgrade, tmp_path: Path) -> None:
    further = tmp_path / "down.json"
    further.write_text(json.dumps({"all": {"hosts": {"worker2": {"ansible_host": f"10.87.{NUMBER}.99"}}}}))
    run = upgrade(NEW, "-i", str(further), check=False)
    assert run.returncode != 0
    assert "worker2 is out, and the hosts of a cluster change together, so nothing was changed anywhere." in said(run)
    assert "It cannot be reached over SSH" in said(run)
    everywhere(OLD)


def release(host: str, version: str) -> str:
    return ssh(host, "sh", "-c", f"ls -d /opt/llama_cpp/releases/{version}-*").stdout.split()[0]


def kept() -> dict[str, list[str]]:
    """Return the versions of the releases that each host has."""
    there = at_once(lambda host: ssh(host, "ls", "/opt/llama_cpp/releases").stdout, HOSTS)
    return {host: sorted(re.findall(r"^([0-9.]+)-", names, re.MULTILINE)) for host, names in there.items()}


@pytest.mark.usefixtures("old")
def test_across_generations_and_back(upgrade: Upgrade) -> None:
    before = states()
    run = upgrade(NEW, "--check")
    assert f"All hosts would go from llama.cpp {OLD}" in said(run)
    assert states() == before

    run = upgrade(NEW)
    assert f"from llama.cpp {OLD}-4227c9be4 (RPC protocol 2.0.0) to {NEW}-0c1e57098 (RPC protocol 7.0.0)" in said(run)
    for host in HOSTS:
        assert f"{host} has llama.cpp {NEW}-0c1e57098, and had llama.cpp {OLD}-4227c9be4." in said(run)
    everywhere(NEW)

    now = states()
    assert "Nothing was to be done." in said(upgrade(NEW))
    assert states() == now, "a second run has started workers anew"
    upgrade("")
    everywhere(OLD)
    # A roll back is an upgrade, too: what it left can be returned to.
    upgrade("")
    everywhere(NEW)


@pytest.mark.usefixtures("old")
def test_by_way_of_the_generation_between(upgrade: Upgrade) -> None:
    keep = ("-e", "llama_cpp_keep_releases=2")
    assert "(RPC protocol 5.0.0)" in said(upgrade(MIDDLE, *keep))
    everywhere(MIDDLE)
    assert kept() == {host: [OLD, MIDDLE] for host in HOSTS}
    upgrade(NEW, *keep)
    everywhere(NEW)
    assert kept() == {host: [MIDDLE, NEW] for host in HOSTS}
    upgrade("")
    everywhere(MIDDLE)


@contextmanager
def full_disk() -> Iterator[None]:
    """Releases of worker2 have room for what is there, without the new one, and for no more."""
    ssh("worker2", "sh", "-c", f"rm -rf /opt/llama_cpp/releases/{NEW}-*")
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
def unit_that_does_not_start() -> Iterator[None]:
    """On worker1, with the new release."""
    folder = f"/etc/systemd/system/{UNIT}.d"
    text = f"[Service]\nExecStartPre=/bin/sh -c '! readlink /opt/llama_cpp/current | grep -q {NEW}'\n"
    ssh("worker1", "mkdir", "-p", folder)
    ssh("worker1", "tee", f"{folder}/fault.conf", text_in=text)
    ssh("worker1", "systemctl", "daemon-reload")
    try:
        yield
    finally:
        ssh("worker1", "rm", "-r", folder)
        ssh("worker1", "systemctl", "daemon-reload")


@contextmanager
def another_protocol() -> Iterator[None]:
    """The new release of worker2 has the old server in it."""
    server, other = f"{release('worker2', NEW)}/bin/rpc-server", f"{release('worker2', OLD)}/bin/rpc-server"
    ssh("worker2", "mv", server, f"{server}.kept")
    ssh("worker2", "cp", other, server)
    try:
        yield
    finally:
        ssh("worker2", "mv", f"{server}.kept", server)


@contextmanager
def client() -> Iterator[None]:
    """Worker1 is held from the master, as a run does it."""
    hold = (
        f"import socket, sys; worker = socket.create_connection(('{ADDRESS['worker1']}', {PORT}), timeout=10); "
        "worker.sendall(bytes([14]) + bytes(8)); worker.recv(1); print('held', flush=True); sys.stdin.read()"
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
        ["-e", "rpc_server_ready_timeout=5"],
        "worker1: The worker worker1:50052 did not answer within 5 s",
    ),
    "another-protocol": (another_protocol, [], "speaks RPC protocol 2.0.0"),
    # A prompt that is another one each time, as if the model had another opinion.
    "canary-that-differs": (nullcontext, ["-e", '{"inference_prompt": "{{ 9999999999 | random }}"}'], "instead of"),
}


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(
    ("start", "fault"),
    [*((OLD, fault) for fault in FAULTS), (MIDDLE, "unit-that-does-not-start"), (MIDDLE, "another-protocol")],
)
def test_a_fault_leaves_every_host_with_what_it_had(upgrade: Upgrade, start: str, fault: str) -> None:
    inject, options, sentence = FAULTS[fault]
    if start != OLD:
        upgrade(start)
    with inject():
        run = upgrade(NEW, *options, text="same" if fault == "canary-that-differs" else "any", check=False)
        assert run.returncode != 0
        assert sentence in said(run), run.stdout
        everywhere(start)
    print(run.stdout.partition("TASK [What became of it]")[2])


def during(versions: Path, task: str, act: Callable[[subprocess.Popen[str]], None]) -> str:
    """Upgrade to the new release, do something as soon as a task begins, and return what was printed."""
    process = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(INVENTORY), "-i", str(versions),
            str(ROOT / "playbooks/upgrade.yml"), "-e", f"llama_cpp_version={NEW}", "-e", "upgrade_canary_text=any",
        ],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
        env={
            **os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "NO_COLOR": "1",
            # Quicker than ansible.cfg to notice that a host has fallen silent.
            "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=3",
        },
    )  # fmt: skip
    limit = threading.Timer(900, process.kill)
    limit.start()
    printed = []
    try:
        assert process.stdout
        for line in process.stdout:
            printed.append(line)
            if f"TASK [{task}]" in line:
                act(process)
                task = "done"
            if process.poll() is not None:
                break
        process.wait()
    finally:
        limit.cancel()
    assert task == "done", "".join(printed)
    return re.sub(r"\s+", " ", "".join(printed))


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


WORKERS_START = "llama_cpp.cluster.rpc_server : The worker runs from its unit"
# When the controller is killed: the task that has begun; and whether the upgrade counts by then.
KILLED = {
    "once-it-is-noted": ("The way back is known", False),
    "while-workers-change": (WORKERS_START, False),
    "before-masters-change": ("The workers speak the protocol of the release", False),
    "while-it-is-compared": ("The prompt is continued with the new release", False),
    "after-the-good-end": ("Where all hosts end is known", True),
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
    assert ("it was good, and is brought to its end" in said(run)) is good
    everywhere(OLD if moment == "while-workers-change" else NEW)


@contextmanager
def silence(host: str) -> Iterator[Callable[[object], None]]:
    """What makes a host fall silent for this machine: nothing that is sent there is answered, or refused."""
    table = f"llama_fault{NUMBER}"
    rules = f"table ip {table} {{ chain out {{ type filter hook output priority 0; ip daddr {ADDRESS[host]} drop; }} }}"

    def fall(_process: object) -> None:
        subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)

    try:
        yield fall
    finally:
        subprocess.run(["nft", "delete", "table", "ip", table], check=False, capture_output=True)


@pytest.mark.usefixtures("old")
def test_a_host_that_is_lost_on_the_way_is_named_and_healed_by_the_next_run(versions: Path, upgrade: Upgrade) -> None:
    with silence("worker2") as fall:
        printed = during(versions, WORKERS_START, fall)
        assert "all hosts but worker2 have what they had before. worker2 stopped answering." in printed
        assert (
            "worker2 stopped answering: bring it back, and run the playbook upgrade again, which takes it back to "
            f"llama.cpp {OLD}-4227c9be4." in printed
        )
        assert "worker1 is back at llama.cpp" in printed
        assert f"releases/{OLD}-" in ssh("master", "readlink", "/opt/llama_cpp/current").stdout
    assert "upgrade.json" in states()["worker2"]
    run = upgrade("")
    assert "was interrupted and has not ended on worker2: all hosts go back" in said(run)
    everywhere(OLD)
