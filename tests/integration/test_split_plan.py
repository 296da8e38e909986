# SPDX-License-Identifier: GPL-3.0-or-later
"""split_plan_info's figures for each worker, compared with the buffers that llama.cpp then allocates there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import read_model
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.model import describe
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.compute_buffers import FOLLOWED
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.inputs import Cluster, Load
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.inputs import Worker as Planned
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.result import plan
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.perf_log import parse_log

from support import synthetic_models
from support.examples import as_plays
from support.harness import Release, Worker, log_of, run_module, running_worker
from support.split_gguf import SPLITTER
from support.synthetic_models import (
    KINDS,
    Kind,
    Numbers,
    Tensors,
    cohere2,
    llama,
    qwen3,
    shared_expert,
    write_synthetic,
)
from support.tree import COLLECTION, documentation, run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.llama

MIB = 1 << 20
GIB = 1 << 30


def biased(layer: int, n: Numbers) -> Tensors:
    heads = {"q": synthetic_models.HEADS, "k": n["kv_heads"], "v": n["kv_heads"]}
    return {**llama(layer, n), **{f"attn_{name}.bias": (count * n["key"],) for name, count in heads.items()}}


def qwen2moe(layer: int, n: Numbers) -> Tensors:
    return {**biased(layer, n), **shared_expert(n), "ffn_gate_inp_shexp": (synthetic_models.WIDTH,)}


def whole_norms(layer: int, n: Numbers) -> Tensors:
    heads = synthetic_models.HEADS * n["key"]
    return {**llama(layer, n), "attn_q_norm": (heads,), "attn_k_norm": (n["kv_heads"] * n["key"],)}


def norms_after(tensors: Tensors) -> Tensors:
    kept = {name: shape for name, shape in tensors.items() if name not in ("attn_norm", "ffn_norm")}
    return {**kept, "post_attention_norm": (synthetic_models.WIDTH,), "post_ffw_norm": (synthetic_models.WIDTH,)}


def olmo2(layer: int, n: Numbers) -> Tensors:
    return norms_after(whole_norms(layer, n))


def exaone4(layer: int, n: Numbers) -> Tensors:
    return norms_after(qwen3(layer, n))


def seed_oss(layer: int, n: Numbers) -> Tensors:
    return {name.replace("ffn_norm", "post_attention_norm"): shape for name, shape in llama(layer, n).items()}


EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 512}
SCALES = {"embedding_scale": 12.0, "residual_scale": 0.22, "attention.scale": 0.1, "logit_scale": 8.0}
MORE: dict[str, Kind] = {
    "command-r": ("command-r", {"tied": True}, cohere2, {"attention.layer_norm_epsilon": 1e-5, "logit_scale": 0.25}),
    "exaone4": ("exaone4", {}, exaone4, {}),
    "gemma": ("gemma", {"tied": True}, llama, {}),
    "granite": ("granite", {"tied": True}, llama, SCALES),
    "granitemoe": ("granitemoe", {"tied": True, "experts": 4}, llama, {**EXPERTS, **SCALES}),
    "internlm2": ("internlm2", {}, llama, {}),
    "mistral3": ("mistral3", {}, llama, {}),
    "olmo2": ("olmo2", {}, olmo2, {}),
    "olmoe": ("olmoe", {"experts": 4, "kv_heads": 4}, whole_norms, EXPERTS),
    "qwen2": ("qwen2", {"tied": True}, biased, {}),
    "qwen2moe": ("qwen2moe", {"experts": 4}, qwen2moe, {**EXPERTS, "expert_shared_feed_forward_length": 512}),
    "qwen3moe": ("qwen3moe", {"experts": 4}, qwen3, EXPERTS),
    "seed_oss": ("seed_oss", {}, seed_oss, {}),
    "smollm3": ("smollm3", {"tied": True}, llama, {}),
}
# Shapes like those of models that people use: twice as wide, and with 16000 tokens, so that the output is the largest
# node.
WIDE: dict[str, Kind] = {
    "dense, wide": ("llama", {"ff": 2048, "kv_heads": 8}, llama, {}),
    "grouped queries, wide": ("llama", {"ff": 1536, "kv_heads": 2}, llama, {}),
    "experts, wide": ("llama", {"ff": 768, "experts": 8}, llama, {"expert_count": 8, "expert_used_count": 4}),
    "other head sizes, wide": ("qwen3", {"ff": 1536, "key": 128, "value": 128}, qwen3, {}),
    "tied embeddings and windows, wide": (
        "gemma3",
        {"ff": 4096, "tied": True},
        synthetic_models.gemma3,
        {"attention.sliding_window": 512},
    ),
}
# The workers' memory in proportion to each other, and the load.
CASES: dict[str, tuple[tuple[int, ...], Load]] = {
    "one": ((1,), Load(ctx_size=2048)),
    "two, ubatch": ((1, 1), Load(ctx_size=4096, batch_size=512, ubatch_size=256)),
    "three, no flash attention": ((3, 2, 2), Load(ctx_size=1024, flash_attn="off")),
    "four, small cache": ((1, 1, 1, 1), Load(ctx_size=2000, cache_type_k="q8_0", cache_type_v="q4_0")),
    "two, local layers": ((2, 1), Load(ctx_size=2048, n_gpu_layers=4)),
    "one, the output alone": ((1,), Load(ctx_size=2048, n_gpu_layers=1)),
}


def options(load: Load) -> list[str]:
    return [
        *("-c", str(load.ctx_size), "-b", str(load.batch_size), "-ub", str(load.ubatch_size)),
        *("-ctk", load.cache_type_k, "-ctv", load.cache_type_v, "-fa", load.flash_attn, "-ngl", str(load.n_gpu_layers)),
    ]


@pytest.fixture(scope="module")
def four(release_7: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    """Yield four workers for all tests of this module."""
    folder = tmp_path_factory.mktemp("workers")
    with ExitStack() as stack:
        yield [stack.enter_context(running_worker(release_7, folder / f"{index}.log")) for index in range(4)]


def off(mine: int, theirs: float, allowed: float) -> bool:
    """Return whether a prediction in bytes differs from llama.cpp's MiB, which have two decimal places."""
    return abs(mine / MIB - theirs) > theirs * allowed + 0.005


