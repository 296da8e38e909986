# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the WireGuard network between masters and workers: addresses, what a host has of it, and how its links are.

Which address a host has follows from its name alone. So every play knows it, also one with --limit, in check mode, or
of a host that does not answer, and it stays when hosts come and go.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import select
import shutil
import socket
import struct
import time
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Sequence

INTERFACE = "llama-tunnel"
FOLDER = Path("/etc/wireguard")
# Large, so that two of the few hosts of a group hardly ever get the same address.
NETWORK = "10.213.0.0/16"
_SMALLEST, _PING, _PONG = 30, 8, 0

# What a program prints, given its words and what it reads; None if it fails or is not there.
Run = Callable[..., "str | None"]


class TunnelError(ValueError):
    """One sentence that names the variable, and what to write."""


def network_of(text: object) -> ipaddress.IPv4Network:
    """Return rpc_tunnel_network; raises TunnelError."""
    try:
        network = ipaddress.IPv4Network(str(text))
    except ValueError as error:
        raise TunnelError(f"rpc_tunnel_network {text} is no IPv4 network: write one such as {NETWORK}.") from error
    if not network.is_private or network.prefixlen > _SMALLEST:
        raise TunnelError(
            f"rpc_tunnel_network {text} is not private, or smaller than a /{_SMALLEST}: write one such as {NETWORK}."
        )
    return network


def address_of(host: str, network: object = None, address: object = None) -> str:
    """Return the tunnel's address of a host; raises TunnelError. `address` is rpc_tunnel_address, if it is set."""
    within = network_of(network or NETWORK)
    if not address:
        number = int.from_bytes(hashlib.sha256(host.encode()).digest()[:8], "big")
        return str(within[1 + number % (within.num_addresses - 2)])
    try:
        given = ipaddress.IPv4Address(str(address))
    except ValueError as error:
        raise TunnelError(f"rpc_tunnel_address {address} is no IPv4 address: write one of {within}.") from error
    if given not in within or given in (within.network_address, within.broadcast_address):
        raise TunnelError(f"rpc_tunnel_address {address} is no host's address in {within}: write one of that network.")
    return str(given)


def overlapping(network: str, routes: str) -> list[str]:
    """Return the ways that a host has into this network otherwise; `routes` as `ip -4 -o route` prints them."""
    found = []
    for words in map(str.split, routes.splitlines()):
        try:
            other = ipaddress.IPv4Network(words[0])
        except (ValueError, IndexError):
            continue  # default, blackhole, ...
        if INTERFACE not in words and other.prefixlen > 0 and other.overlaps(network_of(network)):
            found.append(" ".join(words[:3]))
    return found


def has_kernel(modules: Path = Path("/lib/modules"), loaded: Path = Path("/sys/module/wireguard")) -> bool:
    """Say whether the kernel has WireGuard."""
    folder = modules / os.uname().release
    lists = [folder / name for name in ("modules.dep", "modules.builtin") if (folder / name).exists()]
    return loaded.exists() or any("/wireguard.ko" in path.read_text(errors="replace") for path in lists)


def parse_config(text: str) -> dict[str, Any]:
    """Return the address, and the peers without their preshared key, of a configuration that the role has written."""
    peers = [
        {"host": host, "public_key": key, "address": address, "endpoint": endpoint}
        for host, key, address, endpoint in re.findall(
            r"^# (\S+)\n\[Peer\]\nPublicKey = (\S+)\n(?:PresharedKey = \S+\n)?"
            r"AllowedIPs = (\S+)/32\nEndpoint = (\S+)$",
            text,
            re.MULTILINE,
        )
    ]
    own = re.search(r"^Address = ([0-9./]+)$", text, re.MULTILINE)
    return {"address": own.group(1) if own else "", "peers": peers}


def parse_dump(text: str) -> dict[str, dict[str, int]]:
    """Return what `wg show NAME dump` says of each peer, by its public key."""
    rows = [line.split("\t") for line in text.splitlines()[1:]]
    return {
        row[0]: {"handshake": int(row[4]), "received": int(row[5]), "sent": int(row[6])} for row in rows if len(row) > 6
    }


