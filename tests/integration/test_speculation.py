# SPDX-License-Identifier: GPL-3.0-or-later
"""Speculative decoding over real workers: the same answers, and role llama_server's messages before the start."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.vocabulary import draft_problem

from random_model import vocabulary
from support import synthetic_models
from support.api_service import VARIABLES, Service, running_service, speculation
from support.harness import Release, Worker, free_port, run_module
from support.synthetic_models import write_synthetic
from support.tree import COLLECTION, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.llama

TYPES = VARIABLES["__llama_server_spec_types"]
TOKENS = 160
# A text that repeats itself, with choices in it, like an answer about a text. Random weights would repeat nothing.
GRAMMAR = 'root ::= ((" the silver harbour" | " the quiet river") " of the golden tower and" (" wind" | " rain"))+'


def continued(service: Service, grammar: str = "") -> tuple[list[int], dict[str, Any]]:
    """Return the tokens that follow a prompt, and the timings, which count the drafted tokens."""
    asked = {"prompt": "the quiet river", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    status, body = service.request("/completion", {**asked, "return_tokens": True, "grammar": grammar})
    assert status == 200, body
    return body["tokens"], body["timings"]


@pytest.fixture(scope="module")
def plain(
    release: Release, model: Path, workers: list[Worker], tmp_path_factory: pytest.TempPathFactory
) -> list[list[int]]:
    """Return the model's tokens without speculation: for free text, and for text that repeats itself."""
    folder = tmp_path_factory.mktemp("plain")
    with running_service(release, model, [worker.endpoint for worker in workers[:2]], folder) as service:
        service.wait_for("Serving")
        said = [continued(service), continued(service, GRAMMAR)]
    assert all(len(tokens) == TOKENS and "draft_n" not in times for tokens, times in said)
    return [tokens for tokens, _times in said]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in ("draft-simple", "ngram-mod") else pytest.mark.long)
        for kind in TYPES
        if kind != "draft-mtp"
    ],
)
def test_the_answer_is_the_same_with_speculation(
    release: Release, model: Path, workers: list[Worker], tmp_path: Path, plain: list[list[int]], kind: str
) -> None:
    given = {"llama_server_draft_model": str(model)} if kind == "draft-simple" else {"llama_server_spec_type": kind}
    options = speculation(**given, llama_server_spec_draft_n_max=6)
    endpoints = [worker.endpoint for worker in workers[:2]]
    with running_service(release, model, endpoints, tmp_path, options=options) as service:
        service.wait_for("Serving")
        (free, times), (repeated, times_repeated) = continued(service), continued(service, GRAMMAR)
    assert [free, repeated] == plain
    print(kind, times, times_repeated)
    assert sum(found.get("draft_n_accepted", 0) for found in (times, times_repeated)) > 0, "nothing was drafted"
    if kind == "draft-simple":
        assert times["draft_n_accepted"] > 0.9 * times["draft_n"] > 0, "it drafts what it would say itself"
        said = "".join(service.lines)
        assert not re.search(r"RPC\S* (model|KV|compute) buffer", said.partition("loading draft model")[2])


original = synthetic_models.add_tokenizer


