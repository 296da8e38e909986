# SPDX-License-Identifier: GPL-3.0-or-later
"""Patches of a source: how they are read and applied, and refusals, with a sentence that names the patch."""

from __future__ import annotations

import difflib
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.source_patch import (
    Patch,
    PatchError,
    apply,
    check_origin,
    parse,
    patch_folder,
    read_patch,
)
from hypothesis import given, settings
from hypothesis import strategies as st

ROLE = Path(__file__).resolve().parents[3] / "roles" / "llama_cpp"
COMMIT = "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
HEADER = f"# SPDX-License-Identifier: MIT\n# What it does, and why.\n# Made-for: commit:{COMMIT}\n"
SOURCE = "".join(f"line {number}\n" for number in range(1, 31))


def diff(old: str | None, new: str | None, path: str = "x.c") -> str:
    """Return a unified diff as git writes it; None stands for no file."""
    names = [f"{side}/{path}" if text is not None else "/dev/null" for side, text in (("a", old), ("b", new))]
    lines = difflib.unified_diff((old or "").splitlines(True), (new or "").splitlines(True), *names)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def patch(text: str, name: str = "mine", header: str = HEADER) -> Patch:
    """Return a patch made of a diff."""
    made_for, changes = parse(name, (header + text).encode())
    return Patch(name, "", made_for, changes)


def outcome(*patches: Patch, **files: str) -> dict[str, str | None]:
    contents = {name.replace("_c", ".c"): text.encode() for name, text in files.items()}
    return {
        path: None if content is None else content.decode() for path, content in apply(patches, contents.get).items()
    }


CHANGES = {
    "one-line": (SOURCE, SOURCE.replace("line 9\n", "other\n")),
    "two-hunks": (SOURCE, SOURCE.replace("line 2\n", "").replace("line 25\n", "line 25\nmore\nmore\n")),
    "newline-at-the-end-goes": (SOURCE, SOURCE[:-1]),
    "newline-at-the-end-comes": (SOURCE[:-1], SOURCE + "more\n"),
    "lines-that-look-like-a-diff": ("-- x\n", "-- x\n++ b/y\n--- a/y\n@@ -1 +1 @@\n"),
    "new-file": (None, SOURCE),
    "deleted-file": (SOURCE, None),
}


@pytest.mark.parametrize(("old", "new"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_is_made(old: str | None, new: str | None) -> None:
    files = {} if old is None else {"x_c": old}
    assert outcome(patch(diff(old, new)), **files) == {"x.c": new}


TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "\n", "-- \n", "c\r\n"]), max_size=30).map("".join)


@settings(max_examples=200, deadline=None)
@given(TEXTS, TEXTS)
def test_any_change_is_made(old: str, new: str) -> None:
    if old != new:
        lines = [text.split("\n") for text in (old, new)]
        lines = [[f"{line}\n" for line in split[:-1]] for split in lines]
        text = "".join(difflib.unified_diff(*lines, "a/x.c", "b/x.c"))
        assert outcome(patch(text), x_c=old) == {"x.c": new}


