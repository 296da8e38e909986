# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: HTTP requests with retries, and messages that say what is wrong.

Every wait has a limit: a read that brings nothing, a row of failed attempts, and the whole download. A token goes only
to the origin (scheme, host and port) of the first URL. No message holds the token or the query of a URL, because the
query may be a signature.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message
from typing import IO, Callable, Iterator, NamedTuple, TypeVar, cast
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

T = TypeVar("T")
Progress = Callable[[], None]
Response = http.client.HTTPResponse
LONGEST_PAUSE_S = 30.0
# The same request can succeed after one of these (RFC 9110).
TRANSIENT_STATUSES = {408, 425, 429, 500, 502, 503, 504}


def _line(message: str) -> str:
    """Return a message, which may quote a server, as one line that does not control a terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in message)


class DownloadError(Exception):
    """An error whose message is one sentence: why something cannot be fetched."""

    def __init__(self, message: str, status: int | None = None, headers: Message | None = None) -> None:
        super().__init__(_line(message))
        self.status = status
        self.headers = headers


class TransientError(Exception):
    """An error that may pass soon; the message completes "<URL> could not be fetched: "."""

    def __init__(self, message: str, pause_s: float = 0) -> None:
        super().__init__(_line(message))
        self.pause_s = pause_s


@dataclass(frozen=True)
class Limits:
    """The time limits of a download in seconds, and the `retries` in a row that may bring no byte.

    `late` ends the sentence about a download that takes too long.
    """

    stall_s: float
    retries: int
    deadline: float  # of time.monotonic()
    late: str = "what has arrived is kept"

    def check(self, what: str) -> None:
        """Raise DownloadError if the deadline has passed."""
        if time.monotonic() >= self.deadline:
            raise DownloadError(f"{what} did not finish within the time limit of the download; {self.late}.")


def shown(url: str) -> str:
    """Return a URL without its query, which may be a signature, and without a name and password."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def secrets_of(url: str) -> set[str]:
    """Return the parts of a URL that nobody may read: login, password, and the query, which may be a signature."""
    scheme, _mark, rest = url.partition("://")
    place, _mark, query = rest.partition("#")[0].partition("?")
    login = place.partition("/")[0].rpartition("@")[0] if scheme in ("http", "https", "ftp") else ""
    password = login.partition(":")[2]
    # A shorter query is no signature, and without it other texts would lose the same letters.
    return {part for part in (login, password, unquote(password), query if len(query) > 7 else "") if part}


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return the origin that a token is bound to: scheme, host and port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def check_url(url: str) -> None:
    """Raise DownloadError if this is not an HTTP URL, or if it holds a user name or password."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        whole = False
    if not whole:
        raise DownloadError(
            f"{url.partition('?')[0]!r} is not a URL that can be fetched: give one with http:// or https://."
        )
    if "@" in parts.netloc:
        raise DownloadError(
            f"the URL of {parts.hostname} holds a user name or password: give a URL without them, and a token."
        )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows every kind of redirect with the same request, and sends the token only to its origin."""

    max_redirections = 10

    def __init__(self, url: str, *, leave_origin: bool) -> None:
        self.host = urlsplit(url).hostname or ""  # the host of the current request
        self.leave_origin = leave_origin

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        del fp, code, msg
        # urllib has already joined the URL, but it also accepts ftp.
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

    # Python before 3.11 does not follow this status.
    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302


