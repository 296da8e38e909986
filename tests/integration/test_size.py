# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook size: whether a model fits on hosts that do not exist yet, and how many hosts it takes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import SHAPES

from support.harness import RELEASE, ansible, run_module
from support.hub_stand_in import running_hub
from support.synthetic_models import write_synthetic
from support.tree import ROOT, load_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.llama, pytest.mark.usefixtures("release")]

MIB = 1 << 20
TOKEN = "hf_neverseenanywhere"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("model") / "model.gguf", "dense", layers=12)


def size(*options: str, prefix: object = RELEASE.prefix, **variables: object) -> subprocess.CompletedProcess[str]:
    """Run the playbook, without an inventory, with the release that is to be asked."""
    names = {name: name if name.startswith(("gguf_", "llama_")) else f"size_{name}" for name in variables}
    given = [word for name, value in variables.items() for word in ("-e", f"{names[name]}={value}")]
    given += ["-e", f"llama_cpp_prefix={prefix}"]
    return ansible(ROOT / "playbooks/size.yml", *options, *given)


def planned(model: Path, count: int, memory_mib: int) -> dict[str, Any]:
    """Return the planner's result for the same hosts."""
    workers = [{"endpoint": f"host{i + 1}", "memory_available_bytes": memory_mib * MIB} for i in range(count)]
    options = ["--ctx-size", str(4 * 4096), "--parallel", "4"]
    arguments = {"model": str(model), "workers": workers, "options": options, "bin_folder": str(RELEASE.bin)}
    return run_module("split_plan_info", arguments)


@pytest.fixture(scope="module")
def answer(model: Path) -> subprocess.CompletedProcess[str]:
    """Return the run for a model that is here."""
    return size(model=model, host_memory="360MiB", master_memory="2GiB")


def test_it_finds_the_fewest_hosts_and_says_what_each_gets(
    model: Path, answer: subprocess.CompletedProcess[str]
) -> None:
    done = answer
    assert done.returncode == 0, done.stdout + done.stderr
    assert [planned(model, count, 360)["fits"] for count in (2, 3)] == [False, True]
    assert "At least 3 hosts with 360MiB available are needed, and a master with 2GiB." in done.stdout
    assert "3 hosts with 360MiB available: It fits" in done.stdout
    assert "4 slots of 4096 tokens take 192.00 MiB on all hosts together (f16)" in done.stdout
    layers = [worker["layers"] for worker in planned(model, 3, 360)["workers"]]
    assert [int(count) for count in re.findall(r"host\d: (\d+) layers?, .* left$", done.stdout, re.M)] == layers
    assert "changed=0" in done.stdout


