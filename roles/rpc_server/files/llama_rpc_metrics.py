# SPDX-License-Identifier: GPL-3.0-or-later
"""Write what a host knows of its RPC servers to a file that Prometheus' node_exporter reads.

It does not connect to a server, because the connection would wait in the queue of a server that serves. It reads
connections from /proc, and the rest from unit files, systemd, the cache's folder and the server's own status files.
Role rpc_server installs this beside the two modules of the collection that it imports, and a timer starts it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Mapping

from listeners import Port, look_at_ports
from units import CACHE_STATE_FOLDER, UNIT_FOLDER, read_cache, read_cache_use, read_repack, read_units

SYSTEMCTL_LIMIT_S = 10
MIB = 1 << 20
_OPTION = {"address": "-H", "threads": "-t"}

# The type and the meaning of each metric. The order is for people: what they look at first comes first.
METRICS = {
    "llama_rpc_up": ("gauge", "Whether the service is active and listens at its endpoint."),
    "llama_rpc_info": ("gauge", "1, with the unit and the llama.cpp release that it was made for as labels."),
    "llama_rpc_clients": ("gauge", "Connections that the server has accepted; it serves one client at a time."),
    "llama_rpc_held": ("gauge", "Connections that the server has accepted, by the address of the client."),
    "llama_rpc_waiting": ("gauge", "Connections that wait in the queue until the client that is served leaves."),
    "llama_rpc_threads": ("gauge", "Threads that compute."),
    "llama_rpc_restarts_total": ("counter", "How often systemd has started the server again by itself."),
    "llama_rpc_memory_bytes": ("gauge", "Memory of the service, where the host counts it; without pages of files."),
    "llama_rpc_memory_limit_bytes": ("gauge", "MemoryMax of the service, if it has one."),
    "llama_rpc_cache_bytes": ("gauge", "Size of the tensors in the server's cache."),
    "llama_rpc_cache_entries": ("gauge", "Tensors in the server's cache."),
    "llama_rpc_cache_limit_bytes": ("gauge", "What the cache may hold, if there is a limit."),
    "llama_rpc_cache_damaged_total": ("counter", "Entries removed that were not what their names say."),
    "llama_rpc_cache_evicted_total": ("counter", "Entries removed to keep to the limits."),
    "llama_rpc_cache_tidied_timestamp_seconds": ("gauge", "When the cache was last tidied."),
    "llama_rpc_cache_hits_total": ("counter", "Tensors that a load found in the cache, so that they were not sent."),
    "llama_rpc_cache_hit_bytes_total": ("counter", "Size of these tensors."),
    "llama_rpc_cache_misses_total": ("counter", "Tensors that a load asked for and that the cache did not have."),
    "llama_rpc_cache_refused_total": ("counter", "Those of the misses whose entry was not what its name says."),
    "llama_rpc_weights": ("gauge", "Weights that the server holds, of the load that is there now or of the last one."),
    "llama_rpc_weights_bytes": ("gauge", "Size of all these weights."),
    "llama_rpc_repacked_weights": ("gauge", "Those of these weights that are repacked for quicker kernels of the CPU."),
    "llama_rpc_repacked_weights_bytes": ("gauge", "Size of the repacked weights."),
    "llama_rpc_metrics_timestamp_seconds": ("gauge", "When this file was written."),
}

Samples = Iterator["tuple[str, dict[str, str], float]"]


@dataclass(frozen=True)
class Server:
    """One server, as its unit file describes it."""

    unit: str
    port: int
    address: str
    threads: int | None
    release: str | None

    @property
    def endpoint(self) -> str:
        """Return the address and port by which clients name the server."""
        return f"{self.address}:{self.port}"


def read_servers(folder: Path = UNIT_FOLDER) -> list[Server]:
    """Return the servers that have a unit in a folder, sorted by port."""
    return [_read(folder / unit.name, unit.port) for unit in read_units(folder) if unit.sha256]


def _read(path: Path, port: int) -> Server:
    text = path.read_text(encoding="utf-8", errors="replace")
    options = {}
    for name, option in _OPTION.items():
        value = re.search(rf"^ExecStart=.*? {option} (\S+)", text, re.MULTILINE)
        options[name] = value.group(1) if value else ""
    release = re.search(r"^# llama[.]cpp release: (\S+)$", text, re.MULTILINE)
    return Server(
        unit=path.name,
        port=port,
        address=options["address"],
        threads=int(options["threads"]) if options["threads"].isdigit() else None,
        release=release.group(1) if release else None,
    )


def ask_systemd(units: list[str]) -> dict[str, dict[str, str]]:
    """Return the properties of units by unit name, empty if systemd does not answer."""
    if not units:
        return {}
    wanted = "Id,ActiveState,NRestarts,MemoryCurrent,MemoryMax,ControlGroup"
    argv = ["systemctl", "show", f"--property={wanted}", *units]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=SYSTEMCTL_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return read_properties(done.stdout)


def read_properties(text: str) -> dict[str, dict[str, str]]:
    """Return the properties by unit name from the output of `systemctl show`: paragraphs of name=value."""
    found = [dict(line.partition("=")[::2] for line in part.splitlines()) for part in text.split("\n\n")]
    return {properties["Id"]: properties for properties in found if properties.get("Id")}


def file_pages(group: str, root: Path) -> int:
    """Return the bytes of a control group's memory that are pages of files, which the kernel can take back."""
    try:
        text = (root / "sys/fs/cgroup" / group.lstrip("/") / "memory.stat").read_text(encoding="ascii")
    except OSError:
        return 0
    return sum(int(size) for size in re.findall(r"^(?:in)?active_file (\d+)$", text, re.MULTILINE))


