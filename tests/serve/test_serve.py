# SPDX-License-Identifier: GPL-3.0-or-later
"""The API of a cluster on test hosts: who reaches it, what it waits for, and that it is back by itself."""

from __future__ import annotations

import http.client
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest

from serve.api import (
    ALIAS,
    API_PORT,
    API_UNIT,
    KEYS,
    answers,
    journal,
    key,
    playbook,
    property_of,
    request,
    serves,
    serves_over_all,
    stream,
    text_of,
)
from support.lab.hosts import ADDRESS, PORT, ROOT, UNIT, WORKERS, connect, eventually, ssh, words

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDPOINTS = [f"{ADDRESS[worker]}:{PORT}" for worker in WORKERS]
URL = f"http://{ADDRESS['master']}:{API_PORT}/v1"


@pytest.fixture
def bearer() -> str:
    """Return a key of the API, once the API serves."""
    found = key()
    serves_over_all(found, 120)
    return found


def test_only_a_trusted_client_with_the_key_is_answered(bearer: str) -> None:
    status, body = request("/v1/models", bearer=bearer)
    assert (status, [model["id"] for model in body["data"]]) == (200, [ALIAS])
    for path in ("/v1/models", "/props", "/slots", "/metrics"):
        assert request(path, bearer=None)[0] == 401, path
    assert request("/health", bearer=None)[0] == 200
    assert connect("outsider", ADDRESS["master"], API_PORT) != "connected"
    assert connect("worker1", ADDRESS["master"], API_PORT) != "connected", "a worker is no client"
    # The service's own filter holds when somebody opens the firewall.
    ssh("master", "systemctl", "stop", "firewalld")
    try:
        assert connect("outsider", ADDRESS["master"], API_PORT) != "connected"
        assert request("/v1/models", bearer=bearer)[0] == 200
    finally:
        ssh("master", "systemctl", "start", "firewalld")


def test_the_keys_are_kept_from_others() -> None:
    assert ssh("master", "stat", "--format=%a %U", KEYS).stdout.split() == ["600", "llama-server"]
    assert len(key()) == 48
    assert key() not in ssh("master", "sh", "-c", f"cat /etc/systemd/system/{API_UNIT} /etc/llama_server/*.json").stdout
    assert key() not in ssh("master", "journalctl", "--no-pager", f"--unit={API_UNIT}").stdout


def test_the_exposure_is_at_most_2() -> None:
    said = ssh("master", "systemd-analyze", "security", "--no-pager", API_UNIT).stdout
    assert float(said.rpartition(": ")[2].split()[0]) <= 2.0, said


def test_a_second_run_changes_nothing_and_leaves_inference_to_the_api(bearer: str) -> None:
    before = property_of("InvocationID")
    done = playbook("site")
    assert set(re.findall(r"changed=(\d+)", done.stdout)) == {"0"}, done.stdout
    assert f"Inference was not run, as {API_UNIT} of this master holds the workers." in words(done)
    assert property_of("InvocationID") == before
    checked = playbook("serve", "--check", "--diff", llama_server_parallel=3)
    assert property_of("InvocationID") == before
    assert f"{API_UNIT} would be stopped, as its model is divided again." in words(checked)
    assert answers(bearer)


def test_verify_asks_the_api_and_says_what_is_readable_on_its_way(bearer: str, tmp_path: Path) -> None:
    done = playbook("verify", verify_report_path=str(tmp_path / "status.json"))
    status = json.loads((tmp_path / "status.json").read_text())
    jsonschema.validate(status, json.loads((ROOT / "docs/monitoring/status.schema.json").read_text()))
    (service,) = status["services"]
    assert (service["host"], service["state"], service["healthy"], service["answered"]) == (
        "master",
        "serving",
        True,
        True,
    )
    assert f"Clients reach {ADDRESS['master']}:{API_PORT} of master without encryption" in words(done)
    assert answers(bearer)


