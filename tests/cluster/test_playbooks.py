# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of playbooks over a running cluster: bad input is named and changes nothing, a bad worker stops no other."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from support.lab.hosts import (
    ADDRESS,
    LAB,
    NUMBER,
    PORT,
    ROOT,
    UNIT,
    WORKERS,
    at_once,
    play,
    ssh,
    ssh_command,
    with_model_copied,
)
from support.lab.round_trips import counted, round_trips

# Programs started over SSH in a run with nothing to do. Each takes seconds on a slow host.
MOST_ROUND_TRIPS = {"master": 9, "worker1": 6, "worker2": 6}
NOBODY = f"10.87.{NUMBER}.99"
MANIFEST = "/opt/llama_cpp/current/manifest.json"
# Holds a worker as a client does, until its input ends.
CLIENT = """
import socket, sys
worker = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)
worker.sendall(bytes([14]) + (24).to_bytes(8, "little") + bytes(24))
assert worker.recv(4096)
print("held", flush=True)
sys.stdin.read()
"""

Inventory = Callable[..., tuple[str, str]]


@pytest.fixture
def hosts(tmp_path: Path) -> Inventory:
    """Return a function that makes options with further variables of hosts."""

    def options(**variables: dict[str, Any]) -> tuple[str, str]:
        path = tmp_path / "further.json"
        path.write_text(json.dumps({"all": {"hosts": variables}}))
        return "-i", str(path)

    return options


def recap(output: str) -> dict[str, dict[str, int]]:
    """Return the numbers of the recap, by host."""
    lines = re.findall(r"^(\S+) +: (ok=.*)$", output.partition("PLAY RECAP")[2], re.MULTILINE)
    return {host: {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", numbers)} for host, numbers in lines}


def changed(output: str) -> dict[str, int]:
    return {host: numbers["changed"] for host, numbers in recap(output).items() if numbers["changed"]}


def said(output: str) -> str:
    """Return the output with its lines joined: Ansible folds long sentences."""
    return re.sub(r"\s+", " ", output)


def footprint() -> dict[str, str]:
    """Return what a change would alter: the process that serves, its unit, the release, the zones, the model."""
    look = (
        f"systemctl show --property=MainPID --value {UNIT} 2>&1; sha256sum /etc/systemd/system/llama-rpc-server@*; "
        "readlink /opt/llama_cpp/current; cat /etc/firewalld/zones/*.xml; stat --format '%n %Y %s' /srv/models/*; "
        "dpkg-query --show | sha256sum"
    )
    return at_once(lambda host: ssh(host, "sh", "-c", look, check=False).stdout, ("master", *WORKERS))


@pytest.fixture(scope="module")
def before() -> dict[str, str]:
    return footprint()


BAD = {
    "threads-0": ({"worker1": {"rpc_server_threads": 0}}, [], ["threads 0: give auto"]),
    "threads-999": ({"worker1": {"rpc_server_threads": 999}}, [], ["rpc_server_threads 999: worker1 has"]),
    "sources": (
        {
            "worker1": {"rpc_firewall_trusted_sources": ["10.0.0.300"]},
            "worker2": {"rpc_firewall_trusted_sources": ["0.0.0.0/0"]},
        },
        [],
        [
            "worker1, rpc_firewall_trusted_sources: 10.0.0.300",
            "worker2, rpc_firewall_trusted_sources: 0.0.0.0/0",
            "rpc_firewall_allow_any_source",
        ],
    ),
    "another-llama.cpp": (
        {"worker2": {"llama_cpp_version": "0.3.35"}},
        [],
        ["worker2 would get llama.cpp 0.3.35-4df29be4f and the master master b11549-c17ee1163"],
    ),
    "a-model-that-is-a-folder": (
        {"master": {"gguf_model_path": "/srv/models", "gguf_model_source": ""}},
        ["--tags", "gguf_model"],
        ["/srv/models", "folder"],
    ),
    "another-digest": (
        {"master": {"gguf_model_path": "/srv/models/another.gguf", "gguf_model_sha256": "0" * 64}},
        ["--tags", "gguf_model"],
        ["but gguf_model_sha256 is 0000", "nothing was sent"],
    ),
}  # fmt: skip


# The tier integration tests role gguf_model without hosts.
ELSEWHERE = ("a-model-that-is-a-folder", "another-digest")


@pytest.mark.parametrize(
    ("variables", "options", "sentences"),
    [pytest.param(*case, id=name, marks=pytest.mark.long if name in ELSEWHERE else ()) for name, case in BAD.items()],
)
def test_bad_input_is_named_and_changes_nothing(
    hosts: Inventory, before: dict[str, str], variables: dict[str, Any], options: list[str], sentences: list[str]
) -> None:
    run = play("site", *hosts(**variables), *options, check=False)
    assert run.returncode != 0
    for sentence in sentences:
        assert sentence in said(run.stdout)
    assert changed(run.stdout) == {}
    assert footprint() == before


def test_a_worker_that_fails_does_not_stop_the_others(hosts: Inventory, before: dict[str, str]) -> None:
    run = play("site", *hosts(worker1={"rpc_server_port": 22}), "--tags", "rpc_server,inference", check=False)
    assert run.returncode != 0
    assert "Port 22 of worker1 is taken" in said(run.stdout).partition("fatal: [worker1]")[2].partition("PLAY [")[0]
    assert "Inference was not started, because worker1 failed above" in said(run.stdout)
    numbers = recap(run.stdout)
    assert {host: numbers[host]["failed"] for host in ("master", *WORKERS)} == {"master": 0, "worker1": 1, "worker2": 0}
    assert numbers["worker2"]["ok"] > numbers["worker1"]["ok"], "worker2 was not gone through"
    assert changed(run.stdout) == {}
    assert footprint() == before


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        pytest.param({"ansible_host": NOBODY}, NOBODY, id="address"),
        pytest.param({"ansible_user": "stranger"}, "Permission denied", id="login", marks=pytest.mark.long),
    ],
)
def test_a_worker_that_cannot_be_reached_is_named_and_the_others_go_on(
    hosts: Inventory, before: dict[str, str], variables: dict[str, str], why: str
) -> None:
    run = play("site", *hosts(worker2=variables), "--tags", "rpc_server,inference", check=False)
    assert run.returncode != 0
    assert why in said(run.stdout).partition("[worker2]: UNREACHABLE!")[2].partition("PLAY [")[0]
    assert "Inference was not started, because worker2 failed above" in said(run.stdout)
    numbers = recap(run.stdout)
    assert [numbers[host]["unreachable"] for host in ("master", *WORKERS)] == [0, 0, 1]
    assert all(numbers[host]["failed"] == 0 for host in numbers)
    assert numbers["worker1"]["ok"] > 20
    assert changed(run.stdout) == {}
    assert footprint() == before


