# SPDX-License-Identifier: GPL-3.0-or-later
"""The API service over real workers: it waits for them, serves, and says what is wrong."""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.api_service import ALIAS, ENVIRONMENT, FILES, KEY, Service, connects, running_service
from support.harness import Release, Worker, completed, free_port, running_worker
from support.runs import held_by_another_client, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.llama


def figures(folder: Path) -> list[str]:
    """Return the lines that node_exporter would read."""
    file = folder / "llama_server.prom"
    return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def own_workers(start: Callable[..., Worker]) -> list[Worker]:
    return [start() for _number in range(2)]


@pytest.fixture
def own_service(release: Release, model: Path, tmp_path: Path, own_workers: list[Worker]) -> Iterator[Service]:
    """Yield a service that a test may end."""
    with running_service(release, model, [worker.endpoint for worker in own_workers], tmp_path) as running:
        running.wait_for("Serving")
        yield running


@pytest.fixture(scope="module")
def service(
    release: Release, model: Path, tmp_path_factory: pytest.TempPathFactory, workers: list[Worker]
) -> Iterator[Service]:
    """Yield the service of the tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("service")
    with running_service(release, model, [worker.endpoint for worker in workers], folder) as running:
        running.wait_for("Serving")
        yield running


def test_it_waits_for_a_worker_and_says_for_which(
    release: Release, model: Path, tmp_path: Path, start: Callable[..., Worker]
) -> None:
    one, port = start(), free_port()
    missing = f"127.0.0.1:{port}"
    with ExitStack() as stack, running_service(release, model, [one.endpoint, missing], tmp_path) as running:
        said = running.wait_for("Waiting for 1 of 2 workers")
        api = f'api="127.0.0.1:{running.port}"'
        waits = f'llama_server_waiting_for_worker{{{api},worker="{missing}"}}'
        wait_for(lambda: f"{waits} 1" in figures(tmp_path), 20)
        assert f'llama_server_waiting_for_worker{{{api},worker="{one.endpoint}"}} 0' in figures(tmp_path)
        assert said.startswith(f"Waiting for 1 of 2 workers, {missing}. {missing} refuses connections: start the RPC")
        time.sleep(3)
        assert sum(line.startswith("Waiting") for line in running.lines) == 1, "the same sentence is said once"
        stack.enter_context(running_worker(release, tmp_path / "late.log", port=port))
        running.wait_for("Serving")
        assert running.text()
        wait_for(lambda: f"llama_server_serving{{{api}}} 1" in figures(tmp_path), 20)
        assert f"{waits} 0" in figures(tmp_path)
    assert f"llama_server_serving{{{api}}} 0" in figures(tmp_path), "it was stopped"


def test_it_does_not_disturb_a_worker_that_serves_somebody_else(
    release: Release, model: Path, tmp_path: Path, own_workers: list[Worker]
) -> None:
    with running_service(release, model, [worker.endpoint for worker in own_workers], tmp_path) as running:
        running.wait_for("Serving")
        other = tmp_path / "other"
        other.mkdir()
        with running_service(release, model, [own_workers[0].endpoint], other) as second:
            assert "another client most likely holds it" in second.wait_for("Waiting for 1 of 1 workers")
            assert running.text()
    with held_by_another_client(own_workers[0]):
        pass
    assert all(worker.alive for worker in own_workers)


def test_only_who_has_the_key_is_answered(service: Service, model: Path) -> None:
    for path in ("/v1/models", "/props", "/slots", "/metrics"):
        assert service.request(path, key=None)[0] == 401
        assert service.request(path, key="key-of-somebody-else")[0] == 401
        status, body = service.request(path)
        assert status == 200
        if path in ("/v1/models", "/metrics"):
            assert str(model.parent) not in json.dumps(body), "a path of the host"
    assert service.request("/health", key=None) == (200, {"status": "ok"})
    asked = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    status, body = service.request("/v1/chat/completions", asked)
    assert (status, body["model"]) == (200, ALIAS)
    for path in ("/tools", "/cors-proxy"):
        assert service.request(path)[0] == 403
    assert service.request("/props", {"chat_template": "x"})[0] == 501


def test_a_key_is_replaced_while_a_stream_goes_on(service: Service) -> None:
    with service.stream(300) as answer:
        new = service.keys.with_name("new")
        new.write_text("key-that-comes-next\n")
        new.rename(service.keys)
        assert service.request("/v1/models", key="key-that-comes-next")[0] == 200
        assert service.request("/v1/models", key=KEY)[0] == 401
        service.keys.write_text("# nothing\n")
        assert service.request("/v1/models", key="key-that-comes-next")[0] == 200, "no key at all changes nothing"
        assert answer.read().decode().rstrip().endswith("data: [DONE]")
    service.keys.write_text(f"{KEY}\n")
    assert service.request("/v1/models")[0] == 200


def test_the_environment_adds_no_option(
    release: Release, model: Path, tmp_path: Path, own_workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"LLAMA_ARG_LOG_VERBOSITY": "5", "LLAMA_SERVER_SLOTS_DEBUG": "1", "AIP_MODE": "PREDICTION"}
    for name, value in {**others, "XDG_CONFIG_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "llama.cpp").mkdir()
    (tmp_path / "llama.cpp/config.ini").write_text("[*]\nlog-verbosity = 5\n")
    with running_service(release, model, [worker.endpoint for worker in own_workers], tmp_path) as running:
        running.wait_for("Serving")
        own = running.process.pid
        (child,) = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        assert "GGML_RPC_NO_COMM=1" in Path(f"/proc/{child}/environ").read_text().split("\0")
        asked = {"prompt": "silver harbour wolf", "max_tokens": 16, "temperature": 0}
        status, body = running.request("/v1/completions", asked)
        assert status == 200
        assert "harbour" not in json.dumps(running.request("/slots")[1])
        said = "".join(running.lines)
        assert "processing task" in said
        assert "harbour" not in said
        assert body["choices"][0]["text"].strip() not in said


def test_a_lost_worker_ends_the_request_at_once_and_the_next_start_serves_as_before(
    release: Release, model: Path, tmp_path: Path, own_workers: list[Worker]
) -> None:
    endpoints = [worker.endpoint for worker in own_workers]
    with running_service(release, model, endpoints, tmp_path) as running:
        running.wait_for("Serving")
        before = running.text()
        with running.stream(900) as answer:
            own_workers[1].kill()
            killed = time.monotonic()
            with pytest.raises(http.client.IncompleteRead):
                answer.read()
            assert time.monotonic() - killed < 10, "the client was left waiting"
        assert running.process.wait(30) == 1
        said = running.wait_for("llama-server was")
        assert said.endswith("llama-server was ended by SIGABRT; its last lines are above. It is started again.\n")
    # Start the service again, as systemd does.
    with ExitStack() as stack, running_service(release, model, endpoints, tmp_path, running.port) as again:
        again.wait_for(f"Waiting for 1 of 2 workers, {endpoints[1]}.")
        stack.enter_context(running_worker(release, tmp_path / "again.log", port=own_workers[1].port))
        again.wait_for("Serving")
        assert again.text() == before


def test_a_worker_that_is_lost_while_nobody_asks_is_noticed(own_service: Service, own_workers: list[Worker]) -> None:
    own_workers[0].kill()
    said = own_service.wait_for("The connection to", 10)
    assert said == f"The connection to {own_workers[0].endpoint} has ended, so llama-server is ended.\n"
    assert own_service.process.wait(30) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="the socket of a process belongs to root")
def test_where_the_kernel_lets_nobody_close_the_door_requests_still_have_their_time(own_service: Service) -> None:
    with own_service.stream(200) as answer:
        draining = own_service.drain(60, "setpriv", "--bounding-set=-net_admin,-net_raw")
        said = answer.read().decode()
    assert said.rstrip().endswith("data: [DONE]"), "the stream came to its end"
    printed = draining.communicate(timeout=300)[0].splitlines()
    assert (
        printed[0] == "The socket of llama-server cannot be reached here: new requests are taken until it is stopped."
    )
    assert printed[1].startswith("Requests under way: 1. ")
    assert draining.returncode == 0
    assert connects(own_service.port, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="the socket of a process belongs to root")
def test_a_request_that_does_not_end_is_cut_off_in_the_end(own_service: Service) -> None:
    with own_service.stream(900) as answer:
        began = time.monotonic()
        said = own_service.drain(1).communicate(timeout=300)[0]
        assert time.monotonic() - began < 15
        assert "Not all requests ended within 1 s: those that are left are cut off." in said or not answer.read()
        own_service.process.terminate()
        assert own_service.process.wait(30) == 0


def test_settings_that_are_none_are_an_error_in_a_sentence(tmp_path: Path) -> None:
    for content in ("{", '{"port": 1}', "[]"):
        (tmp_path / "settings.json").write_text(content)
        done = completed(sys.executable, FILES / "llama_server_service.py", tmp_path / "settings.json", **ENVIRONMENT)
        assert (done.returncode, done.stderr) == (2, "")
        assert "settings.json cannot be used" in done.stdout
        assert done.stdout.endswith("run the playbook serve, which writes it.\n")


def test_a_model_that_is_none_is_told_by_its_last_lines(
    release: Release, tmp_path: Path, own_workers: list[Worker]
) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    with running_service(release, tmp_path / "broken.gguf", [own_workers[0].endpoint], tmp_path) as running:
        assert running.process.wait(60) == 1
        assert "ended with exit status 1" in running.wait_for("llama-server ended")
        assert any("broken.gguf" in line for line in running.lines)


def test_no_prompt_and_no_answer_is_in_the_journal(service: Service) -> None:
    asked = {"prompt": "silver harbour wolf", "max_tokens": 16, "temperature": 0}
    status, body = service.request("/v1/completions", asked)
    assert status == 200
    said = "".join(service.lines)
    assert "processing task" in said, "it tells that there was a request"
    assert "harbour" not in said
    assert body["choices"][0]["text"].strip() not in said


def test_the_key_is_in_no_line(service: Service) -> None:
    assert KEY not in "".join(service.lines)