def compared(release: Release, path: Path, workers: list[Worker], case: str) -> list[str]:
    """Return the lines that do not match the plan; print a line for each worker and the master."""
    memory, load = CASES[case]
    model = read_model(path)
    if describe(model).architecture == "deepseek2":
        # llama.cpp requires one type for both, and so does the planner.
        load = replace(load, cache_type_v=load.cache_type_k)
    used = workers[: len(memory)]
    cluster = Cluster(tuple(Planned(it.endpoint, size * GIB) for it, size in zip(used, memory)))
    result = plan(model, load, cluster)
    assert result["fits"], result["message"]
    split = ",".join(f"{share:g}" for share in result["tensor_split"])
    endpoints = ",".join(it.endpoint for it in used)
    log = log_of(release, path, "--rpc", endpoints, "-ts", split, *options(load))
    devices = parse_log(log, require_perf=False)["devices"]
    wrong = []
    for number, mine in enumerate([*result["workers"], {**result["master"], "endpoint": None}]):
        real = [it for it in devices if it["endpoint"] == mine["endpoint"]]
        weights, kv, compute = (
            sum(it[name] or 0 for it in real)  # type: ignore[literal-required]
            for name in ("model_buffer_mib", "kv_buffer_mib", "compute_buffer_mib")
        )
        line = (
            f"{case}: {f'worker {number}' if mine['endpoint'] else 'master'}, {mine['layers']} layers: weights "
            f"{mine['weights_bytes'] / MIB:.2f} as {weights:.2f}, cache {mine['kv_bytes'] / MIB:.2f} as {kv:.2f}, "
            f"compute {mine['compute_bytes'] / MIB:.2f} as {compute:.2f} MiB"
        )
        print(line)
        # Weights that are mapped from the file have other tensors in between.
        mapped = mine["endpoint"] is None and load.n_gpu_layers < 999
        if (off(mine["weights_bytes"], weights, 0.02) and not mapped) or off(mine["kv_bytes"], kv, 0.02):
            wrong.append(line)
        if result["compute_known"] and off(mine["compute_bytes"], compute, 0.25):
            wrong.append(line)
        if mine["compute_bytes"] / MIB < compute * (0.75 if result["compute_known"] else 0.99) - 0.01:
            wrong.append(line)
        layers = [it["layers"] for it in real if it["layers"] is not None]
        if mine["endpoint"] and layers and layers != [mine["layers"] + mine["has_output"]]:
            wrong.append(f"{line}; llama.cpp put {layers} layers there")
    return wrong


