# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that keeps a worker's tensor cache in order, on folders of small entries."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.cache_folder import DAY, PROGRAM, Cache, fnv
from support.harness import completed
from support.small_disk import small_disk

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    assert PROGRAM.exists(), "run `make test`, which builds it"
    return Cache(tmp_path)


@contextmanager
def temporary_cache() -> Iterator[Cache]:
    with tempfile.TemporaryDirectory() as name:
        yield Cache(Path(name))


ENTRY = st.fixed_dictionaries(
    {"size": st.integers(0, 3000), "age": st.integers(1, 60), "sound": st.booleans(), "noise": st.binary(max_size=4)}
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    entries=st.lists(ENTRY, max_size=9, unique_by=lambda entry: entry["age"]),
    limit=st.integers(0, 12000),
    days=st.one_of(st.just(0), st.integers(1, 60)),
)
def test_what_is_not_sound_goes_and_of_the_rest_the_longest_unused(
    entries: list[dict[str, Any]], limit: int, days: int
) -> None:
    with temporary_cache() as cache:
        sound: dict[str, tuple[float, int]] = {}
        wrong = set()
        for number, entry in enumerate(entries):
            data = bytes([number]) + entry["noise"] * entry["size"]
            if entry["sound"]:
                path = cache.entry(data, age=entry["age"] * DAY - 600)
                sound[path.name] = (-entry["age"], len(data))
            else:
                wrong.add(cache.entry(data, name=f"{number:016x}").name)
        status = cache.tidy("--max", limit, *(("--max-age", days) if days else ()))
        stay = dict(sound)
        for name, (age, size) in sorted(sound.items(), key=lambda item: item[1]):
            if sum(other for _age, other in stay.values()) > limit or (days and -age > days):
                assert size == stay.pop(name)[1]
        assert cache.names == set(stay)
        assert status["bytes"] == sum(size for _age, size in stay.values())
        assert (status["corrupted"], status["evicted"]) == (len(wrong), len(sound) - len(stay))
        assert bool(status["said"]) is (len(stay) < len(entries))
        again = cache.tidy("--max", limit)
        assert (again["checked_bytes"], again["said"]) == (0, ""), "what was read need not be read again"
        assert (again["corrupted"], again["evicted"]) == (status["corrupted"], status["evicted"])


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 600_000), min_size=1, max_size=9))
def test_files_of_all_lengths_are_digested_side_by_side(sizes: list[int]) -> None:
    """Each added entry is named after its bytes. Reading it back beside other entries finds no fault."""
    with temporary_cache() as cache:
        source = cache.root / "source"
        source.write_bytes(os.urandom(max(sizes) + len(sizes)))
        wanted = "".join(f"{number} {size} {source}\n" for number, size in enumerate(sizes))
        assert cache.add(wanted).returncode == 0
        shortest = min(range(len(sizes)), key=sizes.__getitem__)
        if sizes[shortest] < 50_000:
            data = source.read_bytes()[shortest : shortest + sizes[shortest]]
            assert (cache.folder / fnv(data)).read_bytes() == data
        before = cache.names
        assert cache.tidy("--settle", -1)["corrupted"] == 0
        assert cache.names == before


def test_entries_are_read_again_once_they_have_changed(cache: Cache) -> None:
    kept, changed, cut = cache.entry(b"kept" * 99), cache.entry(b"changed" * 99), cache.entry(b"cut" * 99)
    assert cache.tidy()["checked_bytes"] == 99 * 14
    changed.write_bytes(b"damaged" * 99)
    os.truncate(cut, 50)
    assert cache.tidy()["corrupted"] == 0, "what was written within the last minute may still be on its way"
    for path in (changed, cut):
        os.utime(path, (time.time() - DAY,) * 2)
    status = cache.tidy()
    assert (status["checked_bytes"], status["corrupted"], cache.names) == (7 * 99 + 50, 2, {kept.name})


def test_a_time_that_is_to_come_counts_as_long_ago(cache: Cache) -> None:
    """Such times remain after a clock that was wrong has been set back."""
    damaged = cache.entry(b"wrong", name="0" * 16, age=-DAY)
    cache.entry(b"ahead" * 99, age=-DAY)
    old, young = cache.entry(b"old" * 99), cache.entry(b"young" * 99, age=300)
    status = cache.tidy("--max", (len("old") + len("young")) * 99)
    assert (status["corrupted"], cache.names) == (1, {old.name, young.name})
    assert not damaged.exists()
    # If only the time of writing is wrong, the time of the last use is still known.
    ahead = cache.entry(b"ahead" * 99)
    os.utime(ahead, (time.time(), time.time() + DAY))
    cache.tidy("--max", (len("ahead") + len("young")) * 99)
    assert cache.names == {ahead.name, young.name}
    # A time a few minutes ahead comes from a clock that was set during a load.
    soon = cache.entry(b"soon", name="1" * 16, age=-60)
    assert cache.tidy()["checked_bytes"] == 0
    assert soon.exists()


