# SPDX-License-Identifier: GPL-3.0-or-later
"""Convert the patches of llama.cpp to a git tree and back, and try them on another source.

Each commit is a patch: its message, and its diff below the message. The message begins with the patch's name.
docs/maintaining.md describes how to work on them. .venv must be active.

patches.py tree FOLDER [VERSION]    make a tree of a version's source (the default one), with a commit for each patch
patches.py export FOLDER [TO]       write the commits of such a tree as the patches of its version (or to folder TO)
patches.py rebase TO [FOLDER]       merge the default version's patches into version TO, or the source in folder TO,
                                    and print the conflicts; with FOLDER, leave the tree there
patches.py fetch                    fetch the sources of all versions that have patches into the cache
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
ROLE = ROOT / "roles/llama_cpp"
CACHE = Path(os.environ.get("LLAMA_CPP_CLUSTER_CACHE") or Path.home() / ".cache" / "llama_cpp_cluster")
VARS = yaml.safe_load((ROLE / "vars/main.yml").read_text())
ARCHIVES = VARS["__llama_cpp_archives"]
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


def stem_of(version: str) -> str:
    """Return the name of a version's archive, without .tar.gz, which is also that of the folder in it."""
    return str(ARCHIVES[version]["package"]).replace("-", "_").replace("==", "-")


def source_of(version: str) -> Path:
    """Return the path of a version's source archive, fetched as the role fetches it if it is not in the cache."""
    if version not in ARCHIVES:
        raise PatchesError(f"There is no version {version} in the role's table: {', '.join(ARCHIVES)}.")
    package = ARCHIVES[version]["package"]
    path = CACHE / f"sources/{stem_of(version)}.tar.gz"
    command = ["sh", str(ROLE / "files/fetch_source.sh"), str(path), ARCHIVES[version]["sha256"], sys.executable]
    done = subprocess.run(command, input=f"{package}\n", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PatchesError(f"{package} could not be fetched: {done.stderr.strip()}")
    return path


def unpack(version: str, folder: Path) -> None:
    """Unpack the source of a version."""
    folder.mkdir(parents=True, exist_ok=True)
    inside = f"{stem_of(version)}/{VARS['__llama_cpp_folders'][ARCHIVES[version]['package'].partition('==')[0]]}"
    # The archive's .git names a repository that does not exist here.
    command = [
        "tar",
        "-xf",
        source_of(version),
        "-C",
        folder,
        "--strip-components=3",
        "--no-same-owner",
        f"--exclude={inside}/.git",
        inside,
    ]
    subprocess.run(command, check=True)


def commit(folder: Path, message: str) -> None:
    """Commit everything in a tree."""
    git(folder, "add", "--all", "--force", ".")
    git(folder, "commit", "--quiet", "--cleanup=verbatim", "--file=-", given=message.encode())


def begin(folder: Path, version: str) -> None:
    """Make a repository of the source in a folder; the message of its first commit is the version."""
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
    if not place and version not in ARCHIVES:
        raise PatchesError(
            f"{folder} is a tree of {version}, which is not in the role's table: name a folder to write to."
        )
    place = place or PATCHES / version
    place.mkdir(parents=True, exist_ok=True)
    for path in place.glob("*.patch"):
        if path.stem not in patches:
            path.unlink()
    for name, content in patches.items():
        (place / f"{name}.patch").write_bytes(content)
    print(f"{place}: {', '.join(patches)}")


def merge(tree: Path, name: str) -> list[str]:
    """Merge a commit into the tree, with git's markers at conflicts, and return the files that have some."""
    pick = ["git", "cherry-pick", "--allow-empty", "--keep-redundant-commits", name]
    if subprocess.run(pick, cwd=tree, env=ENVIRONMENT, capture_output=True, check=False).returncode == 0:
        return []
    conflicts = git(tree, "diff", "--name-only", "--diff-filter=U").decode().splitlines()
    git(tree, "add", "--all", "--force", ".")
    git(tree, "commit", "--quiet", "--allow-empty", f"--reuse-message={name}")
    return conflicts


def rebase(to: str, folder: Path | None, name: str = "", origin: str = "") -> bool:
    """Merge the default version's patches into another source, and return whether that had no conflicts.

    `name` and `origin` say what the tree and its patches are made for, if the role's table does not.
    """
    with tempfile.TemporaryDirectory() as scratch:
        tree = folder or Path(scratch) / "tree"
        make_tree(tree, DEFAULT)
        commits = git(tree, "rev-list", "--reverse", "--min-parents=1", "HEAD").decode().split()
        git(tree, "checkout", "--quiet", "--orphan", "rebased")
        git(tree, "rm", "-rf", "--quiet", ".")
        if to in ARCHIVES:
            unpack(to, tree)
        elif (Path(to) / "ggml").is_dir():
            shutil.copytree(to, tree, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git"))
        else:
            raise PatchesError(f"{to} is neither a version of the role's table nor a folder with llama.cpp's source.")
        commit(tree, f"{name or to}\n")
        origin = origin or (f"sha256:{ARCHIVES[to]['sha256']}" if to in ARCHIVES else f"commit:{'0' * 40}")
        count = 0
        for path, change in zip(paths_of(DEFAULT), commits):
            conflicts = merge(tree, change)
            message = re.sub(r"^Made-for: .*$", f"Made-for: {origin}", message_of(path), flags=re.MULTILINE)
            amend = ("commit", "--quiet", "--amend", "--allow-empty", "--cleanup=verbatim", "--file=-")
            git(tree, *amend, given=message.encode())
            print(f"{path.stem}: {'conflicts in ' + ', '.join(conflicts) if conflicts else 'fits'}")
            count += bool(conflicts)
    print(f"\n{len(commits) - count} of {len(commits)} patches fit {to}.")
    return count == 0


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
        raise PatchesError(__doc__ or "")
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(run(*(sys.argv[1:4] or [""])))
    except PatchesError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
