# SPDX-License-Identifier: GPL-3.0-or-later
"""An API whose worker is lost for good: who serves instead, what is said of it, and when the worker serves again."""

from __future__ import annotations

import http.client
import json
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.api_service import Service, healing_service
from support.harness import ROOT, Release, Worker, running_worker
from support.runs import wait_for
from support.stand_in_workers import many_workers

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.llama

# From the loss to the next answer, with a wait of 2 s for the worker: a plan and a load of a small model.
SERVES_WITHIN_S = 60
# On one worker the model takes 34 MiB with two slots, and 30 MiB with one.
FOR_ONE_SLOT_MIB, FOR_HALF_MIB = 32, 24
# Room for what a worker needs to answer, and not for its part of the model.
ROOM_BYTES = 10 << 20


@pytest.fixture
def own_workers(start: Callable[..., Worker]) -> list[Worker]:
    return [start() for _number in range(2)]


def said_again(service: Service, text: str, before: int = 0, limit_s: float = SERVES_WITHIN_S) -> str:
    """Return the first line with a text after so many lines."""
    found = wait_for(lambda: next((line for line in service.lines[before:] if text in line), ""), limit_s)
    return str(found).rstrip("\n")


def division(folder: Path) -> dict[str, Any]:
    """Return what llama_server_info reads."""
    return dict(json.loads((folder / "run/division.json").read_text()))


def figures(folder: Path) -> str:
    return (folder / "llama_server.prom").read_text()


def test_the_others_serve_and_the_worker_returns_at_a_quiet_moment(
    release: Release, model: Path, tmp_path: Path, own_workers: list[Worker]
) -> None:
    kept, lost = own_workers
    with ExitStack() as stack, healing_service(release, model, own_workers, tmp_path, rejoin_after_s=1) as service:
        service.wait_for("Serving noise over 2 workers at")
        before = service.text()
        lost.kill()
        killed = time.monotonic()
        at = f"at http://127.0.0.1:{service.port}/v1."
        said_again(service, f"Serving noise over 1 of 2 workers, without {lost.endpoint}, {at}")
        assert service.text() == before
        print(f"The API answered {time.monotonic() - killed:.1f} s after the loss, 2 s of which it waited.")
        api = f'api="127.0.0.1:{service.port}"'
        wait_for(lambda: f"llama_server_degraded{{{api}}} 1" in figures(tmp_path), 20)
        assert f'llama_server_workers{{{api},state="serving"}} 1' in figures(tmp_path)
        assert f'llama_server_workers{{{api},state="lost"}} 1' in figures(tmp_path)
        assert f'llama_server_waiting_for_worker{{{api},worker="{lost.endpoint}"}} 0' in figures(tmp_path)
        found = division(tmp_path)
        assert (found["serving"], found["lost"], found["degraded"]) == ([kept.endpoint], [lost.endpoint], True)
        # While requests are under way, the worker does not return.
        lines = len(service.lines)
        with service.stream(900) as answer:
            stack.enter_context(running_worker(release, tmp_path / "again.log", port=lost.port))
            wait_for(lambda: division(tmp_path)["ready"] == [lost.endpoint], 30)
            time.sleep(10)
            assert answer.read().decode().rstrip().endswith("data: [DONE]")
        said_again(service, f"{lost.endpoint} is back, so llama-server is ended", lines)
        said_again(service, "Serving noise over 2 workers at", lines)
        assert service.text() == before
        wait_for(lambda: f"llama_server_degraded{{{api}}} 0" in figures(tmp_path), 20)
        assert division(tmp_path)["lost"] == []
    assert not (tmp_path / "run/division.json").exists(), "a person has stopped it"
    assert "Traceback" not in "".join(service.lines)


def test_a_loss_while_it_is_degraded_and_a_restart_wait_for_no_worker_that_is_known_to_be_lost(
    release: Release, model: Path, tmp_path: Path, start: Callable[..., Worker]
) -> None:
    workers = [start() for _number in range(3)]
    with healing_service(release, model, workers, tmp_path) as service:
        service.wait_for("Serving noise over 3 workers at")
        workers[0].kill()
        said_again(service, "Serving noise over 2 of 3 workers")
        lines = len(service.lines)
        workers[2].kill()
        without = f"without {workers[0].endpoint} and {workers[2].endpoint}"
        said_again(service, f"Serving noise over 1 of 3 workers, {without}", lines)
        assert service.text()