def checked_before(cache: Cache, name: str, seconds: float) -> None:
    """Make an entry look as if it was last read so many seconds ago."""
    known = (cache.state / "checked").read_text()
    changed = re.sub(rf"^({name} .* )\d+$", rf"\g<1>{time.time() - seconds:.0f}", known, flags=re.MULTILINE)
    assert changed != known
    (cache.state / "checked").write_text(changed)


def test_what_nobody_has_changed_is_read_again_after_a_day_some_of_it_each_time(cache: Cache) -> None:
    entries = [cache.entry(bytes([number]) * 1000) for number in range(5)]
    assert cache.tidy()["checked_bytes"] == 5000
    # Damage it as a disk does: the size, inode and time of change stay the same.
    about = entries[3].stat()
    with entries[3].open("r+b") as file:
        file.write(b"x")
    os.utime(entries[3], ns=(about.st_atime_ns, about.st_mtime_ns))
    for number, entry in enumerate(entries):
        checked_before(cache, entry.name, DAY / 2 if number == 4 else DAY * (2 + number))
    status = cache.tidy("--again", 2000)
    assert (status["checked_bytes"], status["corrupted"]) == (2000, 1), "those whose reading is the longest ago"
    assert not entries[3].exists()
    status = cache.tidy("--again", 999)
    assert status["checked_bytes"] == 1000, "one that is larger than that is read, too"
    assert [cache.tidy()["checked_bytes"] for _run in range(2)] == [1000, 0], "in a day each is read once"
    checked_before(cache, entries[0].name, -DAY)
    assert cache.tidy()["checked_bytes"] == 1000, "by a clock that was wrong"


@pytest.mark.parametrize("text", ["", "0123456789abcdef 3", "x" * 70000, "../../etc/passwd 1 1 1\n" * 3])
def test_what_is_known_may_be_lost(cache: Cache, text: str) -> None:
    cache.entry(b"sound")
    (cache.state / "checked").write_text(text)
    (cache.state / "status.json").write_text(text)
    assert cache.tidy()["checked_bytes"] == 5
    assert cache.tidy()["checked_bytes"] == 0


def test_only_entries_are_touched(cache: Cache, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("stays")
    os.utime(outside, (0, 0))
    for name in ("notes.txt", "0123456789ABCDEF", "0123456789abcde", ".part-0123456789abcdef-1"):
        (cache.folder / name).write_text(name)
    (cache.folder / ("a" * 16)).symlink_to(outside)
    (cache.folder / ("b" * 16)).mkdir()
    os.mkfifo(cache.folder / ("c" * 16))
    before = cache.names
    left = cache.folder / ".part-fedcba9876543210-1"
    left.write_text("of a run that was killed")
    os.utime(left, (time.time() - DAY,) * 2)
    command = [PROGRAM, "tidy", cache.folder, cache.state, "--quiet", "0", "--max", "0"]
    subprocess.run(command, check=True, timeout=300)
    assert (cache.names, outside.read_text()) == (before, "stays")
    moved = tmp_path / "moved"
    cache.folder.rename(moved)
    cache.folder.symlink_to(moved)
    refused = completed(*command)
    assert (refused.returncode, "cannot be opened" in refused.stderr) == (1, True)


def test_what_is_open_is_in_use(cache: Cache) -> None:
    read, written, damaged, other = (cache.entry(name * 99) for name in (b"read", b"written", b"damaged", b"other"))
    damaged.write_bytes(b"x")
    os.utime(damaged, (0, 0))
    with read.open("rb"), written.open("ab"), damaged.open("rb"):
        status = cache.tidy("--max", 0)
        assert cache.names == {read.name, written.name, damaged.name}
        assert (status["evicted"], status["corrupted"], status["kept"]) == (1, 0, 3)
        assert other.name not in cache.names
    assert cache.tidy("--max", 0)["kept"] == 0
    assert cache.names == set()


@contextmanager
def load_of(entry: Path) -> Iterator[None]:
    """Open an entry again and again meanwhile, as a load opens one entry after the other."""
    loaded = threading.Event()

    def load() -> None:
        while not loaded.wait(0.01):
            entry.read_bytes()

    client = threading.Thread(target=load)
    client.start()
    try:
        yield
    finally:
        loaded.set()
        client.join()


def test_nothing_goes_while_a_load_is_going_on_unless_the_disk_is_full(cache: Cache) -> None:
    """On a full disk, entries that were not used for ten minutes make room."""
    old, young = cache.entry(b"old" * 99), cache.entry(b"young" * 99, age=300)
    busy = cache.entry(b"busy" * 99)
    wrong = cache.entry(b"wrong", name="0" * 16)
    with load_of(busy):
        status = cache.tidy("--max", 0, quiet=2)
        assert (status["evicted"], status["corrupted"], status["kept"]) == (0, 0, 4)
        status = cache.tidy("--min-free", "100%", quiet=2)
        assert cache.names == {young.name, busy.name, wrong.name}, "all but the longest unused stay"
        assert status["evicted"] == 1
    assert not old.exists()
    cache.tidy("--min-free", "100%", quiet=1)
    assert cache.names == set()


def test_what_is_damaged_and_stays_during_a_load_makes_no_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=1g") as disk:
        cache = Cache(disk)
        old, busy, wrong = cache.entry(b"old" * 99), cache.entry(b"busy" * 99, age=300), cache.entry(b"", name="0" * 16)
        os.truncate(wrong, 256 << 20)
        os.utime(wrong, (time.time() - DAY,) * 2)
        lacking = shutil.disk_usage(cache.folder).free + (128 << 20)
        with load_of(busy):
            status = cache.tidy("--min-free", lacking, quiet=2)
        assert (cache.names, status["evicted"]) == ({busy.name, wrong.name}, 1), "the room is needed all the same"
        assert not old.exists()
        cache.entry(b"old" * 99)
        assert cache.tidy("--min-free", lacking)["corrupted"] == 1
        assert cache.names == {old.name, busy.name}, "the room that it has left is enough"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max", "lots"], "lots is no size; give bytes"),
        (["--max", "5%%"], "5%% is no size"),
        (["--max"], "usage:"),
        (["--what", "1"], "usage:"),
    ],
)
def test_wrong_use_is_explained(cache: Cache, options: list[str], said: str) -> None:
    entry = cache.entry(b"stays")
    command = [str(PROGRAM), "tidy", str(cache.folder), str(cache.state), *options]
    done = completed(*command)
    assert done.returncode != 0
    assert said in done.stderr
    assert entry.exists()


