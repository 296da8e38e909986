# SPDX-License-Identifier: GPL-3.0-or-later
"""Which workers of a master are spares, from the variables of role llama_server."""

from __future__ import annotations

from typing import Any

import pytest

from support.templates import loaded, worked_out
from support.tree import ROOT

ROLE = ROOT / "roles/llama_server"
VARIABLES = {**loaded(ROLE / "defaults/main.yml"), **loaded(ROLE / "vars/main.yml")}
ENDPOINTS = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2", "10.0.0.3:1"]
WORKERS = [{"host": f"w{endpoint[7]}", "endpoint": endpoint} for endpoint in ENDPOINTS]


def worked(name: str, spares: Any, plan: dict[str, Any] | None = None) -> Any:
    given = {"llama_server_spares": spares, "__llama_server_workers": WORKERS, "__llama_server_plan": plan or {}}
    return worked_out(VARIABLES[name], {**VARIABLES, **given})


@pytest.mark.parametrize(
    ("spares", "used"),
    [
        ([], ENDPOINTS),
        (["w3"], ENDPOINTS[:3]),
        (["w2"], [ENDPOINTS[0], ENDPOINTS[3]]),
        (["10.0.0.2:2", "w3"], ENDPOINTS[:2]),
        (["w9"], ENDPOINTS),
    ],
)
def test_spares_are_named_by_host_or_endpoint(spares: list[str], used: list[str]) -> None:
    assert worked("__llama_server_endpoints", spares) == used
    assert worked("__llama_server_spares", spares) == [it for it in ENDPOINTS if it not in used]


def test_the_plan_says_which_workers_are_not_needed() -> None:
    plan = {"spares": [{"endpoint": ENDPOINTS[3]}]}
    assert worked("__llama_server_spares", "auto", plan) == ENDPOINTS[3:]
    assert worked("__llama_server_endpoints", "auto", plan) == ENDPOINTS[:3]
    assert worked("__llama_server_endpoints", "auto") == ENDPOINTS, "before the first plan"
    assert worked("__llama_server_named_spares", "auto") == ["auto"]
