# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Private: downloads large files of known digest, resuming what was begun. Knows nothing of Ansible.

Every wait has a limit: a read that brings nothing, a row of failed attempts, and the whole. A token goes to the origin
(scheme, host and port) of the first URL alone, and no message holds it or the query of a URL, which may be a signature.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import http.client
import json
import os
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Callable, Iterator, TypeVar, cast
from urllib.parse import urljoin, urlsplit, urlunsplit

from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.record import (
    FileError,
    claim,
    open_no_link,
    put,
    reason,
    require_space,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import GgufError, read_header

if TYPE_CHECKING:
    from email.message import Message

T = TypeVar("T")
Progress = Callable[[], None]
Response = http.client.HTTPResponse

CHUNK = 1 << 20
LONGEST_PAUSE_S = 30.0
LOCK_POLL_S = 0.2
# Those after which the same request can succeed (RFC 9110).
TRANSIENT_STATUSES = {408, 425, 429, 500, 502, 503, 504}


class DownloadError(Exception):
    """One sentence: why something cannot be fetched."""

    def __init__(self, message: str, status: int | None = None, headers: Message | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class _TransientError(Exception):
    """What may be over in a moment; the message completes "<URL> could not be fetched: "."""

    def __init__(self, message: str, pause_s: float = 0) -> None:
        super().__init__(message)
        self.pause_s = pause_s


@dataclass(frozen=True)
class Limits:
    """How long is waited for what, in seconds; `retries` in a row without a byte."""

    stall_s: float
    retries: int
    deadline: float  # of time.monotonic()

    def check(self, what: str) -> None:
        """Raise DownloadError if the time is over."""
        if time.monotonic() >= self.deadline:
            raise DownloadError(
                f"{what} was given up: the time limit of the download is over; what has arrived is kept."
            )


@dataclass(frozen=True)
class Wanted:
    """One file: `digest` is a SHA-256, or the name of a git blob (40 digits)."""

    url: str
    path: Path
    digest: str
    size_bytes: int | None = None

    @property
    def part(self) -> Path:
        """What has arrived so far."""
        return self.path.with_name(self.path.name + ".part")

    @property
    def note(self) -> Path:
        """What is known of the part."""
        return self.path.with_name(f".{self.path.name}.part.json")

    @property
    def sha256(self) -> str | None:
        """The digest, if it is one of SHA-256."""
        return self.digest if len(self.digest) == 64 else None


def shown(url: str) -> str:
    """Return a URL without its query, which may be a signature, and without a name and password."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return what a token is bound to."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def check_url(url: str) -> None:
    """Refuse what is no URL of a web server, or holds a password. Raises DownloadError."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        whole = False
    if not whole:
        raise DownloadError(
            f"{url.partition('?')[0]!r} is no URL that can be fetched: give one with http:// or https://."
        )
    if "@" in parts.netloc:
        raise DownloadError(
            f"the URL of {parts.hostname} holds a user name or password: give a URL without, and a token."
        )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects of every kind with the same request, and hands the token only to the origin it is for."""

    max_redirections = 10

    def __init__(self, url: str, *, leave_origin: bool) -> None:
        self.host = urlsplit(url).hostname or ""  # the one that is asked now
        self.leave_origin = leave_origin

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        del fp, code, msg
        # urllib has joined it already, but lets ftp pass.
        target = urljoin(req.full_url, headers.get("location") or newurl)
        check_url(target)
        same = origin_of(target) == origin_of(req.full_url)
        if not same and not self.leave_origin:
            return None
        self.host = urlsplit(target).hostname or ""
        new = urllib.request.Request(target, headers=dict(req.headers), method=req.get_method())  # noqa: S310
        token = req.unredirected_hdrs.get("Authorization")
        if token and same:
            new.add_unredirected_header("Authorization", token)
        return new

    # Pythons before 3.11 do not follow it.
    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302


def _explain(error: BaseException, host: str, stall_s: float) -> Exception:
    """Turn what the libraries raise into something to say: DownloadError, or _TransientError if it may pass."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return DownloadError(
            f"the certificate of {host} is not trusted ({cause.verify_message}): add the authority that issued it to "
            "the certificates of this host, or correct its clock."
        )
    if isinstance(cause, socket.gaierror):
        text = f"the name {host} cannot be resolved on this host ({cause.strerror})"
        return DownloadError(text) if cause.errno == socket.EAI_NONAME else _TransientError(text)
    if isinstance(cause, (socket.timeout, TimeoutError)):
        return _TransientError(f"{host} has sent nothing for {stall_s:g} s")
    if isinstance(cause, ConnectionRefusedError):
        return _TransientError(f"{host} refuses connections")
    if isinstance(cause, http.client.IncompleteRead):
        return _TransientError("the connection ended before the file did")
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return _TransientError(f"{host}: {text or type(cause).__name__}")


def _refusal(url: str, error: urllib.error.HTTPError, token: str | None) -> Exception:
    """Say what a status means."""
    status, what = error.code, shown(url)
    if status in TRANSIENT_STATUSES:
        after = error.headers.get("Retry-After", "") if error.headers else ""
        return _TransientError(f"the server answers {status} {error.reason}", float(after) if after.isdigit() else 0)
    if status in (401, 403):
        text = "the token lacks access" if token else "it needs a token with access"
        return DownloadError(f"{what} is refused ({status}): {text}.", status, error.headers)
    if status in (404, 410):
        return DownloadError(f"{what} does not exist ({status}): correct the URL.", status, error.headers)
    if 300 <= status < 400:
        return DownloadError(f"{what} leads nowhere: it redirects too often, or to no place.", status, error.headers)
    return DownloadError(
        f"{what} could not be fetched: the server answers {status} {error.reason}.", status, error.headers
    )


def request(
    url: str,
    limits: Limits,
    token: str | None = None,
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    leave_origin: bool = True,
) -> Response:
    """Send one request and return the response. Raises DownloadError and _TransientError.

    Without `leave_origin` a redirect to another origin is not followed, and its own response is returned.
    """
    check_url(url)
    redirects = _Redirects(url, leave_origin=leave_origin)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=ssl.create_default_context()), redirects)
    message = urllib.request.Request(url, method=method)  # noqa: S310
    # A model that is compressed on the way has another length and no ranges.
    for name, value in {"Accept-Encoding": "identity", "User-Agent": "llama_cpp.cluster", **(headers or {})}.items():
        message.add_header(name, value)
    if token:
        message.add_unredirected_header("Authorization", f"Bearer {token}")
    timeout = max(0.1, min(limits.stall_s, limits.deadline - time.monotonic()))
    try:
        return cast("Response", opener.open(message, timeout=timeout))
    except urllib.error.HTTPError as error:
        error.close()
        if 300 <= error.code < 400 and not leave_origin:
            return cast("Response", error)  # it has the headers, which is what is wanted of it
        raise _refusal(url, error, token) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _explain(error, redirects.host, limits.stall_s) from None


