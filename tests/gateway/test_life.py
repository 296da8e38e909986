# SPDX-License-Identifier: GPL-3.0-or-later
"""Groups behind a gateway are drained, get another worker and another model, while clients ask: no request is lost."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING

import pytest
import yaml

from gateway.door import API_UNIT, BROKE_OFF, GATEWAY, all_in, clients_that_keep_asking, playbook, states
from support.lab import hosts as lab
from support.lab.hosts import eventually, ssh, words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gateway.door import Seen

WORKER_UNIT = lab.UNIT
SPARE = "worker6"


def unharmed(seen: Seen, *, host_lost: bool = False) -> None:
    """Check that all requests were answered; what a lost host has begun may break off."""
    print(seen)
    assert set(seen.outcomes) - ({BROKE_OFF} if host_lost else set()) == {"200"}, seen.outcomes


def service(master: str, *properties: str) -> list[str]:
    """Return properties of a master's API."""
    asked = ",".join(properties)
    return ssh(master, "systemctl", "show", f"--property={asked}", "--value", API_UNIT).stdout.split()


def put_back() -> None:
    playbook("serve", "--limit", "master,worker1")
    eventually(all_in, 60, "both groups take requests")


def test_a_drained_group_stays_out_until_it_is_put_back() -> None:
    done = playbook("drain", "--limit", "worker1", "--check")
    assert "Group a (master) would no longer serve" in words(done)
    assert service("master", "ActiveState") == ["active"]
    with clients_that_keep_asking(number=4, tokens=2, streams=1) as seen:
        done = playbook("drain", "--limit", "worker1")
        assert "Group a (master) no longer serves, not even after a reboot. noise is served by b." in words(done)
        assert "--limit master,worker1" in words(done)
        assert states()["a"] != "UP"
        ssh("worker1", "systemctl", "restart", WORKER_UNIT)
        done = playbook("drain", "--limit", "master")
        assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}, done.stdout
        assert sorted(service("master", "ActiveState", "UnitFileState")) == ["disabled", "inactive"]
        refused = playbook("drain", "--limit", "worker2", check=False)
        assert refused.returncode != 0
        assert "No other group takes requests for noise" in words(refused)
        put_back()
        assert service("master", "UnitFileState") == ["enabled"]
    unharmed(seen)


def test_a_group_is_drained_whose_worker_is_dead() -> None:
    with clients_that_keep_asking(number=4, tokens=2, streams=1) as seen, lab.unplugged("worker1"):
        done = playbook("drain", "--limit", "worker1")
        assert "Group a (master) no longer serves" in words(done)
    # The service may lose its worker while it stops. To systemd that is a failure, but no reason to start it again.
    state = service("master", "ActiveState")
    put_back()
    assert state in (["inactive"], ["failed"])
    unharmed(seen, host_lost=True)


def test_a_master_that_is_dead_has_been_left_already() -> None:
    with clients_that_keep_asking(number=4, tokens=2, streams=1) as seen, lab.unplugged("master"):
        eventually(lambda: states()["a"] == "DOWN", 60, "the gateway has left it")
        done = playbook("drain", "--limit", "master", "-e", "ansible_ssh_timeout=5")
        assert "Group a (master) cannot be reached, and the gateway sends it nothing" in words(done)
    unharmed(seen, host_lost=True)


def test_a_group_that_is_paused_takes_requests_once_it_is_put_back() -> None:
    ssh("master", "sh", "-c", f"echo {API_UNIT} >/run/llama_server_paused && systemctl restart {API_UNIT}")
    status = ("systemctl", "show", "--property=StatusText", API_UNIT)
    eventually(lambda: "Serving noise" in ssh("master", *status).stdout, 60, "it serves")
    time.sleep(3)
    assert states() == {"a": "DOWN", "b": "UP"}
    put_back()


@pytest.fixture
def spare(tmp_path: Path) -> Iterator[str]:
    """Yield an inventory with one more host of group a, which is no worker in the end."""
    inventory = tmp_path / "spare.json"
    host = {"ansible_host": f"10.87.{lab.NUMBER}.16", "llama_group": "a"}
    inventory.write_text(json.dumps({"llama_workers": {"hosts": {SPARE: host}}}))
    yield str(inventory)
    playbook("serve", "--limit", "master,worker1")
    playbook("reset", "-i", str(inventory), "--limit", SPARE, rpc_server_remove_cache=True)


def replaced(spare: str, old: str, new: str, *options: str, **more: bool) -> str:
    return words(
        playbook("replace", "-i", spare, "-e", f"replace_old={old}", "-e", f"replace_new={new}", *options, **more)
    )


def workers_of(master: str) -> list[str]:
    return list(json.loads(ssh(master, "cat", "/etc/llama_server/8080.json").stdout)["workers"])


