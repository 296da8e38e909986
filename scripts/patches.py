# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert the patches of llama.cpp to a git tree and back, and try them on another source; see scripts/patches.sh.

Each commit is a patch: its message, and its diff below the message. The message begins with the patch's name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.source_patch import (
    Change,
    Hunk,
    Patch,
    apply,
    read_patch,
)

ROOT = Path(__file__).resolve().parents[1]
ROLE = ROOT / "roles/llama_cpp"
CACHE = Path(os.environ.get("LLAMA_CPP_CLUSTER_CACHE") or Path.home() / ".cache" / "llama_cpp_cluster")
ARCHIVES = yaml.safe_load((ROLE / "vars/main.yml").read_text())["__llama_cpp_archives"]
DEFAULT = yaml.safe_load((ROLE / "defaults/main.yml").read_text())["llama_cpp_version"]
PATCHES = ROLE / "files/patches"
# One line of context is enough, because the source is known by its digest. It allows leaving out any of the patches.
DIFF = ("diff", "--no-color", "--no-ext-diff", "--no-renames", "--full-index", "--diff-algorithm=myers", "-U1")
# A tree has nothing of the machine or its user, so that two trees have the same bytes.
NOBODY = {"NAME": "llama_cpp.cluster", "EMAIL": "", "DATE": "2000-01-01T00:00:00Z"}
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    **{f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in NOBODY.items()},
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C",
}  # fmt: skip

USAGE = "say `fetch`, `tree FOLDER [VERSION]`, `export FOLDER [TO]` or `rebase TO [FOLDER]`."


class PatchesError(Exception):
    """An error as one sentence: what is wrong, and what to do."""