def patiently(url: str, limits: Limits, attempt: Callable[[Progress], T]) -> T:
    """Call `attempt` until it does not raise _TransientError; `retries` times in a row without progress at most.

    It is called with one argument, a function that it calls with each progress.
    """
    check_url(url)
    failures = 0

    def progress() -> None:
        nonlocal failures
        failures = 0

    while True:
        limits.check(shown(url))
        try:
            return attempt(progress)
        except _TransientError as error:
            failures += 1
            if failures > limits.retries:
                tries = f", {failures} times in a row" if failures > 1 else ""
                raise DownloadError(f"{shown(url)} could not be fetched: {error}{tries}.") from None
            pause = min(max(error.pause_s, 2.0 ** (failures - 1)), LONGEST_PAUSE_S)
            time.sleep(max(0.0, min(pause, limits.deadline - time.monotonic())))


def head(url: str, limits: Limits, token: str | None = None) -> Message:
    """Return the headers of the answer of the URL's own origin, redirect or not."""

    def attempt(_progress: Progress) -> Message:
        with contextlib.closing(request(url, limits, token, method="HEAD", leave_origin=False)) as response:
            return response.headers

    return patiently(url, limits, attempt)


def get_json(url: str, limits: Limits, token: str | None = None, most_bytes: int = 64 << 20) -> object:
    """Return the answer of a URL that gives JSON."""

    def attempt(_progress: Progress) -> object:
        with contextlib.closing(request(url, limits, token)) as response:
            try:
                return json.loads(response.read(most_bytes))
            except ValueError:
                raise DownloadError(f"{shown(url)} gave no JSON: is it the address of a hub?") from None
            except (OSError, http.client.HTTPException) as error:
                raise _explain(error, urlsplit(response.url).hostname or "", limits.stall_s) from None

    return patiently(url, limits, attempt)