def test_a_spare_takes_the_place_with_the_same_shares(
    release: Release, model: Path, tmp_path: Path, own_workers: list[Worker], start: Callable[..., Worker]
) -> None:
    spare = start()
    with ExitStack() as stack:
        # Nothing listens, and another release
        useless = ["127.0.0.1:1", *stack.enter_context(many_workers(1, major=7))]
        given: dict[str, Any] = {"spares": [*useless, spare.endpoint], "degrade": []}
        service = stack.enter_context(healing_service(release, model, own_workers, tmp_path, **given))
        service.wait_for("Serving noise over 2 workers at")
        before = service.text()
        wait_for(lambda: division(tmp_path)["lost"] == useless, 30)
        assert division(tmp_path)["spare"] == [spare.endpoint]
        assert not division(tmp_path)["degraded"]
        own_workers[0].kill()
        who = f"with {spare.endpoint} in place of {own_workers[0].endpoint}"
        said_again(service, f"Serving noise over 2 workers, {who}, at")
        assert service.text() == before
        assert division(tmp_path)["serving"] == [spare.endpoint, own_workers[1].endpoint]


def test_a_spare_has_the_parts_of_the_workers_in_its_cache(
    release: Release, tmp_path: Path, own_workers: list[Worker], start: Callable[..., Worker]
) -> None:
    model, cache = tmp_path / "wide.gguf", tmp_path / "cache"
    options = ["--layers", "2", "--width", "2048"]
    subprocess.run([sys.executable, ROOT / "playbooks/files/random_model.py", *options, model], check=True, timeout=120)
    spare = start("-c", prefix=("env", f"LLAMA_CACHE={cache}"))
    given: dict[str, Any] = {"spares": [spare.endpoint], "seed_after_s": 1}
    with healing_service(release, model, own_workers, tmp_path, **given) as service:
        service.wait_for("Serving noise over 2 workers at")
        for worker in own_workers:
            said_again(service, f"The cache of the spare {spare.endpoint} has the part of {worker.endpoint}.")
        before = service.text()
        kept = len(list(cache.glob("rpc/*")))
        assert kept > 4
        own_workers[1].kill()
        said_again(service, "Serving noise over 2 workers, with")
        assert service.text() == before
        assert len(list(cache.glob("rpc/*"))) == kept, "nothing had to be sent"


def test_without_leave_it_waits_and_serves_again_when_the_worker_is_back(
    release: Release, model: Path, tmp_path: Path, own_workers: list[Worker]
) -> None:
    with ExitStack() as stack, healing_service(release, model, own_workers, tmp_path, degrade=[]) as service:
        service.wait_for("Serving noise over 2 workers at")
        own_workers[1].kill()
        said_again(service, f"Waiting for 1 of 2 workers, {own_workers[1].endpoint}.")
        time.sleep(5)
        assert not any("over 1 of 2" in line for line in service.lines)
        lines = len(service.lines)
        stack.enter_context(running_worker(release, tmp_path / "again.log", port=own_workers[1].port))
        said_again(service, "Serving noise over 2 workers at", lines)


def test_a_model_that_does_not_fit_waits_and_says_what_is_missing(
    release: Release, model: Path, tmp_path: Path, own_workers: list[Worker]
) -> None:
    kept, lost = own_workers
    with ExitStack() as stack, healing_service(
        release, model, own_workers, tmp_path, memory_mib=FOR_HALF_MIB
    ) as service:
        service.wait_for("Serving noise over 2 workers at")
        lost.kill()
        said = said_again(service, "The others do not serve without it")
        assert said.startswith(f"Waiting for 1 of 2 workers, {lost.endpoint}. {lost.endpoint} refuses connections")
        assert f"The others do not serve without it: It does not fit, {kept.endpoint} lacks " in said
        assert said.endswith(" MiB.")
        lines = len(service.lines)
        stack.enter_context(running_worker(release, tmp_path / "again.log", port=lost.port))
        said_again(service, "Serving noise over 2 workers at", lines)


@pytest.mark.parametrize(
    ("degrade", "how", "contexts"),
    [
        (["workers", "slots"], "with 512 tokens of context in 1 slot", [512]),
        (["workers", "context"], "with 512 tokens of context", [256, 256]),
    ],
    ids=["slots", "context"],
)
def test_fewer_slots_or_a_smaller_context_if_the_list_allows_it(
    release: Release,
    model: Path,
    tmp_path: Path,
    own_workers: list[Worker],
    degrade: list[str],
    how: str,
    contexts: list[int],
) -> None:
    given: dict[str, Any] = {"degrade": degrade}
    with healing_service(release, model, own_workers, tmp_path, memory_mib=FOR_ONE_SLOT_MIB, **given) as service:
        service.wait_for("Serving noise over 2 workers at")
        assert len(service.request("/slots")[1]) == 2
        own_workers[0].kill()
        said = said_again(service, "Serving noise over 1 of 2 workers")
        assert f", {how}, at" in said
        assert [slot["n_ctx"] for slot in service.request("/slots")[1]] == contexts


