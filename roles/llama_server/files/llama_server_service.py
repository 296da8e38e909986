# SPDX-License-Identifier: GPL-3.0-or-later
"""Run llama-server over RPC workers that are ready, and report what it does and what it waits for.

Role llama_server installs this beside the package `_rpc` of the collection, whose prober checks the workers, and a
systemd unit starts it. It ends when llama-server ends, and the unit starts it again, because llama.cpp's master ends
when it loses a worker. If the worker stays away, the next start divides the model over the others, as
llama_server_division.py chooses. Its output goes to the journal, and `systemctl status` shows its last sentence.
"""

from __future__ import annotations

import argparse
import ctypes
import http.client
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Collection, Mapping, Sequence

from _rpc.endpoint import parse_endpoints
from _rpc.listeners import peers
from _rpc.prober import probe
from _rpc.worker_status import WorkerStatus
from llama_server_division import MOST_FAILED_LOADS, MOST_LOSSES, Division, Memory, Plan, Wanted, choose, line_up, now_s
from llama_server_prompts import LIMIT_S, SavedPrompts, answer_of, fingerprint, limit_files

PROBE_LIMIT_S = 5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
# The time limit of a load: the model at 10 MB/s, which is slower than a link of 100 Mbit/s, plus the steps before and
# after.
LOAD_BYTES_PER_S, LOAD_BASE_S = 10_000_000, 120
HEALTH_LIMIT_S = 5
READY_LIMIT_S, LOSS_LIMIT_S = 1, 2
LOOK_EVERY_S, ASK_EVERY_S = 1, 10
UNTIL = " until the playbook serve or a restart of this unit by a person takes it back."
# A loss so long before the start of this program has ended the last one.
RECENT_S = 60
# While hosts start, workers have this time since the master's start.
STARTING_S = 120
# A worker is taken back within this time after the hour that llama_server_rejoin names.
REJOIN_WITHIN_MIN = 60
# Plan again over the same workers after this time.
PLAN_EVERY_S = 300
# The API is quiet after so many looks in a row without a request. Then gateways have so many looks to send no more.
QUIET_LOOKS, LEAVING_LOOKS = 5, 3
STOP_LIMIT_S = 10
# Give up a host that acknowledges nothing for this long, as in a run. The kernel would send for a quarter of an hour.
GONE_AFTER_S, IN_VAIN = 30, 2
# Write the metrics again at least this often, so that their reader sees that this program runs.
FIGURES_EVERY_S = 30
PR_SET_PDEATHSIG = 1  # prctl(2)
# The states of a worker that is gone; one that is busy is not.
AWAY = ("refused", "unreachable")
# Loaded before any thread: a child of one may not load anything.
LIBC = ctypes.CDLL(None)
# llama-server also takes options from these variables, and would log or show prompts with some. The settings alone
# define it. (common/arg.cpp, tools/server/server-context.cpp, tools/server/server-http.cpp)
NOT_PASSED_ON = ("AIP_", "HF_", "LLAMA_", "MTMD_")
# Without this patch, llama-server fetches pictures from addresses that are in requests, and saves slots for everybody.
PROGRAMS_PATCH = "programs"
# The list of units that a playbook has paused. The playbook removes it when they may serve again (tasks pause and
# resume).
PAUSED = Path("/run/llama_server_paused")
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True)
class Settings:
    """The settings that role llama_server writes; times are in seconds."""

    program: str
    arguments: list[str]
    workers: list[str]
    model: str
    alias: str
    address: str
    port: int
    keys_file: str
    metrics_file: str | None
    ready_port: int = 0
    stall_timeout_s: int = 600
    worker_link: bool = False
    plan_file: str = ""
    spares: list[str] = field(default_factory=list)
    degrade: list[str] = field(default_factory=list)
    worker_wait_s: float = 20
    rejoin: str = "quiet"
    rejoin_after_s: float = 300
    drain_timeout_s: float = 30
    cache_disk_mib: int = 0
    save_after_s: float = 30
    seed_after_s: float = 60

    @property
    def heals(self) -> bool:
        """Whether another division may serve while a worker is lost."""
        return bool(self.spares or self.degrade)

    @property
    def wanted(self) -> Wanted:
        """The division that the role has written."""
        shares = option(self.arguments, "--tensor-split").split(",")
        return Wanted(
            tuple(self.workers), tuple(self.spares), tuple(self.degrade), tuple(float(it) for it in shares if it)
        )

    @property
    def own_address(self) -> str:
        """The address at which this host reaches the API."""
        return "127.0.0.1" if self.address == "0.0.0.0" else self.address  # noqa: S104 - not bound here

    @property
    def manifest(self) -> dict[str, Any]:
        """What the release of the program says of itself, if anything; read anew, as an upgrade may have changed it."""
        try:
            text = (Path(self.program).resolve().parents[1] / "manifest.json").read_text(encoding="utf-8")
            return dict(json.loads(text))
        except (OSError, ValueError, TypeError):
            return {}

    @property
    def has_programs_patch(self) -> bool:
        """Whether the release has the patch that closes what llama-server does for everybody."""
        return PROGRAMS_PATCH in {patch["name"] for patch in self.manifest.get("patches") or []}

    @property
    def expected_protocol(self) -> str | None:
        """The RPC protocol of the program, if its release names it."""
        return self.manifest.get("rpc_protocol") or None