def look(run: Run, network: str, links: bool, wait: float) -> dict[str, Any]:
    """Return what a host has of the tunnel; with `links` how those to its peers are."""
    try:
        config = parse_config((FOLDER / f"{INTERFACE}.conf").read_text(encoding="utf-8"))
    except OSError:
        config = {"address": "", "peers": []}
    try:
        key = (FOLDER / f"{INTERFACE}.key").read_text(encoding="utf-8")
    except OSError:
        key = ""
    return {
        "kernel": has_kernel(),
        "userspace": shutil.which("wireguard-go") is not None,
        "device": Path("/dev/net/tun").exists(),
        "public_key": (run("wg", "pubkey", given=key) or "").strip() if key else "",
        "up": Path("/sys/class/net", INTERFACE).exists(),
        "overlapping": overlapping(network, run("ip", "-4", "-o", "route") or ""),
        **config,
        "links": _links(run, config["peers"], wait) if links else [],
    }


def _links(run: Run, peers: Sequence[Mapping[str, str]], wait: float) -> list[dict[str, Any]]:
    took = ask([peer["address"] for peer in peers], wait)
    # The first line holds the private key, and is thrown away.
    seen = parse_dump(run("wg", "show", INTERFACE, "dump") or "")
    found = []
    for peer in peers:
        state = seen.get(peer["public_key"], {"handshake": 0, "received": 0, "sent": 0})
        way = (run("ip", "-4", "-o", "route", "get", peer["address"]) or "").split()
        clients = (run("ss", "-Htn", "state", "established", "dst", peer["address"]) or "").splitlines()
        link = {
            "host": peer["host"],
            "address": peer["address"],
            "endpoint": peer["endpoint"],
            "handshake_age_s": round(time.time()) - state["handshake"] if state["handshake"] else None,
            "received_bytes": state["received"],
            "sent_bytes": state["sent"],
            "round_trip_ms": took.get(peer["address"]),
            "through_tunnel": INTERFACE in way,
            "connections": len(clients),
        }
        found.append({**link, "message": message(link)})
    return found


def message(link: Mapping[str, Any]) -> str:
    """Say what is wrong with a link; empty if it is well."""
    if not link["through_tunnel"]:
        return (
            f"The way to {link['address']} of {link['host']} does not lead into the tunnel: look at `systemctl status "
            f"wg-quick@{INTERFACE}` and `ip route` there, or run the playbook site."
        )
    if link["round_trip_ms"] is not None:
        return ""
    age = link["handshake_age_s"]
    last = "there was no handshake yet" if age is None else f"the last handshake was {age} s ago"
    return (
        f"The tunnel to {link['host']} ({link['endpoint']}) is down, {last}: see `systemctl status "
        f"wg-quick@{INTERFACE}` on both hosts and whether UDP passes between them, or run the playbook site for both."
    )


def ask(addresses: Iterable[str], wait: float) -> dict[str, float]:
    """Return how long each address took to answer a ping, in ms, if it did within `wait` seconds."""
    took: dict[str, float] = {}
    waiting = list(addresses)
    if not waiting:
        return took
    end = time.monotonic() + wait
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
        number = 0
        while waiting and time.monotonic() < end:
            number += 1
            began = time.monotonic()
            for address in waiting:
                try:
                    sock.sendto(_ping(number), (address, 0))
                except OSError:
                    continue  # no way there now
            until = min(end, began + 1)
            while waiting and select.select([sock], [], [], max(0, until - time.monotonic()))[0]:
                packet, (address, _port) = sock.recvfrom(2048)
                # After an IP header of 20 bytes, as nobody adds options to it here.
                kind, _code, _sum, identity, of = struct.unpack("!BBHHH", packet[20:28])
                if address in waiting and (kind, identity, of) == (_PONG, _identity(), number):
                    took[address] = round((time.monotonic() - began) * 1000, 2)
                    waiting.remove(address)
    return took


def _identity() -> int:
    return os.getpid() & 0xFFFF


def _ping(number: int) -> bytes:
    """Return an ICMP echo request (RFC 792)."""
    header = struct.pack("!BBHHH", _PING, 0, 0, _identity(), number)
    total = sum(struct.unpack("!4H", header))
    total = (total >> 16) + (total & 0xFFFF)
    return struct.pack("!BBHHH", _PING, 0, ~(total + (total >> 16)) & 0xFFFF, _identity(), number)