@pytest.mark.long
def test_check_and_diff_in_batches_find_nothing_to_change_in_few_looks(
    before: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in counted(tmp_path).items():
        monkeypatch.setenv(name, value)
    run = play("site", "--check", "--diff", "-e", "llama_cpp_serial=1")
    assert changed(run.stdout) == {}
    assert footprint() == before
    assert round_trips(tmp_path, LAB / "ssh_config") == MOST_ROUND_TRIPS


def test_tags_and_limit_leave_the_rest_alone() -> None:
    run = play("site", "--tags", "rpc_firewall", "--limit", "worker1")
    assert set(recap(run.stdout)) == {"worker1"}
    assert changed(run.stdout) == {}
    # Arguments are validated whatever the tags.
    entered = set(re.findall(r"TASK \[llama_cpp\.cluster\.(\w+ : (?!Validating)[^]]+)", run.stdout))
    assert "rpc_firewall : Read the state of firewalld" in entered
    assert {"llama_cpp : Read the host's facts", "rpc_server : Wait until the worker answers"} & entered == set()


@contextmanager
def client(host: str, worker: str) -> Iterator[None]:
    """Hold a worker from a host, as a run does."""
    command = f"python3 -c {shlex.quote(CLIENT)} {worker} {PORT}"
    process = subprocess.Popen([*ssh_command(host), command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield
    finally:
        process.communicate(timeout=20)


@pytest.fixture
def other_release() -> Iterator[str]:
    """Let the manifest of worker2 name another commit; yield the message about that."""
    kept = ssh("worker2", "cat", MANIFEST).stdout
    manifest = json.loads(kept)
    other = {**manifest, "version": "0.3.35-4df29be4f", "source": {**manifest["source"], "commit": "4df29be4f4c3"}}
    ssh("worker2", "tee", MANIFEST, text_in=json.dumps(other))
    try:
        yield "worker2 has llama.cpp 0.3.35-4df29be4f and the master"
    finally:
        ssh("worker2", "tee", MANIFEST, text_in=kept)


def verify(tmp_path: Path, *options: str) -> tuple[int, str, dict[str, Any]]:
    """Run playbook verify; return its exit status, its output, and its report, which follows the schema."""
    report = tmp_path / "status.json"
    run = play("verify", "-e", f"verify_report_path={report}", *options, check=False)
    assert changed(run.stdout) == {}
    status = json.loads(report.read_text())
    jsonschema.validate(status, json.loads((ROOT / "docs/monitoring/status.schema.json").read_text()))
    report.unlink()
    age = datetime.now(timezone.utc) - datetime.fromisoformat(status.pop("time").replace("Z", "+00:00"))
    assert abs(age.total_seconds()) < 600
    for worker in status["workers"]:
        # This time changes every five minutes.
        assert (worker["cache"] or {}).pop("tidied_at", 0) is not False
    return run.returncode, run.stdout, status


def table(printed: str) -> str:
    """Return the table for people: other lines come in the order in which hosts answer."""
    return printed.split("Show the workers and the problems]")[1].partition("TASK")[0]


@pytest.mark.long
def test_verify_is_stable_and_does_not_disturb_a_worker_that_serves(tmp_path: Path, before: dict[str, str]) -> None:
    # verify says more of a cache once its timer has run for the first time.
    at_once(lambda worker: ssh(worker, "systemctl", "start", f"llama-rpc-cache@{PORT}.service"), WORKERS)
    code, printed, status = verify(tmp_path)
    assert (code, status["healthy"], status["problems"]) == (0, True, [])
    keys = ("host", "state", "service", "firewall")
    assert [tuple(worker[key] for key in keys) for worker in status["workers"]] == [
        (worker, "ready", "running", "closed") for worker in WORKERS
    ]
    for worker in status["workers"]:
        assert ("rpc-repack" in worker["patches"]) is (worker["repack"] is not None), "it says so as soon as it runs"
    again = verify(tmp_path)
    assert (table(again[1]), again[2]) == (table(printed), status)

    with client("master", ADDRESS["worker1"]):
        code, printed, status = verify(tmp_path)
    assert (code, status["healthy"]) == (0, True), printed
    assert [worker["state"] for worker in status["workers"]] == ["busy", "ready"]
    assert [name.rpartition(":")[0] for name in status["workers"][0]["clients"]] == [ADDRESS["master"]]
    assert footprint() == before, "the worker did not survive being looked at"


def entries() -> dict[str, set[str]]:
    """Return the large tensors in each worker's cache, and when they were written."""
    look = "find /var/cache/llama_cpp/rpc -type f -size +10M -printf '%f %T@\\n'"
    return at_once(lambda host: set(ssh(host, "sh", "-c", look).stdout.splitlines()), WORKERS)


def forget_tensors() -> None:
    at_once(lambda worker: ssh(worker, "sh", "-c", "rm -f /var/cache/llama_cpp/rpc/*"), WORKERS)


@pytest.fixture
def copied() -> Iterator[str]:
    with with_model_copied() as path:
        yield path


@pytest.mark.long
def test_seeded_workers_are_sent_no_large_tensor(before: dict[str, str], copied: str) -> None:
    forget_tensors()
    run = play("seed", "-e", f"rpc_server_seed_model={copied}")
    assert all(f"{ADDRESS[worker]}:{PORT} has got" in said(run.stdout) for worker in WORKERS), run.stdout
    assert "The tensors are those of inference_tensor_split: [" in said(run.stdout)
    seeded = entries()
    assert all(seeded.values())
    assert sum(map(len, seeded.values())) == 12, "three of each layer, and each layer once"
    play("infer", "-e", "inference_n_predict=2")
    assert entries() == seeded, "the master had nothing large to send"

    # Seed all layers, in addition to the entries that are there already.
    run = play("seed", "-e", "seed_layers=all", "-e", f"rpc_server_seed_model={copied}")
    assert changed(run.stdout) == dict.fromkeys(WORKERS, 1)
    assert [len(has) for has in entries().values()] == [12, 12]
    for worker in WORKERS:
        ssh(worker, "rm", "-f", copied)
    assert footprint() == before


@pytest.mark.long
def test_a_look_at_a_reset_changes_nothing_and_names_who_is_down(hosts: Inventory, before: dict[str, str]) -> None:
    run = play("reset", "--check", *hosts(worker2={"ansible_host": NOBODY}), check=False)
    assert run.returncode != 0
    numbers = recap(run.stdout)
    assert [numbers[host]["unreachable"] for host in ("worker2", "worker1", "master")] == [1, 0, 0]
    assert (numbers["worker1"]["failed"], numbers["master"]["failed"]) == (0, 0)
    assert min(numbers["worker1"]["changed"], numbers["master"]["changed"]) >= 2
    assert footprint() == before


@pytest.mark.long
def test_verify_and_infer_name_each_thing_that_is_wrong(tmp_path: Path, other_release: str) -> None:
    ssh("worker1", "systemctl", "stop", UNIT)
    try:
        code, printed, status = verify(tmp_path)
        inference = said(play("infer", check=False).stdout)
    finally:
        ssh("worker1", "systemctl", "start", UNIT)
    assert (code, status["healthy"]) == (2, False)
    first, second = (" ".join(worker["problems"]) for worker in status["workers"])
    assert f"Nothing listens on port {PORT} of worker1" in first
    assert f"As master sees it: {ADDRESS['worker1']}:{PORT}" in first
    assert other_release in second
    for problem in status["problems"]:
        assert problem in said(printed)
    assert other_release in inference
    assert "Continue the prompt over all workers" not in inference