def option(arguments: Sequence[str], name: str) -> str:
    """Return the value of an option of llama-server; nothing without it."""
    return arguments[arguments.index(name) + 1] if name in arguments[:-1] else ""


def with_options(arguments: Sequence[str], options: Mapping[str, str]) -> list[str]:
    """Return the arguments of llama-server with these options in place of those that they have."""
    kept = list(arguments)
    for name, value in options.items():
        at = kept.index(name) if name in kept else len(kept)
        kept[at : at + 2] = [name, value]
    return kept


class Stop(Exception):  # noqa: N818 - no error
    """A signal has asked this program to end."""


def say(sentence: str, *, state: str = "") -> None:
    """Write a sentence to the journal and to `systemctl status`; `state` is more for systemd (sd_notify(3))."""
    print(sentence, flush=True)
    place = os.environ.get("NOTIFY_SOCKET")
    if place:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect("\0" + place[1:] if place.startswith("@") else place)
            sock.sendall(f"{state}STATUS={sentence}\n".encode())


class Figures:
    """The metrics file for Prometheus' node_exporter, if the settings name one."""

    def __init__(self, settings: Settings) -> None:
        self.path = Path(settings.metrics_file) if settings.metrics_file else None
        self.api = f"{settings.address}:{settings.port}"
        self.workers = settings.workers
        self.memory, self.shown = Memory(), ""
        self.serving, self.written = False, 0.0
        self.missing: set[str] = set()

    def tell(self, *, serving: bool = False, missing: Collection[str] = ()) -> None:
        """Write whether the API serves, and for which workers it waits."""
        self.serving, self.missing, self.written = serving, set(missing), 0.0
        self.keep()

    def show(self, memory: Memory) -> None:
        """Write which workers serve and which do not, for Prometheus and for llama_server_info."""
        if memory.text() == self.shown:
            return
        self.memory, self.shown, self.written = memory, memory.text(), 0.0
        self.keep()
        try:
            memory.write()
        except OSError as error:
            say(f"{memory.path} could not be written: {error}.")

    def keep(self) -> None:
        """Write the same metrics again, if they are due."""
        if self.path is None or time.monotonic() - self.written < FIGURES_EVERY_S:
            return
        partial = self.path.with_name(f".{self.path.name}.partial")
        try:
            partial.write_text(self.text(), encoding="utf-8")
            partial.chmod(0o644)
            partial.replace(self.path)
        except OSError as error:
            # Continue to serve even if the disk is full.
            say(f"{self.path} could not be written: {error}.")
        self.written = time.monotonic()

    def text(self) -> str:
        """Return the metrics in Prometheus' text format."""
        own = f'api="{self.api}"'
        lines = [
            "# HELP llama_server_serving Whether the API has its model loaded and serves.",
            "# TYPE llama_server_serving gauge",
            f"llama_server_serving{{{own}}} {self.serving:d}",
            "# HELP llama_server_waiting_for_worker Whether the API waits for this worker before it loads its model.",
            "# TYPE llama_server_waiting_for_worker gauge",
        ]
        for worker in self.workers:
            waits = worker in self.missing
            lines.append(f'llama_server_waiting_for_worker{{{own},worker="{worker}"}} {waits:d}')
        lines += [
            "# HELP llama_server_degraded Whether the API serves without one of its workers.",
            "# TYPE llama_server_degraded gauge",
            f"llama_server_degraded{{{own}}} {self.serving and self.memory.degraded:d}",
            "# HELP llama_server_workers The workers and spares of the API, by what they do.",
            "# TYPE llama_server_workers gauge",
        ]
        for state in ("serving", "spare", "lost", "excluded"):
            lines.append(f'llama_server_workers{{{own},state="{state}"}} {len(getattr(self.memory, state))}')
        lines += [
            "# HELP llama_server_metrics_timestamp_seconds When this file was written.",
            "# TYPE llama_server_metrics_timestamp_seconds gauge",
            f"llama_server_metrics_timestamp_seconds{{{own}}} {time.time():.3f}",
        ]
        return "\n".join(lines) + "\n"


