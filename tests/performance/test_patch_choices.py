# SPDX-License-Identifier: GPL-3.0-or-later
"""Each choice of patches that the docs allow is built, and two workers of it answer in both split modes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.source_patch import apply, touched

from support.builds import QUICK, built
from support.harness import ARCHIVES, CACHE, DEFAULT, HANG_S, ROOT, run_module, running_worker
from support.pinned_source import choices, patches, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.llama


OWN = ARCHIVES[DEFAULT]["patches"]


def called(names: Sequence[str]) -> str:
    return "all" if len(names) == len(OWN) else "core" if names else "none"


def choose(tree: Path, names: Sequence[str]) -> None:
    """Give an unpacked source these patches and no others; leave equal files alone, so they are not recompiled."""
    everything = touched(patches(DEFAULT, OWN))
    stock = tree.with_name(f"{tree.name}-stock")
    originals = {path: (stock / path).read_bytes() for path in everything if (stock / path).exists()}
    wanted = {**dict.fromkeys(everything), **originals, **apply(patches(DEFAULT, names), originals.get)}
    for path, content in wanted.items():
        file = tree / path
        if content is None:
            file.unlink(missing_ok=True)
        elif not file.exists() or file.read_bytes() != content:
            file.write_bytes(content)


@pytest.mark.parametrize("names", choices(DEFAULT), ids=called)
def test_each_choice_answers(names: tuple[str, ...], tmp_path: Path) -> None:
    tree = CACHE / "performance" / f"choices-{DEFAULT}"
    for folder in (tree, tree.with_name(f"{tree.name}-stock")):
        if not folder.exists():
            unpack(DEFAULT, folder)
    choose(tree, names)
    build = built("quick", QUICK, ["ggml-rpc-server", "llama-completion"], tree)
    model = tmp_path / "random.gguf"
    script = ROOT / "playbooks/files/random_model.py"
    subprocess.run([sys.executable, script, model], check=True, timeout=HANG_S)
    for mode in "layer", "tensor":
        with running_worker(build, tmp_path / "1") as first, running_worker(build, tmp_path / "2") as second:
            result = run_module(
                "distributed_inference",
                {
                    "bin_folder": str(build.bin),
                    "model": str(model),
                    "prompt": "the quiet river",
                    "workers": [first.endpoint, second.endpoint],
                    "n_predict": 8,
                    "extra_args": ["-sm", mode],
                },
            )
        assert result["failure"] is None, result
        assert result["text"].split()
