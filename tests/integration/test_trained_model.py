# SPDX-License-Identifier: GPL-3.0-or-later
"""A trained model over workers says what local inference does, finds a text as likely, and profits if a text repeats.

A model of random weights has no text of its own: it repeats nothing, and its perplexity is the number of its tokens.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.inference import generated_text

from support.api_service import NO_PAGE, Service, running_service, speculation
from support.harness import CACHE, HANG_S, ROOT, Release, Worker, completed, over, run_module
from support.runs import failure

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.llama

PROMPT = "The capital of France is"
TOKENS = 24
LICENSE = ROOT / "LICENSE"
# Several chunks of a text, of which llama-perplexity counts the second halves.
CHUNK, CHUNKS = 256, 2
TENSOR = ("-sm", "tensor")


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model of random weights as floats that three workers can divide in split mode tensor.

    That mode computes sums in another order. With quantised weights, activations are rounded to eight bits, which makes
    more of that: the perplexity of the same model in Q8_0 differs by 0.03 to 0.05 %, as much as local inference's with
    another physical batch or without flash attention.
    """
    path = tmp_path_factory.mktemp("floats") / "floats.gguf"
    script = ROOT / "playbooks/files/random_model.py"
    subprocess.run([sys.executable, script, "--floats", path], check=True, timeout=120)
    return path


def output(release: Release, program: str, model: Path, *options: str | Path) -> tuple[str, str]:
    """Return what a program of the release writes to standard output and to standard error."""
    done = completed(release.bin / program, "-m", model, "-t", "2", "-fit", "off", *options, GGML_NO_BACKTRACE="1")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr


def said_here(release: Release, model: Path) -> str:
    """Return the model's text without workers."""
    options = ("-p", PROMPT, "-n", str(TOKENS), "--temp", "0", "-no-cnv", "--no-display-prompt")
    return generated_text(output(release, "llama-completion", model, *options)[0])


def inferred(release: Release, model: Path, workers: list[Worker], *extra_args: str) -> dict[str, Any]:
    given = {"bin_folder": str(release.bin), "model": str(model), "prompt": PROMPT, "n_predict": TOKENS}
    endpoints = [worker.endpoint for worker in workers]
    return run_module("distributed_inference", {**given, "workers": endpoints, "extra_args": extra_args})


def test_two_and_three_workers_say_what_local_inference_says(
    release: Release, trained_model: Path, workers: list[Worker]
) -> None:
    here = said_here(release, trained_model)
    assert "France" in here
    for many in 2, 3:
        result = inferred(release, trained_model, workers[:many])
        assert result["failure"] is None, result["msg"]
        assert result["text"] == here


@pytest.mark.parametrize(("ci", "status"), [("", 0), ("true", 1)], ids=["here", "in-ci"])
def test_without_the_model_its_tests_say_so_and_fail_only_in_ci(tmp_path: Path, ci: str, status: int) -> None:
    (tmp_path / "test_releases").symlink_to(CACHE / "test_releases")
    own = {"LLAMA_CPP_CLUSTER_CACHE": str(tmp_path), "CI": ci, "FAILED_TESTS": ""}
    own |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    test = f"{__file__}::{test_split_mode_tensor_of_a_model_that_it_cannot_divide_is_refused.__name__}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", test],
        env={**{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}, **own},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "1 skipped" in done.stdout
    assert "there is no trained model to test with: pip could not fetch the model's packages: " in done.stdout


def test_split_mode_tensor_of_a_model_that_it_cannot_divide_is_refused(
    release: Release, trained_model: Path, workers: list[Worker]
) -> None:
    for many in 2, 3:
        result = inferred(release, trained_model, workers[:many], *TENSOR)
        assert failure(result) == ("split_mode_unsupported", None)
        assert result["msg"] == (
            f"llama.cpp cannot divide this model among {many} workers in split mode tensor (ggml-backend-meta.cpp:547: "
            "GGML_ASSERT(src_ss[0].axis != GGML_BACKEND_SPLIT_AXIS_0) failed); use layer."
        )
    assert all(worker.alive for worker in workers)