class Readiness:
    """The answer to load balancers: whether this API can take a request now, with all of its workers."""

    def __init__(self, paused: Path = PAUSED) -> None:
        self.server: Server | None = None
        self.draining = self.leaving = False
        self.paused = paused
        # A service that starts while it is paused gets no request until the playbook has checked it.
        self.held = paused.exists()

    def look(self, path: str = "/ready") -> tuple[int, str]:
        """Return an HTTP status and a sentence: 200, 404 (requests may end, but no new ones may begin) or 503."""
        if path == "/live":
            return http.client.OK, "It runs, and ends by itself when something is lost."
        server = self.server
        if server is None:
            return http.client.SERVICE_UNAVAILABLE, "It does not serve yet."
        if self.draining or self.leaving:
            return http.client.NOT_FOUND, "It is about to stop."
        self.held = self.held and self.paused.exists()
        if self.held:
            return http.client.SERVICE_UNAVAILABLE, "A playbook has paused it: the playbook serve starts it again."
        seen = peers()
        lost = [str(worker) for address, worker in server.workers.items() if address not in seen]
        if lost:
            return http.client.SERVICE_UNAVAILABLE, f"The connection to {', '.join(lost)} has ended."
        # The host may come back, so requests in progress continue until the service gives it up.
        silent = [str(worker) for address, worker in server.workers.items() if seen.get(address, 0) >= IN_VAIN]
        if silent:
            return http.client.NOT_FOUND, f"The host of {', '.join(silent)} acknowledges nothing."
        if server.get("/health", READY_LIMIT_S) != http.client.OK:
            return http.client.SERVICE_UNAVAILABLE, f"llama-server does not answer within {READY_LIMIT_S} s."
        return http.client.OK, "It serves."

    def listen(self, address: str, port: int) -> None:
        """Answer HTTP requests at a port, in a separate thread; raises ValueError with a sentence."""
        look = self.look

        class ReadyHandler(http.server.BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                status, sentence = look(self.path)
                body = f"{sentence}\n".encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_words: object) -> None:
                pass

        class ReadyServer(http.server.ThreadingHTTPServer):
            def handle_error(self, *_request: object) -> None:
                """Ignore a client that does not wait for the answer."""

        try:
            server = ReadyServer((address, port), ReadyHandler)
        except OSError as error:
            message = f"The ready port {address}:{port} cannot be opened: {error.strerror}."
            raise ValueError(message) from None
        threading.Thread(target=server.serve_forever, daemon=True).start()


def still_held(missing: list[WorkerStatus], before: dict[str, str]) -> dict[str, str]:
    """Return the message about each worker that a client holds, also while the worker's full queue hides this."""
    return {
        status.endpoint: status.message if status.state == "busy" else before[status.endpoint]
        for status in missing
        if status.state == "busy" or (status.state == "unreachable" and status.endpoint in before)
    }


def planned_over(settings: Settings, statuses: Mapping[str, WorkerStatus]) -> dict[str, Any]:
    """Return the inputs of the last plan with these workers; raises ValueError if their memory is not known."""
    written = json.loads(Path(settings.plan_file).read_text(encoding="utf-8"))
    given: dict[str, Any] = written["arguments"]
    known = {it["endpoint"]: it for it in [*given.get("workers", []), *written.get("spares", [])]}
    unknown = [endpoint for endpoint in statuses if endpoint not in known]
    if unknown:
        message = f"it does not say how much memory {', '.join(unknown)} may use"
        raise ValueError(message)
    workers = []
    for endpoint, status in statuses.items():
        reported = sum(device["memory_free_bytes"] for device in status.devices)
        memory = min(known[endpoint]["memory_available_bytes"], reported)
        workers.append({**known[endpoint], "memory_available_bytes": memory, "devices": len(status.devices)})
    return {**given, "workers": workers, "fewest_workers": False}


def written_plan(settings: Settings, statuses: Mapping[str, WorkerStatus]) -> Plan:
    """Return what plans the model with the memory that the last `serve` found, limited by what the workers report."""

    def plan(
        endpoints: Sequence[str], shares: Sequence[float], options: Mapping[str, str], kinds: Sequence[str]
    ) -> dict[str, Any]:
        # These lie beside this program, and only a plan needs them.
        from module_utils._gguf.header import GgufError
        from module_utils._plan.asking import plan_of
        from module_utils._plan.inputs import SplitError

        try:
            given = planned_over(settings, {endpoint: statuses[endpoint] for endpoint in endpoints})
            words = [word for pair in options.items() for word in pair]
            given = {**given, "tensor_split": shares, "options": [*given["options"], *words]}
            # No worker has a client now, and this service may not open ports for stand-ins.
            return plan_of(given, kinds=kinds, at_workers=True)
        except (GgufError, SplitError) as error:
            message = str(error)
        except (OSError, ValueError, KeyError, TypeError) as error:
            message = f"{settings.plan_file} or its model cannot be read ({error}): run the playbook serve."
        return {"fits": False, "message": message, "suggestions": []}

    return plan


class LossWait:
    """When to divide the model over the workers that answer, in place of waiting for the others."""

    def __init__(self, settings: Settings, memory: Memory) -> None:
        self.settings, self.wanted, self.memory = settings, settings.wanted, memory
        self.known = {*memory.lost, *memory.excluded}
        self.began = now_s()
        self.planned: tuple[frozenset[str], float] = (frozenset(), 0.0)
        self.why = ""

    def left_s(self, missing: Collection[str]) -> float:
        """Return how long to wait for the missing workers; not for those that are known to be lost."""
        return max([self._left_s(worker) for worker in missing if worker not in self.known], default=0)

    def _left_s(self, worker: str) -> float:
        # If its loss has ended the last llama-server, it has been away since then.
        away = max([at for at in self.memory.losses.get(worker, []) if at > self.began - RECENT_S], default=self.began)
        return max(0.0, max(away + self.settings.worker_wait_s, STARTING_S) - now_s())

    def division(self, statuses: Mapping[str, WorkerStatus]) -> Division | None:
        """Return the division over the workers that are ready, once it is time for one."""
        ready = frozenset(endpoint for endpoint, status in statuses.items() if status.state == "ready")
        missing = [worker for worker in self.wanted.workers if worker not in ready]
        out = ready.intersection(self.memory.excluded)
        if not missing and not out:
            return Division(self.wanted.workers)
        same, planned = self.planned
        waits = not self.settings.heals or not ready or self.left_s(missing) > 0
        if waits or (ready == same and time.monotonic() - planned < PLAN_EVERY_S):
            return None
        say(f"Planning the model without {', '.join(missing or out)}.")
        plan = written_plan(self.settings, statuses)
        division, self.why = choose(self.wanted, ready - out, plan)
        if division is None and out:
            division, self.why = choose(self.wanted, ready, plan)
        self.planned = (ready, time.monotonic())
        return division


