# SPDX-License-Identifier: GPL-3.0-or-later
"""The metrics of a host from the program of role rpc_server, on a made-up tree of files."""

from __future__ import annotations

import importlib
import json
import os
import struct
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNIT = """# Managed by Ansible (llama_cpp.cluster.rpc_server); changes are lost.
# llama.cpp release: {release}
[Service]
ExecStart=/usr/bin/stdbuf -oL /opt/llama_cpp/current/bin/rpc-server -H {address} -p {port} -t {threads} -d CPU -c
Environment=LLAMA_CACHE={cache}
"""
SHOWN = """Id=llama-rpc-server@50052.service
ActiveState=active
NRestarts=3
MemoryCurrent=3145728
MemoryMax=infinity
ControlGroup=/system.slice/llama-rpc-server@50052.service

Id=llama-rpc-server@50053.service
ActiveState=activating
NRestarts=0
MemoryCurrent=18446744073709551615
MemoryMax=2097152
"""
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """Return the program, with its parts beside it, where the role puts them."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in "roles/rpc_server/files", "plugins/module_utils/_rpc":
            patch.syspath_prepend(ROOT / folder)
        return importlib.import_module("llama_rpc_metrics")


def socket_line(local: tuple[str, int], peer: tuple[str, int], state: str, inode: int) -> str:
    def word(place: tuple[str, int]) -> str:
        (number,) = struct.unpack("=I", bytes(map(int, place[0].split("."))))
        return f"{number:08X}:{place[1]:04X}"

    return f"   0: {word(local)} {word(peer)} {state} 0:0 00:0 0   990        0 {inode} 1 0\n"


@pytest.fixture
def host(tmp_path: Path, program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a host of two servers. One serves a client while a second client waits; the other does not run."""
    units, net = tmp_path / "etc/systemd/system", tmp_path / "proc/self/net"
    units.mkdir(parents=True)
    net.mkdir(parents=True)
    for port, threads in ((50052, 8), (50053, 4)):
        text = UNIT.format(
            release="0.3.36-a", address="10.0.0.11", port=port, threads=threads, cache=tmp_path / f"cache/{port}"
        )
        (units / f"llama-rpc-server@{port}.service").write_text(text)
    own, anyone = ("10.0.0.11", 50052), ("0.0.0.0", 0)
    (net / "tcp").write_text(
        HEADER
        + socket_line(own, anyone, "0A", 11)
        + socket_line(own, ("10.0.0.10", 40000), "01", 12)
        + socket_line(own, ("10.0.0.9", 40001), "01", 0)
    )
    cache = tmp_path / "cache/50052/rpc"
    cache.mkdir(parents=True)
    for number, size in enumerate((1000, 24)):
        (cache / f"{number:016x}").write_bytes(bytes(size))
    (cache / "0123456789abcdef.partial").write_bytes(bytes(7))
    (cache / "fedcba9876543210").symlink_to("/etc/passwd")
    group = tmp_path / "sys/fs/cgroup/system.slice/llama-rpc-server@50052.service"
    group.mkdir(parents=True)
    (group / "memory.stat").write_text("anon 1048576\nfile 2097152\ninactive_file 1572864\nactive_file 524288\n")
    status = tmp_path / "var/lib/llama_cpp/status-50052.json"
    status.parent.mkdir(parents=True)
    invocations = tmp_path / "run/systemd/units"
    invocations.mkdir(parents=True)
    (invocations / "invocation:llama-rpc-server@50052.service").symlink_to("0123abcd")
    repack = {"enabled": True, "kernels": True, "weights": 3, "mib": 1.5, "of_weights": 4, "of_mib": 2.0}
    status.write_text(json.dumps({"invocation": "0123abcd", "repack": repack}))
    use = {"hits": 5, "hit_bytes": 4096, "misses": 2, "damaged": 1}
    status.with_name("cache-50052.json").write_text(json.dumps({"invocation": "0123abcd", "use": use}))
    for port, most, text in ((50052, 5000, "{}"), (50053, 0, "{} and more")):
        tidied = tmp_path / f"var/lib/llama_rpc_cache/{port}/status.json"
        tidied.parent.mkdir(parents=True)
        said = {"time": 1760000000, "max_bytes": most, "min_free_bytes": 10, "corrupted": 1, "evicted": 2}
        tidied.write_text(text.format(json.dumps(said)))
    monkeypatch.setattr(program, "ask_systemd", lambda _units: program.read_properties(SHOWN))
    return tmp_path