def explained(error: BaseException, host: str, stall_s: float) -> Exception:
    """Return an exception of the libraries as a DownloadError, or as a TransientError if the cause may pass."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return DownloadError(
            f"the certificate of {host} is not trusted ({cause.verify_message}): add the authority that issued it to "
            "the certificates of this host, or correct its clock."
        )
    if isinstance(cause, socket.gaierror):
        text = f"the name {host} cannot be resolved on this host ({cause.strerror})"
        wrong = f"{text}: correct the URL, or the resolver of this host."
        return DownloadError(wrong) if cause.errno == socket.EAI_NONAME else TransientError(text)
    if isinstance(cause, (socket.timeout, TimeoutError)):
        return TransientError(f"{host} has sent nothing for {stall_s:g} s")
    if isinstance(cause, ConnectionRefusedError):
        return TransientError(f"{host} refuses connections")
    if isinstance(cause, http.client.IncompleteRead):
        return TransientError("the connection ended before the file did")
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return TransientError(f"{host}: {text or type(cause).__name__}")


def _refusal(url: str, error: urllib.error.HTTPError, token: str | None) -> Exception:
    """Return the error that explains an HTTP status."""
    status, what = error.code, shown(url)
    if status in TRANSIENT_STATUSES:
        after = error.headers.get("Retry-After", "") if error.headers else ""
        return TransientError(f"the server answers {status} {error.reason}", float(after) if after.isdigit() else 0)
    if status in (401, 403):
        text = "the token lacks access" if token else "it needs a token with access"
        return DownloadError(f"{what} is refused ({status}): {text}.", status, error.headers)
    if status in (404, 410):
        return DownloadError(f"{what} does not exist ({status}): correct the URL.", status, error.headers)
    if 300 <= status < 400:
        return DownloadError(f"{what} redirects too often, or to no URL: correct the URL.", status, error.headers)
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
    """Send one request and return the response. Raises DownloadError and TransientError.

    Without `leave_origin` a redirect to another origin is not followed, and its own response is returned.
    """
    check_url(url)
    redirects = _Redirects(url, leave_origin=leave_origin)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=ssl.create_default_context()), redirects)
    message = urllib.request.Request(url, method=method)  # noqa: S310
    # A compressed transfer has another length than the model, and no ranges.
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
            return cast("Response", error)  # the caller wants only its headers
        raise _refusal(url, error, token) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise explained(error, redirects.host, limits.stall_s) from None


@contextlib.contextmanager
def reading(response: Response, limits: Limits) -> Iterator[None]:
    """Raise a failure to read a response as the error that explains it."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise explained(error, urlsplit(response.url).hostname or "", limits.stall_s) from None


class Range(NamedTuple):
    """Which bytes of a file a response has; None for what the server does not say."""

    start: int
    total: int | None  # the size of the whole file
    validator: str | None  # what If-Range takes


def range_of(response: Response, asked: int, url: str) -> Range:
    """Return which bytes a response has, if those from position `asked` on were requested; raises DownloadError."""
    ranged = re.match(r"bytes (\d+)-\d+/(\d+|\*)$", response.headers.get("Content-Range", ""))
    length = response.headers.get("Content-Length", "")
    etag = response.headers.get("ETag", "")
    validator = (etag if etag.startswith('"') else None) or response.headers.get("Last-Modified")
    if response.status != 206:
        return Range(0, int(length) if length.isdigit() else None, validator)
    if not ranged or int(ranged[1]) != asked:
        raise DownloadError(f"{shown(url)} could not be fetched: the server gave another range.")
    return Range(asked, None if ranged[2] == "*" else int(ranged[2]), validator)


def patiently(url: str, limits: Limits, attempt: Callable[[Progress], T]) -> T:
    """Return the result of `attempt`. Retry it after TransientError, at most `retries` times in a row without progress.

    `attempt` gets one argument: a function that it calls after each progress.
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
        except TransientError as error:
            failures += 1
            if failures > limits.retries:
                tries = f", {failures} times in a row" if failures > 1 else ""
                raise DownloadError(
                    f"{shown(url)} could not be fetched: {error}{tries}; run this again when it answers."
                ) from None
            pause = min(max(error.pause_s, 2.0 ** (failures - 1)), LONGEST_PAUSE_S)
            time.sleep(max(0.0, min(pause, limits.deadline - time.monotonic())))


def head(url: str, limits: Limits, token: str | None = None, *, leave_origin: bool = False) -> Message:
    """Return the headers of the response; by default that of the URL's own origin, even if it is a redirect."""

    def attempt(_progress: Progress) -> Message:
        with contextlib.closing(request(url, limits, token, method="HEAD", leave_origin=leave_origin)) as response:
            return response.headers

    return patiently(url, limits, attempt)


def get_json(url: str, limits: Limits, token: str | None = None, most_bytes: int = 64 << 20) -> object:
    """Return the parsed JSON response of a URL."""

    def attempt(_progress: Progress) -> object:
        with contextlib.closing(request(url, limits, token)) as response:
            with reading(response, limits):
                content = response.read(most_bytes)
            try:
                return json.loads(content)
            except ValueError:
                raise DownloadError(f"{shown(url)} answered without JSON: check that this is a hub.") from None

    return patiently(url, limits, attempt)


def size_of(url: str, limits: Limits, token: str | None = None) -> int | None:
    """Return the size of a URL's content in bytes; None if the server does not say."""
    try:
        length = head(url, limits, token, leave_origin=True).get("Content-Length", "")
    except DownloadError as error:
        if error.status in (None, 404, 410):
            raise
        return None  # some servers answer HEAD differently; the later GET reports the problem
    return int(length) if length.isdigit() else None