def test_hosts_that_are_too_few_are_an_answer_that_says_what_is_missing(model: Path) -> None:
    done = size(model=model, host_memory="360MiB", master_memory="2GiB", hosts=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 hosts with 360MiB available: It does not fit, host1 lacks" in done.stdout
    assert (
        "MiB: it fits with llama_server_ctx_size=3072, with llama_server_parallel=3, with size_cache_type=q8_0 "
        "or with size_hosts=3." in done.stdout
    )
    assert "At least 3 hosts with 360MiB" in done.stdout


def test_one_run_on_hosts_of_which_one_is_the_master(model: Path) -> None:
    done = size(
        model=model, host_memory="2G", hosts=2, master_is_worker="true", llama_server_parallel=0, cache_type="q8_0"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Context: 4096 tokens take 25.50 MiB" in done.stdout
    assert "At least 1 host with 2G available is needed, of which the first is also the master." in done.stdout


def test_a_master_that_is_too_small_is_named(model: Path) -> None:
    done = size(model=model, host_memory="1GiB", master_memory="200MiB")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No number of hosts alone is enough while the master has 200MiB available." in done.stdout


def test_without_a_release_it_estimates_and_says_so(model: Path, tmp_path: Path) -> None:
    done = size(model=model, host_memory="330MiB", master_memory="2GiB", hosts=2, prefix=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "It does not fit by an estimate, host1 lacks 26.0 MiB and host2 lacks 26.2 MiB: it fits with" in done.stdout
    why = f"without compute buffers, because {tmp_path}/current/libexec/llama-plan is missing."
    assert f"These figures are an estimate from the model's header, {why}" in done.stdout


# Models that are not here


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Return what the playbook printed, in one line."""
    assert TOKEN not in done.stdout + done.stderr
    return re.sub(r"\s+", " ", done.stdout + done.stderr)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that the playbook leaves no header in the folder for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield
    assert list(tmp_path.glob("*llama_cpp_size*")) == []


@pytest.mark.parametrize(("source", "ranges"), [("url", False), ("hub", True)], ids=["url-without-ranges", "hub"])
def test_the_header_of_a_model_elsewhere_gives_the_same_answer(
    model: Path, answer: subprocess.CompletedProcess[str], source: str, ranges: bool
) -> None:
    with running_hub({"model.gguf": model.read_bytes()}, ranges=ranges, token=TOKEN) as hub:
        where = {
            "url": {"model": hub.direct("model.gguf")},
            "hub": {"gguf_model_hf_repo": hub.repo, "gguf_model_hf_file": "model.gguf", "gguf_model_hf_token": TOKEN},
        }[source]
        # A run with --check does the same.
        done = size("--check", **where, gguf_model_hf_endpoint=hub.endpoint, host_memory="360MiB", master_memory="2GiB")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=0" in done.stdout
    lines = re.findall(r"^ +((?:synthetic|Context|\d hosts|host\d|master|At least).*)$", done.stdout, re.M)
    assert len(lines) == 8
    assert [line for line in lines if line not in answer.stdout] == []
    assert f"/model.gguf were fetched. {lines[0]}" in said(done)
    assert all(seen.server == "front" for seen in hub.seen if "Authorization" in seen.headers)


def test_a_private_model_may_be_named_by_its_url_on_the_hub(model: Path) -> None:
    with running_hub({"model.gguf": model.read_bytes()}, token=TOKEN) as hub:
        given = {"model": hub.url("model.gguf"), "gguf_model_hf_token": TOKEN, "host_memory": "1GiB"}
        assert size(**given, gguf_model_hf_endpoint=f"{hub.endpoint}/").returncode == 0
        hub.seen.clear()
        # The token of another hub is not sent.
        refused = size(**given)
        assert (refused.returncode, "is refused (401): it needs a token with access." in said(refused)) == (2, True)
        assert [seen.headers.get("Authorization") for seen in hub.seen] == [None]


def test_a_shape_is_a_model_by_name_and_its_hint_is_what_is_typed() -> None:
    [play] = load_yaml(ROOT / "playbooks/size.yml")
    assert play["vars"]["__size_shapes"] == [shape.name for shape in SHAPES]
    shape = {"model": "70B", "host_memory": "31GiB", "hosts": 2, "master_memory": "1057.1MiB"}
    done = size(**shape)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "70B: Q4_0, 37.22 GiB of weights in 80 layers." in done.stdout
    short = re.search(
        r"It does not fit, the master lacks 964.6 MiB: it fits with (llama_server_cache_ram)=(\d+)\.", said(done)
    )
    assert short
    assert "2 hosts with 31GiB available: It fits;" in said(size("-e", f"{short[1]}={short[2]}", **shape))


@pytest.mark.parametrize(
    ("variables", "sentences"),
    [
        (
            {
                "model": "model.gguf",
                "host_memory": 32,
                "hosts": 16,
                "llama_server_parallel": "x",
                "llama_server_ctx_size": 0,
                "cache_type": "f8",
            },
            [
                "size_model is model.gguf; give the absolute path of a GGUF file, its URL, or a shape (3B,",
                "size_host_memory is 32; give what a host has available, with its unit, such as 32GiB.",
                "size_hosts is 16; give a number from 1 to 15, or 0 for as few as possible.",
                "llama_server_parallel is x; give a number of slots, or 0 for a single run.",
                "llama_server_ctx_size is 0; give a number of tokens from 1 to 9999999.",
                "size_cache_type is f8; give one of f32, f16,",
            ],
        ),
        (
            {"gguf_model_hf_repo": "a/b"},
            ["gguf_model_hf_repo is a/b; name the GGUF file in it with gguf_model_hf_file."],
        ),
        (
            {"model": "/nowhere/model.gguf", "host_memory": "32GiB"},
            ["is not a complete GGUF model: there is no such file"],
        ),
    ],
    ids=["all-of-it", "hub", "no-such-file"],
)
def test_wrong_variables_are_refused_in_a_sentence(variables: dict[str, Any], sentences: list[str]) -> None:
    done = size(**variables)
    assert done.returncode == 2
    assert [sentence for sentence in sentences if sentence not in said(done)] == []
