# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the result of a look at an endpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Sequence

# The public names of a worker's states, in the order in which they are counted.
STATES = ("ready", "busy", "refused", "unreachable", "unresolved", "not_rpc", "incompatible")


@dataclass
class WorkerStatus:
    """The status of one endpoint: an entry of `workers` in the result of `rpc_worker_info`."""

    endpoint: str
    host: str
    port: int
    address: str | None = None
    state: str = "unreachable"
    reachable: bool = False
    protocol: dict[str, Any] | None = None
    devices: list[dict[str, int]] = field(default_factory=list)
    message: str = ""


def summarize(statuses: Sequence[WorkerStatus]) -> dict[str, Any]:
    """Return the public result: the workers, whether all are ready, and how many are in each state."""
    counts = {state: sum(status.state == state for status in statuses) for state in STATES}
    all_ready = bool(statuses) and counts["ready"] == len(statuses)
    return {"workers": [asdict(status) for status in statuses], "all_ready": all_ready, "counts": counts}
