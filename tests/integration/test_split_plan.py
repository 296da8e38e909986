# SPDX-License-Identifier: GPL-3.0-or-later
"""The module split_plan_info with a real release: what it says, refuses, and what llama.cpp then does with its split.

test_engine_plan.py compares the figures themselves, for many kinds of models.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.harness import Release, Worker, log_of, run_module, running_worker
from support.server_buffers import allocated
from support.split_gguf import SPLITTER
from support.synthetic_models import write_synthetic
from support.tree import COLLECTION, documentation, run

pytestmark = pytest.mark.llama

MIB = 1 << 20
GIB = 1 << 30
SMALL = ["-c", "2048", "-ub", "256"]
AS_USER = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")


# What llama.cpp does with the split


@pytest.mark.parametrize(
    ("which", "memory", "options"),
    [
        pytest.param("trained", (3, 2, 2), ["-c", "2048"], id="trained"),
        pytest.param("random", (5, 2, 1), [*SMALL, "-fa", "off"], id="unequal"),
        pytest.param("random", (2, 1), [*SMALL, "-ngl", "4"], id="layers-with-the-master"),
    ],
)
def test_each_worker_gets_the_layers_and_buffers_of_the_plan(
    release: Release,
    workers: list[Worker],
    request: pytest.FixtureRequest,
    which: str,
    memory: tuple[int, ...],
    options: list[str],
) -> None:
    path: Path = request.getfixturevalue("trained_model" if which == "trained" else "model")
    used = workers[: len(memory)]
    hosts = [{"endpoint": it.endpoint, "memory_available_bytes": size * GIB} for it, size in zip(used, memory)]
    asked = {"bin_folder": str(release.bin), "program": "llama-completion", "options": options}
    plan = run_module("split_plan_info", {"model": str(path), "workers": hosts, **asked})
    assert (plan["exact"], plan["fits"]) == (True, True), plan["message"]
    shares = plan["tensor_split"]
    assert shares == [worker["layers"] + worker["has_output"] for worker in plan["workers"]]
    split = ",".join(f"{share:g}" for share in shares)
    over = ["--rpc", ",".join(it.endpoint for it in used), "-ts", split, "-ngl", "999", "-lm", "none", *options]
    log = log_of(release, path, *over, "-lv", "5")
    # llama.cpp counts the output as one more layer.
    owners = dict(re.findall(r"layer +(\d+) assigned to device (\w+)", log))
    assert [list(owners.values()).count(f"RPC{number}") for number in range(len(used))] == shares
    assert len(owners) - sum(shares) == plan["master"]["layers"]
    real = allocated(log)
    for mine in [*plan["workers"], {**plan["master"], "endpoint": "CPU"}]:
        theirs = real[mine["endpoint"]]
        for name, kinds in (("weights", ["model"]), ("kv", ["KV"]), ("compute", ["compute", "output"])):
            wanted = sum(theirs.get(kind, 0.0) for kind in kinds)
            # The log has two decimal places of each buffer.
            assert mine[f"{name}_bytes"] / MIB == pytest.approx(wanted, rel=0.01, abs=0.02), (mine, theirs)


def resident(worker: Worker) -> int:
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) << 10


def test_a_worker_gives_its_memory_back(release: Release, model: Path, tmp_path: Path) -> None:
    """So the memory available on a host can be read while its worker runs."""
    with running_worker(release, tmp_path / "worker.log") as worker:
        before = resident(worker)
        log_of(release, model, "-c", "8192", "--rpc", worker.endpoint, "-ngl", "99")
        deadline = time.monotonic() + 60
        while worker.held() and time.monotonic() < deadline:
            time.sleep(0.05)
        # The model takes 25 MB, and its cache takes 64 MiB.
        while resident(worker) - before > 20 * MIB and time.monotonic() < deadline:
            time.sleep(0.05)
        assert resident(worker) - before <= 20 * MIB


# The module


def arguments(release: Release | None, model: Path, *memory: object, **further: object) -> dict[str, Any]:
    workers = [
        {"endpoint": f"192.0.2.{number}:50052", **({} if size is None else {"memory_available_bytes": size})}
        for number, size in enumerate(memory, 1)
    ]
    known = {"bin_folder": str(release.bin)} if release else {}
    return {"model": str(model), "workers": workers, **known, "options": SMALL, **further}


def answer(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "invocation"}


def test_it_says_whether_it_fits_and_what_would_help(release: Release, model: Path) -> None:
    asked = arguments(release, model, GIB, GIB)
    fits = run_module("split_plan_info", asked)
    # In check mode, and for a user that is not root, it says the same.
    assert answer(run_module("split_plan_info", asked, check=True)) == answer(fits)
    assert answer(run_module("split_plan_info", asked, prefix=AS_USER)) == answer(fits)
    assert (fits["fits"], fits["exact"], fits["notes"], fits["suggestions"]) == (True, True, [], [])
    assert fits["message"].startswith("It fits; the least room is left on 192.0.2.")
    assert "It would fit on " in fits["message"]

    def short_of(context: int) -> dict[str, Any]:
        options = ["-c", str(context), "-ub", "64"]
        asked = arguments(release, model, 200 * MIB, 200 * MIB, reserve_bytes=0, options=options)
        return run_module("split_plan_info", asked)

    few = short_of(65536)
    assert not few["fits"]
    assert few["message"].startswith("It does not fit, 192.0.2.1:50052 lacks ")
    changes = [it["message"] for it in few["suggestions"]]
    assert [it["kind"] for it in few["suggestions"]] == ["context", "cache_type", "workers"]
    assert few["message"].endswith(f": it fits {changes[0]}, {changes[1]} or {changes[2]}.")
    # The context that is proposed fits, and the next larger one does not.
    context = few["suggestions"][0]["ctx_size"]
    assert [short_of(size)["fits"] for size in (context, context + 256)] == [True, False]

    given = run_module("split_plan_info", arguments(release, model, GIB, GIB, tensor_split=[1, 0]))
    assert given["message"].startswith("The tensor_split leaves worker 192.0.2.2:50052 without a layer: it fits with ")


def test_check_mode_says_the_same(release: Release, model: Path) -> None:
    asked = arguments(release, model, GIB, GIB)
    assert answer(run_module("split_plan_info", asked, check=True)) == answer(run_module("split_plan_info", asked))


def test_a_user_that_is_not_root_gets_the_same_plan(release: Release, model: Path) -> None:
    asked = arguments(release, model, GIB, GIB)
    as_user = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
    assert answer(run_module("split_plan_info", asked, prefix=as_user)) == answer(run_module("split_plan_info", asked))


def test_without_a_release_it_estimates_and_says_so(release: Release, model: Path, tmp_path: Path) -> None:
    exact = run_module("split_plan_info", arguments(release, model, GIB, GIB))
    folder = tmp_path / "none/bin"
    for given, why in (
        ({}, "no release is named that could be asked"),
        ({"bin_folder": str(folder)}, f"{tmp_path}/none/libexec/llama-plan is missing"),
    ):
        result = run_module("split_plan_info", arguments(None, model, GIB, GIB, **given))
        assert (result["fits"], result["exact"]) == (True, False)
        assert result["message"].startswith("It fits by an estimate; the least room is left on ")
        assert result["notes"] == [
            f"These figures are an estimate from the model's header, without compute buffers, because {why}."
        ]
        assert result["tensor_split"] == exact["tensor_split"]
        for mine, theirs in zip(result["workers"], exact["workers"]):
            assert mine["kv_bytes"] == theirs["kv_bytes"]
            assert mine["weights_bytes"] == pytest.approx(theirs["weights_bytes"], rel=0.01)
            assert mine["compute_bytes"] == 0


def test_what_is_returned_is_documented(release: Release, model: Path) -> None:
    returns = documentation("module")[f"{COLLECTION}.split_plan_info"]["return"]
    fits = run_module("split_plan_info", arguments(release, model, GIB, GIB))
    short = run_module(
        "split_plan_info",
        arguments(None, model, 40 * MIB, 60 * MIB, reserve_bytes=0, options=["-c", "8192"], tensor_split=[1, 9]),
    )
    for result in (fits, short):
        assert answer(result).keys() - {"changed"} == returns.keys()
    assert short["suggestions"]
    named = {name: set(re.findall(r"C\((\w+)\)", str(value))) for name, value in returns.items()}
    assert {key for it in short["suggestions"] for key in it} <= named["suggestions"]
    assert fits["workers"][0].keys() <= named["workers"]
    # The page says that the keys of workers apply.
    assert fits["master"].keys() <= named["master"] | named["workers"]


def test_bad_input(release: Release, model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("no model")
    subprocess.run([sys.executable, SPLITTER, model, tmp_path / "part", "2"], check=True, timeout=120)
    part = tmp_path / "part-00001-of-00002.gguf"
    (tmp_path / "part-00002-of-00002.gguf").unlink()
    cases = {
        "is not a complete GGUF model": arguments(release, text, GIB),
        "is a folder": arguments(release, tmp_path, GIB),
        "part-00002-of-00002.gguf is missing": arguments(release, part, GIB),
        "there is no such file": arguments(release, tmp_path / "none.gguf", GIB),
        "workers has 0 entries": arguments(release, model),
        "The memory of worker 192.0.2.2:50052 is not known": arguments(release, model, GIB, None),
        "memory_available_bytes of worker 192.0.2.1:50052 is -1": arguments(release, model, -1),
        "tensor_split has 2 entries for 1 workers": arguments(release, model, GIB, tensor_split=[1, 1]),
        "reserve_bytes is -1": arguments(release, model, GIB, reserve_bytes=-1),
        "llama.cpp cannot load it: ": arguments(release, model, GIB, options=["-c", "512", "-ctk", "q3"]),
        "A cache cannot be of": arguments(None, model, GIB, options=["-c", "512", "-ctk", "q3"]),
        "none.gguf": arguments(release, model, GIB, options=["-c", "512", "--lora", f"{tmp_path}/none.gguf"]),
    }
    for said, given in cases.items():
        result = run_module("split_plan_info", given)
        assert result.get("failed"), said
        assert said in result["msg"]
        assert result["msg"].endswith(".")
        assert "\n" not in result["msg"]


def test_what_this_user_may_not_read_is_said(release: Release, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(model, path)
    path.chmod(0)
    result = run_module("split_plan_info", arguments(release, path, GIB), prefix=AS_USER)
    assert result["failed"]
    assert result["msg"] == f"{path} cannot be read: Permission denied."


def test_the_engines_refusal_is_a_sentence(release: Release, tmp_path: Path) -> None:
    """A model whose header is as it has to be, and that llama.cpp cannot load."""
    path = write_synthetic(tmp_path / "m.gguf", "dense")
    content = path.read_bytes()
    assert content.count(b"blk.0.attn_q.weight") == 1
    path.write_bytes(content.replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"))
    result = run_module("split_plan_info", arguments(release, path, GIB))
    assert result["failed"]
    assert re.fullmatch(r"llama\.cpp cannot load it: .*blk\.0\.attn_q\.weight.*\.", result["msg"])


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
            inference_report_path: "{{ folder }}/short.json"
      rescue:
        - ansible.builtin.debug: {msg: "rescued: {{ ansible_failed_result.msg }}"}
    - name: a split is given, by endpoints alone
      ansible.builtin.include_role: {name: ROLE}
      when: not ansible_check_mode
      vars:
        inference_endpoints: >-
          {{ groups.llama_workers | llama_cpp.cluster.rpc_endpoints(hostvars)
             | map('replace', '127.0.0.1', 'localhost') }}
        inference_tensor_split: [6, 3]
        inference_report_path: "{{ folder }}/alone.json"
"""


