# SPDX-License-Identifier: GPL-3.0-or-later
"""With the patch rpc-safety, a worker's cache serves only data that matches the name of its entry."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable

import pytest

from support.cache_folder import Cache, fnv
from support.harness import HANG_S, RELEASE, Release
from support.rpc_session import Arena, Session, Tensor, Type
from support.watched_worker import Watched, watched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.llama

SIZE = 1 << 20


@dataclass
class Kept:
    """A worker with a cache, and a client that stores a tensor through it."""

    worker: Watched
    session: Session
    tensor: Tensor
    entries: Path
    status: Path

    def stored(self, data: bytes | None = None) -> tuple[bytes, Path]:
        """Have a tensor sent and cached; return its data and its cache entry."""
        data = secrets.token_bytes(SIZE) if data is None else data
        self.session.set(self.tensor, data, keep=True)
        # Requests without an answer are done once a later request is answered.
        self.session.get(self.tensor, 0, 4)
        return data, self.entries / fnv(data)

    def asked(self, data: bytes) -> bool:
        """Return whether the cache has the data; assert that the worker's memory then has the same."""
        self.session.memset(self.tensor, 0, 0, SIZE)
        found = bool(self.session.set_by_hash(self.tensor, data))
        assert self.session.get(self.tensor) == (data if found else bytes(SIZE))
        return found

    @property
    def use(self) -> dict[str, int]:
        return dict(json.loads(self.status.read_text())["use"])


@contextmanager
def keeping(release: Release, folder: Path, *environment: str) -> Iterator[Kept]:
    status = folder / "cache.json"
    said = f"GGML_RPC_CACHE_STATUS={status}"
    with ExitStack() as stack:
        worker = stack.enter_context(watched(release, folder, said, *environment, options=("-c",)))
        session = stack.enter_context(closing(Session(worker.port)))
        tensor = Arena(session, 4 * SIZE).place(Type.F32, SIZE // 4)
        yield Kept(worker, session, tensor, folder / "cache/rpc", status)


@pytest.fixture
def kept(release: Release, tmp_path: Path) -> Iterator[Kept]:
    with keeping(release, tmp_path) as worker:
        yield worker


def changed(entry: Path) -> None:
    with entry.open("r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"changed")


def cut_off(entry: Path) -> None:
    os.truncate(entry, SIZE // 2)


def cut_off_by_a_lost_power(entry: Path) -> None:
    times = entry.stat()
    cut_off(entry)
    os.utime(entry, ns=(times.st_atime_ns, times.st_mtime_ns))


def emptied(entry: Path) -> None:
    entry.write_bytes(b"")


def larger_than_memory(entry: Path) -> None:
    os.truncate(entry, 1 << 42)


@pytest.mark.parametrize(
    "damage", [changed, cut_off, cut_off_by_a_lost_power, emptied, larger_than_memory], ids=lambda it: it.__name__
)
def test_an_entry_that_is_not_what_its_name_says_is_asked_for_again(kept: Kept, damage: Callable[[Path], None]) -> None:
    data, entry = kept.stored()
    assert kept.asked(data)
    damage(entry)
    assert not kept.asked(data)
    assert f"not used, as it is not what its name says: '{entry}'" in kept.worker.log
    assert kept.use == {"hits": 1, "hit_bytes": SIZE, "misses": 1, "damaged": 1}
    kept.stored(data)
    assert kept.asked(data), "what the client sent took its place"
    assert entry.read_bytes() == data


def test_what_was_kept_without_the_patch_is_looked_at_once(kept: Kept) -> None:
    data = secrets.token_bytes(SIZE)
    assert not kept.asked(data)
    entry = kept.entries / fnv(data)
    entry.write_bytes(data)
    os.utime(entry, ns=(10**18, 10**18))
    assert kept.asked(data)
    stamped = entry.stat().st_mtime_ns
    assert stamped != 10**18
    assert stamped // 10**9 == 10**9, "when it was written stays, to the second"
    assert kept.asked(data)
    assert entry.stat().st_mtime_ns == stamped
    assert kept.use == {"hits": 2, "hit_bytes": 2 * SIZE, "misses": 1, "damaged": 0}


def test_what_is_put_there_has_the_stamp_of_what_a_worker_keeps(kept: Kept, tmp_path: Path) -> None:
    data, entry = kept.stored()
    (tmp_path / "seeded").mkdir()
    seeded = Cache(tmp_path / "seeded")
    (tmp_path / "file").write_bytes(data)
    assert RELEASE.rpc_cache.exists()
    done = seeded.add(f"0 {SIZE} {tmp_path}/file\n")
    assert (done.returncode, done.stderr) == (0, "")
    of_each = {path.stat().st_mtime_ns % 10**9 for path in (entry, seeded.folder / entry.name)}
    assert len(of_each) == 1


def test_an_entry_has_its_name_when_it_is_whole(release: Release, tmp_path: Path) -> None:
    """A limit of the size of files stands in for a full disk; the worker ignores the signal that comes with it."""
    limited = ("sh", "-c", f"trap '' XFSZ; ulimit -f {SIZE // 1024}; exec \"$@\"", "sh")
    with keeping(release, tmp_path, *limited) as kept:
        data, entry = kept.stored()
        assert not entry.exists()
        assert list(kept.entries.iterdir()) == []
        assert f"not kept: '{entry}' (File too large)" in kept.worker.log
        assert not kept.asked(data)


def test_an_entry_has_no_name_unless_the_disk_has_it(release: Release, tmp_path: Path) -> None:
    """The disk fails only when it must have written the data, as after a loss of power."""
    library = tmp_path / "failing.so"
    code = "#include <errno.h>\nint fdatasync(int fd) { (void) fd; errno = EIO; return -1; }\n"
    compiled = ["cc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"]
    subprocess.run(compiled, input=code, text=True, check=True, timeout=HANG_S)
    with keeping(release, tmp_path, f"LD_PRELOAD={library}") as kept:
        data, entry = kept.stored()
        assert list(kept.entries.iterdir()) == []
        assert f"not kept: '{entry}' (Input/output error)" in kept.worker.log
        assert not kept.asked(data)


@pytest.mark.parametrize(
    ("limit", "there"), [("100%", False), ("8000T", False), ("1K", True), ("0%", True), ("nonsense", True)]
)
def test_the_disk_keeps_what_it_is_to_keep(release: Release, tmp_path: Path, limit: str, there: bool) -> None:
    with keeping(release, tmp_path, f"GGML_RPC_CACHE_MIN_FREE={limit}") as kept:
        data, entry = kept.stored()
        assert entry.exists() == there
        assert kept.asked(data) == there
        assert ("not kept, as the disk has too little room" in kept.worker.log) != there


def test_who_has_no_cache_says_nothing_of_it(release: Release, tmp_path: Path) -> None:
    said = f"GGML_RPC_CACHE_STATUS={tmp_path}/cache.json"
    with watched(release, tmp_path, said) as worker, closing(Session(worker.port)) as session:
        tensor = Arena(session, 4 * SIZE).place(Type.F32, SIZE // 4)
        session.set(tensor, bytes(SIZE), keep=True)
        assert not session.set_by_hash(tensor, bytes(SIZE))
    assert not (tmp_path / "cache.json").exists()
