# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of faults under an API that serves: what its clients see and how soon, and when it answers again. They need
hosts with systemd."""

from __future__ import annotations

import http.client
import time
from typing import TYPE_CHECKING

import pytest

from serve.api import API_UNIT, answers, client, key, playbook, property_of, serves, serves_over_all, stream, text_of
from support.lab import hosts as lab

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = "an API, hosts with systemd"
# Errors that a client notices, as against an answer that never ends.
ERRORS = (http.client.HTTPException, OSError)
AT_ONCE_S, SILENT_S = 10, 45
RESUME = "llama-rpc-resume.service"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> None:
    """From here on an API holds the workers."""
    lab.require_lab()
    playbook("site")


@pytest.fixture
def bearer() -> str:
    """Return a key of the API, once the API serves."""
    found = key()
    serves_over_all(found, 180)
    return found


def cut_off(answer: http.client.HTTPResponse, since: float) -> float:
    """Read on until the stream breaks off; return the seconds since then."""
    with pytest.raises(ERRORS):
        answer.read()
    return time.monotonic() - since


def said(beginning: str) -> str:
    """Return the last line of the service's journal that begins so."""
    lines = lab.ssh("master", "journalctl", "--no-pager", "--output=cat", "--lines=400", f"--unit={API_UNIT}").stdout
    return next(line for line in reversed(lines.splitlines()) if line.startswith(beginning))


def test_the_program_of_the_master_is_killed(bearer: str, saw: Callable[..., None]) -> None:
    before = text_of(bearer)
    main = property_of("MainPID")
    (program,) = lab.ssh("master", "cat", f"/proc/{main}/task/{main}/children").stdout.split()
    with stream(bearer) as answer:
        lab.ssh("master", "kill", "-KILL", program)
        struck = time.monotonic()
        detected = cut_off(answer, struck)
    serves(bearer, 60)
    back = time.monotonic() - struck
    assert detected < AT_ONCE_S
    saw("llama-server killed while the API streams", HERE, said("llama-server was"), detected, back)
    assert text_of(bearer) == before


def test_a_worker_s_host_falls_silent(bearer: str, saw: Callable[..., None]) -> None:
    before = text_of(bearer)
    with stream(bearer) as answer, lab.unplugged("worker2") as struck:
        detected = cut_off(answer, struck)
        without = f"without {lab.ADDRESS['worker2']}:{lab.PORT}"
        lab.eventually(lambda: without in property_of("StatusText") and answers(bearer), 60, "the other worker serves")
        back, sentence = time.monotonic() - struck, property_of("StatusText")
    assert detected < SILENT_S
    saw("worker's host silent while the API streams", HERE, sentence, detected, back)
    assert text_of(bearer) == before
    serves_over_all(bearer, 180)


def test_a_worker_s_host_falls_silent_while_nobody_asks(bearer: str, saw: Callable[..., None]) -> None:
    with lab.unplugged("worker1"):
        # Nobody has noticed the silence when the first client comes.
        time.sleep(10)
        asked = time.monotonic()
        with pytest.raises(ERRORS):
            client(bearer).request("/v1/completions", {"prompt": "the river", "max_tokens": 8}, limit_s=2 * SILENT_S)
        detected = time.monotonic() - asked
    plugged = time.monotonic()
    serves(bearer, 180)
    assert detected < SILENT_S
    sentence = "A request that comes meanwhile gets an error."
    saw("worker's host silent under an idle API", HERE, sentence, detected, time.monotonic() - plugged)


def test_a_worker_is_frozen(bearer: str, saw: Callable[..., None]) -> None:
    process = property_of("MainPID")
    with stream(bearer, 200) as answer:
        # From now on the worker's host takes longest to resume it.
        lab.ssh("worker2", "systemctl", "start", RESUME)
        lab.ssh("worker2", "systemctl", "kill", "--signal=SIGSTOP", lab.UNIT)
        struck = time.monotonic()
        assert answer.read().decode().rstrip().endswith("data: [DONE]")
        lasted = time.monotonic() - struck
    assert property_of("MainPID") == process, "nothing was started anew"
    assert lasted > 15, "it was frozen before the stream had ended"
    sentence = f"The stream goes on with the worker, which a timer of its host lets go on, after {lasted:.0f} s."
    saw("worker frozen while the API streams", HERE, sentence, None, lasted)
    assert answers(bearer)
