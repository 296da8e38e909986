# SPDX-License-Identifier: GPL-3.0-or-later
"""What a master answers as its addresses, by the conditions of role rpc_firewall."""

from __future__ import annotations

from typing import Any

import pytest

from support.templates import holds, loaded
from support.tree import ROOT

TASKS = loaded(ROOT / "roles/rpc_firewall/tasks/master_addresses.yml")
CHECK = next(task for task in TASKS if task["name"] == "Check that every master has given its address")
WORKER, OTHER = "10.0.0.11", "10.1.0.11"


def answer(*addresses: tuple[str, Any]) -> dict[str, Any]:
    return {"addresses": [{"destination": one, "address": address, "message": None} for one, address in addresses]}


@pytest.mark.parametrize(
    ("answered", "accepted"),
    [
        pytest.param(answer((WORKER, "10.0.0.10"), (OTHER, "10.1.0.10")), True, id="each"),
        pytest.param(answer((WORKER, "10.0.0.10"), (OTHER, "10.1.0.10"), ("10.9.0.9", "x")), True, id="others-too"),
        pytest.param(answer((WORKER, "10.0.0.10")), False, id="one-is-missing"),
        pytest.param(answer((WORKER, "10.0.0.10"), (OTHER, None)), False, id="no-route"),
        pytest.param(answer((WORKER, "10.0.0.10"), (OTHER, "10.1.0.0/16")), False, id="network"),
        pytest.param(
            answer((WORKER, "10.0.0.10"), (OTHER, "10.1.0.10"), (OTHER, "0.0.0.0/1")), False, id="network-besides"
        ),
        pytest.param(
            answer((WORKER, "10.0.0.10"), (OTHER, "10.1.0.10"), (OTHER, "10.9.0.9")), False, id="address-besides"
        ),
        pytest.param({"msg": "unreachable"}, False, id="no-answer"),
    ],
)
def test_a_master_opens_a_port_to_one_address_for_each_address_of_a_worker(
    answered: dict[str, Any], accepted: bool
) -> None:
    variables = {
        **CHECK["vars"],
        "__rpc_firewall_answer": {"__rpc_firewall_master": "master", **answered},
        "__rpc_firewall_query": {"masters": ["master"], "destinations": [WORKER, OTHER]},
    }
    assert all(holds(condition, variables) for condition in CHECK["ansible.builtin.assert"]["that"]) is accepted