def waiting_for(missing: Sequence[WorkerStatus], held: Mapping[str, str], count: int, why: str) -> str:
    """Return a sentence about the workers that are missing of so many, and why the others alone cannot serve."""
    first, names = missing[0], ", ".join(status.endpoint for status in missing)
    reason = held.get(first.endpoint, first.message)
    if reason != first.message:
        reason += " Now it answers no connection: its queue is full, or its host is down."
    others = f" The others do not serve without it: {why}" if why else ""
    return f"Waiting for {len(missing)} of {count} workers, {names}. {reason}{others}"


def wait_for_workers(settings: Settings, figures: Figures, memory: Memory) -> tuple[Division, list[WorkerStatus]]:
    """Return the division of the model, with the status of its workers; wait for ever, and report which are missing.

    All workers have to be ready, or those do for which another division is allowed.
    """
    endpoints = parse_endpoints([*settings.workers, *settings.spares])
    pause, said = FIRST_PAUSE_S, ""
    held: dict[str, str] = {}
    loss_wait = LossWait(settings, memory)
    while True:
        found = probe(endpoints, PROBE_LIMIT_S, settings.expected_protocol)
        statuses = dict(zip([*settings.workers, *settings.spares], found))
        ready = [endpoint for endpoint, status in statuses.items() if status.state == "ready"]
        planned = loss_wait.planned
        division = loss_wait.division(statuses)
        if loss_wait.planned != planned:
            said = ""  # The status shows that it has planned.
        if division:
            memory.divide(loss_wait.wanted, division.workers, ready)
            figures.tell()
            figures.show(memory)
            return division, [statuses[worker] for worker in division.workers]
        missing = [statuses[worker] for worker in settings.workers if worker not in ready]
        held = still_held(missing, held)
        sentence = waiting_for(missing, held, len(settings.workers), loss_wait.why)
        if sentence != said:
            say(sentence)
            said = sentence
            figures.tell(missing=[status.endpoint for status in missing])
        memory.divide(loss_wait.wanted, [], ready)
        figures.show(memory)
        figures.keep()
        left = loss_wait.left_s([status.endpoint for status in missing]) if settings.heals else 0
        time.sleep(min(pause, left or pause))
        pause = min(LONGEST_PAUSE_S, pause * 1.5)


def parts_of(model: Path) -> list[Path]:
    """Return the files of a model: more than one if it is split."""
    part = _PART.search(model.name)
    if not part:
        return [model]
    names = [f"{model.name[: part.start()]}-{number:05d}-of-{part[2]}.gguf" for number in range(1, int(part[2]) + 1)]
    return [model.parent / name for name in names]