def test_a_killed_worker_ends_the_request_at_once_and_the_api_is_back(bearer: str) -> None:
    before = text_of(bearer)
    with stream(bearer) as answer:
        ssh("worker2", "systemctl", "kill", "--signal=SIGKILL", UNIT)
        killed = time.monotonic()
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            answer.read()
        noticed = time.monotonic() - killed
    serves(bearer, 60)
    back = time.monotonic() - killed
    print(f"The client noticed after {noticed:.1f} s; the next answer's first token came after {back:.1f} s.")
    assert noticed < 10
    assert back < 20, "that of the benchmarks is larger, and measured there"
    assert text_of(bearer) == before


def test_a_worker_that_stays_away_leaves_the_api_to_the_other(bearer: str, tmp_path: Path) -> None:
    before = text_of(bearer)
    ssh("worker2", "systemctl", "stop", UNIT)
    lost = time.monotonic()
    try:
        serving = f"Serving {ALIAS} over 1 of 2 workers, without {ENDPOINTS[1]}, at {URL}."
        eventually(lambda: property_of("StatusText") == serving, 90, "it serves without the worker")
        serves(bearer, 30)
        print(f"The API answered without the worker {time.monotonic() - lost:.1f} s after the loss.")
        assert text_of(bearer) == before
        done = playbook("verify", check=False, verify_report_path=str(tmp_path / "status.json"))
        assert f"The API of master serves without {ENDPOINTS[1]} (1 of 2 workers): start it, or give" in words(done)
        (service,) = json.loads((tmp_path / "status.json").read_text())["services"]
        assert service["division"]["serving"] == ENDPOINTS[:1]
        assert (service["division"]["lost"], service["division"]["degraded"]) == (ENDPOINTS[1:], True)
        mode = ssh("master", "stat", "--format=%a %U", f"/run/llama_server_{API_PORT}").stdout.split()
        assert mode == ["755", "llama-server"]
        assert ssh("master", "find", f"/run/llama_server_{API_PORT}", "-perm", "/022").stdout == ""
    finally:
        ssh("worker2", "systemctl", "start", UNIT)
    # A person need not wait for a quiet moment.
    eventually(lambda: ready_ones() == ENDPOINTS[1:], 60, "it has seen the worker")
    done = playbook("serve")
    assert f"{API_UNIT} serves without {ENDPOINTS[1]}, which is back, so it has to restart." in words(done)
    serves(bearer, 60)
    assert property_of("StatusText") == f"Serving {ALIAS} over 2 workers at {URL}."
    assert text_of(bearer) == before
    assert set(re.findall(r"changed=(\d+)", playbook("serve").stdout)) == {"0"}


def ready_ones() -> list[str]:
    """Return the workers that the service does not use, and that answer."""
    said = ssh("master", "cat", f"/run/llama_server_{API_PORT}/division.json").stdout
    return list(json.loads(said)["ready"])


def test_a_restart_lets_a_request_end(bearer: str) -> None:
    with stream(bearer, 60) as answer:
        ssh("master", "systemctl", "--no-block", "restart", API_UNIT)
        said = answer.read().decode()
    assert said.rstrip().endswith("data: [DONE]"), journal()
    assert "Requests under way: 1." in journal()
    serves(bearer, 90)


def test_while_a_worker_is_missing_it_waits_and_says_for_which(bearer: str) -> None:
    playbook("serve", llama_server_degrade=[])
    ssh("worker1", "systemctl", "stop", UNIT)
    try:
        sentence = f"Waiting for 1 of 2 workers, {ENDPOINTS[0]}."
        eventually(lambda: property_of("StatusText").startswith(sentence), 60, "it says so")
        assert sentence in ssh("master", "systemctl", "status", "--no-pager", "-l", API_UNIT).stdout
        assert sentence in ssh("master", "journalctl", "--no-pager", "--output=cat", f"--unit={API_UNIT}").stdout
        done = playbook("verify", check=False)
        assert done.returncode != 0
        assert f"master: {sentence}" in words(done)
    finally:
        ssh("worker1", "systemctl", "start", UNIT)
        playbook("serve")
    serves(bearer, 90)