@pytest.mark.parametrize("place", ["of the model", "in a file of their own"])
def test_layers_that_predict_further_tokens_are_used_where_the_workers_have_them(
    release: Release, workers: list[Worker], tmp_path: Path, place: str
) -> None:
    drafting: dict[str, object] = {"llama_server_spec_type": "draft-mtp"}
    if place == "of the model":
        path = has_them = write_synthetic(tmp_path / "m.gguf", "a layer that predicts", layers=5)
    else:
        path = write_synthetic(tmp_path / "m.gguf", "window, other heads")
        has_them = write_synthetic(tmp_path / "d.gguf", "layers that predict for other heads", layers=2)
        drafting["llama_server_draft_model"] = str(has_them)
        assert draft_problem(path, has_them) == ""
    assert run_module("gguf_info", {"path": str(has_them)})["shape"]["predict_layers"] > 0
    endpoints, said = [worker.endpoint for worker in workers[:2]], []
    for number, given in enumerate(({}, drafting)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with running_service(release, path, endpoints, folder, options=speculation(**given)) as service:
            service.wait_for("Serving")
            said.append(continued(service))
    assert said[0][0] == said[1][0]
    # The model's weights are zeros, so each token is equally likely, and a draft is accepted by chance alone.
    assert said[1][1]["draft_n"] > 0


def other_vocabulary(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    tokens, scores, types = vocabulary()
    if change == "text":
        tokens = [*tokens[:300], b"another", *tokens[301:]]
    elif change == "size":
        more = 200
        tokens = tokens + [b"word %d" % index for index in range(more)]
        scores, types = scores + [0.0] * more, types + [1] * more
    if change == "beginning":
        monkeypatch.setattr(
            synthetic_models,
            "add_tokenizer",
            lambda writer, *given: (original(writer, *given), writer.add_add_bos_token(False)),
        )
    monkeypatch.setattr(synthetic_models, "vocabulary", lambda: (tokens, scores, types))


@pytest.mark.parametrize("change", ["none", "text", "size", "beginning"])
def test_llama_server_takes_the_draft_models_that_the_role_takes(
    release: Release,
    workers: list[Worker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    one = write_synthetic(tmp_path / "m.gguf", "dense")
    other_vocabulary(monkeypatch, change)
    two = write_synthetic(tmp_path / "d.gguf", "grouped queries")
    options = speculation(llama_server_draft_model=str(two))
    with running_service(release, one, [workers[0].endpoint], tmp_path, options=options) as service:
        service.wait_for("Serving")
        said = "".join(service.lines)
    problem = draft_problem(one, two)
    assert ("the target and draft vocabs are not compatible" in said) == bool(problem) == (change != "none"), said
    result = run_module("gguf_info", {"path": str(one), "draft_model": str(two)})
    assert (result["valid"], result["draft_problem"]) == (True, problem)


def test_a_file_without_a_key_is_told_and_nobody_is_let_in(
    release: Release, model: Path, workers: list[Worker], tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("# nothing yet\n\n")
    with running_service(release, model, [workers[0].endpoint], tmp_path) as service:
        assert service.process.wait(60) == 2
    said = "has no key, and without one the API would answer everybody: write a key into it, one per line."
    assert service.lines == [f"{tmp_path}/keys {said}\n"]
    (tmp_path / "keys").unlink()
    (tmp_path / "keys").mkdir()
    with running_service(release, model, [workers[0].endpoint], tmp_path) as service:
        assert service.process.wait(60) == 2
    assert service.lines == [
        f"The keys in {tmp_path}/keys cannot be read (Is a directory): run the playbook serve, which writes them.\n"
    ]


TWO = ["192.0.2.1:50052", "192.0.2.2:50052"]
# The role's check of the host, with the messages of all cases collected in one play.
PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.include_tasks: case.yml
      loop: "{{ cases | dict2items }}"
      loop_control: {loop_var: case}
"""
CASE = """
- block:
    - ansible.builtin.include_role: {name: ROLE, tasks_from: "{{ case.value.step | default('inspect') }}"}
      vars:
        gguf_model_path: "{{ case.value.model }}"
        llama_server_draft_model: "{{ case.value.draft | default('') }}"
        llama_server_spec_type: "{{ case.value.type | default('auto') }}"
        llama_server_mmproj: "{{ case.value.mmproj | default('') }}"
        llama_server_extra_args: "{{ case.value.words | default([]) }}"
        inference_endpoints: "{{ case.value.workers | default(['192.0.2.1:50052']) }}"
  rescue:
    - ansible.builtin.debug: {msg: "<{{ case.key }}> {{ ansible_failed_result.msg }} </{{ case.key }}>"}
"""


@pytest.fixture(scope="module")
def said(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the role's message for each case, without a master that it could change."""
    folder = tmp_path_factory.mktemp("role")
    with pytest.MonkeyPatch.context() as patch:
        other_vocabulary(patch, "text")
        other = write_synthetic(folder / "other.gguf", "dense")
    sharing = write_synthetic(folder / "sharing.gguf", "window, other heads, layers that share")
    head = write_synthetic(folder / "head.gguf", "layers that predict for other heads", layers=2)
    states = write_synthetic(folder / "states.gguf", "hybrid, every fourth")
    (folder / "broken.gguf").write_bytes(b"GGUF")
    cases: dict[str, dict[str, Any]] = {
        "none": {"model": f"{folder}/none.gguf"},
        "broken": {"model": f"{folder}/broken.gguf"},
        "vocabulary": {"model": str(model), "draft": str(other)},
        "adapter": {"model": str(model), "words": ["--lora", f"{model},{folder}/none.gguf"]},
        "projector": {"model": str(model), "mmproj": str(model)},
        "mtp": {"model": str(model), "type": "draft-mtp"},
        "mtp-sharing": {"model": str(sharing), "draft": str(head), "type": "draft-mtp", "workers": TWO},
        "tensor": {"model": str(states), "words": ["--split-mode", "tensor"], "workers": TWO},
        "no-model": {"step": "validate", "model": "/srv/m.gguf", "type": "draft-simple"},
        "n-gram": {"step": "validate", "model": "/srv/m.gguf", "draft": "/srv/d.gguf", "type": "ngram-mod"},
        "embeddings": {"step": "validate", "model": "/srv/m.gguf", "type": "ngram-mod", "words": ["--embeddings"]},
        "home": {"step": "validate", "model": "/srv/m.gguf", "draft": "/run/user/1000/d.gguf"},
    }
    variables = {
        "cases": cases,
        "ansible_python_interpreter": sys.executable,
        "llama_cpp_prefix": f"{folder}/llama_cpp",
        "llama_server_port": free_port(),
    }
    (folder / "variables.yml").write_text(yaml.safe_dump(variables))
    (folder / "case.yml").write_text(CASE.replace("ROLE", f"{COLLECTION}.llama_server"))
    (folder / "play.yml").write_text(PLAY)
    done = run("ansible-playbook", "-i", "localhost,", "-c", "local", "-e", "@variables.yml", "play.yml", cwd=folder)
    text = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stdout + done.stderr
    return {**{case: found(text, case) for case in cases}, "model": str(model), "folder": str(folder)}


def found(text: str, case: str) -> str:
    match = re.search(rf"<{case}> (.*?) </{case}>", text)
    assert match, f"nothing is said of {case}: {text[-3000:]}"
    return match[1].replace("''", "'")


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("none", "localhost has no file {folder}/none.gguf: bring the model there with the playbook site, or set"),
        ("broken", "{folder}/broken.gguf is not a complete GGUF model: its header is damaged or cut off."),
        ("vocabulary", "{folder}/other.gguf cannot draft tokens for {model}: token 300 is"),
        ("adapter", "localhost has no file {folder}/none.gguf, which llama_server_extra_args names"),
        ("projector", "{model} is no projector of llama.cpp: its architecture is llama and not clip. Take the file of"),
        ("mtp", "llama_server_spec_type is draft-mtp, and {model} has no layers that predict further tokens: take"),
        (
            "mtp-sharing",
            "The last layers of {folder}/sharing.gguf use the caches of earlier ones, and {folder}/head.gguf",
        ),
        ("tensor", "llama_server_extra_args has --split-mode tensor, in which llama.cpp of localhost cannot divide a"),
        ("no-model", "llama_server_spec_type is draft-simple, which needs a draft model: give its GGUF file in"),
        ("n-gram", "llama_server_spec_type is ngram-mod, which takes no draft model, and llama_server_draft_model is"),
        (
            "home",
            "llama_server_draft_model is /run/user/1000/d.gguf, and the confined service cannot read home",
        ),
        (
            "embeddings",
            "--embeddings of llama_server_extra_args serves no text, so there is nothing to draft: leave out",
        ),
    ],
)
def test_what_cannot_be_is_said_before_the_start(said: dict[str, str], case: str, sentence: str) -> None:
    assert sentence.format(**said) in said[case]