def test_split_mode_tensor_says_what_local_inference_says(
    release: Release, floats: Path, workers: list[Worker]
) -> None:
    here = said_here(release, floats)
    assert len(here.split()) == TOKENS
    for many in 2, 3:
        result = inferred(release, floats, workers[:many], *TENSOR)
        assert result["failure"] is None, result["msg"]
        assert result["text"] == here


def perplexity(release: Release, model: Path, *options: str) -> float:
    shape = ("-f", LICENSE, "-c", str(CHUNK), "-b", str(CHUNK), "--chunks", str(CHUNKS))
    said = "".join(output(release, "llama-perplexity", model, *shape, *options))
    found = re.search(r"Final estimate: PPL = (\d+\.\d+)", said)
    assert found, said[-2000:]
    return float(found[1])


@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_a_text_is_as_likely_over_workers_as_here(
    release: Release, workers: list[Worker], request: pytest.FixtureRequest, mode: str
) -> None:
    model = request.getfixturevalue("trained_model" if mode == "layer" else "floats")
    here = perplexity(release, model)
    for many in 2, 3:
        there = perplexity(release, model, *over([worker.port for worker in workers[:many]]), "-sm", mode)
        assert f"{there:.4g}" == f"{here:.4g}"


# A section of the licence in one line, and its beginning, after which a trained model that has read it quotes the rest.
SECTION = " ".join(LICENSE.read_text().partition("  5. Conveying Modified")[0].partition("  4. Conveying")[2].split())
BEGINNING = SECTION.partition(" copies of the Program")[0]
# Where the section stands four times, no other token is nearly as likely as its next one. The text is about as long as
# the model's sliding window. In a shorter one, llama-server returns to a checkpoint before the end of the last prompt.
QUOTING = f"{SECTION}\n" * 4 + BEGINNING
ANSWER_TOKENS = 80
OPTIONS = (*NO_PAGE, "--ctx-size", "2048")


def answered(service: Service, prompt: str, tokens: int = ANSWER_TOKENS, **more: object) -> tuple[str, dict[str, Any]]:
    """Return the continuation of a prompt, and its timings."""
    asked = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **more}
    status, body = service.request("/completion", asked)
    assert status == 200, body
    return body["content"], body["timings"]


def test_a_text_that_repeats_is_drafted_and_its_prompt_cached(
    release: Release, trained_model: Path, workers: list[Worker], tmp_path: Path
) -> None:
    endpoints = [worker.endpoint for worker in workers[:2]]
    with running_service(release, trained_model, endpoints, tmp_path, options=OPTIONS) as service:
        service.wait_for("Serving")
        plain, first = answered(service, QUOTING)
        follow = f"{QUOTING}{plain}\n{BEGINNING}"
        cached, again = answered(service, follow, 8)
        assert (cached, 0) == (answered(service, follow, 8, cache_prompt=False)[0], first["cache_n"])
    assert SECTION.startswith(BEGINNING + plain)
    assert plain.startswith(cached)
    assert "draft_n" not in first
    # Only the end of the answer may be cut into other tokens, and the last token is always computed.
    assert again["cache_n"] > first["prompt_n"] + ANSWER_TOKENS - 5 > 20 * again["prompt_n"]
    for kind in "ngram-simple", "ngram-mod":
        folder = tmp_path / kind
        folder.mkdir()
        options = (*OPTIONS, *speculation(llama_server_spec_type=kind, llama_server_spec_draft_n_max=8))
        with running_service(release, trained_model, endpoints, folder, options=options) as service:
            service.wait_for("Serving")
            said, times = answered(service, QUOTING)
        assert said == plain
        # Of 262 thousand tokens, none is guessed by chance.
        assert ANSWER_TOKENS / 2 < times["draft_n_accepted"] <= times["draft_n"]
