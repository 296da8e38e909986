# SPDX-License-Identifier: GPL-3.0-or-later
"""The figures of workers, of an API and of a gateway, with the rules and the dashboard.

Prometheus' programs and Grafana's schema judge them.
"""

from __future__ import annotations

import http.client
import importlib
import json
import re
import shutil
import ssl
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from support.api_service import KEY, service_over_two
from support.debian_programs import debian_program
from support.gateway import CLIENT_KEY, make_certificate, running_gateway
from support.harness import RELEASE, free_port, running_worker
from support.rpc_session import Session
from support.runs import wait_for
from support.stand_in_groups import StandIn, StandIns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from types import ModuleType

    from support.harness import Release

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "docs/monitoring"
PAGE = ROOT / "docs/how-to/monitor.md"
PROGRAM = ROOT / "roles/rpc_server/files/llama_rpc_metrics.py"
PARTS = (PROGRAM, *(ROOT / "plugins/module_utils/_rpc" / name for name in ("listeners.py", "units.py")))
METRIC = re.compile(r"\bllama_rpc_[a-z_]+\b")
API_METRIC = re.compile(
    r"\b(?:llamacpp:[a-z_]+|llama_server_(?:serving|waiting_for_worker|metrics_timestamp_seconds))\b"
)


@pytest.fixture(scope="module")
def promtool() -> str:
    return str(debian_program("prometheus", "usr/bin/promtool"))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Return the program as the role installs it, with its parts beside it."""
    folder = tmp_path_factory.mktemp("program")
    for part in PARTS:
        shutil.copy(part, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        return importlib.import_module(PROGRAM.stem)


@pytest.fixture(scope="module")
def written() -> set[str]:
    """Return the names of all metrics that the program writes."""
    return set(re.findall(r'^    "(llama_rpc_[a-z_]+)": \(', PROGRAM.read_text(), re.MULTILINE))


GATEWAY_METRIC = re.compile(r"\b(?:haproxy_[a-z_]+|llama_gateway_[a-z_]+_seconds)\b")


def run(*argv: str | Path, text_in: str = "", cwd: Path | None = None) -> str:
    done = subprocess.run(argv, input=text_in, capture_output=True, text=True, timeout=300, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    return found


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_the_rules_are_sound_and_each_has_an_example_that_comes_true(promtool: str, tmp_path: Path) -> None:
    for path in (MONITORING / "alerts.yml", Path(__file__).with_name("alerts_test.yml")):
        shutil.copy(path, tmp_path)
    assert "SUCCESS" in run(promtool, "check", "rules", tmp_path / "alerts.yml")
    assert "SUCCESS" in run(promtool, "test", "rules", tmp_path / "alerts_test.yml", cwd=tmp_path)
    alerts = set(re.findall(r"alert: (\w+)", (tmp_path / "alerts.yml").read_text()))
    assert alerts == set(re.findall(r"Llama\w+", (tmp_path / "alerts_test.yml").read_text()))


def test_rules_and_dashboard_ask_for_nothing_that_is_not_written(written: set[str]) -> None:
    asked = set(METRIC.findall("\n".join([*queries(), (MONITORING / "alerts.yml").read_text()])))
    assert asked <= written
    assert set(METRIC.findall(PAGE.read_text())) == written, "the page names each of them"


def test_each_query_of_the_dashboard_is_one_of_prometheus(promtool: str, tmp_path: Path) -> None:
    rules = []
    for number, query in enumerate(queries()):
        sent = query.replace("$instance", ".*")  # as Grafana does
        assert "$" not in sent
        rules.append({"record": f"query:{number}", "expr": sent})
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run(promtool, "check", "rules", path)


def understood(dashboard: dict[str, Any]) -> Any:
    """Return what remains of a dashboard after the classes that Grafana makes from its schema have read it."""
    register_default_plugins()  # the kinds of panels, and Prometheus' queries
    return json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))


def lost(there: Any, left: Any, name: str = "") -> list[str]:
    if isinstance(there, dict) and isinstance(left, dict):
        return [line for key in there for line in lost(there[key], left.get(key), f"{name}.{key}")]
    if isinstance(there, list) and isinstance(left, list) and len(there) == len(left):
        return [line for number, one in enumerate(there) for line in lost(one, left[number], f"{name}[{number}]")]
    return [] if there == left else [name]


def test_grafanas_schema_knows_all_that_the_dashboard_says() -> None:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    assert lost(dashboard, understood(dashboard)) == []
    dashboard["panels"][0]["fieldConfig"]["defaults"]["unitt"] = "s"
    assert lost(dashboard, understood(dashboard)) == [".panels[0].fieldConfig.defaults.unitt"]


@contextmanager
def program_at(port: int, *argv: str | Path) -> Iterator[str]:
    """Start a program that listens on a port; yield its URL."""
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(10)


def prometheus(folder: Path, config: str) -> AbstractContextManager[str]:
    """Start a Prometheus with this configuration, and with its data in the folder."""
    port = free_port()
    (folder / "prometheus.yml").write_text(config)
    return program_at(
        port, debian_program("prometheus", "usr/bin/prometheus"), f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
    )  # fmt: skip


def ask_prometheus(url: str, query: str) -> list[dict[str, Any]]:
    """Return the current result of a query."""
    found = json.loads(page(f"{url}/api/v1/query?query={urllib.parse.quote(query)}"))
    return list(found["data"]["result"])


def page(url: str) -> str:
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.05)


@pytest.mark.llama
def test_what_is_written_of_real_workers_is_sound(
    promtool: str, program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers run on one host, and one of them serves. The host is a folder with this machine's /proc."""
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    (tmp_path / "proc").symlink_to("/proc")
    monkeypatch.setattr(program, "ask_systemd", lambda _units: {})
    with ExitStack() as stack:
        workers = [stack.enter_context(running_worker(RELEASE, tmp_path / name)) for name in ("first", "second")]
        for worker in workers:
            (units / f"llama-rpc-server@{worker.port}.service").write_text(
                f"# llama.cpp release: x\nExecStart=/usr/bin/stdbuf -oL rpc-server -H 127.0.0.1 -p {worker.port} -t 2\n"
                f"Environment=LLAMA_CACHE={tmp_path}/cache/{worker.port}\n"
            )
        with closing(Session(workers[0].port)):
            text = program.metrics(tmp_path)
    first, second = (f'endpoint="{worker.endpoint}"' for worker in workers)
    for line in (
        f"llama_rpc_up{{{first}}} 1",
        f"llama_rpc_up{{{second}}} 1",
        f'llama_rpc_held{{{first},client="127.0.0.1"}} 1',
        f"llama_rpc_clients{{{second}}} 0",
        f"llama_rpc_cache_entries{{{second}}} 0",
    ):
        assert line in text.splitlines(), text
    assert run(promtool, "check", "metrics", text_in=text) == "", "no name or unit is against conventions"


