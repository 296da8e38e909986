# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for a cluster of the lab with its tunnel, and for what passes on the cable of its master."""

from __future__ import annotations

import socket
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.tunnel import address_of

from support.lab.hosts import CACHE, ROOT, WORKERS, at_once, cable, eventually, over, ssh

if TYPE_CHECKING:
    from collections.abc import Iterator

TUNNEL = ROOT / "inventories/lab/tunnel.yml"
UNIT = "wg-quick@llama-tunnel.service"
HOSTS = ("master", *WORKERS)
INSIDE = {host: address_of(host) for host in HOSTS}
MODEL = CACHE / "lab/random-weights.gguf"
ETH_P_ALL = 3
SO_RCVBUFFORCE = 33  # include/uapi/asm-generic/socket.h: exceeds the limit of other accounts


playbook = over(TUNNEL)


def restart(*hosts: str) -> None:
    """Restart hosts of the tunnel, and wait until each of them and its tunnel are back."""
    look = ("systemctl", "show", "--property=ActiveEnterTimestampMonotonic", UNIT)
    started = at_once(lambda host: ssh(host, *look).stdout, hosts)
    for host in hosts:
        ssh(host, "systemctl", "--no-block", "reboot", check=False)

    def restarted(host: str) -> bool:
        try:
            now = ssh(host, *look, check=False, anew=True)
        except subprocess.TimeoutExpired:
            return False  # a connection that the restart has cut
        return (
            now.returncode == 0
            and now.stdout.strip().rpartition("=")[2] not in ("", "0")
            and now.stdout != started[host]
        )

    for host in hosts:
        eventually(lambda host=host: restarted(host), 240, f"{host} is back")


@contextmanager
def let_in(port: int) -> Iterator[None]:
    """Open the master's firewall for calls of the workers, if it runs: it does so once the master has had an API."""
    runs = ssh("master", "systemctl", "is-active", "firewalld", check=False).returncode == 0
    if runs:
        ssh("master", "firewall-cmd", f"--add-port={port}/udp")
    try:
        yield
    finally:
        if runs:
            ssh("master", "firewall-cmd", f"--remove-port={port}/udp")


@contextmanager
def captured(host: str) -> Iterator[list[bytes]]:
    """Capture every frame on the cable of a host; yield the list of them."""
    frames: list[bytes] = []
    over = threading.Event()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
        sock.bind((cable(host), 0))
        sock.settimeout(0.5)

        def take() -> None:
            while not over.is_set():
                try:
                    frames.append(sock.recv(1 << 17))
                except TimeoutError:
                    continue

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield frames
        finally:
            over.set()
            thread.join()


def weights_in(frames: list[bytes], pieces: int = 2000) -> int:
    """Return how many pieces of the model, out of `pieces` spread all over it, have passed in the clear."""
    weights = MODEL.read_bytes()
    step = len(weights) // pieces
    passed = b"".join(frames)
    # Perhaps two of the pieces are of the header, which nobody sends. Zeros are in other frames too.
    taken = [weights[at : at + 24] for at in range(step, len(weights) - 24, step)]
    return sum(piece in passed for piece in taken if any(piece))
