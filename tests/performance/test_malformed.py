# SPDX-License-Identifier: GPL-3.0-or-later
"""No request does a patched worker more harm than upstream's, and what only a hostile client sends does it none."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from performance.malformed import Outcome, attacked, play
from support.builds import Build
from support.hostile_requests import ATTACKS, DEADLY, HARMLESS_UPSTREAM, Attack, served_well
from support.malformed_sessions import Recording, recorded, spoilt
from support.multiplications import is_right_whatever_happens
from support.quantised_models import TYPES, Type, write_quantised
from support.watched_worker import watched

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.llama

SESSIONS = int(os.environ.get("FUZZ_SESSIONS", "300"))


@pytest.fixture(scope="module", params=[0, 4], ids=["dense", "experts"])
def recording(stock: Build, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Recording:
    """Record what a client sends that reads a prompt and says two words."""
    folder = tmp_path_factory.mktemp("recording")
    model, _tokens = write_quantised(folder / "model", (Type.Q4_0, Type.Q4_K), layers=1, experts=request.param)
    client = [
        str(stock.bin / "llama-completion"),
        "-m",
        str(model),
        "-ngl",
        "99",
        "-n",
        "3",
        "-c",
        "128",
        "-fit",
        "off",
    ]
    client += ["--no-warmup", "-no-cnv", "-p", "the quiet river of golden light", "--temp", "0", "--rpc"]
    with watched(stock, folder / "worker") as worker:
        return recorded(client, worker.port)


def test_a_session_is_recorded_and_played(sanitized: tuple[Build, Build], recording: Recording) -> None:
    for build in sanitized:
        outcome = play(build.rpc_server, recording, recording.messages)
        assert outcome.status is None
        assert not outcome.errors
    assert "Repacked 7 of" in outcome.log or "there is no kernel" in outcome.log


def test_the_sanitizers_are_silent_whatever_happens_to_a_weight(sanitized: tuple[Build, Build], tmp_path: Path) -> None:
    with watched(sanitized[1], tmp_path, options=("-c",)) as worker:
        for kind in TYPES:
            is_right_whatever_happens(worker, kind)
        assert not Outcome(None, worker.log).errors


@pytest.mark.parametrize("name", ATTACKS)
def test_hostile_requests_harm_upstreams_worker_and_not_ours(sanitized: tuple[Build, Build], name: str) -> None:
    stock, patched = (attacked(build.rpc_server, ATTACKS[name]) for build in sanitized)
    assert bool(stock.died or stock.errors) == (name not in HARMLESS_UPSTREAM)
    assert patched.status is None, patched.last
    assert not patched.errors


@pytest.mark.parametrize("attack", DEADLY, ids=lambda attack: attack.__name__)
def test_a_wrong_number_in_a_buffer_is_seen_before_it_is_used(sanitized: tuple[Build, Build], attack: Attack) -> None:
    stock, patched = (attacked(build.rpc_server, attack) for build in sanitized)
    assert stock.died or stock.errors
    assert patched.status == -signal.SIGABRT
    assert not patched.errors


def test_what_clients_send_is_computed_without_a_sanitizers_word(
    sanitized: tuple[Build, Build], tmp_path: Path
) -> None:
    with watched(sanitized[1], tmp_path, threads=2) as worker:
        served_well(worker.port)
        assert not Outcome(None, worker.log).errors


def worse(stock: Outcome, patched: Outcome) -> bool:
    if any("ggml-rpc-repack" in error for error in patched.errors):
        return True
    return (patched.died and not stock.died) or bool(patched.errors and not stock.errors)


def test_no_malformed_session_does_more_harm_than_to_upstream(
    sanitized: tuple[Build, Build], recording: Recording
) -> None:
    first = 1000 * len(recording.messages)

    def both(seed: int) -> tuple[Outcome, Outcome]:
        messages = spoilt(recording, seed)
        stock, patched = (play(build.rpc_server, recording, messages) for build in sanitized)
        for _again in range(3):
            # The effect of some sessions depends on what lies at a random address.
            if not worse(stock, patched):
                break
            stock = play(sanitized[0].rpc_server, recording, messages)
        return stock, patched

    faults = []
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(both, range(first, first + SESSIONS)))
    for seed, (stock, patched) in zip(range(first, first + SESSIONS), outcomes):
        if worse(stock, patched):
            faults.append(f"session {seed}: {stock.status}, with the patch {patched.status}\n{patched.last}")
    ended = sum(patched.died for _stock, patched in outcomes)
    assert not faults, "\n".join(faults)
    assert ended < SESSIONS
