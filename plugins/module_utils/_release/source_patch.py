# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: read patches of a source tree, and apply them in memory. Knows nothing of Ansible.

The program patch(1) is not used: minimal hosts lack it, it accepts hunks that do not fit exactly, and it may read a
diff differently from the code that examined it. Here a diff is read once, and each old line must be in the source.
"""

from __future__ import annotations

import hashlib
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator, NoReturn, Sequence

MOST_BYTES = 16 << 20

_MADE_FOR = re.compile(rb"^\W*Made-for:\s*(.*?)\s*$")
_ORIGIN = re.compile(r"sha256:[0-9a-f]{64}|commit:[0-9a-f]{40}")
_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
# Lines that programs write between the parts of a diff, and lines that git writes before the hunks of a file.
_BETWEEN = (b"diff -", b"Index: ", b"====")
_HARMLESS = (b"index ", b"similarity index ", b"new file mode 100644", b"deleted file mode ")


class PatchError(Exception):
    """A patch cannot be used; the message is one sentence that names the patch and the remedy."""


@dataclass(frozen=True)
class Hunk:
    """Old lines, the number of the first one (0 if there are none), and the new lines that replace them."""

    start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]


@dataclass(frozen=True)
class Change:
    """The change of one file."""

    path: str
    creates: bool
    deletes: bool
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class Patch:
    """A diff."""

    name: str
    sha256: str
    # Each "sha256:<of the source archive>" or "commit:<full>".
    made_for: tuple[str, ...]
    changes: tuple[Change, ...]


def read_patch(path: Path) -> Patch:
    name = path.stem
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise PatchError(f"The patch {name} ({path}) is not a file of at most {MOST_BYTES >> 20} MiB.")
        text = path.read_bytes()
    except OSError as error:
        raise PatchError(f"The patch {name} cannot be read: {error.filename or path}: {error.strerror}.") from None
    made_for, changes = parse(name, text)
    if not changes:
        raise PatchError(f"The patch {name} changes nothing: give a unified diff, as `git diff` writes it.")
    return Patch(name, hashlib.sha256(text).hexdigest(), made_for, changes)


def check_origin(patch: Patch, sha256: str, commit: str, pinned: str) -> None:
    """Raise PatchError for a patch for another source. `sha256` and `commit` may be empty, `commit` may be short."""
    for origin in patch.made_for:
        kind, _colon, value = origin.partition(":")
        if (kind == "sha256" and sha256 == value) or (kind == "commit" and commit and value.startswith(commit)):
            return
    known = [f"sha256:{sha256}"] * bool(sha256) + [f"commit:{commit}"] * bool(commit)
    raise PatchError(
        f"The patch {patch.name} is made for {' or '.join(patch.made_for)}, and the pinned source is {pinned} "
        f"({', '.join(known)}): leave the patch out of llama_cpp_patches, or pin the source that it is made for."
    )


def touched(patches: Sequence[Patch]) -> dict[str, str]:
    """Return each path that patches change, with the name of the first patch that changes it."""
    found: dict[str, str] = {}
    for patch in patches:
        for change in patch.changes:
            found.setdefault(change.path, patch.name)
    return found


def apply(
    patches: Sequence[Patch], read: Callable[[str], bytes | None], *, once: bool = False
) -> dict[str, bytes | None]:
    """Return the new content of each changed file, None for a deleted one; `read` returns the old content or None.

    With `once`, a hunk that fits at several places, and that has moved, is refused: a patch for another source could go
    to the wrong one.
    """
    result: dict[str, bytes | None] = {}
    for patch in patches:
        for change in patch.changes:
            before = result[change.path] if change.path in result else read(change.path)
            result[change.path] = _changed(patch.name, change, before, once=once)
    return result


def patch_folder(folder: Path, patches: Sequence[Patch], *, write: bool = True) -> list[str]:
    """Apply patches to the files in a folder, and return the changed paths. Nothing is written if one fails."""
    root = folder.resolve()
    if not root.is_dir():
        raise PatchError(f"There is no folder {folder} to patch: check the name of the folder in the archive.")
    for name, patch in touched(patches).items():
        path = root / name
        above = [parent for parent in path.parents if parent.exists() and not parent.is_dir()]
        if path.resolve() != path or above or (path.exists() and not path.is_file()):
            raise PatchError(f"The patch {patch} is refused: it changes {name}, which is not a plain file there.")
    contents = apply(patches, lambda name: (root / name).read_bytes() if (root / name).exists() else None)
    for name, content in contents.items() if write else ():
        path = root / name
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        if path.exists():
            path.unlink()  # not overwritten, because another name of the file keeps its content
        if content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(mode)
    return sorted(contents)


def parse(name: str, text: bytes) -> tuple[tuple[str, ...], tuple[Change, ...]]:
    """Return the sources that a diff is made for, and its changes."""
    if b"\0" in text:
        raise PatchError(f"The patch {name} is binary: give a unified diff, as `git diff` writes it.")
    return _Parser(name, text).parse()


def _lines(content: bytes) -> list[bytes]:
    """Return the lines of a file as a diff has them: split at newlines, which are kept."""
    parts = content.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + [part for part in parts[-1:] if part]


def _places(lines: list[bytes], old: tuple[bytes, ...], first: int, there: int) -> Iterator[int]:
    """Yield the indices of `old` from `first` on, the nearest to `there` first: earlier changes may have moved it."""
    for place in sorted(range(first, len(lines) - len(old) + 1), key=lambda place: abs(place - there)):
        if tuple(lines[place : place + len(old)]) == old:
            yield place


def _changed(name: str, change: Change, before: bytes | None, *, once: bool) -> bytes | None:
    what = f"The patch {name} does not apply to {change.path}"
    remedy = "check that it is made for this source and has the right place in llama_cpp_patches."
    if change.creates and before:
        raise PatchError(f"{what}: it creates that file, which already exists; {remedy}")
    if before is None and not change.creates:
        raise PatchError(f"{what}: there is no such file; {remedy}")
    lines = _lines(before or b"")
    result: list[bytes] = []
    done = shift = 0
    for number, hunk in enumerate(change.hunks, 1):
        places = _places(lines, hunk.old, done, hunk.start - 1 + shift)
        place = next(places, None)
        moved = place is not None and place != hunk.start - 1 + shift
        if place is None or (once and hunk.old and moved and next(places, None) is not None):
            raise PatchError(f"{what}: hunk {number} of it, at line {hunk.start}, does not fit; {remedy}")
        result += [*lines[done:place], *hunk.new]
        done, shift = place + len(hunk.old), place - (hunk.start - 1)
    result += lines[done:]
    if change.deletes:
        if result:
            raise PatchError(f"{what}: it deletes that file, which holds more than the patch knows of; {remedy}")
        return None
    return b"".join(result)


class _Parser:
    """A parser of the lines of a diff that refuses everything it does not know."""

    def __init__(self, name: str, text: bytes) -> None:
        self.name = name
        self.lines = (text[:-1] if text.endswith(b"\n") else text).split(b"\n")
        self.at = 0

    def refuse(self, why: str) -> NoReturn:
        raise PatchError(f"The patch {self.name} is refused: {why}.")

    def damaged(self) -> NoReturn:
        self.refuse(f"its line {self.at + 1} is not part of a unified diff, so it may be damaged")

    @property
    def line(self) -> bytes:
        """The current line, empty beyond the end."""
        return self.lines[self.at] if self.at < len(self.lines) else b""

    def parse(self) -> tuple[tuple[str, ...], tuple[Change, ...]]:
        made_for = self.header()
        changes = []
        while self.at < len(self.lines):
            if self.line.startswith(b"diff --git "):
                self.git_header()
            elif self.line.startswith(b"--- "):
                changes.append(self.change())
            elif self.line.startswith(b"Binary files "):
                self.refuse("it has a change of a binary file, which a unified diff cannot hold")
            elif self.line == b"-- ":  # `git format-patch` ends with this line and git's version
                self.at += 2
            elif not self.line.strip() or self.line.startswith(_BETWEEN):
                self.at += 1
            else:
                self.damaged()
        return made_for, tuple(changes)

    def header(self) -> tuple[str, ...]:
        """Read the lines before the first change; return the sources that they name."""
        found = []
        while self.at < len(self.lines) and not self.line.startswith(b"diff --git "):
            following = self.lines[self.at + 1 : self.at + 2]
            if self.line.startswith(b"--- ") and following and following[0].startswith(b"+++ "):
                break
            if self.line.startswith((b"+++ ", b"@@ ")):
                self.damaged()
            named = _MADE_FOR.match(self.line)
            if named:
                origin = named[1].decode("utf-8", "replace")
                if not _ORIGIN.fullmatch(origin):
                    self.refuse(
                        f"its line {self.at + 1} has {origin!r} after Made-for, which is not sha256:… or commit:…"
                    )
                found.append(origin)
            self.at += 1
        if not found:
            self.refuse(
                "no line before its first change says which source it is made for; write one, such as "
                "Made-for: commit:<40 hexadecimal digits>, or sha256:<64 of the source archive>"
            )
        return tuple(found)

    def git_header(self) -> None:
        """Read git's lines before `---`; refuse those that ask for more than changed lines."""
        which = self.line[len(b"diff --git ") :].decode("utf-8", "replace")
        self.at += 1
        while not self.line.startswith(b"--- "):
            if self.line.startswith((b"rename ", b"copy ")):
                self.refuse(f"it renames or copies a file ({which}); write it with `git diff --no-renames`")
            if self.line.startswith((b"GIT binary patch", b"Binary files ")):
                self.refuse(f"it has a change of a binary file ({which}), which a unified diff cannot hold")
            if not self.line.startswith(_HARMLESS):
                said = self.line.decode("utf-8", "replace") or "it has no line that changes"
                self.refuse(f"it changes something other than lines of {which} ({said})")
            self.at += 1

    def change(self) -> Change:
        """Read the change of one file."""
        old = self.path(self.line[4:])
        self.at += 1
        if not self.line.startswith(b"+++ "):
            self.damaged()
        new = self.path(self.line[4:])
        self.at += 1
        path = old or new
        if path is None or (old and new and old != new):
            self.refuse(f"it makes {old} into {new}; write it with `git diff --no-renames`")
        hunks: list[Hunk] = []
        while self.line.startswith(b"@@ "):
            hunks.append(self.hunk())
        # Some programs give a new file its own name and a time of 1970, instead of /dev/null.
        creates = len(hunks) == 1 and not hunks[0].old
        deletes = new is None
        if not hunks or (len(hunks) > 1 and not all(hunk.old for hunk in hunks)):
            self.damaged()
        if (old is None and not creates) or (deletes and (len(hunks) > 1 or hunks[0].new)):
            self.damaged()
        return Change(path, creates, deletes, tuple(hunks))

    def path(self, text: bytes) -> str | None:
        """Return a path of a file without its first folder (a/ or b/), None for /dev/null."""
        name = text.partition(b"\t")[0].decode("utf-8", "replace")  # after a tab comes a time
        if name == "/dev/null":
            return None
        first, _slash, rest = name.partition("/")
        if name.startswith(("/", '"')) or {"", ".", ".."} & {first, *rest.split("/")} or not name.isprintable():
            self.refuse(
                f"it changes {name!r}, which is not a path in the source as `git diff` writes it (a/ggml/src/ggml.c)"
            )
        return rest

    def hunk(self) -> Hunk:
        numbers = _HUNK.match(self.line)
        if not numbers:
            self.damaged()
        start = int(numbers[1])
        left = {b"-": int(numbers[2] or 1), b"+": int(numbers[4] or 1)}
        lines: dict[bytes, list[bytes]] = {b"-": [], b"+": []}
        self.at += 1
        sides: tuple[bytes, ...] = ()
        while any(left.values()) or self.line.startswith(b"\\"):
            if self.line.startswith(b"\\"):  # the line before ends the file and has no newline
                for side in sides:
                    lines[side][-1] = lines[side][-1][:-1]
                sides = ()
            else:
                kind = self.line[:1]
                # Some editors remove the space of an empty context line.
                sides = (kind,) if kind in left else (b"-", b"+")
                if self.at >= len(self.lines) or kind not in (b"", b" ", b"-", b"+") or not all(left[s] for s in sides):
                    self.damaged()
                for side in sides:
                    left[side] -= 1
                    lines[side].append(self.line[1:] + b"\n")
            self.at += 1
        if start and not lines[b"-"]:
            self.refuse(f"it has a hunk without a line of context, before its line {self.at + 1}: it could go anywhere")
        return Hunk(start, tuple(lines[b"-"]), tuple(lines[b"+"]))
