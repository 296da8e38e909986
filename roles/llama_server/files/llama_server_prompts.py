# SPDX-License-Identifier: GPL-3.0-or-later
"""Save the conversations in a llama-server's slots, and give them to the next one.

llama_server_service.py saves slots while nobody asks for anything, and restores them after a load.
llama_server_drain.py saves them before a stop. llama-server itself writes and reads the files, with its action on slots
over HTTP. It takes this from nobody else, because these programs share a key with it in a file.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import resource
import secrets
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

# A conversation is removed when it was saved longer ago than this.
OLDEST_S = 24 * 3600
# Give up restoring after this time, and asking for one slot.
LIMIT_S = 60
KEY_FILE = "key"
# These may differ: where it is computed, how much room there is (llama-server refuses what has none), and who may ask.
_MAY_DIFFER = {"--tensor-split", "--threads", "--ctx-size", "--parallel", "--host", "--port", "--alias", "--cache-ram"}

# Asks llama-server with a method, a path, a body and the key of slots. Returns the status, or None without an answer,
# and the body.
Ask = Callable[[str, str, "dict[str, str] | None", str], "tuple[int | None, bytes]"]


def fingerprint(program: Path, model: Sequence[Path], arguments: Sequence[str]) -> str:
    """Return a name for everything on which the content of a saved slot depends."""
    kept = [word for word, before in zip(arguments, ["", *arguments]) if not {word, before} & _MAY_DIFFER]
    stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in model]
    return hashlib.sha256(json.dumps([str(program.resolve()), stamps, kept]).encode()).hexdigest()[:16]


def _key_and_name(folder: Path) -> tuple[str, str]:
    """Return the key of slots and the beginning of the files' names; raises OSError.

    The drain reads them as root, and the folder is the service's.
    """
    opened = os.open(folder / KEY_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(opened, encoding="ascii", errors="replace") as file:
        found = re.fullmatch(r"([0-9a-f]{64}) ([0-9a-f]{16})\n", file.read(100))
    if not found:
        message = f"{folder / KEY_FILE} is no file of a key"
        raise OSError(message)
    return found[1], found[2]


class SavedPrompts:
    """The saved slots of one API, in a folder of its own: FINGERPRINT-SLOT-SIZE.slot, and a file for the key."""

    def __init__(self, folder: Path, name: str, ask: Ask) -> None:
        self.folder, self.name, self.ask = folder, name, ask
        # By slot: the request after which it was saved.
        self.saved: dict[int, int] = {}

    @staticmethod
    def of_drain(folder: Path, ask: Ask) -> SavedPrompts | None:
        """Return those that a running service has prepared; None if it saves nothing."""
        with suppress(OSError):
            return SavedPrompts(folder, _key_and_name(folder)[1], ask)
        return None

    @property
    def key(self) -> str:
        """The key of slots."""
        return _key_and_name(self.folder)[0]

    def prepare(self) -> dict[str, str]:
        """Write a new key, and remove what cannot be restored; return the environment of llama-server."""
        for path in self.folder.iterdir():
            begins, _dash, size = path.stem.rpartition("-")
            whole = path.suffix == ".slot" and size == str(path.stat().st_size)
            if not (whole and begins.startswith(f"{self.name}-")) or _is_old(path):
                path.unlink()
        key = secrets.token_hex(32)
        partial = self.folder / f"{KEY_FILE}.partial"
        partial.write_text(f"{key} {self.name}\n", encoding="ascii")
        partial.replace(self.folder / KEY_FILE)
        return {"LLAMA_SLOTS_KEY": key}

    def restore(self) -> int:
        """Give the saved slots to a llama-server that has loaded its model; return how many it took."""
        with suppress(OSError):
            return sum(self._restored())
        return 0

    def _restored(self) -> Iterator[bool]:
        until = time.monotonic() + LIMIT_S
        for path in sorted(self.folder.glob(f"{self.name}-*.slot"), key=_saved_at, reverse=True):
            if time.monotonic() > until:
                break
            slot = path.stem.split("-")[1]
            # If llama-server ends over this file, the next one does not get it.
            trying = path.replace(path.with_suffix(".trying"))
            status, _body = self.ask("POST", f"/slots/{slot}?action=restore", {"filename": trying.name}, self.key)
            if status == http.client.OK:
                trying.replace(path)
                yield True
                continue
            trying.unlink()
            if status is None:
                break

    def save(self) -> list[str]:
        """Save the slots that are idle and have changed; return a sentence for each that could not be saved."""
        try:
            return list(self._save())
        except OSError as error:
            return [f"Conversations are not saved: {error}."]

    def _save(self) -> Iterator[str]:
        status, body = self.ask("GET", "/slots", None, self.key)
        slots: list[dict[str, Any]] = []
        with suppress(ValueError):
            slots = json.loads(body) if status == http.client.OK else []
        for slot in slots:
            number, task = int(slot["id"]), slot.get("id_task", -1)
            if slot["is_processing"] or task == -1 or self.saved.get(number) == task:
                continue
            partial = self.folder / f"{self.name}-{number}.partial"
            status, body = self.ask("POST", f"/slots/{number}?action=save", {"filename": partial.name}, self.key)
            if status is None:
                # A request has come, and llama-server saves after it.
                break
            self.saved[number] = task
            why = _reason(status, body) if status != http.client.OK else self._kept(partial)
            if why:
                partial.unlink(missing_ok=True)
                yield f"The conversation of slot {number} is not saved: {why}."
        for path in self.folder.glob("*.slot"):
            if _is_old(path):
                path.unlink(missing_ok=True)

    def _kept(self, partial: Path) -> str:
        """Give a saved slot its name, with its size, once it is on the disk; return why not, or nothing."""
        try:
            file = os.open(partial, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                # Otherwise it could have holes after a loss of power.
                os.fsync(file)
                size = os.fstat(file).st_size
            finally:
                os.close(file)
            for old in self.folder.glob(f"{partial.stem}-*.slot"):
                old.unlink()
            partial.replace(self.folder / f"{partial.stem}-{size}.slot")
        except OSError as error:
            return f"{partial} cannot be kept ({error.strerror})"
        return ""


def answer_of(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Mapping[str, str] | None,
    headers: dict[str, str],
) -> tuple[int | None, bytes]:
    """Ask over a connection and close it; return the status, or None without an answer, and the body."""
    try:
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return None, b""
    finally:
        connection.close()


def _saved_at(path: Path) -> float:
    return path.stat().st_mtime


def _is_old(path: Path) -> bool:
    return time.time() - _saved_at(path) > OLDEST_S


def _reason(status: int | None, body: bytes) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"]["message"]).rstrip(".")
    return "llama-server does not answer" if status is None else f"llama-server answers {status}"


def limit_files(file_bytes: int) -> None:
    """Let this process write no file that is larger; its write fails, and it goes on. For a child before exec."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
