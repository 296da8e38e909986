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
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import read_model
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.model import describe
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import SHAPES

from support.gguf_headers import header_only
from support.harness import HANG_S, ROOT, Release, log_of, run_module
from support.split_gguf import SPLITTER
from support.synthetic_models import KINDS, write_synthetic

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.llama

MIB = 1 << 20


def said(log: str, name: str) -> str:
    found = re.search(rf"print_info: {re.escape(name)} += (.*)", log)
    assert found, f"llama.cpp does not say {name}"
    return found.group(1).strip()


@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_says_the_same(release: Release, tmp_path: Path, kind: str) -> None:
    path = write_synthetic(tmp_path / "m.gguf", kind)
    info = run_module("gguf_info", {"path": str(path)})
    assert info["valid"], info["message"]
    assert info["notes"] == []
    log = log_of(release, path, "-c", "256")

    # llama.cpp names the heads of each layer if they differ.
    model, shape = describe(read_model(path)), info["shape"]
    heads = {name: [getattr(layer, name) for layer in model.layers] for name in ("heads", "kv_heads")}
    ours = {
        "arch": info["architecture"],
        "file type": info["file_type"],
        "general.name": info["name"],
        "n_ctx_train": shape["context_length"],
        "n_embd": shape["embedding_length"],
        "n_layer": shape["layers"],
        "n_head": heads["heads"] if shape["heads"] is None else shape["heads"],
        "n_head_kv": heads["kv_heads"] if shape["kv_heads"] is None else shape["kv_heads"],
        "n_expert": shape["experts"],
        "n_expert_used": shape["experts_used"],
        "n_vocab": shape["vocabulary"],
        "model params": f"{info['parameters'] / 1e6:.2f} M",
    }
    assert {name: said(log, name) for name in ours} == {name: str(value) for name, value in ours.items()}
    size = re.search(r"file size   = ([\d.]+) MiB", log)
    assert size
    assert float(size.group(1)) == pytest.approx(info["weights_bytes"] / MIB, abs=0.01)


def test_a_split_model_is_the_same_model(tmp_path: Path) -> None:
    whole = write_synthetic(tmp_path / "m.gguf", "experts")
    subprocess.run([sys.executable, SPLITTER, whole, tmp_path / "m", "3"], check=True, timeout=HANG_S)
    parts = [tmp_path / f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    of_one = run_module("gguf_info", {"path": str(whole)})
    of_parts = run_module("gguf_info", {"path": str(parts[0])})
    assert of_parts["valid"], of_parts["message"]
    for name in ("architecture", "name", "file_type", "parameters", "shape", "weights_bytes", "notes"):
        assert of_parts[name] == of_one[name], name
    in_parts = [[tensor._replace(offset=0) for tensor in header.tensors] for header in read_model(parts[0])]
    assert len(list(filter(None, in_parts))) == len(parts)
    [in_one] = read_model(whole)
    assert [tensor for part in in_parts for tensor in part] == [tensor._replace(offset=0) for tensor in in_one.tensors]


def test_what_is_no_model_has_the_same_keys(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", "dense")
    good = run_module("gguf_info", {"path": str(path)})
    os.truncate(path, 1000)
    for bad in (path, tmp_path, tmp_path / "none.gguf"):
        result = run_module("gguf_info", {"path": str(bad)}, check=True)
        assert result.keys() == good.keys()
        assert not result["valid"]
        assert result["message"].endswith(".")
        assert (result["architecture"], result["shape"], result["notes"]) == (None, None, [])


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
    assert (info["shape"]["vocabulary"], info["shape"]["layers"]) == (shape.vocabulary, shape.layers)
    assert len(done.stdout) < 16 << 10
    # Measure processor time, which does not depend on the other load of the machine.
    seconds, peak_kib = json.loads(usage.read_text())
    assert seconds < 1
    assert peak_kib < 200 << 10
    begin = time.process_time()
    read_model(path)
    assert time.process_time() - begin < 1