# `make test` compares one kind of each way to hold a cache and weights.
EACH_TIME = ("dense", "experts", "window, five of six", "latent attention", "hybrid, state space")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in EACH_TIME else pytest.mark.long) for kind in (*KINDS, *MORE)]
)
def test_llama_cpp_allocates_what_was_planned(
    release_7: Release, four: list[Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(KINDS, kind, {**MORE, **KINDS}[kind])
    path = write_synthetic(tmp_path / "m.gguf", kind)
    assert [line for case in CASES for line in compared(release_7, path, four, case)] == []


@pytest.mark.long
@pytest.mark.parametrize("kind", WIDE)
def test_it_does_in_wider_models(
    release_7: Release, four: list[Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    tokens, scores, types = synthetic_models.vocabulary()
    more = 16000 - len(tokens)
    large = (tokens + [b"word %d" % index for index in range(more)], scores + [0.0] * more, types + [1] * more)
    monkeypatch.setattr(synthetic_models, "vocabulary", lambda: large)
    monkeypatch.setattr(synthetic_models, "WIDTH", 512)
    monkeypatch.setattr(synthetic_models, "HEADS", 8)
    monkeypatch.setitem(KINDS, kind, WIDE[kind])
    path = write_synthetic(tmp_path / "m.gguf", kind)
    assert [line for case in CASES for line in compared(release_7, path, four, case)] == []


def test_each_architecture_that_is_followed_is_compared() -> None:
    assert {architecture for architecture, *_rest in [*KINDS.values(), *MORE.values()]} >= FOLLOWED
    assert set(EACH_TIME) < set(KINDS)


def resident(worker: Worker) -> int:
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) << 10


def test_a_worker_gives_its_memory_back(release_7: Release, model: Path, tmp_path: Path) -> None:
    """So the memory available on a host can be read while its worker runs."""
    with running_worker(release_7, tmp_path / "worker.log") as worker:
        before = resident(worker)
        log_of(release_7, model, "-c", "8192", "--rpc", worker.endpoint, "-ngl", "99")
        deadline = time.monotonic() + 60
        while worker.held() and time.monotonic() < deadline:
            time.sleep(0.05)
        # The model takes 25 MB, and its cache takes 64 MiB.
        while resident(worker) - before > 20 * MIB and time.monotonic() < deadline:
            time.sleep(0.05)
        assert resident(worker) - before <= 20 * MIB


# The module


def arguments(model: Path, *memory: object, **further: object) -> dict[str, object]:
    workers = [
        {"endpoint": f"192.0.2.{number}:50052", **({} if size is None else {"memory_available_bytes": size})}
        for number, size in enumerate(memory, 1)
    ]
    return {"model": str(model), "workers": workers, **further}


def test_the_module_says_what_the_planner_does(model: Path) -> None:
    result = run_module("split_plan_info", arguments(model, GIB, GIB, ctx_size=4096, cache_type_k="q8_0"))
    workers = tuple(Planned(f"192.0.2.{number}:50052", GIB) for number in (1, 2))
    cluster = Cluster(workers, reserve_bytes=256 * MIB, reserve_percent=5)
    expected = plan(read_model(model), Load(ctx_size=4096, cache_type_k="q8_0"), cluster)
    assert {name: result[name] for name in expected} == expected
    assert result["fits"]
    assert result["fits_on_one"]
    again = run_module("split_plan_info", arguments(model, GIB, GIB, ctx_size=4096, cache_type_k="q8_0"), check=True)
    assert {**again, "invocation": None} == {**result, "invocation": None}
    few = run_module("split_plan_info", arguments(model, 100 * MIB, reserve_bytes=0, ctx_size=1 << 20))
    assert (few["fits"], few.get("failed")) == (False, None)


def test_what_is_returned_is_documented(model: Path) -> None:
    returns = documentation("module")[f"{COLLECTION}.split_plan_info"]["return"]
    workers = (Planned("a:1", GIB), Planned("b:1", GIB))
    fits = plan(read_model(model), Load(ctx_size=512), Cluster(workers))
    small = (Planned("a:1", 90 * MIB), Planned("b:1", 60 * MIB))
    short = plan(read_model(model), Load(ctx_size=4096), Cluster(small, tensor_split=(1, 9)))
    assert fits.keys() == short.keys() == returns.keys()
    assert short["suggestions"]
    assert {key for it in short["suggestions"] for key in it} <= returns["suggestions"]["contains"].keys()
    for result, name in ((fits, "workers"), (fits, "master"), (fits, "fits_on_one"), (short, "shortfall")):
        found = result[name][0] if isinstance(result[name], list) else result[name]
        assert found.keys() == returns[name]["contains"].keys(), name


def test_bad_input(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("no model")
    subprocess.run([sys.executable, SPLITTER, model, tmp_path / "part", "2"], check=True, timeout=120)
    part = tmp_path / "part-00001-of-00002.gguf"
    (tmp_path / "part-00002-of-00002.gguf").unlink()
    cases = {
        "is not a complete GGUF model": arguments(text, GIB),
        "is a folder": arguments(tmp_path, GIB),
        "part-00002-of-00002.gguf is missing": arguments(part, GIB),
        "there is no such file": arguments(tmp_path / "none.gguf", GIB),
        "workers has 0 entries": arguments(model),
        "The memory of worker 192.0.2.2:50052 is not known": arguments(model, GIB, None),
        "memory_available_bytes of worker 192.0.2.1:50052 is -1": arguments(model, -1),
        "tensor_split has 2 entries for 1 workers": arguments(model, GIB, tensor_split=[1, 1]),
        "reserve_bytes is -1": arguments(model, GIB, reserve_bytes=-1),
    }
    for said, given in cases.items():
        result = run_module("split_plan_info", given)
        assert result.get("failed"), said
        assert said in result["msg"]
        assert result["msg"].endswith(".")
        assert "\n" not in result["msg"]


def test_the_documented_tasks_run(model: Path, tmp_path: Path) -> None:
    examples = documentation("module")[f"{COLLECTION}.split_plan_info"]["examples"]
    plays = as_plays(yaml.safe_load(re.sub(r"/srv/models/[\w.-]+", str(model), examples)))
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(yaml.safe_dump(plays, sort_keys=False))
    interpreter = f"ansible_python_interpreter={sys.executable}"
    result = run("ansible-playbook", "-i", "here,", "-c", "local", "-e", interpreter, playbook, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"192\.0\.2\.11:50052: \d layers", result.stdout)


# The role


ROLE = f"{COLLECTION}.inference"
# If each case had its own play, each would start Ansible anew.
PLAYS = """
- hosts: llama_masters
  gather_facts: false
  vars:
    inference_prompt: the river
    inference_n_predict: 2
    inference_ctx_size: 512
  tasks:
    - name: it fits
      ansible.builtin.include_role: {name: ROLE}
      vars:
        inference_report_path: "{{ folder }}/fits.json"
        inference_extra_args: [-ub, "128"]
    - name: it does not
      when: not ansible_check_mode
      block:
        - ansible.builtin.include_role: {name: ROLE}
          vars:
            inference_worker_memory_bytes: {FIRST: 10000000}
            inference_reserve_bytes: 0
            inference_report_path: "{{ folder }}/short.json"
      rescue:
        - ansible.builtin.debug: {msg: "rescued: {{ ansible_failed_result.msg }}"}
    - name: a split is given, by endpoints alone
      ansible.builtin.include_role: {name: ROLE}
      when: not ansible_check_mode
      vars:
        inference_endpoints: "{{ groups.llama_workers | llama_cpp.cluster.rpc_endpoints(hostvars) }}"
        inference_worker_group: nobody
        inference_tensor_split: [6, 3]
        inference_report_path: "{{ folder }}/alone.json"
"""


def test_the_role_plans_before_it_loads(release_7: Release, four: list[Worker], model: Path, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    hosts = {
        f"worker{number}": {"rpc_server_address": "127.0.0.1", "rpc_server_port": worker.port}
        for number, worker in enumerate(four[:2], 1)
    }
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "llama_cpp_prefix": str(release_7.prefix),
        "folder": str(tmp_path),
    }
    inventory.write_text(
        yaml.safe_dump(
            {"all": {"vars": variables}, "llama_masters": {"hosts": {"m": {}}}, "llama_workers": {"hosts": hosts}}
        )
    )
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(PLAYS.replace("ROLE", ROLE).replace("FIRST", f'"{four[0].endpoint}"'))
    command = ("ansible-playbook", "-i", inventory, playbook)
    done = run(*command, "-e", f"inference_model_path={model}", cwd=tmp_path)
    said = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"m : ok=\d+ changed=0 .* failed=0", said)

    fits = json.loads((tmp_path / "fits.json").read_text())
    shares = fits["plan"]["tensor_split"]
    assert fits["plan"]["fits"]
    assert f"-ts {','.join(f'{share:g}' for share in shares)}" in " ".join(fits["inference"]["command"])
    held = {it["endpoint"]: it for it in fits["inference"]["devices"]}
    for worker in fits["plan"]["workers"]:
        real = held[worker["endpoint"]]
        assert real["layers"] == worker["layers"] + worker["has_output"]
        assert not off(worker["weights_bytes"], real["model_buffer_mib"], 0.02)
        assert not off(worker["compute_bytes"], real["compute_buffer_mib"], 0.25)
    assert "It fits; the least room is left on " in said

    short = re.search(r'"rescued: (.*?)"', said)
    assert short
    assert f"It does not fit, {four[0].endpoint} lacks " in short.group(1)
    assert "inference_plan: false" in short.group(1)
    assert not (tmp_path / "short.json").exists()

    alone = json.loads((tmp_path / "alone.json").read_text())
    assert alone["plan"] is None
    assert alone["inference"]["failure"] is None
    assert f"The model is not planned before it is loaded, since worker {four[0].endpoint} is not a host" in said

    checked = run(*command, "--check", "-e", f"inference_model_path={tmp_path}/later.gguf", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "later.gguf is not a complete GGUF model: there is no such file." in " ".join(checked.stdout.split())