def git(folder: Path, *arguments: str, given: bytes = b"") -> bytes:
    """Run git without the machine's settings, and return its output."""
    done = subprocess.run(
        ["git", "-c", "core.autocrlf=false", "-c", "gc.auto=0", *arguments],
        cwd=folder, env=ENVIRONMENT, input=given, capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise PatchesError(f"git {arguments[0]} in {folder}: {done.stderr.decode().strip()}")
    return done.stdout


def source_of(version: str) -> Path:
    """Return the path of a version's source archive, fetched as the role fetches it if it is not in the cache."""
    if version not in ARCHIVES:
        raise PatchesError(f"There is no version {version} in the role's table: {', '.join(ARCHIVES)}.")
    path = CACHE / f"sources/llama_cpp_python-{version}.tar.gz"
    command = ["sh", str(ROLE / "files/fetch_source.sh"), str(path), "pip", ARCHIVES[version]["sha256"], sys.executable]
    given = f"llama-cpp-python=={version}\n"
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PatchesError(f"{given.strip()} could not be fetched: {done.stderr.strip()}")
    return path


def unpack(version: str, folder: Path) -> None:
    """Unpack the source of a version."""
    folder.mkdir(parents=True, exist_ok=True)
    inside = f"llama_cpp_python-{version}/vendor/llama.cpp"
    command = ["tar", "-xf", source_of(version), "-C", folder, "--strip-components=3", "--no-same-owner", inside]
    subprocess.run(command, check=True)


def commit(folder: Path, message: str) -> None:
    """Commit everything in a tree."""
    git(folder, "add", "--all", "--force", ".")
    git(folder, "commit", "--quiet", "--cleanup=verbatim", "--file=-", given=message.encode())


def begin(folder: Path, version: str) -> None:
    """Make a repository of the source in a folder; the message of its first commit is the version."""
    # The archive's .git names a repository that does not exist here.
    (folder / ".git").unlink(missing_ok=True)
    git(folder, "init", "--quiet", "--initial-branch=patches")
    commit(folder, f"{version}\n")


def paths_of(version: str) -> list[Path]:
    """Return the patches of a version, in their order."""
    return [PATCHES / version / f"{name}.patch" for name in ARCHIVES[version].get("patches", [])]


def message_of(patch: Path) -> str:
    """Return the message of a patch: everything above its diff."""
    return patch.read_text().partition("\ndiff --git ")[0]


def check_empty(folder: Path) -> None:
    """Raise PatchesError if the folder exists and is not empty."""
    if folder.exists() and any(folder.iterdir()):
        raise PatchesError(f"{folder} is not empty: name a folder that is, or that is not there yet.")


def make_tree(folder: Path, version: str) -> None:
    """Make a tree of a version and its patches."""
    check_empty(folder)
    unpack(version, folder)
    begin(folder, version)
    for path in paths_of(version):
        git(folder, "apply", "--index", "--whitespace=nowarn", str(path.resolve()))
        commit(folder, message_of(path))


def exported(folder: Path) -> tuple[str, dict[str, bytes]]:
    """Return the version of a tree, and the patches from its commits by their names."""
    version = git(folder, "log", "--max-parents=0", "--format=%s", "HEAD").decode().strip()
    if version not in ARCHIVES:
        raise PatchesError(f"The first commit of {folder} is {version!r}, which is not a version of the role's table.")
    found = {}
    for name in git(folder, "rev-list", "--reverse", "--min-parents=1", "HEAD").decode().split():
        message = git(folder, "log", "-1", "--format=%B", name)
        title = re.match(rb"([a-z][a-z-]*): ", message)
        if not title:
            raise PatchesError(
                f"The message of commit {name[:9]} does not begin with a patch's name, as in rpc-load: …"
            )
        change = git(folder, *DIFF, f"{name}^", name)
        found[title[1].decode()] = message.rstrip(b"\n") + b"\n\n" + change
    return version, found


def export(folder: Path, place: Path | None) -> None:
    """Write the patches of a tree to the role's folder, or to `place`."""
    version, patches = exported(folder)
    place = place or PATCHES / version
    place.mkdir(parents=True, exist_ok=True)
    for path in place.glob("*.patch"):
        if path.stem not in patches:
            path.unlink()
    for name, content in patches.items():
        (place / f"{name}.patch").write_bytes(content)
    print(f"{place}: {', '.join(patches)}")


@dataclass
class Outcome:
    """The result of trying a hunk on another source."""

    path: str
    number: int
    hunk: Hunk
    fits: bool


def merged(ours: bytes, base: bytes, theirs: bytes) -> bytes | None:
    """Return the result of a three-way merge, or None if it has conflicts."""
    with tempfile.TemporaryDirectory() as folder:
        names = [Path(folder) / name for name in ("ours", "base", "theirs")]
        for name, content in zip(names, (ours, base, theirs)):
            name.write_bytes(content)
        done = subprocess.run(["git", "merge-file", "-p", *names], env=ENVIRONMENT, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None


def try_change(change: Change, base: bytes | None, tree: Path) -> list[Outcome]:
    """Apply a change of one file to another source as far as possible, and return the outcome of each hunk."""
    target = tree / change.path
    if change.creates:
        fits = not target.exists()
        if fits:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(b"".join(change.hunks[0].new))
        return [Outcome(change.path, 1, change.hunks[0], fits)]
    outcomes = []
    for number, hunk in enumerate(change.hunks, 1):
        alone = Change(change.path, creates=False, deletes=False, hunks=(hunk,))
        result = None
        if target.exists() and base is not None:
            theirs = apply([Patch("", "", (), (alone,))], {change.path: base}.get)[change.path]
            result = merged(target.read_bytes(), base, theirs or b"")
        if result is not None:
            target.write_bytes(result)
        outcomes.append(Outcome(change.path, number, hunk, result is not None))
    return outcomes


def rebase(to: str, folder: Path | None) -> bool:
    """Try the default version's patches on another source, print what fits, and return whether all hunks fit."""
    with tempfile.TemporaryDirectory() as scratch:
        tree = folder or Path(scratch) / "tree"
        check_empty(tree)
        if to in ARCHIVES:
            unpack(to, tree)
        elif (Path(to) / "ggml").is_dir():
            shutil.copytree(to, tree, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git"))
        else:
            raise PatchesError(f"{to} is neither a version of the role's table nor a folder with llama.cpp's source.")
        begin(tree, to)
        unpack(DEFAULT, Path(scratch) / "base")
        outcomes = [one for path in paths_of(DEFAULT) for one in rebase_one(path, Path(scratch) / "base", tree, to)]
    fit = sum(outcome.fits for outcome in outcomes)
    print(f"\n{fit} of {len(outcomes)} hunks fit {to}.")
    return fit == len(outcomes)


def rebase_one(path: Path, base: Path, tree: Path, to: str) -> list[Outcome]:
    """Try one patch on another source, and apply it to the source that it was made for."""
    patch = read_patch(path)
    contents = {change.path: (base / change.path).read_bytes() for change in patch.changes if not change.creates}
    outcomes = [one for change in patch.changes for one in try_change(change, contents.get(change.path), tree)]
    for name, content in apply([patch], contents.get).items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_bytes(content or b"")
    origin = f"Made-for: sha256:{ARCHIVES[to]['sha256']}" if to in ARCHIVES else f"Made-for: commit:{'0' * 40}"
    if git(tree, "status", "--porcelain"):
        commit(tree, re.sub(r"^Made-for: .*$", origin, message_of(path), flags=re.MULTILINE))
    print(f"{patch.name}: {sum(one.fits for one in outcomes)} of {len(outcomes)} hunks fit")
    for one in outcomes:
        if not one.fits:
            print(f"    {one.path}: hunk {one.number}, at line {one.hunk.start}, does not fit")
            for sign, lines in (("-", one.hunk.old), ("+", one.hunk.new)):
                other = one.hunk.new if sign == "-" else one.hunk.old
                print("".join(f"        {sign}{line.decode()}" for line in lines if line not in other), end="")
    return outcomes


def run(command: str, first: str = "", second: str = "") -> int:
    """Run a command, and return the exit status."""
    if command == "tree" and first:
        make_tree(Path(first), second or DEFAULT)
    elif command == "export" and first:
        export(Path(first), Path(second) if second else None)
    elif command == "fetch":
        for version in ARCHIVES:
            if ARCHIVES[version].get("patches"):
                print(source_of(version))
    elif command == "rebase" and first:
        return 0 if rebase(first, Path(second) if second else None) else 1
    else:
        raise PatchesError(USAGE)
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(run(*(sys.argv[1:4] or [""])))
    except PatchesError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