@pytest.mark.skipif(not shutil.which("git"), reason="needs git")
def test_what_git_writes_is_read(tmp_path: Path) -> None:
    """A commit that adds, changes and deletes, as git diff and as git format-patch write it."""

    def git(*words: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
        argv = ["git", "-C", str(tmp_path), *who, *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=20).stdout

    git("init", "-q")
    for name in ("x.c", "gone.c"):
        (tmp_path / name).write_text(SOURCE)
    git("add", ".")
    git("commit", "-qm", "one")
    (tmp_path / "gone.c").unlink()
    (tmp_path / "x.c").write_text(SOURCE.replace("line 2\n", "two\n").replace("line 28\n", ""))
    (tmp_path / "new.c").write_text("int x;")
    git("add", "-A")
    git("commit", "-qm", f"Made-for: commit:{COMMIT}\n\nWhy.")
    wanted = {"gone.c": None, "new.c": "int x;", "x.c": (tmp_path / "x.c").read_text()}
    files = {"x_c": SOURCE, "gone_c": SOURCE}
    assert outcome(patch(git("diff", "HEAD~", "HEAD")), **files) == wanted
    mail = git("format-patch", "--stdout", "-1").replace("Subject: [PATCH] ", "")
    assert outcome(patch(mail, header=""), **files) == wanted


def test_patches_are_applied_in_their_order() -> None:
    first = patch(diff(SOURCE, SOURCE.replace("line 9\n", "one\n")), "first")
    second = patch(diff(SOURCE.replace("line 9\n", "one\n"), SOURCE.replace("line 9\n", "two\n")), "second")
    assert outcome(first, second, x_c=SOURCE) == {"x.c": SOURCE.replace("line 9\n", "two\n")}
    with pytest.raises(PatchError, match=r"The patch second does not apply to x\.c: hunk 1 of it, at line 6, does not"):
        outcome(second, first, x_c=SOURCE)


def test_lines_may_have_moved_and_the_nearest_place_counts() -> None:
    block = "".join(f"{line}\n" for line in "abcdefg")
    source = block * 3
    changed = block + block.replace("d\n", "D\n") + block
    moved = patch(diff(source, changed))
    assert outcome(moved, x_c=f"x\n{source}") == {"x.c": f"x\n{changed}"}
    with pytest.raises(PatchError, match=r"hunk 1 of it, at line \d+, does not fit"):
        apply([moved], {"x.c": f"x\n{source}".encode()}.get, once=True)
    assert apply([moved], {"x.c": source.encode()}.get, once=True) == {"x.c": changed.encode()}


PLAIN = diff(SOURCE, SOURCE.replace("line 9\n", "other\n"))
GIT = "diff --git a/x.c b/x.c\n"
REFUSED = {
    "parent-folder": (PLAIN.replace("/x.c", "/../../x.c"), "it changes 'a/../../x.c'"),
    "parent-folder-first": (PLAIN.replace("a/x.c", "../x.c"), "it changes '../x.c', which is not a path in the source"),
    "absolute-path": (PLAIN.replace("a/x.c", "/etc/x.c"), "it changes '/etc/x.c'"),
    "absolute-path-after-a-folder": (PLAIN.replace("b/x.c", "b//etc/x.c"), "it changes 'b//etc/x.c'"),
    "new-file-elsewhere": (diff(None, "x\n", "../../x"), "it changes 'b/../../x'"),
    "no-folder-before": (PLAIN.replace("a/x.c", "x.c"), "it changes 'x.c'"),
    "quoted-path": (PLAIN.replace("a/x.c", '"a/x\\303\\244.c"'), "which is not a path in the source"),
    "control-character": (PLAIN.replace("a/x.c", "a/x\x1b[2J.c"), r"it changes 'a/x\x1b[2J.c'"),
    "another-name-afterwards": (PLAIN.replace("b/x.c", "b/y.c"), "it makes x.c into y.c"),
    "rename": (f"{GIT}similarity index 100%\nrename from x.c\nrename to ../y.c\n", "it renames or copies a file"),
    "copy": (f"{GIT}similarity index 100%\ncopy from x.c\ncopy to y.c\n", "it renames or copies a file (a/x.c"),
    "symbolic-link": (
        f"{GIT}new file mode 120000\n{diff(None, '/etc/passwd')}",
        "something other than lines of a/x.c b/x.c (new file mode 120000)",
    ),
    "mode": (f"{GIT}old mode 100644\nnew mode 100755\n", "changes something other than lines of a/x.c b/x.c (old mode"),
    "nothing-but-a-name": (GIT, "it changes something other than lines of a/x.c b/x.c (it has no line that changes)"),
    "binary-of-git": (f"{GIT}index 1..2 100644\nGIT binary patch\nliteral 3\n", "of a binary file (a/x.c b/x.c)"),
    "binary-of-diff": ("--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\nBinary files a/x and b/x differ\n", "of a binary file"),
    "binary": ("\0", "The patch mine is binary"),
    "line-lost": (PLAIN.replace(" line 7\n", ""), "its line 14 is not part of a unified diff, so it may be damaged"),
    "line-too-many": (PLAIN + "+more\n", "so it may be damaged"),
    "cut-off": (PLAIN[:-10], "so it may be damaged"),
    "no-hunk": ("--- a/x.c\n+++ b/x.c\n", "so it may be damaged"),
    "hunk-of-no-file": ("@@ -1 +1 @@\n-a\n+b\n", "so it may be damaged"),
    "text-between": (f"{PLAIN}and so on\n{PLAIN}", "its line 15 is not part"),
    "no-context": ("--- a/x.c\n+++ b/x.c\n@@ -5,0 +6 @@\n+more\n", "a hunk without a line of context"),
    "both-nothing": ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "it makes None into None"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_harmless_unified_diff_is_refused(text: str, said: str) -> None:
    with pytest.raises(PatchError) as refusal:
        patch(text)
    assert str(refusal.value).startswith("The patch mine is ")
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300) | st.text("-+@ \\ab/\n,1290x.", max_size=300).map(str.encode))
def test_no_text_is_a_traceback(text: bytes) -> None:
    with suppress(PatchError):
        parse("mine", HEADER.encode() + PLAIN.encode() + text)