def test_a_worker_is_replaced_and_back(spare: str) -> None:
    assert "are of different groups" in replaced(spare, "worker2", SPARE, check=False)
    replaced(spare, "worker1", SPARE, "--check")
    assert ssh(SPARE, "test", "-e", "/opt/llama_cpp", check=False).returncode
    with clients_that_keep_asking(number=4, tokens=2, streams=1) as seen:
        said = replaced(spare, "worker1", SPARE)
        assert f"{SPARE} has taken the place of worker1. Take worker1 out of the inventory" in said
        eventually(all_in, 60, "both groups take requests")
        assert workers_of("master") == [f"10.87.{lab.NUMBER}.16:{lab.PORT}"]
        assert ssh("worker1", "test", "-e", "/opt/llama_cpp", check=False).returncode, "the old one is removed"
        # The spare worker dies, and the first one takes its place again.
        with lab.unplugged(SPARE):
            said = replaced(spare, SPARE, "worker1", "-e", "ansible_ssh_timeout=5")
            assert f"worker1 has taken the place of {SPARE}" in said
            assert "It does not answer, and keeps what it has" in said
            eventually(all_in, 60, "both groups take requests")
    unharmed(seen, host_lost=True)
    assert workers_of("master") == [f"{lab.ADDRESS['worker1']}:{lab.PORT}"]


def test_no_worker_is_replaced_whose_master_is_dead(spare: str) -> None:
    with clients_that_keep_asking(number=4, tokens=2, streams=1) as seen, lab.unplugged("master"):
        eventually(lambda: states()["a"] == "DOWN", 60, "the gateway has left it")
        said = replaced(spare, "worker1", SPARE, "-e", "ansible_ssh_timeout=5", check=False)
        assert "[master]: UNREACHABLE!" in said
        assert "master failed above, so nothing was changed." in said
    assert ssh(SPARE, "test", "-e", "/opt/llama_cpp", check=False).returncode
    assert ssh("worker1", "systemctl", "is-active", WORKER_UNIT).stdout.strip() == "active"
    unharmed(seen, host_lost=True)
    eventually(all_in, 60, "both groups take requests")


def test_a_worker_is_added_to_a_group(spare: str) -> None:
    with clients_that_keep_asking(number=4, tokens=2, streams=1) as seen:
        playbook("site", "-i", spare, "--limit", f"master,worker1,{SPARE}")
        eventually(all_in, 60, "both groups take requests")
        assert set(workers_of("master")) == {f"10.87.{lab.NUMBER}.{last}:{lab.PORT}" for last in (11, 16)}
    unharmed(seen)


def test_a_worker_that_is_dead_is_not_added_and_the_group_serves_as_before(spare: str) -> None:
    before = workers_of("master")
    with clients_that_keep_asking(number=4, tokens=2, streams=1) as seen, lab.unplugged(SPARE):
        limited = ("--limit", f"master,worker1,{SPARE}", "-e", "ansible_ssh_timeout=5")
        done = playbook("site", "-i", spare, *limited, check=False)
        assert done.returncode != 0
        assert f"[{SPARE}]: UNREACHABLE!" in words(done)
        assert workers_of("master") == before
        eventually(all_in, 60, "both groups take requests")
    unharmed(seen, host_lost=True)


def test_a_group_whose_worker_is_dead_keeps_its_model_and_the_other_one_serves() -> None:
    with clients_that_keep_asking(number=4, tokens=2, streams=1) as seen, lab.unplugged("worker1"):
        limited = ("--limit", "master,worker1", "-e", "ansible_ssh_timeout=5")
        done = playbook("site", *limited, check=False, gguf_model_path="/srv/models/other.gguf")
        assert done.returncode != 0
        assert "[worker1]: UNREACHABLE!" in words(done)
    unharmed(seen, host_lost=True)
    eventually(all_in, 120, "both groups take requests")
    assert "/srv/models/other.gguf" not in ssh("master", "pgrep", "-a", "-x", "llama-server").stdout
    ssh("master", "rm", "-f", "/srv/models/other.gguf")


def test_a_group_is_added_while_the_other_serves(tmp_path: Path) -> None:
    inventory = yaml.safe_load(GATEWAY.read_text())
    del inventory["llama_masters"]["hosts"]["worker3"]
    inventory["llama_workers"]["hosts"]["worker2"]["llama_group"] = "a"
    alone = tmp_path / "alone.yml"
    alone.write_text(yaml.safe_dump(inventory))
    lab.over(alone)("gateway")
    eventually(lambda: states() == {"a": "UP"}, 30, "the gateway has group a alone")
    with clients_that_keep_asking(number=4, tokens=2, streams=1) as seen:
        playbook("site", "--limit", "worker3,worker2,worker4")
        eventually(all_in, 60, "both groups take requests")
    unharmed(seen)


def test_a_group_changes_its_model_while_the_other_serves() -> None:
    change = {"gguf_model_path": "/srv/models/other.gguf"}
    with clients_that_keep_asking(number=4, tokens=2, streams=1) as seen:
        playbook("site", "--limit", "master,worker1", **change)
        eventually(all_in, 60, "both groups take requests")
        assert "/srv/models/other.gguf" in ssh("master", "pgrep", "-a", "-x", "llama-server").stdout
        playbook("site", "--limit", "master,worker1")
        eventually(all_in, 60, "both groups take requests")
    unharmed(seen)
    ssh("master", "rm", "/srv/models/other.gguf")