@pytest.mark.llama
def test_prometheus_reads_an_api_as_the_page_says_and_has_all_that_is_asked_for(
    promtool: str, release: Release, model: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        service = stack.enter_context(service_over_two(release, model, tmp_path))
        assert service.text()
        assert service.text()
        (tmp_path / "key").write_text(f"{KEY}\n")
        # The page's first configuration is for the API, and the other one is for a gateway.
        config = re.findall(r"```\n(scrape_configs:\n.*?)```", PAGE.read_text(), re.DOTALL)[0]
        for written, here in {
            "/etc/prometheus/llama_server.key": str(tmp_path / "key"),
            "master.example.com:8080": f"127.0.0.1:{service.port}",
            "15s": "1s",
        }.items():
            assert written in config
            config = config.replace(written, here)
        url = stack.enter_context(prometheus(tmp_path, config))
        wait_for(lambda: ask_prometheus(url, 'up{job="llama_server"} == 1'), 60)
        figures = (tmp_path / "llama_server.prom").read_text()
        assert run(promtool, "check", "metrics", text_in=figures) == "", "no name or unit is against conventions"
        documents = [*queries(), (MONITORING / "alerts.yml").read_text(), PAGE.read_text()]
        asked = set(API_METRIC.findall("\n".join(documents)))
        assert {name for name in asked if not name.startswith("llamacpp:")} == set(API_METRIC.findall(figures))
        for name in asked:
            assert name in figures or ask_prometheus(url, name), name
        (cached,) = ask_prometheus(url, "llamacpp:prompt_tokens_cached_total")
        assert float(cached["value"][1]) > 0, "the second prompt was the first one"


def test_a_gateway_has_all_that_rules_dashboard_and_page_ask_for(promtool: str, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "door")
    group = StandIn("a", token_s=0.1)
    # pytest's own folders are too deep for a socket's path.
    with tempfile.TemporaryDirectory(prefix="gateway-") as folder, StandIns([group]) as stand_ins:
        place = {"address": "127.0.0.1", "port": group.port, "ready_port": group.port}
        told = {"name": group.name, "model": group.model, "slots": group.slots, **place}
        options = {"llama_gateway_tls_certificate": certificate, "llama_gateway_tls_key": key}
        with running_gateway(Path(folder), [told], **options) as gateway:
            door = f"https://127.0.0.1:{gateway.port}"
            body = {"prompt": "x", "max_tokens": 100, "stream": True}
            with asked_with_key(f"{door}/v1/completions", json.dumps(body).encode()) as answer:
                answer.readline()
                stand_ins.run(group.kill())
                with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                    answer.read()
            figures, end = (asked_with_key(f"{door}/metrics{page}").read().decode() for page in ("", "/certificate"))
    documents = [*queries(), (MONITORING / "alerts.yml").read_text(), PAGE.read_text()]
    asked = set(GATEWAY_METRIC.findall("\n".join(documents)))
    assert not asked - set(re.findall(r"^[a-z_]+", figures + end, re.MULTILINE))
    assert 'haproxy_server_server_aborts_total{proxy="model1",server="a"} 1' in figures
    assert 'haproxy_server_limit_sessions{proxy="model1",server="a"} 2' in figures
    assert run(promtool, "check", "metrics", text_in=end) == ""
    days = (float(end.split()[-1]) - time.time()) / 86400
    assert 29.9 < days < 30


def asked_with_key(url: str, body: bytes | None = None) -> Any:
    """Send a request to a gateway whose certificate nobody has signed; return the answer."""
    asked = urllib.request.Request(url, body, {"Authorization": f"Bearer {CLIENT_KEY}"})
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    return urllib.request.urlopen(asked, timeout=30, context=trusting)
