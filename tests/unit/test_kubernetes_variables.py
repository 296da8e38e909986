# SPDX-License-Identifier: GPL-3.0-or-later
"""The messages of role kubernetes for variables that Kubernetes, LeaderWorkerSet or llama.cpp would not accept."""

from __future__ import annotations

from typing import Any

import pytest

from support.kubernetes import GIVEN, IMAGE
from support.templates import loaded, worked_out
from support.tree import ROOT

ROLE = ROOT / "roles/kubernetes"
DEFAULTS = loaded(ROLE / "defaults/main.yml")
VARIABLES = loaded(ROLE / "vars/main.yml")
RULES = loaded(ROLE / "tasks/validate.yml")[0]["vars"]

# The variables, the beginning of the one sentence, and its proposal.
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no-image": ({"kubernetes_image": ""}, "kubernetes_image is not set", "with its digest"),
    "a-tag": (
        {"kubernetes_image": "registry.example.com/llama:1.2"},
        "kubernetes_image is registry",
        "with its digest",
    ),
    "gateway-tag": ({"kubernetes_gateway_image": "haproxy:3.0"}, "kubernetes_gateway_image is haproxy:3.0", "digest"),
    "capitals": ({"kubernetes_name": "Llama"}, "kubernetes_name is Llama, which is no DNS label", "small letters"),
    "digit-first": ({"kubernetes_name": "70b"}, "kubernetes_name is 70b", "a letter first"),
    "long-name": ({"kubernetes_name": "l" * 41}, "kubernetes_name is lll", "up to 40"),
    "namespace": (
        {"kubernetes_namespace": "a.b"},
        "kubernetes_namespace is a.b, which is no DNS label",
        "small letters",
    ),
    "alone": ({"kubernetes_size": 1}, "kubernetes_size is 1", "give 2 to 16 pods"),
    "seventeen": ({"kubernetes_size": 17}, "kubernetes_size is 17", "give each worker more memory"),
    "no-group": ({"kubernetes_replicas": 0}, "kubernetes_replicas is 0", "at least 1"),
    "no-cpu": ({"kubernetes_worker_cpu": 0}, "kubernetes_worker_cpu is 0", "whole processors"),
    "memory-unit": ({"kubernetes_worker_memory": "24G"}, "kubernetes_worker_memory is 24G", "such as 24Gi"),
    "leader-memory": ({"kubernetes_leader_memory": "4.5Gi"}, "kubernetes_leader_memory is 4.5Gi", "such as 4Gi"),
    "no-volume": ({"kubernetes_model_volume": {}}, "kubernetes_model_volume is not set", "persistentVolumeClaim"),
    "no-folder": ({"kubernetes_state": "rendered"}, "kubernetes_folder is not set", "give the folder"),
    "adapter-elsewhere": (
        {
            "gguf_model_path": "/models/m.gguf",
            "llama_server_extra_args": ["--lora", "/models/a.gguf,/adapters/b.gguf"],
        },
        "/adapters/b.gguf is not below /models",
        "put it beside the model",
    ),
    "draft-elsewhere": (
        {"gguf_model_path": "/models/m.gguf", "llama_server_draft_model": "/modelsmall/d.gguf"},
        "/modelsmall/d.gguf is not below /models",
        "put it beside the model",
    ),
    "projector": (
        {"llama_server_mmproj": "/models/mmproj.gguf"},
        "llama_server_mmproj is not for Kubernetes",
        "leave it out, or serve the model from hosts",
    ),
    "chat-page": (
        {"llama_server_ui": True},
        "llama_server_ui and llama_gateway_ui are not for Kubernetes",
        "leave them out",
    ),
}


def violations(given: dict[str, Any]) -> list[str]:
    return list(worked_out(RULES["__kubernetes_violations"], {**DEFAULTS, **VARIABLES, **RULES, **GIVEN, **given}))


@pytest.mark.parametrize(("given", "begins", "proposes"), BAD.values(), ids=BAD.keys())
def test_a_bad_value_gets_one_sentence_that_names_it_and_the_remedy(
    given: dict[str, Any], begins: str, proposes: str
) -> None:
    [sentence] = violations(given)
    assert sentence.startswith(begins)
    assert proposes in sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"kubernetes_size": 2},
        {"kubernetes_size": 16},
        {"kubernetes_gateway_image": IMAGE},
        {"kubernetes_name": "l" * 40},
        {"gguf_model_path": "/models/m.gguf", "llama_server_draft_model": "/models/small/d.gguf"},
    ],
)
def test_what_is_sound_is_taken(given: dict[str, Any]) -> None:
    assert violations(given) == []
