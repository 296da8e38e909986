# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the WireGuard network between masters and workers: its addresses, its state on a host, and its links.

The address of a host follows from its name alone. So every play knows it, even with --limit, in check mode, or if the
host does not answer. The address also stays the same when hosts come and go.
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
# The network is large, so that two of the few hosts of a group hardly ever get the same address.
NETWORK = "10.213.0.0/16"
PORT = 51820
# RFC 1918 and RFC 6598. Python's `is_private` includes networks that no interface can have, such as loopback.
_PRIVATE = [ipaddress.IPv4Network(name) for name in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")]
_SMALLEST, _PING, _PONG = 30, 8, 0
# How `wg` shows a link without a preshared key, and how a configuration writes it.
_NO_KEYS = ("(none)", "A" * 43 + "=")
_PUBLIC_KEY = re.compile(r"[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=\Z")
_OUTER = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\Z")

# Runs a program with arguments and input, and returns its output; None if the program fails or is missing.
Run = Callable[..., "str | None"]


class TunnelError(ValueError):
    """An error whose message is one sentence that names the variable and says what to write."""


def network_of(text: object) -> ipaddress.IPv4Network:
    """Return rpc_tunnel_network as a network; raises TunnelError if it is not usable."""
    try:
        network = ipaddress.IPv4Network(str(text))
    except ValueError:
        raise TunnelError(f"rpc_tunnel_network {text} is not an IPv4 network: write one such as {NETWORK}.") from None
    if not any(map(network.subnet_of, _PRIVATE)) or network.prefixlen > _SMALLEST:
        raise TunnelError(
            f"rpc_tunnel_network {text} is not private, or smaller than a /{_SMALLEST}: write one such as {NETWORK}."
        )
    return network


def address_of(host: str, network: object = None, address: object = None) -> str:
    """Return the tunnel address of a host; raises TunnelError. `address` is rpc_tunnel_address, if it is set."""
    within = network_of(network or NETWORK)
    if not address:
        number = int.from_bytes(hashlib.sha256(host.encode()).digest()[:8], "big")
        return str(within[1 + number % (within.num_addresses - 2)])
    try:
        given = ipaddress.IPv4Address(str(address))
    except ValueError:
        raise TunnelError(f"rpc_tunnel_address {address} is not an IPv4 address: write one of {within}.") from None
    if given not in within or given in (within.network_address, within.broadcast_address):
        raise TunnelError(f"rpc_tunnel_address {address} is not a host address of {within}: write one of that network.")
    return str(given)


def check_outer(variable: str, value: object, network: object = None) -> None:
    """Raise TunnelError unless the value of a variable is a name, or an IPv4 address outside of the tunnel."""
    text, within = str(value), network_of(network or NETWORK)
    if not _OUTER.match(text):
        raise TunnelError(f"{variable} {text} is neither an IPv4 address nor a name: write one, without a port.")
    try:
        inside = ipaddress.IPv4Address(text) in within
    except ValueError:
        return  # a name
    if inside:
        raise TunnelError(
            f"{variable} {text} is an address of rpc_tunnel_network {within}, and the tunnel would hide it: set "
            "rpc_tunnel_network to a private network that no host of the group uses."
        )


def check_peer(public_key: str, endpoint: str, network: object = None) -> None:
    """Raise TunnelError unless these are a key, and an address or a name with a port; a peer has reported them."""
    if not _PUBLIC_KEY.match(public_key):
        raise TunnelError(
            f"the public key that it reports, {public_key[:80]!r}, is no WireGuard key: look into that host."
        )
    outer, _colon, port = endpoint.rpartition(":")
    if not _OUTER.match(outer) or not re.match(r"[1-9][0-9]{0,4}\Z", port) or int(port) > 65535:
        raise TunnelError(
            f"the endpoint that it reports, {endpoint[:80]!r}, is no address with a port: look into that host."
        )
    check_outer("its endpoint", outer, network)


def overlapping(network: str, routes: str, connections: str = "") -> list[str]:
    """Return a host's other routes into this network, and its present connections with addresses in it.

    `routes` is the output of `ip -4 -o route show table all`, `connections` that of `ss -Htn state established`. The
    connections reveal the address of an administrator that only the default route reaches.
    """
    within = network_of(network)
    found = []
    for words in map(str.split, routes.splitlines()):
        try:
            other = ipaddress.IPv4Network(words[0])
        except (ValueError, IndexError):
            continue  # default, blackhole, ...
        if INTERFACE not in words and other.prefixlen > 0 and other.overlaps(within):
            found.append(" ".join(words[:3]))
    for words in map(str.split, connections.splitlines()):
        own, peer = (_end(word) for word in words[2:4]) if len(words) > 3 else (None, None)
        # A connection through the tunnel has tunnel addresses at both ends.
        if own and peer and peer in within and own not in within:
            found.append(f"a connection with {peer}")
    return list(dict.fromkeys(found))


def _end(text: str) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address of one end of a connection, as ss prints it; None if the end has only IPv6."""
    try:
        return ipaddress.IPv4Address(text.rpartition(":")[0].strip("[]").replace("::ffff:", "").partition("%")[0])
    except ValueError:
        return None


def has_kernel(modules: Path = Path("/lib/modules"), loaded: Path = Path("/sys/module/wireguard")) -> bool:
    folder = modules / os.uname().release
    lists = [folder / name for name in ("modules.dep", "modules.builtin") if (folder / name).exists()]
    return loaded.exists() or any("/wireguard.ko" in path.read_text(errors="replace") for path in lists)


def parse_config(text: str) -> dict[str, Any]:
    """Return the address, the port and the peers of the files that the role has written."""
    peers = [
        {"host": host, "public_key": key, "preshared_key": _key(shared), "address": address, "endpoint": endpoint}
        for host, key, shared, address, endpoint in re.findall(
            r"^# (\S+)\n\[Peer\]\nPublicKey = (\S+)\n(?:PresharedKey = (\S+)\n)?"
            r"AllowedIPs = (\S+)/32\nEndpoint = (\S+)$",
            text,
            re.MULTILINE,
        )
    ]
    own = re.search(r"^Address = ([0-9./]+)\nListenPort = (\d+)$", text, re.MULTILINE)
    return {"address": own.group(1) if own else "", "port": int(own.group(2)) if own else 0, "peers": peers}


def parse_dump(text: str) -> dict[str, Any]:
    """Return the data of `wg show NAME dump` about the interface, and about each peer by its public key."""
    own, *rows = [line.split("\t") for line in text.splitlines()] or [[]]
    return {
        # The field before the public key is the private key, which is not kept.
        "public_key": own[1] if len(own) > 2 else "",
        "port": int(own[2]) if len(own) > 2 else 0,
        "peers": {
            row[0]: {
                "preshared_key": _key(row[1]),
                "address": row[3].partition("/")[0],
                "handshake": int(row[4]),
                "received": int(row[5]),
                "sent": int(row[6]),
            }
            for row in rows
            if len(row) > 6
        },
    }


def _key(text: str) -> str:
    return "" if text in _NO_KEYS else text


def is_current(config: Mapping[str, Any], public_key: str, running: Mapping[str, Any]) -> bool:
    """Return whether the running interface matches key and configuration; a killed run may have written only these."""
    wanted = {(peer["public_key"], peer["preshared_key"], peer["address"]) for peer in config["peers"]}
    found = {(key, peer["preshared_key"], peer["address"]) for key, peer in running["peers"].items()}
    return (public_key, config["port"], wanted) == (running["public_key"], running["port"], found)


def look(
    run: Run, network: str, port: int = 0, preshared_key: str = "", links: bool = False, wait: float = 0
) -> dict[str, Any]:
    """Return the tunnel's state on a host, whether this port is free for it, and with `links` the state of links."""
    config = parse_config(_read("conf") + _read("peers"))
    key = _read("key")
    public_key = (run("wg", "pubkey", given=key) or "").strip() if key else ""
    running = parse_dump(run("wg", "show", INTERFACE, "dump") or "")
    own = (run("ip", "-4", "-o", "address", "show", "dev", INTERFACE) or "").split()
    if not config["address"] or config["address"] not in own:
        state = "down"
    else:
        state = "current" if is_current(config, public_key, running) else "outdated"
    for peer in config["peers"]:
        used = running["peers"].get(peer["public_key"], peer)["preshared_key"]
        # The result must not contain a secret.
        peer["same_preshared_key"] = peer.pop("preshared_key") == used == preshared_key
    return {
        "kernel": has_kernel(),
        "userspace": shutil.which("wireguard-go") is not None,
        "device": Path("/dev/net/tun").exists(),
        "public_key": public_key,
        "new_key": bool(public_key and running["public_key"] not in ("", public_key)),
        "state": state,
        "overlapping": overlapping(
            network,
            run("ip", "-4", "-o", "route", "show", "table", "all") or "",
            run("ss", "-Htn", "state", "established") or "",
        ),
        "port_taken": port not in (0, running["port"]) and bool(run("ss", "-Huln", f"sport = :{port}")),
        **config,
        "links": _links(run, config["peers"], wait) if links else [],
    }


def _read(kind: str) -> str:
    try:
        return (FOLDER / f"{INTERFACE}.{kind}").read_text(encoding="utf-8")
    except OSError:
        return ""


def _links(run: Run, peers: Sequence[Mapping[str, str]], wait: float) -> list[dict[str, Any]]:
    took = ask([peer["address"] for peer in peers], wait)
    seen = parse_dump(run("wg", "show", INTERFACE, "dump") or "")["peers"]
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
    """Return a message that says what is wrong with a link; empty if it works."""
    if not link["through_tunnel"]:
        return (
            f"The route to {link['address']} of {link['host']} does not go through the tunnel: see `systemctl status "
            f"wg-quick@{INTERFACE}` and `ip route get {link['address']}` on the host that reports this, or run the "
            "playbook site."
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
                    continue  # there is no route at present
            until = min(end, began + 1)
            while waiting and select.select([sock], [], [], max(0, until - time.monotonic()))[0]:
                packet, (address, _port) = sock.recvfrom(2048)
                # The reply follows an IP header of 20 bytes, because nothing adds IP options here.
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