def test_at_its_hour_a_worker_is_taken_back_though_a_request_is_under_way(
    release: Release, model: Path, tmp_path: Path, own_workers: list[Worker]
) -> None:
    _kept, lost = own_workers
    given: dict[str, Any] = {"rejoin": time.strftime("%H:%M"), "rejoin_after_s": 1, "drain_timeout_s": 3}
    with ExitStack() as stack, healing_service(release, model, own_workers, tmp_path, **given) as service:
        service.wait_for("Serving noise over 2 workers at")
        lost.kill()
        said_again(service, "Serving noise over 1 of 2 workers")
        lines = len(service.lines)
        cut_off: list[Exception] = []

        def keep_asking() -> None:
            while not cut_off:
                try:
                    with service.stream(900) as answer:
                        answer.read()
                except (OSError, http.client.HTTPException) as error:
                    cut_off.append(error)

        asking = threading.Thread(target=keep_asking)
        asking.start()
        stack.callback(asking.join)
        stack.enter_context(running_worker(release, tmp_path / "again.log", port=lost.port))
        said_again(service, f"{lost.endpoint} is back, so llama-server is ended", lines)
        asking.join(30)
        assert cut_off
        said_again(service, "Serving noise over 2 workers at", lines)


def test_a_worker_that_is_lost_three_times_stays_out_until_somebody_restarts_the_service(
    release: Release, model: Path, tmp_path: Path, own_workers: list[Worker]
) -> None:
    kept, lost = own_workers
    port = lost.port
    with healing_service(release, model, own_workers, tmp_path, worker_wait_s=30) as service:
        service.wait_for("Serving noise over 2 workers at")
        with ExitStack() as stack:
            for number in range(3):
                lines = len(service.lines)
                lost.kill()
                said_again(service, "It is started again.", lines)
                lost = stack.enter_context(running_worker(release, tmp_path / f"{number}.log", port=port))
                said_again(service, "Serving noise over", lines)
            said = next(line for line in service.lines if "3 times within an hour" in line)
            assert said.startswith(f"{lost.endpoint} was lost 3 times within an hour, so it stays out until")
            found = division(tmp_path)
            assert (found["serving"], found["excluded"]) == ([kept.endpoint], [lost.endpoint])
            wait_for(lambda: division(tmp_path)["ready"] == [lost.endpoint], 30)
            assert 'state="excluded"} 1' in figures(tmp_path)
            service.process.terminate()
            service.process.wait(60)
            again = tmp_path / "again"
            again.mkdir()
            lost_again = Worker(lost.process, port, lost.log)
            with healing_service(release, model, [kept, lost_again], again) as restarted:
                restarted.wait_for("Serving noise over 2 workers at")


def test_a_worker_that_answers_its_host_but_computes_nothing_is_left(
    release: Release, model: Path, tmp_path: Path, own_workers: list[Worker]
) -> None:
    kept, hangs = own_workers
    with healing_service(release, model, own_workers, tmp_path, stall_timeout_s=3) as service:
        service.wait_for("Serving noise over 2 workers at")
        before = service.text()
        with service.stream(900):
            hangs.process.send_signal(signal.SIGSTOP)
            said_again(service, "llama-server has not gone on for 3 s and is ended.")
        said_again(service, f"Serving noise over 1 of 2 workers, without {hangs.endpoint}, at")
        assert service.text() == before
        assert division(tmp_path)["serving"] == [kept.endpoint]
        hangs.process.send_signal(signal.SIGCONT)


def test_a_worker_that_is_back_with_too_little_memory_stays_out_after_two_loads(
    release: Release, model: Path, tmp_path: Path, own_workers: list[Worker]
) -> None:
    kept, lost = own_workers
    with ExitStack() as stack, healing_service(release, model, own_workers, tmp_path, rejoin_after_s=1) as service:
        service.wait_for("Serving noise over 2 workers at")
        lost.kill()
        said_again(service, "Serving noise over 1 of 2 workers")
        before, lines = service.text(), len(service.lines)
        again = stack.enter_context(running_worker(release, tmp_path / "again.log", port=lost.port))
        status = Path(f"/proc/{again.process.pid}/status").read_text()
        has_kib = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmSize:")))
        most = (has_kib << 10) + ROOM_BYTES
        resource.prlimit(again.process.pid, resource.RLIMIT_AS, (most, most))
        said_again(service, f"The model could not be loaded with {lost.endpoint} 2 times, so it stays out", lines)
        lines = len(service.lines)
        said_again(service, f"Serving noise over 1 of 2 workers, without {lost.endpoint}, at", lines)
        assert service.text() == before
        found = division(tmp_path)
        assert (found["serving"], found["excluded"]) == ([kept.endpoint], [lost.endpoint])
