# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the message for each state of a worker, one sentence that ends in what to do next."""

from __future__ import annotations

from typing import Sequence

from .protocol import NEWEST_TESTED
from .worker_status import WorkerStatus


def ready(status: WorkerStatus, first_address: str) -> str:
    """Return the message for a worker that is ready."""
    version = status.protocol["version"] if status.protocol else ""
    free = sum(device["memory_free_bytes"] for device in status.devices) / 1024**3
    devices = "1 device" if len(status.devices) == 1 else f"{len(status.devices)} devices"
    text = f"{status.endpoint} is ready: RPC protocol {version}, {devices}, {free:.1f} GiB free"
    if status.address != first_address:
        text += (
            f" (llama.cpp itself tries only the first address of a name, here {first_address}: give {status.address})"
        )
    return text + "."


def busy(status: WorkerStatus, finding: str) -> str:
    """Return the message for a worker that another client most likely holds."""
    return (
        f"{status.endpoint} {finding}, so another client most likely holds it: wait until that "
        f"client is done, or find it on the worker with `ss -tnp 'sport = :{status.port}'` and stop it."
    )


def refused(status: WorkerStatus) -> str:
    """Return the message for an endpoint on which nothing listens."""
    return (
        f"{status.endpoint} refuses connections: start the RPC server on that host and check that it listens on "
        f"{status.address}, port {status.port}."
    )


def unreachable(status: WorkerStatus, reason: str) -> str:
    """Return the message for an endpoint that cannot be reached."""
    return (
        f"{status.endpoint} cannot be reached ({reason}): check that the host is up, that there is a route to "
        f"{status.address} and that firewalls let port {status.port}/tcp through from this host; a worker whose "
        "queue of waiting clients is full looks the same."
    )


def unresolved(status: WorkerStatus, reason: str) -> str:
    """Return the message for a host name without an address."""
    return (
        f"{status.endpoint} cannot be looked up ({reason}): check the spelling of {status.host}, add it to DNS or "
        "/etc/hosts on this host, or give its IPv4 address."
    )


def not_rpc(status: WorkerStatus, finding: str) -> str:
    """Return the message for a peer that is not an RPC server."""
    return (
        f"{status.endpoint} does not behave like a llama.cpp RPC server ({finding}): check that the port is right "
        "and what listens there."
    )


def incompatible(status: WorkerStatus, expected: tuple[int, ...]) -> str:
    """Return the message for a worker that speaks another protocol than expected."""
    version = status.protocol["version"] if status.protocol else ""
    return (
        f"{status.endpoint} speaks RPC protocol {version} where {'.'.join(map(str, expected))} is expected: install "
        "the same llama.cpp release on all hosts."
    )


def newer_than_tested(statuses: Sequence[WorkerStatus]) -> list[str]:
    """Return a sentence for each protocol of workers that is newer than the tested ones."""
    found: dict[str, list[str]] = {}
    for status in statuses:
        it = status.protocol
        if it and (it["major"], it["minor"], it["patch"]) > NEWEST_TESTED:
            found.setdefault(it["version"], []).append(status.endpoint)
    newest = ".".join(map(str, NEWEST_TESTED))
    return [
        f"RPC protocol {version} of {', '.join(endpoints)} is newer than {newest}, the newest that this collection is "
        "tested with: look for a newer collection."
        for version, endpoints in found.items()
    ]
