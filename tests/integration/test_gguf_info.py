# SPDX-License-Identifier: GPL-3.0-or-later
"""The figures of gguf_info, compared with those that llama.cpp reports, and for a model of 40 GB."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import read_model
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import SHAPES

from support.examples import as_plays
from support.gguf_headers import header_only
from support.harness import HANG_S, ROOT, Release, Worker, log_of, run_module
from support.split_gguf import SPLITTER
from support.synthetic_models import KINDS, write_synthetic
from support.tree import COLLECTION, documentation, run

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.llama

MIB = 1 << 20


def said(log: str, name: str) -> str:
    found = re.search(rf"print_info: {re.escape(name)} += (.*)", log)
    assert found, f"llama.cpp does not say {name}"
    return found.group(1).strip()


def buffers(log: str, kind: str, device: str = "") -> float:
    """Return the sum in MiB of the buffers of one kind in llama.cpp's log; 0 if there are none."""
    return sum(map(float, re.findall(rf"{device}\S* {kind} buffer size = +([\d.]+) MiB", log)))


def each(values: list[Any]) -> str:
    """Write the numbers of all layers as llama.cpp does: only one if they are equal."""
    return str(values[0]) if len(set(values)) == 1 else str(values)


@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_says_the_same(release_7: Release, tmp_path: Path, kind: str) -> None:
    path = write_synthetic(tmp_path / "m.gguf", kind)
    info = run_module("gguf_info", {"path": str(path)})
    assert info["valid"], info["message"]
    assert info["notes"] == []
    log = log_of(release_7, path, "-c", "256")

    shape, layers = info["shape"], info["layers"]
    ours = {
        "arch": info["architecture"],
        "file type": info["file_type"],
        "general.name": info["name"],
        "n_ctx_train": shape["context_length"],
        "n_embd": shape["embedding_length"],
        "n_layer": shape["layers"],
        "n_head": each([layer["heads"] for layer in layers]),
        "n_head_kv": each([layer["kv_heads"] for layer in layers]),
        "n_embd_head_k": shape["key_length"],
        "n_embd_head_v": shape["value_length"],
        "n_ff": shape["feed_forward_length"],
        "n_expert": shape["experts"],
        "n_expert_used": shape["experts_used"],
        "n_vocab": shape["vocabulary"],
        "model params": f"{info['parameters'] / 1e6:.2f} M",
    }
    assert {name: said(log, name) for name in ours} == {name: str(value) for name, value in ours.items()}
    size = re.search(r"file size   = ([\d.]+) MiB", log)
    assert size
    assert float(size.group(1)) == pytest.approx(info["weights"]["bytes"] / MIB, abs=0.01)


@pytest.mark.parametrize("kind", ["dense", "tied embeddings", "experts", "recurrent"])
def test_the_weights_are_where_they_are_said_to_be(
    release_7: Release, start_worker: Callable[..., Worker], tmp_path: Path, kind: str
) -> None:
    path = write_synthetic(tmp_path / "m.gguf", kind)
    weights = run_module("gguf_info", {"path": str(path)})["weights"]
    worker = start_worker(release_7)
    log = log_of(release_7, path, "-c", "256", "--rpc", worker.endpoint, "-ngl", "99")
    copy = weights["embedding_bytes"] if weights["tied_embeddings"] else 0
    there = weights["layers_bytes"] + weights["output_bytes"] + weights["shared_bytes"] + copy
    assert buffers(log, "model", "RPC") == pytest.approx(there / MIB, rel=0.01)
    assert buffers(log, "model", "CPU") == pytest.approx(weights["input_bytes"] / MIB, rel=0.01)


def test_a_split_model_is_the_same_model(tmp_path: Path) -> None:
    whole = write_synthetic(tmp_path / "m.gguf", "experts")
    subprocess.run([sys.executable, SPLITTER, whole, tmp_path / "m", "3"], check=True, timeout=HANG_S)
    parts = [tmp_path / f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    of_one = run_module("gguf_info", {"path": str(whole)})
    of_parts = run_module("gguf_info", {"path": str(parts[0])})
    assert of_parts["valid"], of_parts["message"]
    for name in ("architecture", "name", "file_type", "parameters", "shape", "weights", "layers", "notes"):
        assert of_parts[name] == of_one[name], name
    in_parts = [[tensor._replace(offset=0) for tensor in header.tensors] for header in read_model(parts[0])]
    assert len(list(filter(None, in_parts))) == len(parts)
    [in_one] = read_model(whole)
    assert [tensor for part in in_parts for tensor in part] == [tensor._replace(offset=0) for tensor in in_one.tensors]
    parts[1].unlink()
    without = run_module("gguf_info", {"path": str(parts[0])})
    assert not without["valid"]
    assert "is one of 3 parts, and m-00002-of-00003.gguf is missing beside it" in without["message"]


def test_what_is_no_model_has_the_same_keys(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", "dense")
    good = run_module("gguf_info", {"path": str(path)})
    os.truncate(path, 1000)
    for bad in (path, tmp_path, tmp_path / "none.gguf"):
        result = run_module("gguf_info", {"path": str(bad)}, check=True)
        assert result.keys() == good.keys()
        assert not result["valid"]
        assert result["message"].endswith(".")
        assert (result["architecture"], result["shape"], result["layers"]) == (None, None, [])


def test_the_documented_tasks_run(model: Path, tmp_path: Path) -> None:
    examples = documentation("module")[f"{COLLECTION}.gguf_info"]["examples"]
    plays = as_plays(yaml.safe_load(re.sub(r"/srv/models/[\w.-]+", str(model), examples)))
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(yaml.safe_dump(plays, sort_keys=False))
    interpreter = f"ansible_python_interpreter={sys.executable}"
    result = run("ansible-playbook", "-i", "here,", "-c", "local", "-e", interpreter, playbook, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"msg\W+2048\b", result.stdout)  # what playbooks/files/random_model.py writes
    assert "skipped=0" in result.stdout


def test_a_model_of_40_gb_takes_little_time_and_memory(tmp_path: Path) -> None:
    shape = next(it for it in SHAPES if it.name == "70B")
    path = header_only(tmp_path / "large.gguf", shape, tokenizer=True)
    assert path.stat().st_size > 37 << 30
    usage = tmp_path / "usage"
    # The peak of memory covers all processes that a process ever started, so measure in a process of its own.
    watch = (
        "import json, os, resource, subprocess, sys; "
        "out = subprocess.run([sys.executable, '-m', sys.argv[1]], input=sys.argv[2].encode(), capture_output=True); "
        "it = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "open(sys.argv[3], 'w').write(json.dumps([it.ru_utime + it.ru_stime, it.ru_maxrss])); "
        "sys.stdout.buffer.write(out.stdout)"
    )
    module = "ansible_collections.llama_cpp.cluster.plugins.modules.gguf_info"
    arguments = json.dumps({"ANSIBLE_MODULE_ARGS": {"path": str(path)}})
    done = subprocess.run(
        [sys.executable, "-c", watch, module, arguments, usage],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".venv/collections")},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    info = json.loads(done.stdout)
    assert info["valid"], info["message"]
    assert (info["shape"]["vocabulary"], len(info["layers"])) == (shape.vocabulary, shape.layers)
    assert len(done.stdout) < 64 << 10
    # Measure processor time, which does not depend on the other load of the machine.
    seconds, peak_kib = json.loads(usage.read_text())
    assert seconds < 1
    assert peak_kib < 200 << 10
    begin = time.process_time()
    read_model(path)
    assert time.process_time() - begin < 1