def size_of(url: str, limits: Limits, token: str | None = None) -> int | None:
    """Return the size of what a URL gives, None if the server does not say."""

    def attempt(_progress: Progress) -> int | None:
        try:
            with contextlib.closing(request(url, limits, token, method="HEAD")) as response:
                length = response.headers.get("Content-Length", "")
                return int(length) if length.isdigit() else None
        except DownloadError as error:
            if error.status in (None, 404, 410):
                raise
            return None  # some servers answer HEAD otherwise than GET, which then says what is wrong

    return patiently(url, limits, attempt)


def git_blob(path: Path) -> str:
    """Return the name that git gives the content of a file."""
    found = hashlib.sha1(b"blob %d\0" % path.stat().st_size)  # noqa: S324 (it is git's choice)
    found.update(path.read_bytes())
    return found.hexdigest()


@contextlib.contextmanager
def _locked(part: Path, limits: Limits) -> Iterator[BinaryIO]:
    """Open a part for this run alone."""
    while True:
        with open(str(part), "a+b", opener=open_no_link) as stream:
            while True:
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    limits.check(f"{part}, which another run is fetching,")
                    time.sleep(LOCK_POLL_S)
            try:
                mine = os.path.samestat(os.fstat(stream.fileno()), part.stat())
            except FileNotFoundError:
                mine = False
            if mine:  # else the other run has finished it meanwhile
                yield stream
                return