def test_what_is_added_is_whole_and_what_is_there_is_not_written_again(cache: Cache, tmp_path: Path) -> None:
    source = tmp_path / "model with blanks.gguf"
    source.write_bytes(os.urandom(4000))
    data = source.read_bytes()
    wanted = f"0 1000 {source}\n1000 3000 {source}\n0 1000 {source}\n"
    done = cache.add(wanted)
    first, second = fnv(data[:1000]), fnv(data[1000:])
    assert done.stdout.splitlines() == [f"{first} 1000 added", f"{second} 3000 added", f"{first} 1000 there"]
    assert cache.names == {first, second}
    assert (cache.folder / second).read_bytes() == data[1000:]
    os.truncate(cache.folder / second, 100)
    os.utime(cache.folder / first, (0, 0))
    done = cache.add(wanted)
    assert done.stdout.splitlines()[:2] == [f"{first} 1000 there", f"{second} 3000 replaced"], "a cut one is replaced"
    status = (cache.folder / first).stat()
    assert (status.st_mtime, time.time() - status.st_atime < 60) == (0, True), "it is used, and not written"
    assert (cache.folder / second).stat().st_mode & 0o777 == 0o600
    (cache.folder / second).write_bytes(bytes(3000))
    assert f"{second} 3000 missing" in cache.add(wanted, "--check", "yes").stdout, "its size says nothing of its bytes"
    assert f"{second} 3000 replaced" in cache.add(wanted).stdout
    assert (cache.folder / second).read_bytes() == data[1000:]
    dry = cache.add(f"1 999 {source}\n" + wanted, "--check", "yes")
    assert [line.split()[2] for line in dry.stdout.splitlines()] == ["missing", "there", "there", "there"]
    assert len(cache.names) == 2


@pytest.mark.parametrize(
    ("wanted", "options", "said"),
    [
        ("0 5000 {}", [], "ends before its last tensor; bring it whole"),
        ("0 100 {}.none", [], "No such file"),
        ("0 {}", [], "a line that is none"),
        ("0 100 {}", ["--min-free", "100%"], "less free than it is to keep; make room"),
    ],
)
def test_what_cannot_be_added_is_said_and_leaves_nothing(
    cache: Cache, tmp_path: Path, wanted: str, options: list[str], said: str
) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(b"x" * 4000)
    done = cache.add(wanted.format(source) + "\n", *options)
    assert (done.returncode, cache.names) == (1, set())
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become the owner of a cache")
def test_what_root_adds_belongs_to_the_owner_of_the_cache(cache: Cache, tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(b"x" * 4000)
    source.chmod(0o600)
    with ExitStack() as stack:
        stack.enter_context((tmp_path / "lock").open("w"))
        for path in (tmp_path, *tmp_path.parents[:2]):
            stack.callback(path.chmod, path.stat().st_mode)
            path.chmod(0o755)
        os.chown(cache.folder, 65534, 65534)
        assert cache.add(f"0 4000 {source}\n").returncode == 0
    (entry,) = cache.folder.iterdir()
    assert (entry.stat().st_uid, entry.stat().st_gid) == (65534, 65534)


def test_file_systems_here_have_leases(cache: Cache) -> None:
    """Without leases, the tests of entries in use would show nothing."""
    entry = cache.entry(b"x")
    with entry.open("rb") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