def first_key(path: Path) -> str:
    """Return the first key of the file.

    Raises ValueError with a sentence if the file has none, because llama-server would then ask clients for none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        message = f"The keys in {path} cannot be read ({reason}): run the playbook serve, which writes them."
        raise ValueError(message) from None
    for line in lines:
        if line and not line.startswith("#"):
            return line
    message = f"{path} has no key, and without one the API would answer everybody: write a key into it, one per line."
    raise ValueError(message)


class Standby:
    """The workers that do not serve: which of them answer, and since when."""

    def __init__(self, settings: Settings, division: Division, memory: Memory) -> None:
        self.settings, self.division, self.memory = settings, division, memory
        self.endpoints = [it for it in (*settings.workers, *settings.spares) if it not in division.workers]
        self.since = dict.fromkeys(memory.ready, time.monotonic())
        # What answered when the division was chosen was considered then.
        self.considered = set(memory.ready)
        # Spares that could not load the part of a worker, as `spare worker`
        self.unseeded: list[str] = []

    def look(self) -> None:
        """Ask all of them once. None of them has a client for long, so this disturbs nobody."""
        found = probe(parse_endpoints(self.endpoints), PROBE_LIMIT_S, self.settings.expected_protocol)
        ready = {endpoint for endpoint, status in zip(self.endpoints, found) if status.state == "ready"}
        self.since = {endpoint: self.since.get(endpoint, time.monotonic()) for endpoint in ready}
        gone = [endpoint for endpoint, status in zip(self.endpoints, found) if status.state in AWAY]
        self.considered = self.considered.difference(gone)

    def keep_looking(self, idle_s: Callable[[], float]) -> None:
        """Ask them in an endless loop, and seed the spares while nobody has asked the API for anything."""
        while True:
            self.look()
            # A seeding takes minutes, in which a lost worker may come back.
            if idle_s() >= self.settings.seed_after_s and not self.memory.degraded:
                self.seed_next(idle_s)
            time.sleep(ASK_EVERY_S)

    def seed_next(self, idle_s: Callable[[], float]) -> None:
        """Have a spare load the part of one worker, so that its cache has it. A request of a client ends this."""
        # In split mode tensor, each worker gets slices of all tensors.
        in_layers = all(option(self.settings.arguments, name) in ("", "layer") for name in ("--split-mode", "-sm"))
        parts = parts_to_seed(Path(self.settings.plan_file)) if in_layers else {}
        wanted = [(spare, worker) for spare in self.settings.spares if spare in self.since for worker in parts]
        done = (*self.memory.seeded, *self.unseeded)
        spare, worker = next((it for it in wanted if " ".join(it) not in done), ("", ""))
        program = Path(self.settings.program).with_name("llama-completion")
        if not spare or not program.exists():
            return
        command = [program, "--model", self.settings.model, "--rpc", spare, "--device", "RPC0", "--n-gpu-layers", "0"]
        command += ["--override-tensor", f"{parts[worker]}=RPC0[{parse_endpoints([spare])[0]}]", "--fit", "off"]
        command += ["--ctx-size", "64", "--no-warmup", "-no-cnv", "--prompt", "x", "--predict", "1"]
        # The other parts stay in the file.
        command += ["--no-repack"]
        which = f"{spare} {worker}"
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={"LC_ALL": "C", "GGML_RPC_NO_COMM": "1", "GGML_NO_BACKTRACE": "1"},
                text=True,
                preexec_fn=die_with_this,  # noqa: PLW1509 - it takes no lock
            )
        except OSError as error:
            print(f"The spare {spare} is not seeded: {error}.", flush=True)
            self.unseeded.append(which)
            return
        with process:
            # If memory is short, the kernel ends this before llama-server.
            with suppress(OSError):
                Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000", encoding="ascii")
            reader = threading.Thread(target=end_after_load, args=(process, self.memory.seeded, which))
            reader.start()
            while reader.is_alive() and idle_s() > 0:
                reader.join(LOOK_EVERY_S)
            if not reader.is_alive() and which not in self.memory.seeded:
                print(f"The spare {spare} could not load the part of {worker}: its cache lacks it.", flush=True)
                self.unseeded.append(which)
            process.kill()

    def remembered(self) -> Memory:
        """Return what is remembered of all workers, as they answer now."""
        self.memory.divide(self.settings.wanted, self.division.workers, self.since)
        return self.memory

    def returning(self) -> list[str]:
        """Return the workers that have been ready for long enough, if the model is divided better with them."""
        out = self.considered.union(self.memory.excluded)
        latest = time.monotonic() - self.settings.rejoin_after_s
        back = [it for it, since in self.since.items() if since <= latest and it not in out]
        lined_up = line_up(self.settings.wanted, {*self.division.workers, *back})
        better = self._rank(lined_up) > self._rank(self.division.workers)
        return back if back and better and self.settings.rejoin != "never" else []

    def _rank(self, workers: Sequence[str]) -> tuple[int, int]:
        """Return how many workers of the full division there are, and how many in all."""
        return len(set(workers).intersection(self.settings.workers)), len(workers)


def parts_to_seed(plan_file: Path) -> dict[str, str]:
    """Return a pattern for the names of the tensors of each worker; nothing without whole layers."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        found = {}
        for part in json.loads(plan_file.read_text(encoding="utf-8"))["parts"]:
            layers = range(part["first_layer"], part["first_layer"] + part["layers"])
            # Many models have the output in the tensor of the embeddings.
            output = "|^output|^token_embd" if part["has_output"] else ""
            found[str(part["endpoint"])] = rf"^blk\.({'|'.join(map(str, layers))})\.{output}"
        return found
    return {}


def end_after_load(process: subprocess.Popen[str], seeded: list[str], which: str) -> None:
    """End a program as soon as it has loaded its model, and add this to what is seeded."""
    for line in process.stderr or ():
        if "system_info:" in line:
            seeded.append(which)
            print(f"The cache of the spare {which.replace(' ', ' has the part of ')}.", flush=True)
            break
    process.kill()