def test_who_needs_the_workers_is_told_who_holds_them_and_may_pause_the_api(bearer: str) -> None:
    started = property_of("InvocationID")
    for name in ("infer", "benchmark", "tune", "seed"):
        done = playbook(name, check=False)
        assert done.returncode != 0, name
        assert f"{API_UNIT} of master holds the workers. Add -e llama_server_pause=true" in words(done), words(done)
    assert property_of("InvocationID") == started
    # As a run leaves it that is interrupted after it has stopped the first of two services.
    other = "systemd-tmpfiles-clean.timer"
    ssh("master", "sh", "-c", f"echo {other} >/run/llama_server_paused && systemctl stop {other}")
    done = playbook("infer", llama_server_pause=True)
    assert ssh("master", "systemctl", "is-active", other).stdout.strip() == "active", "it is not forgotten"
    assert "tokens/s" in words(done) or "tokens per second" in words(done), done.stdout
    serves(bearer, 90)
    # The API is back after a run that failed, too.
    done = playbook("infer", check=False, llama_server_pause=True, gguf_model_path="/srv/models/none.gguf")
    assert done.returncode != 0
    serves(bearer, 90)
    assert ssh("master", "test", "-e", "/run/llama_server_paused", check=False).returncode != 0


def test_a_key_is_replaced_while_a_request_is_under_way(bearer: str) -> None:
    process = property_of("MainPID")
    keys = ["key-of-the-editor-0123456789", "key-of-the-page-0123456789"]
    try:
        with stream(bearer, 400) as answer:
            done = playbook("serve", "-vvv", "--diff", llama_server_api_keys=keys)
            assert keys[0] not in done.stdout + done.stderr + ssh("master", "journalctl", "--no-pager").stdout
            assert request("/v1/models", bearer=keys[1])[0] == 200
            assert request("/v1/models", bearer=bearer)[0] == 401
            assert answer.read().decode().rstrip().endswith("data: [DONE]")
        assert property_of("MainPID") == process
    finally:
        playbook("serve", llama_server_api_keys=[bearer])


@pytest.fixture
def node_exporter_folder() -> Iterator[str]:
    """Make the folder of a node_exporter, which is not installed here; yield its path."""
    folder = "/var/lib/node_exporter"
    ssh("master", "mkdir", "-p", folder)
    yield folder
    playbook("serve")
    assert ssh("master", "ls", folder).stdout == "", "without the option there is nothing of it"
    ssh("master", "rmdir", folder)


def test_node_exporter_is_told_for_which_worker_it_waits(bearer: str, node_exporter_folder: str) -> None:
    def figures() -> list[str]:
        found = ssh(
            "master", "runuser", "-u", "nobody", "--", "cat", f"{node_exporter_folder}/llama_server_{API_PORT}.prom"
        )
        return found.stdout.splitlines()

    playbook("serve", llama_server_metrics_folder=node_exporter_folder)
    api = f'api="{ADDRESS["master"]}:{API_PORT}"'
    assert f"llama_server_serving{{{api}}} 1" in figures()
    ssh("worker1", "systemctl", "stop", UNIT)
    try:
        waits = f'llama_server_waiting_for_worker{{{api},worker="{ENDPOINTS[0]}"}} 1'
        eventually(lambda: waits in figures(), 60, "it says so")
        assert f"llama_server_serving{{{api}}} 0" in figures()
    finally:
        ssh("worker1", "systemctl", "start", UNIT)
    serves(bearer, 90)
    eventually(lambda: f"llama_server_serving{{{api}}} 1" in figures(), 10, "it says so")