def samples(server: Server, port: Port, properties: Mapping[str, str], root: Path = Path("/")) -> Samples:
    """Yield the metric, labels and value of each sample of one server."""
    own = {"endpoint": server.endpoint}
    listens = any(listener.address in (server.address, "0.0.0.0", "::") for listener in port.listeners)  # noqa: S104
    yield "llama_rpc_up", own, listens and properties.get("ActiveState", "active") == "active"
    yield "llama_rpc_info", {**own, "unit": server.unit, "release": server.release or ""}, 1
    yield "llama_rpc_clients", own, len(port.clients)
    yield "llama_rpc_waiting", own, len(port.waiting)
    # Count by address only, because each connection of a client has another port.
    for client, many in sorted(Counter(client.rpartition(":")[0] for client in port.clients).items()):
        yield "llama_rpc_held", {**own, "client": client}, many
    if server.threads is not None:
        yield "llama_rpc_threads", own, server.threads
    group = properties.get("ControlGroup", "")
    for name, key, less in (
        ("llama_rpc_restarts_total", "NRestarts", 0),
        ("llama_rpc_memory_bytes", "MemoryCurrent", file_pages(group, root) if group else 0),
        ("llama_rpc_memory_limit_bytes", "MemoryMax", 0),
    ):
        # systemd writes a word or the largest number if it does not count a value, or if there is no limit.
        value = properties.get(key, "")
        if value.isdigit() and int(value) < 1 << 63:
            yield name, own, max(0, int(value) - less)
    cache = read_cache(server.port, *(root / folder.relative_to("/") for folder in (UNIT_FOLDER, CACHE_STATE_FOLDER)))
    if cache and cache["free_bytes"] is None and os.path.lexists(cache["folder"]):
        # The folder exists, but this program may not read it.
        cache.update(bytes=None, entries=None)
    use = read_cache_use(server.port, root) if cache else None
    for name, found, key in (
        ("llama_rpc_cache_bytes", cache, "bytes"),
        ("llama_rpc_cache_entries", cache, "entries"),
        ("llama_rpc_cache_limit_bytes", cache, "max_bytes"),
        ("llama_rpc_cache_damaged_total", cache, "corrupted"),
        ("llama_rpc_cache_evicted_total", cache, "evicted"),
        ("llama_rpc_cache_tidied_timestamp_seconds", cache, "tidied_at"),
        ("llama_rpc_cache_hits_total", use, "hits"),
        ("llama_rpc_cache_hit_bytes_total", use, "hit_bytes"),
        ("llama_rpc_cache_misses_total", use, "misses"),
        ("llama_rpc_cache_refused_total", use, "damaged"),
    ):
        if found and found[key] is not None:
            yield name, own, found[key]
    repack = read_repack(server.port, root)
    if repack:
        yield "llama_rpc_weights", own, repack["of_weights"]
        yield "llama_rpc_weights_bytes", own, round(repack["of_mib"] * MIB)
        yield "llama_rpc_repacked_weights", own, repack["weights"]
        yield "llama_rpc_repacked_weights_bytes", own, round(repack["mib"] * MIB)


def render(found: list[tuple[str, dict[str, str], float]]) -> str:
    """Return samples in Prometheus' text format, grouped by metric."""
    lines = []
    for name, (kind, meaning) in METRICS.items():
        own = [(labels, value) for metric, labels, value in found if metric == name]
        if own:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{_labels(labels)} {value + 0}" for labels, value in own]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    escaped = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    pairs = ",".join(f'{name}="{value.translate(escaped)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def metrics(root: Path = Path("/")) -> str:
    """Return the metrics of this host in Prometheus' text format."""
    servers = read_servers(root / UNIT_FOLDER.relative_to("/"))
    ports = {port.port: port for port in look_at_ports([server.port for server in servers], root)}
    properties = ask_systemd([server.unit for server in servers])
    found = [("llama_rpc_metrics_timestamp_seconds", {}, round(time.time(), 3))]
    for server in servers:
        found += samples(server, ports[server.port], properties.get(server.unit, {}), root)
    return render(found)


def write(path: Path, text: str) -> None:
    """Replace a file in one step, so that a reader sees either the whole old text or the whole new one."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.chmod(0o644)
    partial.replace(path)


def main() -> int:
    """Write the file that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path, help="the file to write, such as llama_rpc.prom in a folder of its own")
    options = parser.parse_args()
    try:
        write(options.path, metrics())
    except OSError as error:
        print(f"{options.path} could not be written: {error}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