class _Download:
    """One file on its way; `stream` is its part."""

    def __init__(self, wanted: Wanted, stream: BinaryIO, limits: Limits, token: str | None) -> None:
        self.wanted = wanted
        self.stream = stream
        self.limits = limits
        self.token = token
        self.total = wanted.size_bytes
        self.validator: str | None = None
        self.have = 0
        self.hash = hashlib.sha256()
        self.resumed = False
        self._take_up()

    def _take_up(self) -> None:
        """Go on from what has arrived in an earlier run, if it is of the same file."""
        try:
            note = json.loads(self.wanted.note.read_text(encoding="utf-8"))
            same = note["digest"] == self.wanted.digest
            self.validator, noted = note["validator"], note["total"]
        except (OSError, ValueError, KeyError, TypeError):
            same, self.validator, noted = False, None, None
        if not same:
            self.restart()
            return
        self.total = self.total or noted
        self.stream.seek(0)
        for chunk in iter(lambda: self.stream.read(CHUNK), b""):
            self.hash.update(chunk)
            self.have += len(chunk)
            self.limits.check(shown(self.wanted.url))
        self.resumed = self.have > 0

    def restart(self) -> None:
        """Begin from nothing."""
        self.stream.truncate(0)
        self.have, self.hash, self.validator = 0, hashlib.sha256(), None

    def _write_note(self) -> None:
        note = {"digest": self.wanted.digest, "validator": self.validator, "total": self.total}
        with open(str(self.wanted.note), "w", encoding="utf-8", opener=open_no_link) as stream:
            stream.write(json.dumps(note) + "\n")

    def attempt(self, progress: Progress) -> None:
        """Fetch what is missing."""
        if self.total is not None and self.have > self.total:
            self.restart()
        if self.have and self.have == self.total:
            return
        headers = {"Range": f"bytes={self.have}-"} if self.have else {}
        if self.have and self.validator:
            headers["If-Range"] = self.validator
        try:
            response = request(self.wanted.url, self.limits, self.token, headers=headers)
        except DownloadError as error:
            if error.status != 416:
                raise
            self.restart()
            raise _TransientError("the server has less of it than had arrived") from None
        with contextlib.closing(response):
            self._begin(response)
            self._receive(response, progress)
        if self.total is not None and self.have != self.total:
            raise _TransientError(f"the connection ended after {self.have} of {self.total} bytes")

    def _begin(self, response: Response) -> None:
        """Read the headers; begin anew if the server does; see that there is room before anything is written."""
        ranged = re.match(r"bytes (\d+)-\d+/(\d+|\*)$", response.headers.get("Content-Range", ""))
        length = response.headers.get("Content-Length", "")
        if response.status == 206 and ranged and int(ranged[1]) == self.have:
            self.total = self.total if ranged[2] == "*" else int(ranged[2])
        else:
            if response.status == 206:
                raise DownloadError(f"{shown(self.wanted.url)} could not be fetched: the server gave another range.")
            self.restart()
            self.total = int(length) if length.isdigit() else None
        etag = response.headers.get("ETag", "")
        self.validator = (etag if etag.startswith('"') else None) or response.headers.get("Last-Modified")
        if self.total is not None:
            require_space(self.wanted.path, self.total - self.have, shown(self.wanted.url))
        self._write_note()

    def _receive(self, response: Response, progress: Progress) -> None:
        try:
            # read1: what has arrived, rather than a whole chunk, so that the limits are looked at.
            for chunk in iter(lambda: response.read1(CHUNK), b""):
                self.stream.write(chunk)
                self.hash.update(chunk)
                self.have += len(chunk)
                progress()
                self.limits.check(shown(self.wanted.url))
        except (http.client.HTTPException, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                raise
            raise _explain(error, urlsplit(response.url).hostname or "", self.limits.stall_s) from None
        finally:
            self.stream.flush()

    def digest(self) -> str:
        """Return the digest of what has arrived, of the kind that is wanted."""
        return self.hash.hexdigest() if self.wanted.sha256 else git_blob(self.wanted.part)

    def run(self) -> None:
        """Fetch and verify. What is not what is wanted is not kept."""
        patiently(self.wanted.url, self.limits, self.attempt)
        if self.digest() != self.wanted.digest and self.resumed:
            # Its first bytes may be those of another version, or damaged.
            self.resumed = False
            self.restart()
            patiently(self.wanted.url, self.limits, self.attempt)
        found = self.digest()
        if found != self.wanted.digest:
            kind = "SHA-256 digest" if self.wanted.sha256 else "git object name"
            raise FileError(
                f"{shown(self.wanted.url)} has the {kind} {found}, but {self.wanted.digest} was expected; nothing was "
                "kept: correct the expected digest if you trust what was found, or find out who exchanged it."
            )
        if self.wanted.path.suffix == ".gguf":
            read_header(self.wanted.part)


def _discard(wanted: Wanted) -> None:
    for path in (wanted.part, wanted.note):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Make a folder, and leave none that is empty if nothing came into it."""
    absent = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except Exception:
        for folder in absent:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def fetch(wanted: Wanted, origin: dict[str, Any], limits: Limits, token: str | None = None) -> bool:
    """Fetch one file unless it is there; say whether anything was changed.

    Raises DownloadError, FileError, GgufError, and OSError if the disk refuses.
    """
    with _folder(wanted.path.parent), _locked(wanted.part, limits) as stream:
        done = False
        try:
            needed, renewed = claim(wanted.path, wanted.sha256, origin, write=True)
            if not needed:
                done = True
                return renewed
            download = _Download(wanted, stream, limits, token)
            download.run()
            os.fchmod(stream.fileno(), 0o644)
            put(wanted.part, wanted.path, wanted.sha256, origin)
            done = True
        except (FileError, GgufError):
            done = True
            raise
        finally:
            # Of a download that only broke off, what has arrived is kept for the next run.
            if done or wanted.part.stat().st_size == 0:
                _discard(wanted)
    return True


def plan(
    files: list[Wanted], origin: dict[str, Any], limits: Limits, token: str | None, *, write: bool
) -> list[Wanted]:
    """Return the files that have to be fetched, having seen that there is room for all of them together."""
    needed = [file for file in files if claim(file.path, file.sha256, origin, write=write)[0]]
    missing = 0
    for file in needed:
        size = file.size_bytes or size_of(file.url, limits, token) or 0
        arrived = file.part.stat().st_size if file.part.exists() else 0
        missing += max(0, size - arrived)
    if needed:
        require_space(needed[0].path, missing, ", ".join(shown(file.url) for file in needed[:1]))
    return needed


def sentence(error: Exception, path: Path) -> str:
    """Return what to tell a person."""
    return reason(error, path) if isinstance(error, OSError) else str(error)