def test_workers_that_another_api_holds_are_refused_to_a_second_one(bearer: str, tmp_path: Path) -> None:
    started = property_of("InvocationID")
    done = playbook("serve", check=False, llama_server_port=API_PORT + 1)
    assert done.returncode != 0
    assert f"{API_UNIT} of master uses {ENDPOINTS[0]}, {ENDPOINTS[1]} too, and a worker serves one master" in words(
        done
    )
    # A second master. It also lacks a program and a model, and the role reports these as well.
    (tmp_path / "second.yml").write_text("llama_masters: {hosts: {worker1: }}\n")
    done = playbook("serve", "-i", str(tmp_path / "second.yml"), "--limit", "worker1,worker2", check=False)
    said = (
        f"{ENDPOINTS[0]}, {ENDPOINTS[1]} serves {ADDRESS['master']} (master), and a worker serves one master at a time"
    )
    assert said in words(done), words(done)[-3000:]
    for host in ("master", "worker1"):
        made = ssh(
            host,
            "sh",
            "-c",
            f"ls -d /etc/llama_server/{API_PORT + 1}.* /etc/systemd/system/llama-server@*",
            check=False,
        )
        assert made.stdout.splitlines() == ([f"/etc/systemd/system/{API_UNIT}"] if host == "master" else [])
    assert property_of("InvocationID") == started
    assert answers(bearer)


def test_a_site_that_knows_of_no_api_leaves_it_alone(bearer: str) -> None:
    started = property_of("InvocationID")
    for mode in ([], ["--check"]):
        done = playbook("site", *mode, llama_server_enabled=False)
        assert f"Inference was not run, as {API_UNIT} of this master holds the workers." in words(done)
        assert "holds it" not in words(done)
        assert "ERROR" not in done.stdout + done.stderr
    # A change that needs a restart of the workers.
    changed = {"llama_server_enabled": False, "rpc_server_memory_max": "3G"}
    done = playbook("site", "--tags", "rpc_server", check=False, **changed)
    assert done.returncode != 0
    assert "If that is an API, add -e llama_server_pause=true." in words(done)
    assert property_of("InvocationID") == started
    assert answers(bearer)
    try:
        playbook("site", "--tags", "rpc_server", llama_server_pause=True, **changed)
        assert property_of("InvocationID") != started
        serves(bearer, 90)
    finally:
        playbook("site", "--tags", "rpc_server", llama_server_pause=True)
    serves(bearer, 90)


# Bad variables, and a part of the message about them. Each has a play of its own, which changes nothing.
BAD = {
    "tools": ({"llama_server_extra_args": ["--tools", "all"]}, "llama_server_extra_args holds --tools"),
    "log": ({"llama_server_extra_args": ["-lv", "5"]}, "llama_server_extra_args holds -lv, which could write prompts"),
    "own": ({"llama_server_extra_args": ["--port", "1"]}, "--port, which the role sets itself"),
    "open": (
        {"llama_server_trusted_sources": []},
        "which others can reach: say in llama_server_trusted_sources",
    ),
    "short-key": ({"llama_server_api_keys": ["secret"]}, "a key that is too short"),
    "key-of-two-lines": (
        {"llama_server_api_keys": ["key-of-the-page-0123456789\n"]},
        "a key that is too short or has other",
    ),
    "home": ({"gguf_model_path": "/run/user/1000/m.gguf"}, "cannot read home or temporary folders"),
    "no-model": ({"gguf_model_path": "/srv/models/none.gguf"}, "has no file /srv/models/none.gguf"),
    "no-draft": (
        {"llama_server_draft_model": "/srv/models/none.gguf"},
        "/srv/models/none.gguf is not a complete GGUF model: there is no such file",
    ),
    "no-mtp": ({"llama_server_spec_type": "draft-mtp"}, "has no layers that predict further tokens"),
    "name": (
        {"inference_endpoints": ["worker1.example:50052"]},
        "has the name worker1.example, and the service of master may reach only addresses",
    ),
    "port": ({"llama_server_port": 22}, r"Port 22 of master is taken by ssh"),
    "numbers": ({"llama_server_parallel": 0}, "llama_server_parallel is 0: give a number from 1 to 256"),
    "address": ({"llama_server_bind_address": "10.9.9.9"}, "10.9.9.9 is not an address of master"),
    "too-much": (
        {"llama_server_ctx_size": 4194304, "llama_server_parallel": 64},
        "64 slots of 4194304 tokens take a context of 268435456",
    ),
}