UNFIT = {
    "other-lines": (
        PLAIN,
        {"x_c": SOURCE.replace("line 8\n", "")},
        "to x.c: hunk 1 of it, at line 6, does not fit; check that it",
    ),
    "second-hunk": (
        diff(SOURCE, SOURCE.replace("line 2\n", "a\n").replace("line 25\n", "b\n")),
        {"x_c": SOURCE.replace("line 26\n", "")},
        "hunk 2 of it, at line 22,",
    ),
    "no-such-file": (PLAIN, {}, "to x.c: there is no such file"),
    "created-and-there": (diff(None, "x\n"), {"x_c": "y\n"}, "to x.c: it creates that file, which already exists"),
    "deleted-and-longer": (diff("a\n", None), {"x_c": "a\nb\n"}, "to x.c: it deletes that file, which holds more than"),
    "in-there-already": (PLAIN, {"x_c": SOURCE.replace("line 9\n", "other\n")}, "does not fit"),
}


@pytest.mark.parametrize(("text", "files", "said"), UNFIT.values(), ids=UNFIT.keys())
def test_a_patch_that_does_not_apply_names_file_and_hunk(text: str, files: dict[str, str], said: str) -> None:
    with pytest.raises(PatchError) as refusal:
        outcome(patch(text), **files)
    assert str(refusal.value).startswith("The patch mine does not apply to x.c: ")
    assert said in str(refusal.value)


MADE_FOR = {
    "digest": ("sha256:" + "a" * 64, "a" * 64, "", True),
    "commit": (f"commit:{COMMIT}", "", COMMIT, True),
    "beginning-of-the-commit": (f"commit:{COMMIT}", "b" * 64, COMMIT[:9], True),
    "one-of-two": (f"commit:{'1' * 40}\n# Made-for: sha256:{'a' * 64}", "a" * 64, COMMIT, True),
    "another-digest": ("sha256:" + "a" * 64, "b" * 64, COMMIT, False),
    "another-commit": (f"commit:{'1' * 40}", "a" * 64, COMMIT, False),
    "nothing-known": (f"commit:{COMMIT}", "", "", False),
}


@pytest.mark.parametrize(("origin", "sha256", "commit", "fits"), MADE_FOR.values(), ids=MADE_FOR.keys())
def test_a_patch_is_for_the_source_that_it_names(origin: str, sha256: str, commit: str, fits: bool) -> None:
    given = patch(PLAIN, header=f"# Made-for: {origin}\n")
    if fits:
        check_origin(given, sha256, commit, "llama-cpp-python==0.3.35")
    else:
        with pytest.raises(PatchError, match=r"The patch mine is made for .*, and the pinned source is llama-cpp-p"):
            check_origin(given, sha256, commit, "llama-cpp-python==0.3.35")


