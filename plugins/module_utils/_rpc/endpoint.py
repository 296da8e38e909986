# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the endpoint of a worker, as users write it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable

DEFAULT_PORT = 50052


class EndpointError(ValueError):
    """A text does not name an endpoint; the message is one sentence with the remedy."""


@dataclass(frozen=True)
class Endpoint:
    """The host and the port on which a worker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """Parse `host` or `host:port`; raises EndpointError."""
    shown = text if len(text) <= 100 else text[:100] + "..."
    host, colon, port_text = text.strip().partition(":")
    if "[" in text or ":" in port_text:
        raise EndpointError(
            f"endpoint {shown!r} is not of the form host[:port]: "
            "give a host name or an IPv4 address, llama.cpp RPC has no IPv6"
        )
    if not host:
        raise EndpointError(f"endpoint {shown!r} names no host: write it as host or host:port")
    if not _is_host(host):
        raise EndpointError(
            f"endpoint {shown!r} has an invalid host: write host or host:port, with a host name or an IPv4 address"
        )
    if host == "0.0.0.0":  # noqa: S104 - refused, not bound
        raise EndpointError(
            f"endpoint {shown!r} is the address to listen on everywhere: give the address under which hosts reach it"
        )
    port = DEFAULT_PORT if not colon else int(port_text) if re.fullmatch(r"[0-9]{1,5}", port_text) else 0
    if not 1 <= port <= 65535:
        raise EndpointError(f"endpoint {shown!r} has an invalid port: give a number from 1 to 65535")
    return Endpoint(host, port)


def parse_endpoints(texts: Iterable[str]) -> list[Endpoint]:
    """Parse endpoints that must all differ; raises EndpointError."""
    endpoints = []
    seen = set()
    for text in texts:
        endpoint = parse_endpoint(text)
        if str(endpoint).lower() in seen:
            raise EndpointError(f"endpoint {endpoint} is given twice: name each worker once, it serves one client")
        seen.add(str(endpoint).lower())
        endpoints.append(endpoint)
    return endpoints


def _is_host(host: str) -> bool:
    if re.fullmatch(r"[0-9.]+", host):
        return is_ipv4(host)
    labels = host[:-1].split(".") if host.endswith(".") else host.split(".")
    return len(host) <= 253 and all(re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", x) for x in labels)


def is_ipv4(host: str) -> bool:
    parts = host.split(".")
    return len(parts) == 4 and all(re.fullmatch(r"0|[1-9][0-9]{0,2}", part) and int(part) <= 255 for part in parts)