@pytest.mark.parametrize(("variables", "said"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_explained_and_the_api_goes_on(bearer: str, variables: dict[str, object], said: str) -> None:
    unit = ssh("master", "cat", f"/etc/systemd/system/{API_UNIT}").stdout
    done = playbook("serve", check=False, **variables)
    assert done.returncode != 0
    assert re.search(said, words(done)), words(done)[-3000:]
    assert ssh("master", "cat", f"/etc/systemd/system/{API_UNIT}").stdout == unit
    serves(bearer, 90)


def test_another_number_of_slots_takes_one_restart(bearer: str) -> None:
    before = property_of("InvocationID")
    try:
        playbook("serve", llama_server_parallel=3)
        after = property_of("InvocationID")
        assert after != before
        status, slots = request("/slots", bearer=bearer)
        assert (status, len(slots), slots[0]["n_ctx"]) == (200, 3, 1024)
        assert set(re.findall(r"changed=(\d+)", playbook("serve", llama_server_parallel=3).stdout)) == {"0"}
        assert property_of("InvocationID") == after
    finally:
        playbook("serve")


def test_a_draft_model_on_the_master_changes_no_answer(bearer: str) -> None:
    before = text_of(bearer, 32)
    given = {"llama_server_draft_model": "/srv/models/random-weights.gguf", "llama_server_spec_draft_n_max": 4}
    try:
        done = playbook("serve", **given)
        assert "has no chat template, so /v1/chat/completions formats messages as ChatML" in words(done)
        asked = {"prompt": "the river", "max_tokens": 32, "temperature": 0}
        status, body = request("/v1/completions", asked, bearer=bearer)
        assert (status, body["choices"][0]["text"]) == (200, before)
        assert body["timings"]["draft_n_accepted"] == body["timings"]["draft_n"] > 0, "it drafts for itself"
        plan = json.loads(ssh("master", "cat", f"/etc/llama_server/{API_PORT}.plan").stdout)
        assert plan["tensor_split"]
        assert set(re.findall(r"changed=(\d+)", playbook("serve", **given).stdout)) == {"0"}
    finally:
        playbook("serve")


def test_a_file_of_keys_without_a_key_is_refused(bearer: str) -> None:
    try:
        ssh("master", "sh", "-c", f"cp -p {KEYS} {KEYS}.kept && : >{KEYS}")
        done = playbook("serve", check=False)
        assert f"{KEYS} on master has no key: write one into it" in words(done)
        assert request("/v1/models", bearer=None)[0] == 401, "the service that runs has the keys that it had"
        # A service that starts with this file serves nobody.
        ssh("master", "systemctl", "restart", API_UNIT, check=False)
        eventually(lambda: f"{KEYS} has no key" in journal(), 30, "it says why")
        assert connect("outsider", ADDRESS["master"], API_PORT) != "connected"
    finally:
        ssh("master", "mv", f"{KEYS}.kept", KEYS)
        serves(bearer, 90)


def test_the_api_is_back_after_its_master_restarts(bearer: str) -> None:
    ssh("master", "systemctl", "reboot", check=False)
    time.sleep(3)
    serves(bearer, 120)
    # Waiting for workers is no part of the boot.
    eventually(
        lambda: ssh("master", "systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded"),
        60,
        "the host has started",
    )