def die_with_this() -> None:
    """Let the kernel end a child with this process. For a child before exec."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """A running llama-server."""

    def __init__(self, settings: Settings, workers: Sequence[WorkerStatus], figures: Figures) -> None:
        self.settings, self.figures = settings, figures
        self.key = first_key(Path(settings.keys_file))
        self.workers = {f"{worker.address}:{worker.port}": worker.endpoint for worker in workers}
        names = [f"RPC{number}" for number in range(sum(len(worker.devices) for worker in workers))]
        command = [settings.program, *settings.arguments, "--rpc", ",".join(settings.workers)]
        command += ["--device", ",".join(names)]
        if "--spec-draft-model" in command and "--spec-draft-device" not in command:
            # Layers that predict further tokens may use the caches of the model's last layers.
            command += ["--spec-draft-device", names[-1]]
        environment = {name: it for name, it in os.environ.items() if not name.startswith(NOT_PASSED_ON)}
        # Upstream's abort would start a debugger. From protocol 8 on, a master has two workers listen for each other on
        # all addresses and without authentication, unless they have a link. A file config.ini in the other folder would
        # add options.
        environment.update(GGML_NO_BACKTRACE="1", XDG_CONFIG_HOME=os.devnull)
        environment["GGML_RPC_LINK" if settings.worker_link else "GGML_RPC_NO_COMM"] = "1"
        self.prompts = self.saved_prompts(environment)
        file_bytes = 0
        if self.prompts:
            command += ["--slot-save-path", str(self.prompts.folder)]
            # There is one more file while a slot is saved.
            file_bytes = (settings.cache_disk_mib << 20) // (int(option(command, "--parallel") or 1) + 1)
        self.saving = threading.Lock()
        # Since when no request is under way; 0 while one is, or nothing is known.
        self.idle_since = 0.0

        def before_it_begins() -> None:
            die_with_this()
            if file_bytes:
                limit_files(file_bytes)

        self.went_on = 0.0
        self.lost_workers: list[str] = []
        # By the address of a worker: since when its host acknowledges nothing.
        self.unheard: dict[str, float] = {}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env=environment,
            preexec_fn=before_it_begins,  # noqa: PLW1509 - no thread is here
        )

    def saved_prompts(self, environment: dict[str, str]) -> SavedPrompts | None:
        """Return the conversations that are kept over a restart, if any; add what llama-server needs for them."""
        folder = os.environ.get("CACHE_DIRECTORY", "").partition(":")[0]
        if not (folder and self.settings.cache_disk_mib and self.settings.has_programs_patch):
            return None
        name = fingerprint(Path(self.settings.program), parts_of(Path(self.settings.model)), self.settings.arguments)
        found = SavedPrompts(
            Path(folder),
            name,
            lambda method, path, body, key: self.ask(path, LIMIT_S, method, body, {"X-Slots-Key": key}),
        )
        try:
            environment.update(found.prepare())
        except OSError as error:
            # Serve even if the disk is full.
            say(f"Conversations are not saved: {error}.")
            return None
        return found

    def save_prompts(self) -> None:
        """Save the conversations in idle slots."""
        with self.saving:
            for sentence in self.prompts.save() if self.prompts else ():
                print(sentence, flush=True)

    def get(self, path: str, limit_s: float) -> int | None:
        """Return the HTTP status of the answer, or None if there is none within the limit."""
        return self.ask(path, limit_s)[0]

    def is_idle(self) -> bool:
        """Return whether no request is under way."""
        return requests_of_idle_slots(*self.ask("/slots", READY_LIMIT_S)) is not None

    def ask(
        self,
        path: str,
        limit_s: float,
        method: str = "GET",
        body: Mapping[str, str] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> tuple[int | None, bytes]:
        """Return the HTTP status and the body of the answer, or None if there is none within the limit."""
        # If the file has no key any more, keep the old one, because llama-server keeps its keys too.
        with suppress(ValueError):
            self.key = first_key(Path(self.settings.keys_file))
        headers = {"Authorization": f"Bearer {self.key}", **(more or {})}
        connection = http.client.HTTPConnection(self.settings.own_address, self.settings.port, timeout=limit_s)
        return answer_of(connection, method, path, body, headers)

    def lost(self, *, loaded: bool) -> str:
        """Return a sentence that names the lost workers, or an empty string.

        Before the model is loaded, connections come and go, so a missing one does not count.
        """
        now, seen = time.monotonic(), peers()
        self.unheard = {
            address: self.unheard.get(address, now) for address in self.workers if seen.get(address, 0) >= IN_VAIN
        }
        silent = [str(self.workers[address]) for address, since in self.unheard.items() if now - since > GONE_AFTER_S]
        if silent:
            self.lost_workers = silent
            return f"The host of {', '.join(silent)} acknowledged nothing for {GONE_AFTER_S} s: llama-server ends."
        # While it has no request, llama-server does not notice that a worker is gone.
        ended = [str(worker) for address, worker in self.workers.items() if address not in seen]
        if ended and loaded and self.process.poll() is None:
            self.lost_workers = ended
            return f"The connection to {', '.join(ended)} has ended, so llama-server is ended."
        return ""

    def wait_until_it_serves(self) -> bool:
        """Return whether the model is loaded and the API answers; False if the program ends or takes too long."""
        limit_s = LOAD_BASE_S + sum(it.stat().st_size for it in parts_of(Path(self.settings.model))) / LOAD_BYTES_PER_S
        deadline = time.monotonic() + limit_s
        while self.process.poll() is None:
            if self.get("/health", HEALTH_LIMIT_S) == http.client.OK:
                return True
            if time.monotonic() > deadline:
                say(f"llama-server has not loaded the model within {limit_s:.0f} s and is ended.")
                return False
            lost = self.lost(loaded=False)
            if lost:
                self.give_up(lost)
                return False
            self.figures.keep()
            time.sleep(0.1)
        return False

    def idle_s(self) -> float:
        """Return for how long no request has been under way, as far as is known."""
        return time.monotonic() - self.idle_since if self.idle_since else 0.0

    def keep_asking(self) -> None:
        """Ask for the slots in an endless loop, record when they last went on, and save those that stay idle."""
        last, seen = None, b""
        while True:
            status, body = self.ask("/slots", self.settings.stall_timeout_s)
            requests = requests_of_idle_slots(status, body)
            # llama-server also answers while a worker computes nothing. Then none of the numbers of tokens changes.
            if status == http.client.OK and (requests is not None or body != seen):
                self.went_on, seen = time.monotonic(), body
            if requests is None or requests != last:
                last = requests
                self.idle_since = time.monotonic() if requests is not None else 0.0
            elif self.idle_s() >= self.settings.save_after_s:
                self.save_prompts()
            # While the spares are seeded, a request has to be noticed soon.
            time.sleep(min(ASK_EVERY_S if not self.settings.spares else LOOK_EVERY_S, self.settings.save_after_s))

    def watch(self, standby: Standby, readiness: Readiness) -> None:
        """Return when the program has ended, has lost a worker, or does not go on with a request.

        Also return at a quiet moment when workers are back.
        """
        self.went_on, quiet, leaves_by = time.monotonic(), 0, 0.0
        # Ask in another thread: an answer may take minutes, and a worker may be lost meanwhile.
        threading.Thread(target=self.keep_asking, daemon=True).start()
        if standby.endpoints:
            threading.Thread(target=standby.keep_looking, args=(self.idle_s,), daemon=True).start()
        while self.process.poll() is None:
            lost = self.lost(loaded=True)
            if lost:
                self.give_up(lost)
                return
            if time.monotonic() - self.went_on > self.settings.stall_timeout_s + ASK_EVERY_S:
                say(f"llama-server has not gone on for {self.settings.stall_timeout_s} s and is ended.")
                return
            if standby.endpoints:
                self.figures.show(standby.remembered())
                back = standby.returning()
                if not back:
                    leaves_by = 0.0
                elif is_the_hour(self.settings.rejoin):
                    leaves_by = leaves_by or time.monotonic() + self.settings.drain_timeout_s
                may_leave = bool(leaves_by) or self.settings.rejoin == "quiet"
                quiet = quiet + 1 if back and may_leave and self.is_idle() else 0
                readiness.leaving = bool(leaves_by) or quiet > QUIET_LOOKS
                if quiet > QUIET_LOOKS + LEAVING_LOOKS or 0 < leaves_by < time.monotonic():
                    self.save_prompts()
                    if not leaves_by and not self.is_idle():
                        quiet = 0  # A request has come meanwhile.
                        continue
                    who = f"{' and '.join(back)} {'is' if len(back) == 1 else 'are'}"
                    say(f"{who} back, so llama-server is ended, and the model is divided again.")
                    return
            self.figures.keep()
            try:
                self.process.wait(LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                continue

    def give_up(self, sentence: str) -> None:
        """Kill the program at once, because it and its clients would wait for the worker; report why."""
        say(sentence)
        self.process.kill()

    def end(self) -> None:
        """End the program, by force if it does not end within STOP_LIMIT_S."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def requests_of_idle_slots(status: int | None, slots: bytes) -> list[int] | None:
    """Return the last request of each slot in an answer to /slots; None if one is under way, or it is not known."""
    with suppress(ValueError, TypeError, AttributeError):
        found = json.loads(slots) if status == http.client.OK else None
        if found is not None and not any(slot.get("is_processing", True) for slot in found):
            return [slot.get("id_task", -1) for slot in found]
    return None


