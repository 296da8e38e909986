# SPDX-License-Identifier: GPL-3.0-or-later
"""Tensors that are put into a worker's cache before its first load are those that real clients ask for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.harness import ROOT, Release, Worker, run_module
from support.relay import Relay, relaying
from support.split_gguf import main as split

if TYPE_CHECKING:
    from collections.abc import Callable

    Start = Callable[..., Worker]

pytestmark = pytest.mark.llama

# A layer has three tensors of more than 10 MiB, each of 11.1 MiB.
LAYERS, EACH = 2, 3
LARGE = 11_000_000


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    program = ROOT / "playbooks/files/random_model.py"
    options = ["--layers", str(LAYERS), "--width", "2048", "--seed", "3"]
    subprocess.run([sys.executable, program, path, *options], check=True, timeout=120)
    return path


def entries(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the inode and time of change of each entry, which tell whether it was written again."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


def seed(release: Release, model: Path, folder: Path, *, check: bool = False, **options: Any) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    given = {"model": str(model), "folder": str(folder), "program": str(release.rpc_cache), "min_free": "1M", **options}
    changes = options.pop("changes", True)
    given.pop("changes", None)
    return run_module("rpc_cache_seed", given, check=check, changes=changes)


def load(release: Release, model: Path, *workers: Worker, **options: Any) -> list[int]:
    """Run the model once over workers; return how many bytes went to each."""
    with ExitStack() as stack:
        opened = [stack.enter_context(relaying(Relay(worker))) for worker in workers]
        found = run_module(
            "distributed_inference",
            {
                "model": str(model), "prompt": "the", "workers": [link.endpoint for link in opened], "n_predict": 1,
                "ctx_size": 64, "threads": 1, "bin_folder": str(release.bin), **options,
            },
        )  # fmt: skip
        assert found["failure"] is None, found
    return [link.sent // found["attempts"] for link in opened]


def cached(start: Start, folder: Path) -> tuple[Worker, Path]:
    return start("-c", prefix=("env", f"LLAMA_CACHE={folder}")), folder / "rpc"


def test_what_is_seeded_is_what_a_client_would_have_left_there(
    release: Release, wide: Path, start: Start, tmp_path: Path
) -> None:
    plain, left = cached(start, tmp_path / "plain")
    (sent,) = load(release, wide, plain)
    assert len(entries(left)) == LAYERS * EACH
    would = seed(release, wide, tmp_path / "seeded/rpc", check=True)
    assert (would["added"], entries(tmp_path / "seeded/rpc")) == (LAYERS * EACH, {})
    done = seed(release, wide, tmp_path / "seeded/rpc")
    assert (done["added"], done["there"], done["entries"]) == (LAYERS * EACH, 0, sorted(entries(left)))

    seeded, folder = cached(start, tmp_path / "seeded")
    before = entries(folder)
    (sent_then,) = load(release, wide, seeded)
    assert entries(folder) == before, "the client wrote nothing"
    assert sent - sent_then > LAYERS * EACH * LARGE, "what is there does not go over the wire"
    again = seed(release, wide, folder, changes=False)
    assert (again["added"], again["there"]) == (0, LAYERS * EACH)
    assert entries(folder) == before


def test_a_worker_gets_the_tensors_of_its_part_alone(
    release: Release, wide: Path, start: Start, tmp_path: Path
) -> None:
    memory = [{"endpoint": f"w{number}:1", "memory_available_bytes": 1 << 40} for number in range(2)]
    given = {"model": str(wide), "workers": memory, "bin_folder": str(release.bin), "options": ["-c", "64"]}
    plan = run_module("split_plan_info", given)
    folders = [tmp_path / f"cache{number}" for number in range(2)]
    for folder, part in zip(folders, plan["workers"]):
        done = seed(
            release, wide, folder / "rpc",
            part={key: part[key] for key in ("first_layer", "layers", "has_output")}, changes=part["layers"] > 0,
        )  # fmt: skip
        assert done["added"] == EACH * part["layers"]
    workers = [cached(start, folder)[0] for folder in folders]
    before = [entries(folder / "rpc") for folder in folders]
    load(release, wide, *workers, tensor_split=plan["tensor_split"])
    assert [entries(folder / "rpc") for folder in folders] == before, "each was asked for what it had, and no more"


def test_a_split_model_is_one_model(release: Release, wide: Path, tmp_path: Path) -> None:
    split(str(wide), str(tmp_path / "model"), 3)
    whole = seed(release, wide, tmp_path / "whole")
    assert seed(release, tmp_path / "model-00001-of-00003.gguf", tmp_path / "split")["entries"] == whole["entries"]


def test_what_is_cut_or_damaged_is_brought_again(release: Release, wide: Path, tmp_path: Path) -> None:
    folder = tmp_path / "rpc"
    seed(release, wide, folder)
    cut, gone, damaged = sorted(folder.iterdir())[:3]
    sound = {path: path.read_bytes() for path in (cut, gone, damaged)}
    os.truncate(cut, 1 << 20)
    gone.unlink()
    # Damage it as a disk does: the size and the time of change stay the same.
    about = damaged.stat()
    damaged.write_bytes(bytes([sound[damaged][0] ^ 1]) + sound[damaged][1:])
    os.utime(damaged, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert seed(release, wide, folder, check=True)["added"] == 3
    done = seed(release, wide, folder)
    assert (done["added"], done["replaced"], done["there"]) == (3, 2, LAYERS * EACH - 3)
    assert {path: path.read_bytes() for path in sound} == sound


def test_a_run_whose_program_is_killed_amid_a_tensor_is_completed_by_the_next_one(
    release: Release, wide: Path, tmp_path: Path
) -> None:
    folder, killed = tmp_path / "rpc", tmp_path / "killed"
    # The kernel kills the program (SIGXFSZ) once it has written half of a tensor, so that nobody has to wait for those
    # bytes.
    killed.write_text(f'#!/bin/sh\nulimit -c 0\nulimit -f {LARGE // 2 // 512}\nexec {release.rpc_cache} "$@"\n')
    killed.chmod(0o755)
    failed = seed(release, wide, folder, program=str(killed), changes=False)
    assert failed["failed"]
    assert f"got only 0 of {LAYERS * EACH} tensors: it ended with -25" in failed["msg"]
    (left,) = folder.iterdir()
    assert (left.name.startswith(".part-"), 0 < left.stat().st_size < LARGE) == (True, True)

    done = seed(release, wide, folder)
    assert (done["added"], done["replaced"], done["there"]) == (LAYERS * EACH, 0, 0)
    assert done["entries"] == seed(release, wide, tmp_path / "whole")["entries"]
    assert set(entries(folder)) == {*done["entries"], left.name}
    for name in done["entries"]:
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_load_loses_nothing_to_what_keeps_the_cache_in_order(
    release: Release, wide: Path, start: Start, tmp_path: Path
) -> None:
    worker, folder = cached(start, tmp_path / "cache")
    seed(release, wide, folder)
    (tmp_path / "state").mkdir()
    tidy = [release.rpc_cache, "tidy", folder, tmp_path / "state", "--max", "1K", "--settle", "0", "--quiet", "1"]
    done = threading.Event()

    def keep() -> None:
        while not done.is_set():
            subprocess.run(tidy, check=True, timeout=300, stdout=subprocess.DEVNULL)

    keeping = threading.Thread(target=keep)
    keeping.start()
    try:
        for _load in range(2):
            load(release, wide, worker)
    finally:
        done.set()
        keeping.join()
    assert worker.alive
    subprocess.run(tidy, check=True, timeout=300, stdout=subprocess.DEVNULL)
    assert entries(folder) == {}, "afterwards they go"


def test_wrong_use_is_explained(release: Release, wide: Path, tmp_path: Path) -> None:
    whole = {"model": str(wide), "folder": str(tmp_path), "program": str(release.rpc_cache), "min_free": "1M"}
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(wide.read_bytes()[:-1])
    for changed, said in (
        ({"program": "/opt/none/rpc-cache"}, "There is no program /opt/none/rpc-cache: releases that the role"),
        ({"folder": str(tmp_path / "none")}, "a worker with a cache makes it when it starts"),
        ({"model": str(cut)}, "the copy is incomplete"),
        ({"folder": None, "port": 1}, "There is no worker with a cache on port 1"),
        ({"min_free": "100%"}, "got only 0 of 6 tensors: the disk of the cache would have less free"),
    ):
        failed = run_module("rpc_cache_seed", {key: value for key, value in {**whole, **changed}.items() if value})
        assert failed["failed"]
        assert said in failed["msg"], failed["msg"]
