# SPDX-License-Identifier: GPL-3.0-or-later
"""An archive is unpacked completely or not at all, and never outside of its folder."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tarfile
from pathlib import Path

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.archive import (
    SYMLINK,
    Archive,
    ArchiveError,
    Member,
    check,
)
from hypothesis import given
from hypothesis import strategies as st

from support.archives import digest, member, pack, tree


def unpack(src: Path, sha256: str, dest: Path, subdir: str = "") -> None:
    with Archive(str(src), sha256, subdir) as archive:
        archive.unpack(str(dest))


def known(src: Path, sha256: str, dest: Path, subdir: str = "") -> bool:
    with Archive(str(src), sha256, subdir) as archive:
        return archive.is_unpacked_at(str(dest))


GOOD = (
    member("top/", tarfile.DIRTYPE),
    member("top/a.c"),
    member("top/run.sh", mode=0o4775),
    member("top/sub/deep/b.c"),
    member("top/link.c", tarfile.SYMTYPE, "sub/deep/b.c"),
    member("top/sub/up.c", tarfile.SYMTYPE, "../a.c"),
    member("top/sub/same.c", tarfile.LNKTYPE, "top/a.c"),
    member("other/c.c"),
)


@pytest.mark.parametrize("how", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_good_archive_is_unpacked_whole(tmp_path: Path, how: str) -> None:
    unpack(tmp_path / "a", pack(tmp_path / "a", *GOOD, how=how), tmp_path / "out")
    out = tmp_path / "out"
    assert (out / "top/link.c").read_text() == "text\n"
    assert (out / "top/sub/up.c").read_text() == "text\n"
    assert (out / "top/sub/same.c").samefile(out / "top/a.c")
    assert (out / "other/c.c").is_file()
    assert stat.S_IMODE((out / "top/run.sh").stat().st_mode) == 0o755, "the set-user-ID bit must be dropped"
    assert stat.S_IMODE((out / "top/a.c").stat().st_mode) == 0o644
    assert (out / "top/a.c").stat().st_mtime == 1_700_000_000


def test_a_folder_of_the_archive_becomes_the_root(tmp_path: Path) -> None:
    unpack(tmp_path / "a", pack(tmp_path / "a", *GOOD), tmp_path / "out", "top")
    assert (tmp_path / "out/sub/same.c").samefile(tmp_path / "out/a.c")
    assert not (tmp_path / "out/other").exists()


def test_the_same_archive_is_known_again_and_another_one_is_not(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    one, two = pack(first, *GOOD), pack(second, member("top/new.c"))
    out = tmp_path / "out"
    unpack(first, one, out, "top")
    assert known(first, one, out, "top")
    assert not known(first, one, out), "another folder of it is something else"
    assert not known(second, two, out, "top")
    unpack(second, two, out, "top")
    assert [name for name in tree(out) if not name.startswith(".")] == ["new.c"]
    assert tree(tmp_path) == ["a", "b", "out", "out/.verified_archive.json", "out/new.c"], "nothing else may stay"


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    sha256 = pack(tmp_path / "a", *GOOD)
    (tmp_path / "out").mkdir()
    assert not known(tmp_path / "a", sha256, tmp_path / "out"), "an empty one may be taken"
    (tmp_path / "out/precious").touch()
    with pytest.raises(ArchiveError, match="not unpacked by this module"):
        known(tmp_path / "a", sha256, tmp_path / "out")


EVIL = {
    "absolute path": ([member("/etc/evil")], "/etc/evil", "absolute path"),
    "parent path": ([member("top/../../evil")], "top/../../evil", "parent folder"),
    "parent path that stays inside": ([member("top/../evil")], "top/../evil", "parent folder"),
    "symlink to an absolute path": ([member("evil", tarfile.SYMTYPE, "/etc")], "evil", "out of the root"),
    "symlink to a parent": ([member("top/evil", tarfile.SYMTYPE, "../../x")], "top/evil", "out of the root"),
    "symlink out through another, harmless for the eye": (
        [member("a/b/l", tarfile.SYMTYPE, "../../top"), member("evil", tarfile.SYMTYPE, "a/b/l/../..")],
        "evil",
        "out of the root",
    ),
    "symlinks in a circle": (
        [member("evil", tarfile.SYMTYPE, "b"), member("b", tarfile.SYMTYPE, "evil")],
        "evil",
        "leads back to itself",
    ),
    "file through a symlink": ([member("d", tarfile.SYMTYPE, "."), member("d/evil")], "d/evil", "beneath a symbolic"),
    "file through a later symlink": (
        [member("d/evil"), member("d", tarfile.SYMTYPE, ".")],
        "d/evil",
        "beneath a symbolic",
    ),
    "file beneath a file": ([member("d"), member("d/evil")], "d/evil", "beneath a file"),
    "symlink in the place of a folder": (
        [member("d", tarfile.DIRTYPE), member("d", tarfile.SYMTYPE, ".")],
        "d",
        "appears twice",
    ),
    "file twice": ([member("evil"), member("./evil")], "./evil", "appears twice"),
    "hard link out": ([member("evil", tarfile.LNKTYPE, "../../etc/passwd")], "evil", "out of the root"),
    "hard link to an absolute path": ([member("evil", tarfile.LNKTYPE, "/etc/passwd")], "evil", "out of the root"),
    "hard link to nothing": ([member("evil", tarfile.LNKTYPE, "later")], "evil", "not a file that comes before"),
    "hard link to a symlink": (
        [member("s", tarfile.SYMTYPE, "x"), member("evil", tarfile.LNKTYPE, "s")],
        "evil",
        "not a file that comes before",
    ),
    "pipe": ([member("evil", tarfile.FIFOTYPE)], "evil", "neither a file"),
    "device": ([member("evil", tarfile.CHRTYPE)], "evil", "neither a file"),
    "link in the place of the root": ([member(".", tarfile.SYMTYPE, "x")], ".", "place of the root"),
}


@pytest.mark.parametrize(("members", "name", "why"), EVIL.values(), ids=EVIL.keys())
def test_an_archive_that_reaches_out_is_refused_by_the_members_name(tmp_path: Path, members, name, why) -> None:
    sha256 = pack(tmp_path / "a", member("innocent"), *members)
    with pytest.raises(ArchiveError) as refused:
        unpack(tmp_path / "a", sha256, tmp_path / "out")
    assert repr(name) in str(refused.value)
    assert why in str(refused.value)
    assert tree(tmp_path) == ["a"]


@pytest.mark.parametrize(
    "evil",
    [member("top/evil", tarfile.SYMTYPE, "../other/c.c"), member("top/evil", tarfile.LNKTYPE, "other/c.c")],
    ids=["symlink", "hard link"],
)
def test_a_link_from_the_wanted_folder_to_another_is_refused(tmp_path: Path, evil) -> None:
    sha256 = pack(tmp_path / "a", member("other/c.c"), member("top/a.c"), evil)
    unpack(tmp_path / "a", sha256, tmp_path / "whole")
    with pytest.raises(ArchiveError, match=r"'top/evil'.*out of the root"):
        unpack(tmp_path / "a", sha256, tmp_path / "out", "top")


@pytest.mark.parametrize("keep", [0, 1, 10, 100, 300], ids=lambda n: f"{n} bytes")
@pytest.mark.parametrize("how", ["w:gz", "w:xz", "w:bz2"])
def test_a_truncated_archive_leaves_nothing(tmp_path: Path, how: str, keep: int) -> None:
    whole = tmp_path / "a"
    pack(whole, *(member(f"f{n}", text=os.urandom(200).hex()) for n in range(9)), how=how)
    whole.write_bytes(whole.read_bytes()[:keep])
    with pytest.raises(ArchiveError, match="not a whole archive"):
        unpack(whole, digest(whole), tmp_path / "out")
    assert tree(tmp_path) == ["a"]


def test_what_is_no_archive_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "page").write_bytes(b"<html>not found</html>" * 99)
    with pytest.raises(ArchiveError, match="not a whole archive"):
        Archive(str(tmp_path / "page"), digest(tmp_path / "page"))
    with pytest.raises(ArchiveError, match=r"nowhere\.tar cannot be read"):
        Archive(str(tmp_path / "nowhere.tar"), "0" * 64)
    with pytest.raises(ArchiveError, match="no folder 'absent/x'"):
        Archive(str(tmp_path / "a"), pack(tmp_path / "a", *GOOD), "absent/x")


def test_a_wrong_digest_says_what_was_found_and_what_was_expected(tmp_path: Path) -> None:
    found = pack(tmp_path / "a", *GOOD)
    with pytest.raises(ArchiveError) as refused:
        Archive(str(tmp_path / "a"), "0" * 64)
    assert found in str(refused.value)
    assert "0" * 64 in str(refused.value)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack(tmp_path / "old", pack(tmp_path / "old", member("old.c")), tmp_path / "out")
    sha256 = pack(tmp_path / "a", *GOOD)

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(ArchiveError, match=r"the disk that holds .* is full"):
        unpack(tmp_path / "a", sha256, tmp_path / "out")
    assert (tmp_path / "out/old.c").is_file()
    assert list(tmp_path.glob(".*")) == []


NAMES = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map(tuple)
TARGETS = st.lists(st.sampled_from(["a", "b", "c", "..", "..", "."]), min_size=1, max_size=5).map("/".join)


@given(links=st.dictionaries(NAMES, TARGETS, max_size=5))
def test_no_set_of_links_that_passes_leads_out(tmp_path_factory: pytest.TempPathFactory, links) -> None:
    members = [Member(path, SYMLINK, "/".join(path), target) for path, target in links.items()]
    try:
        check(members)
    except ArchiveError:
        return
    # The links that pass the check are created, and the kernel resolves each of them.
    root = tmp_path_factory.mktemp("root")
    for path in links:
        root.joinpath(*path).parent.mkdir(parents=True, exist_ok=True)
    for path, target in links.items():
        root.joinpath(*path).symlink_to(target)
    for path in links:
        real = Path(os.path.realpath(root.joinpath(*path)))
        assert real == root or root in real.parents
    shutil.rmtree(root)