def is_the_hour(rejoin: str) -> bool:
    """Return whether a time of the day (HH:MM) is now, or was within the last REJOIN_WITHIN_MIN minutes."""
    if ":" not in rejoin:
        return False
    then, now = (int(it[:2]) * 60 + int(it[3:]) for it in (rejoin, time.strftime("%H:%M")))
    return (now - then) % (24 * 60) < REJOIN_WITHIN_MIN


def how_it_ended(returncode: int) -> str:
    """Return how the program ended, as the end of a sentence."""
    if returncode < 0:
        return f"was ended by {signal.Signals(-returncode).name}"
    return f"ended with exit status {returncode}"


def nothing_more(_workers: Sequence[WorkerStatus]) -> list[str]:
    """Return no further options of llama-server, because the settings contain all."""
    return []


def check_media(settings: Settings) -> None:
    """Raise ValueError with a sentence if the program would fetch addresses that clients name in requests."""
    if "--mmproj" in settings.arguments and not settings.has_programs_patch:
        message = (
            f"{settings.program} lacks the patch {PROGRAMS_PATCH}, so with a projector it would fetch addresses that "
            "clients name: build it with that patch, or leave out llama_server_mmproj and run the playbook serve."
        )
        raise ValueError(message)


# Returns the options of llama-server besides its settings, once all workers are ready.
Divide = Callable[[Sequence[WorkerStatus]], "list[str]"]


