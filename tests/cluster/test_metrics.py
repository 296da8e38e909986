# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of the figures for node_exporter, which role rpc_server writes on request. They leave workers with defaults."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from cluster.role import BOTH, HOLD, Role, recap, running, show
from support.lab.hosts import ADDRESS, PORT, WORKERS, at_once, eventually, ssh

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = "/var/lib/node_exporter"
SERVICE, TIMER = "llama-rpc-metrics.service", "llama-rpc-metrics.timer"
TRACES = (
    "ls -d /etc/systemd/system/llama-rpc-metrics* /etc/systemd/system/*/llama-rpc-metrics* /var/lib/node_exporter*/* "
    "/usr/local/lib/llama_cpp_metrics /var/lib/llama_cpp_metrics; "
    "systemctl list-units -a --plain --no-legend 'llama-rpc-metrics*'"
)


def traces(worker: str) -> str:
    return ssh(worker, "sh", "-c", TRACES, check=False).stdout


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Role]:
    role = Role(tmp_path_factory.mktemp("role"))
    for worker in WORKERS:
        ssh(worker, "mkdir", "-p", FOLDER, f"{FOLDER}2")
    try:
        yield role
    finally:
        if any(at_once(traces, WORKERS).values()):
            role(BOTH)
        for worker in WORKERS:
            ssh(worker, "rmdir", FOLDER, f"{FOLDER}2")


def figures(worker: str, folder: str = FOLDER) -> dict[str, float]:
    """Return the figures as the account of node_exporter can read them."""
    lines = ssh(worker, "runuser", "-u", "nobody", "--", "cat", f"{folder}/llama_rpc.prom").stdout.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def names(worker: str, figure: str) -> bool:
    return figure in figures(worker)


@pytest.mark.long
def test_a_look_changes_nothing(role: Role) -> None:
    looked = role(BOTH, "--check", rpc_server_metrics_folder=FOLDER)
    assert recap(looked) >= 2, "it says what it would do"
    assert set(at_once(traces, WORKERS).values()) == {""}


@pytest.mark.long
def test_figures_are_written_again_and_again_by_a_confined_service(role: Role) -> None:
    role(BOTH, rpc_server_metrics_folder=FOLDER)
    assert recap(role(BOTH, rpc_server_metrics_folder=FOLDER)) == 0
    for worker in WORKERS:
        own = f'endpoint="{ADDRESS[worker]}:{PORT}"'
        found = figures(worker)
        assert found[f"llama_rpc_up{{{own}}}"] == 1
        assert found[f"llama_rpc_clients{{{own}}}"] == 0
        assert found[f"llama_rpc_restarts_total{{{own}}}"] == float(show(worker, "NRestarts"))
        assert found[f"llama_rpc_threads{{{own}}}"] >= 1
        entries = ssh(worker, "find", "/var/cache/llama_cpp/rpc", "-type", "f", "-printf", "%s\\n", check=False)
        sizes = [int(size) for size in entries.stdout.split()]
        assert found[f"llama_rpc_cache_entries{{{own}}}"] == len(sizes)
        assert found[f"llama_rpc_cache_bytes{{{own}}}"] == sum(sizes)
        tidied = f"llama_rpc_cache_tidied_timestamp_seconds{{{own}}}"
        eventually(partial(names, worker, tidied), 60, "what keeps the cache in order has said so, and it can be read")
        assert found[f"llama_rpc_weights{{{own}}}"] >= 0, "the status file of the server can be read"
        counted = show(worker, "MemoryCurrent")
        assert (f"llama_rpc_memory_bytes{{{own}}}" in found) is counted.isdigit()

        exposure = ssh(worker, "systemd-analyze", "security", "--no-pager", SERVICE).stdout
        assert float(exposure.rpartition(": ")[2].split()[0]) <= 1.0, exposure
        owner = ssh(worker, "stat", "-L", "--format=%U %a", f"{FOLDER}/llama_rpc.prom").stdout.split()
        assert owner == ["llama-rpc", "644"]

        with running("master", HOLD, ADDRESS[worker], PORT):
            held = f'llama_rpc_held{{{own},client="{ADDRESS["master"]}"}}'
            eventually(partial(names, worker, held), 60, "the client is named")
        eventually(lambda worker=worker, held=held: not names(worker, held), 60, "it is named no more")
        journal = ssh(worker, "journalctl", "--no-pager", "--output=cat", f"--unit={SERVICE}", "--lines=5").stdout
        assert "Finished" not in journal, "each of them would be two lines of the journal"


@pytest.mark.long
def test_another_folder_or_none_leaves_nothing_behind(role: Role) -> None:
    role("worker1", rpc_server_metrics_folder=f"{FOLDER}2")
    assert figures("worker1", f"{FOLDER}2")
    assert ssh("worker1", "ls", FOLDER).stdout == ""
    role("worker2", entry="remove")
    assert traces("worker2") == ""
    role(BOTH)
    assert set(at_once(traces, WORKERS).values()) == {""}
