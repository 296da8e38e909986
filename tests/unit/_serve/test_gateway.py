# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a gateway by HAProxy's output; tests/integration/test_gateway.py asks a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve import gateway

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

# The columns of `show stat` of HAProxy 2.6 that are read.
STATISTICS = """# pxname,svname,qcur,scur,slim,status,lastchg,check_status
door,FRONTEND,,1,8000,OPEN,,
model1,a,0,1,4,UP,10,L7OK
model1,b,0,0,4,DOWN,7,L4CON
model1,c,0,2,2,NOLB 1/2,3,* L7OK
model1,d,0,0,2,MAINT,60,L7OK
model1,e,0,0,2,DOWN 1/2,5,L7STS
model1,wait,0,0,,no check,100,
model1,BACKEND,3,3,800,UP,100,
"""


def test_groups_are_in_or_a_sentence_says_why_not() -> None:
    models = gateway.read_models("noise model1\n")
    found = gateway.read_groups(STATISTICS, models)
    assert [(group["name"], group["state"], group["busy"], group["slots"]) for group in found] == [
        ("a", "in", 1, 4),
        ("b", "out", 0, 4),
        ("c", "leaving", 2, 2),
        ("d", "drained", 0, 2),
        ("e", "out", 0, 2),
    ]
    assert [group["reason"] for group in found] == [
        "",
        "its master does not answer (for 7 s).",
        "its service is about to stop, or the host of a worker acknowledges nothing (for 3 s).",
        "somebody has taken it out of service (for 60 s).",
        "its service does not serve yet (for 5 s); the playbook verify says what it waits for.",
    ]
    assert gateway.read_queues(STATISTICS, models) == {"noise": 3}


def test_the_end_of_a_certificate_is_read() -> None:
    said = "Filename: x\nNot After: Jan  1 00:00:00 2027 GMT\n"
    assert gateway.days_left(said, now=1798761600 - 10.5 * 86400) == 10
    assert gateway.days_left("") is None


def test_a_gateway_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    found = gateway.look(tmp_path, tmp_path / "socket")
    assert (found["running"], found["healthy"]) == (False, False)
    assert "systemctl start llama-gateway.service" in found["message"]
    (tmp_path / "models.map").write_text("noise model1\n")
    (tmp_path / "socket").write_text("no socket")
    assert "does not answer" in gateway.look(tmp_path, tmp_path / "socket")["message"]


def test_a_gateway_that_answers_nothing_is_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models.map").write_text("noise model1\n")
    monkeypatch.setattr(gateway, "tell", lambda _command, _path: "")
    found = gateway.look(tmp_path, tmp_path)
    assert (found["running"], found["healthy"]) == (False, False)
    assert "reports no groups" in found["message"]


def test_a_gateway_that_cannot_have_the_virtual_address_is_not_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models.map").write_text("noise model1\n")
    (tmp_path / "keepalived.conf").touch()
    monkeypatch.setattr(gateway, "tell", lambda _command, _path: STATISTICS.partition("model1,b")[0])
    assert gateway.look(tmp_path, tmp_path, tmp_path)["healthy"]
    found = gateway.look(tmp_path, tmp_path, tmp_path / "none")
    assert (found["running"], found["healthy"]) == (True, False)
    assert "cannot have the virtual address" in found["message"]