ORIGINS = {
    "none": ("# What it does.\n", "no line before its first change says which source"),
    "short-commit": ("# Made-for: commit:0c1e57098\n", "'commit:0c1e57098' after Made-for, which is not sha256"),
    "only-later": ("", "no line before its first change says which source"),
}


@pytest.mark.parametrize(("header", "said"), ORIGINS.values(), ids=ORIGINS.keys())
def test_a_patch_says_what_it_is_made_for(header: str, said: str) -> None:
    with pytest.raises(PatchError, match=said):
        patch(f"{PLAIN}\n# Made-for: commit:{COMMIT}\n", header=header)


def test_the_collections_own_patches_are_for_the_versions_that_have_them() -> None:
    archives = yaml.safe_load((ROLE / "vars/main.yml").read_text())["__llama_cpp_archives"]
    for version, archive in archives.items():
        for name in archive.get("patches", []):
            path = ROLE / "files/patches" / version / f"{name}.patch"
            check_origin(read_patch(path), archive["sha256"], archive["commit"], version)


BROKEN = {
    "missing": (None, "cannot be read: .*mine.patch: No such file"),
    "empty": (HEADER, "The patch mine changes nothing"),
    "folder": ("folder", "is not a file of at most 16 MiB"),
}


@pytest.mark.parametrize(("text", "said"), BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_is_no_patch_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "mine.patch"
    if text == "folder":
        path.mkdir()
    elif text is not None:
        path.write_text(text)
    with pytest.raises(PatchError, match=said):
        read_patch(path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder with a file, another name of it, a link to a folder, and a program."""
    folder = tmp_path / "source"
    (folder / "real").mkdir(parents=True)
    for name, mode in (("x.c", 0o644), ("real/y.c", 0o644), ("run.sh", 0o755)):
        (folder / name).write_text(SOURCE)
        (folder / name).chmod(mode)
    (folder / "same.c").hardlink_to(folder / "x.c")
    (folder / "link").symlink_to("real")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_is_patched(source: Path) -> None:
    changed = SOURCE.replace("line 9\n", "other\n")
    text = diff(SOURCE, changed) + diff(SOURCE, changed, "run.sh") + diff(SOURCE, None, "real/y.c")
    given = patch(text + diff(None, "int x;\n", "new/x.h"))
    before = contents(source)
    assert patch_folder(source, [given], write=False) == ["new/x.h", "real/y.c", "run.sh", "x.c"]
    assert contents(source) == before
    patch_folder(source, [given])
    assert contents(source) == {"x.c": changed, "run.sh": changed, "same.c": SOURCE, "new/x.h": "int x;\n"}
    assert [(source / name).stat().st_mode & 0o777 for name in ("run.sh", "x.c", "new/x.h")] == [0o755, 0o644, 0o644]


STRAYS = {
    "through-a-link": (diff(SOURCE, SOURCE + "x\n", "link/y.c"), "it changes link/y.c, which is not a plain file"),
    "a-link": (diff("real", "/etc", "link"), "it changes link, which is not a plain file"),
    "beneath-a-file": (diff(None, "x\n", "x.c/y"), "it changes x.c/y, which is not a plain file"),
    "in-the-place-of-a-folder": (diff(None, "x\n", "real"), "it changes real, which is not a plain file"),
    "created-through-a-link": (diff(None, "x\n", "link/z.h"), "it changes link/z.h, which is not a plain file"),
    "does-not-apply": (diff("a\n", "b\n"), "does not apply to x.c: hunk 1 of it"),
}


@pytest.mark.parametrize(("text", "said"), STRAYS.values(), ids=STRAYS.keys())
def test_nothing_is_written_unless_all_patches_apply(source: Path, text: str, said: str) -> None:
    fine = patch(diff(SOURCE, SOURCE + "x\n"), "fine")
    before = contents(source)
    with pytest.raises(PatchError, match="The patch mine ") as refusal:
        patch_folder(source, [fine, patch(text)])
    assert said in str(refusal.value)
    assert contents(source) == before


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match=r"There is no folder .*absent to patch"):
        patch_folder(tmp_path / "absent", [patch(PLAIN)])