def test_the_role_plans_before_it_loads(release: Release, workers: list[Worker], model: Path, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    hosts = {
        f"worker{number}": {"rpc_server_address": "127.0.0.1", "rpc_server_port": worker.port}
        for number, worker in enumerate(workers[:2], 1)
    }
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "llama_cpp_prefix": str(release.prefix),
        "folder": str(tmp_path),
    }
    inventory.write_text(
        yaml.safe_dump(
            {"all": {"vars": variables}, "llama_masters": {"hosts": {"m": {}}}, "llama_workers": {"hosts": hosts}}
        )
    )
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(PLAYS.replace("ROLE", ROLE).replace("FIRST", f'"{workers[0].endpoint}"'))
    command = ("ansible-playbook", "-i", inventory, playbook)
    done = run(*command, "-e", f"gguf_model_path={model}", cwd=tmp_path)
    said = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"m : ok=\d+ changed=0 .* failed=0", said)

    fits = json.loads((tmp_path / "fits.json").read_text())
    shares = fits["plan"]["tensor_split"]
    assert (fits["plan"]["fits"], fits["plan"]["exact"]) == (True, True)
    assert f"-ts {','.join(f'{share:g}' for share in shares)}" in " ".join(fits["inference"]["command"])
    held = {it["endpoint"]: it for it in fits["inference"]["devices"]}
    for worker in fits["plan"]["workers"]:
        real = held[worker["endpoint"]]
        assert real["layers"] == worker["layers"] + worker["has_output"]
        assert worker["weights_bytes"] / MIB == pytest.approx(real["model_buffer_mib"], rel=0.01, abs=0.02)
        assert worker["compute_bytes"] / MIB == pytest.approx(real["compute_buffer_mib"], rel=0.01, abs=0.02)
    assert "It fits; the least room is left on " in said

    short = re.search(r'"rescued: (.*?)"', said)
    assert short
    assert f"It does not fit, {workers[0].endpoint} lacks " in short.group(1)
    assert "inference_plan: false" in short.group(1)
    assert not (tmp_path / "short.json").exists()

    alone = json.loads((tmp_path / "alone.json").read_text())
    assert alone["plan"] is None
    assert alone["inference"]["failure"] is None
    assert f"is not planned before it is loaded, since worker localhost:{workers[0].port} is not a host" in said

    checked = run(*command, "--check", "-e", f"gguf_model_path={tmp_path}/later.gguf", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "later.gguf is not a complete GGUF model: there is no such file." in " ".join(checked.stdout.split())