def test_all_that_is_known_of_several_servers_is_said(host: Path, program: ModuleType) -> None:
    lines = [line for line in program.metrics(host).splitlines() if not line.startswith("#")]
    stamp = [line for line in lines if line.startswith("llama_rpc_metrics_timestamp_seconds ")]
    first, second = 'endpoint="10.0.0.11:50052"', 'endpoint="10.0.0.11:50053"'
    assert [line for line in lines if line not in stamp] == [
        f"llama_rpc_up{{{first}}} 1",
        f"llama_rpc_up{{{second}}} 0",
        f'llama_rpc_info{{{first},unit="llama-rpc-server@50052.service",release="0.3.36-a"}} 1',
        f'llama_rpc_info{{{second},unit="llama-rpc-server@50053.service",release="0.3.36-a"}} 1',
        f"llama_rpc_clients{{{first}}} 1",
        f"llama_rpc_clients{{{second}}} 0",
        f'llama_rpc_held{{{first},client="10.0.0.10"}} 1',
        f"llama_rpc_waiting{{{first}}} 1",
        f"llama_rpc_waiting{{{second}}} 0",
        f"llama_rpc_threads{{{first}}} 8",
        f"llama_rpc_threads{{{second}}} 4",
        f"llama_rpc_restarts_total{{{first}}} 3",
        f"llama_rpc_restarts_total{{{second}}} 0",
        f"llama_rpc_memory_bytes{{{first}}} 1048576",
        f"llama_rpc_memory_limit_bytes{{{second}}} 2097152",
        f"llama_rpc_cache_bytes{{{first}}} 1024",
        f"llama_rpc_cache_bytes{{{second}}} 0",
        f"llama_rpc_cache_entries{{{first}}} 2",
        f"llama_rpc_cache_entries{{{second}}} 0",
        f"llama_rpc_cache_limit_bytes{{{first}}} 5000",
        f"llama_rpc_cache_damaged_total{{{first}}} 1",
        f"llama_rpc_cache_evicted_total{{{first}}} 2",
        f"llama_rpc_cache_tidied_timestamp_seconds{{{first}}} 1760000000",
        f"llama_rpc_cache_hits_total{{{first}}} 5",
        f"llama_rpc_cache_hit_bytes_total{{{first}}} 4096",
        f"llama_rpc_cache_misses_total{{{first}}} 2",
        f"llama_rpc_cache_refused_total{{{first}}} 1",
        f"llama_rpc_weights{{{first}}} 4",
        f"llama_rpc_weights_bytes{{{first}}} 2097152",
        f"llama_rpc_repacked_weights{{{first}}} 3",
        f"llama_rpc_repacked_weights_bytes{{{first}}} 1572864",
    ]
    assert len(stamp) == 1


def test_what_systemd_does_not_say_is_left_out(
    host: Path, program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "ask_systemd", lambda _units: {})
    text = program.metrics(host)
    assert 'llama_rpc_up{endpoint="10.0.0.11:50052"} 1' in text, "it listens"
    assert "restarts" not in text
    assert "memory" not in text


def test_a_host_without_servers_says_when_it_was_asked(tmp_path: Path, program: ModuleType) -> None:
    lines = program.metrics(tmp_path).splitlines()
    assert [line.split()[0] for line in lines] == ["#", "#", "llama_rpc_metrics_timestamp_seconds"]


def test_a_cache_that_nobody_may_look_into_is_not_called_empty(host: Path, program: ModuleType) -> None:
    (host / "cache/50053").mkdir()
    (host / "cache/50053/rpc").write_text("a file in the place of the folder")
    lines = program.metrics(host).splitlines()
    assert [line for line in lines if line.startswith("llama_rpc_cache_") and ":50053" in line] == []


def test_odd_labels_cannot_break_a_line(program: ModuleType) -> None:
    text = program.render([("llama_rpc_info", {"endpoint": 'a"b\\c\nd'}, 1)])
    assert text.splitlines()[-1] == r'llama_rpc_info{endpoint="a\"b\\c\nd"} 1'


def test_a_file_is_replaced_as_a_whole_and_everybody_may_read_it(program: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "llama_rpc.prom"
    path.write_text("old")
    with path.open() as reader:
        before = os.umask(0o077)
        try:
            program.write(path, "new\n")
        finally:
            os.umask(before)
        assert reader.read() == "old", "who reads has the old one to its end"
    assert (path.read_text(), path.stat().st_mode & 0o777, list(tmp_path.iterdir())) == ("new\n", 0o644, [path])