def serve(settings: Settings, figures: Figures, readiness: Readiness, divide: Divide = nothing_more) -> int:
    """Wait for the workers, run the program and watch it; return the exit status."""
    first_key(Path(settings.keys_file))
    check_media(settings)
    if settings.ready_port:
        readiness.listen(settings.address, settings.ready_port)
    say("Looking at the workers.", state="READY=1\n")
    memory = Memory(state_file())
    memory.read()
    division, workers = wait_for_workers(settings, figures, memory)
    over = division.described(settings.wanted)
    standby = Standby(settings, division, memory)
    arguments = with_options([*settings.arguments, *divide(workers)], division.options)
    say(f"Loading {settings.alias} {over}.")
    server = Server(replace(settings, arguments=arguments, workers=list(division.workers)), workers, figures)
    served = False
    try:
        served = server.wait_until_it_serves()
        if served:
            memory.served, memory.failed_loads = list(division.workers), 0
            at = f"http://{settings.address}:{settings.port}/v1"
            restored = server.prompts.restore() if server.prompts else 0
            if restored:
                print(f"Conversations that were saved, and continue: {restored}.", flush=True)
            say(f"Serving {settings.alias} {over}{',' if ',' in over else ''} at {at}.")
            figures.tell(serving=True)
            readiness.server = server
            server.watch(standby, readiness)
    finally:
        readiness.server = None
        server.end()
    if settings.heals:
        count_losses(settings, figures, memory, server, served=served)
    say(f"llama-server {how_it_ended(server.process.returncode)}; its last lines are above. It is started again.")
    return 1


def state_file() -> Path | None:
    """Return the file for the memory of the service, in the folder that systemd has made for it."""
    folder = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(folder, "division.json") if folder else None


def count_losses(settings: Settings, figures: Figures, memory: Memory, server: Server, *, served: bool) -> None:
    """Remember the workers that a llama-server that has ended has lost, or that it could not load its model."""
    workers = list(server.workers.values())
    lost = server.lost_workers
    if not lost:
        # llama-server may notice a loss first, and then its other connections have ended too.
        found = probe(parse_endpoints(workers), LOSS_LIMIT_S, settings.expected_protocol)
        lost = [it for it, status in zip(workers, found) if status.state in AWAY]
    if not lost and not served:
        for worker in memory.fail(server.settings.workers):
            say(f"The model could not be loaded with {worker} {MOST_FAILED_LOADS} times, so it stays out{UNTIL}")
    here = ("127.0.0.1", settings.address)
    elsewhere = [str(it) for address, it in server.workers.items() if address.rpartition(":")[0] not in here]
    silent_s = GONE_AFTER_S if server.unheard else 0
    # If all hosts are gone at once, this host's own network was.
    for worker in memory.lose(lost, now_s() - silent_s) if lost != elsewhere or len(lost) == 1 else ():
        say(f"{worker} was lost {MOST_LOSSES} times within an hour, so it stays out{UNTIL}")
    figures.show(memory)


def on_signal(number: int, _frame: object) -> None:
    """Raise Stop, which ends the program."""
    raise Stop(signal.Signals(number).name)


def read_settings(path: Path) -> Settings:
    """Return the settings in a file; raises ValueError with a sentence."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Settings(**found)
    except (OSError, ValueError, TypeError) as error:
        message = f"{path} cannot be used ({error}): run the playbook serve, which writes it."
        raise ValueError(message) from None


def plan_again(settings: Path) -> int:
    """Print the plan of the model with the memory that the last `serve` found; return the exit status."""
    # These lie beside this program, and only a plan needs them.
    from module_utils._gguf.header import GgufError
    from module_utils._plan.asking import plan_of
    from module_utils._plan.inputs import SplitError

    path = settings.with_suffix(".plan")
    try:
        given = json.loads(path.read_text(encoding="utf-8"))["arguments"]
        print(json.dumps(plan_of(given), indent=1))
    except (GgufError, SplitError) as error:
        print(error, file=sys.stderr)
        return 2
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{path} or its model cannot be read ({error}): run the playbook serve.", file=sys.stderr)
        return 2
    return 0


def run(read: Callable[[], Settings], divide: Divide = nothing_more) -> int:
    """Serve until told to end or until something is lost; report why, and return the exit status."""
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    readiness = Readiness()
    # llama_server_drain.py sends this signal when it begins to drain.
    signal.signal(signal.SIGUSR1, lambda *_: setattr(readiness, "draining", True))
    try:
        settings = read()
        figures = Figures(settings)
        try:
            return serve(settings, figures, readiness, divide)
        finally:
            figures.tell()
    except Stop:
        # Whoever starts it again takes back the workers that were left out.
        Memory(state_file()).forget()
        say("Stopped.")
        return 0
    except (OSError, ValueError) as error:
        say(str(error))
        return 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with the settings in a file, and return the exit status."""
    parser = argparse.ArgumentParser(description="Run llama-server over RPC workers that are ready.")
    parser.add_argument("settings", type=Path, help="the file that role llama_server has written")
    parser.add_argument("--plan", action="store_true", help="print how the model would be divided now, and end")
    args = parser.parse_args(arguments)
    return plan_again(args.settings) if args.plan else run(lambda: read_settings(args.settings))


if __name__ == "__main__":
    sys.exit(main())
