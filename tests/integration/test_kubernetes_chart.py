# SPDX-License-Identifier: GPL-3.0-or-later
"""The Helm chart, rendered by Helm itself, gives what role kubernetes writes with the same variables."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import helm_python
import pytest
import yaml

from support.harness import ROOT
from support.kubernetes import GATEWAY, GIVEN, given, play, rendered

if TYPE_CHECKING:
    from pathlib import Path

CHART = ROOT / "charts/llama-cluster"
# Texts as a file may hold them: one with an empty line at the end, and one without a line break.
TLS = {
    "llama_gateway_tls_certificate": "-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n\n",
    "llama_gateway_tls_key": "-----BEGIN EC PRIVATE KEY-----\nYg==\n-----END EC PRIVATE KEY-----",
}
# Every value differs from its default.
ALL: dict[str, Any] = {
    **GATEWAY,
    "kubernetes_replicas": 3,
    "kubernetes_size": 16,
    "kubernetes_max_unavailable": 0,
    "kubernetes_max_surge": 2,
    "kubernetes_worker_memory": "1536Mi",
    "kubernetes_leader_cpu": 3,
    "kubernetes_leader_memory": "1Ti",
    "kubernetes_node_selector": {"example.com/class": "v4", "example.com/<&>": "x"},
    "kubernetes_cache_volume": {"hostPath": {"path": "/var/cache/llama_rpc", "type": "Directory"}},
    "llama_server_model_path": "/models/deep/Model-8B.Q4_0-00001-of-00003.gguf",
    "llama_server_port": 9000,
    "llama_server_api_keys": ["key-of-this-test-alone", "second/key+of~this.test=="],
    "llama_server_parallel": 9,
    "llama_server_ctx_size": 1000,
    "llama_server_ubatch_size": 1024,
    "llama_server_threads": 2,
    "llama_server_tensor_split": [3, 1.5, 0.125, *[1] * 12],
    "llama_server_cache_ram": 0,
    "llama_server_cache_reuse": 32,
    "llama_server_chat_template_file": "/models/deep/chat.jinja",
    "llama_server_lora": ["/models/deep/one.gguf", "/models/deep/two.gguf"],
    "llama_server_embeddings": True,
    "llama_server_spec_type": "none",
    "llama_server_draft_model": "/models/deep/small.gguf",
    "llama_server_spec_draft_n_max": 7,
    "llama_server_extra_args": ["--chat-template-kwargs", '{"a": "<&>"}', "--cache-type-k", "q8_0", "--mlock"],
    "llama_server_reasoning": "off",
    "llama_server_stall_timeout": 61,
    "llama_server_drain_timeout": 0,
    "llama_gateway_api_keys": [
        {"name": "first", "key": "key-of-the-first-client", "expires": "2027-01-31"},
        {"name": "second", "key": "key-of-the-second-client", "requests": 2},
        {"name": "third", "key": "key-of-the-third-client", "expires": "2030-12-01", "requests": 1},
    ],
    "llama_gateway_requests_per_key": 3,
    "llama_gateway_queue_length": 0,
    "llama_gateway_queue_timeout": 5,
    "llama_gateway_request_kib": 16,
    "llama_gateway_answer_timeout": 60,
    "llama_gateway_allowed_origins": ["https://chat.example.com", "http://127.0.0.1:3000"],
    "llama_gateway_conversation_header": "X-Chat",
    **TLS,
}
CHOICES: dict[str, dict[str, Any]] = {
    "least": {},
    "one-by-one": {"llama_server_api_keys": [], "llama_server_alias": "eight/b:1", "llama_server_threads": 1,
                   "kubernetes_monitoring_peers": [{"podSelector": {}}]},
    "gateway": GATEWAY,
    "key-of-the-gateway": {**GATEWAY, "llama_server_api_keys": None},
    "keys-of-ones-own": {**GATEWAY, "llama_server_api_keys": []},
    "draft": {"llama_server_draft_model": "/models/small.gguf"},
    "long-draft": {"llama_server_draft_model": "/models/small.gguf", "llama_server_spec_draft_n_max": 8,
                   "llama_server_spec_type": "draft-simple"},
    "layers-draft": {"llama_server_spec_type": "draft-mtp"},
    "layers-of-a-file": {"llama_server_spec_type": "draft-mtp", "llama_server_draft_model": "/models/layers.gguf"},
    "repeated": {"llama_server_spec_type": "ngram-simple", "llama_server_spec_draft_n_max": 8},
    "repeated-more": {"llama_server_spec_type": "ngram-mod", "llama_server_extra_args": ["--mlock"]},
    "tls": {**GATEWAY, **TLS},
    "tls-secret": {**GATEWAY, "kubernetes_gateway_tls_secret": "api.example.com-tls"},
    "all": ALL,
}  # fmt: skip


def files_of(values: dict[str, Any], name: str = "llama", namespace: str = "default") -> dict[str, str]:
    """Return the files that Helm renders from the chart, by their names."""
    with helm_python.Chart.load(CHART) as chart:
        return {
            path.removeprefix("llama-cluster/templates/"): text
            for path, text in chart.render(given(values), name=name, namespace=namespace).items()
        }


def by_helm(values: dict[str, Any], name: str = "llama", namespace: str = "default") -> list[dict[str, Any]]:
    """Return the manifests of the chart."""
    files = files_of(values, name, namespace)
    assert files.pop("NOTES.txt")
    return [it for text in files.values() for it in yaml.safe_load_all(text) if it]


def in_order(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"{it['kind']} {it['metadata']['name']}": it for it in sorted(manifests, key=str)}


# "all" has most of the branches, and the next test compares the chart's templates with the role.
@pytest.mark.parametrize(
    "choice", [pytest.param(name, marks=() if name == "all" else pytest.mark.long) for name in CHOICES]
)
def test_the_chart_has_the_manifests_of_the_role(tmp_path: Path, choice: str) -> None:
    variables = CHOICES[choice]
    ours = in_order(rendered(tmp_path, {**variables, "kubernetes_name": "big", "kubernetes_namespace": "prod"}))
    found = in_order(by_helm(variables, name="big", namespace="prod"))
    assert found.keys() == ours.keys()
    for name, manifest in ours.items():
        assert found[name] == manifest, name


def test_the_notes_say_where_the_api_is() -> None:
    assert "service/llama-api 8080:80\n" in files_of({})["NOTES.txt"]
    for choice in ("tls", "tls-secret"):
        notes = files_of(CHOICES[choice])["NOTES.txt"]
        assert "service/llama-api 8443:443\n" in notes
        assert "http://" not in notes


@pytest.mark.long
def test_the_chart_is_written_from_the_role_as_it_is() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/chart.py", "--check"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}Run .venv/bin/python scripts/chart.py"


def test_a_variable_of_the_roles_is_a_value_or_the_page_says_what_is_instead() -> None:
    values = json.loads((CHART / "values.schema.json").read_text())["properties"].keys()
    page = (ROOT / "docs/how-to/kubernetes.md").read_text()
    _before, _heading, table = page.partition("| variables | instead |\n")
    named = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.partition("\n\n")[0].splitlines())))
    variables: set[str] = set()
    for role in ("kubernetes", "llama_server", "llama_gateway"):
        text = (ROOT / f"roles/{role}/meta/argument_specs.yml").read_text()
        variables |= yaml.safe_load(text)["argument_specs"]["main"]["options"].keys()
    assert named == variables - values


def test_helm_finds_nothing_to_say_of_it(capfd: pytest.CaptureFixture[str]) -> None:
    report = helm_python.lint(CHART, GIVEN, strict=True)
    assert report["errors"] == []
    assert [it["error"] for it in report["messages"]] == ["icon is recommended"]
    capfd.readouterr()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "seventeen": ({"kubernetes_size": 17}, "'/kubernetes_size': maximum: got 17, want 16"),
    "a-tag": ({"kubernetes_image": "llama:1"}, "'/kubernetes_image': 'llama:1' does not match pattern"),
    "no-volume": ({"kubernetes_model_volume": {}}, "'/kubernetes_model_volume': minProperties: got 0, want 1"),
    "no-change": ({"kubernetes_max_unavailable": 0}, "'/kubernetes_max_surge': minimum: got 0, want 1"),
    "unit": ({"kubernetes_worker_memory": "24G"}, "'/kubernetes_worker_memory': '24G' does not match"),
    "no-client": (
        {**GATEWAY, "llama_gateway_api_keys": []},
        "'/llama_gateway_api_keys': minItems: got 0, want 1",
    ),
    "no-path": ({"llama_server_lora": ["a"]}, "'/llama_server_lora/0': 'a' does not match pattern"),
    "nothing-to-draft": (
        {"llama_server_embeddings": True, "llama_server_draft_model": "/models/small.gguf"},
        "'/llama_server_draft_model': maxLength: got 18, want 0",
    ),
    "nothing-to-repeat": (
        {"llama_server_embeddings": True, "llama_server_spec_type": "ngram-mod"},
        "'/llama_server_spec_type': value must be one of 'auto', 'none'",
    ),
    "no-draft-model": (
        {"llama_server_spec_type": "draft-simple"},
        "'/llama_server_draft_model': minLength: got 0, want 1",
    ),
    "two-drafts": (
        {"llama_server_spec_type": "ngram-mod", "llama_server_draft_model": "/models/small.gguf"},
        "'/llama_server_spec_type': value must be one of 'auto', 'none', 'draft-simple', 'draft-mtp'",
    ),
    "no-share": ({"llama_server_tensor_split": [1, -1]}, "'/llama_server_tensor_split/1': minimum: got -1, want 0"),
    "a-number": ({"llama_server_extra_args": ["-b", 64]}, "'/llama_server_extra_args/1': got number, want string"),
    "a-file": (
        {
            **GATEWAY,
            "llama_gateway_tls_certificate": "/etc/tls.crt",
            "llama_gateway_tls_key": TLS["llama_gateway_tls_key"],
        },
        "'/llama_gateway_tls_certificate': '/etc/tls.crt' does not match pattern",
    ),
    "no-tls-key": ({**GATEWAY, **TLS, "llama_gateway_tls_key": ""}, "'/llama_gateway_tls_key': minLength: got 0"),
    "tls-key-alone": (
        {**GATEWAY, **TLS, "llama_gateway_tls_certificate": ""},
        "'/llama_gateway_tls_key': maxLength: got",
    ),
    "tls-without-gateway": (TLS, "'/llama_gateway_tls_certificate': maxLength: got"),
    "secret-without-gateway": (
        {"kubernetes_gateway_tls_secret": "tls"},
        "'/kubernetes_gateway_tls_secret': maxLength: got 3, want 0",
    ),
    "no-secret": (
        {**GATEWAY, "kubernetes_gateway_tls_secret": "TLS"},
        "'/kubernetes_gateway_tls_secret': 'TLS' does not match pattern",
    ),
    "two-certificates": (
        {**GATEWAY, **TLS, "kubernetes_gateway_tls_secret": "tls"},
        "'/kubernetes_gateway_tls_secret': maxLength: got 3, want 0",
    ),
    "no-origin": (
        {"llama_gateway_allowed_origins": ["https://chat.example.com/"]},
        "'/llama_gateway_allowed_origins/0': 'https://chat.example.com/' does not match",
    ),
    "of-hosts": ({"llama_server_ui": True}, "additional properties 'llama_server_ui' not allowed"),
}
# Values that no schema can refuse, and the message for each.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "own-option": (
        {"llama_server_extra_args": ["--mlock", "--ctx_size=9"]},
        "llama_server_extra_args holds --ctx-size, which",
    ),
    "closed-option": ({"llama_server_extra_args": ["-hf", "a/b"]}, "llama_server_extra_args holds -hf"),
    "option-that-logs": (
        {"llama_server_extra_args": ["--mlock", "--log_verbosity", "5"]},
        "llama_server_extra_args holds --log-verbosity, which could write prompts and answers to a log: take it out.",
    ),
    "new-option": (
        {"llama_server_extra_args": ["--temp", "-1", "--log-all"]},
        "llama_server_extra_args holds --log-all, which the llama.cpp version that this collection pins does not have",
    ),
    "option-in-one-word": (
        {"llama_server_extra_args": ["--top-k=20"]},
        "llama_server_extra_args holds --top-k, which is one word with its value, and llama.cpp takes two",
    ),
    "elsewhere": (
        {"llama_server_lora": ["/other/one.gguf"]},
        "/other/one.gguf is not below /models, and leaders see no other folder of the volume: put it beside the model.",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_refused_by_its_name(name: str) -> None:
    values, said = BAD[name]
    with pytest.raises(helm_python.HelmValuesError) as refused:
        by_helm(values)
    assert said in str(refused.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_role_refuses_the_chart_does_too(tmp_path: Path, name: str) -> None:
    values, said = REFUSED[name]
    with pytest.raises(helm_python.HelmRenderError) as refused:
        by_helm(values)
    assert said in str(refused.value)
    done = play(tmp_path, {"kubernetes_state": "rendered", "kubernetes_folder": "manifests", **values})
    assert done.returncode != 0
    assert said in " ".join(done.stdout.split())


def test_what_has_to_be_given_is_named() -> None:
    with helm_python.Chart.load(CHART) as chart, pytest.raises(helm_python.HelmValuesError) as refused:
        chart.render({}, name="llama", namespace="default")
    assert "missing properties 'kubernetes_image', 'kubernetes_worker_cpu'" in str(refused.value)


def test_a_release_whose_pods_could_not_be_named_is_refused() -> None:
    with pytest.raises(helm_python.HelmRenderError, match="The release is called 70b, which is no DNS label"):
        by_helm({}, name="70b")
