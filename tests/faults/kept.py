# SPDX-License-Identifier: GPL-3.0-or-later
"""Workers that are restarted as their unit would restart them, and runs over them that tests disturb."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.progress import VARIABLE, read_step
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import parse_endpoint
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.prober import probe_until_ready

from support.harness import HANG_S, ROOT, START_LIMIT_S, Release, free_port, listens, run_module
from support.runs import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEEPALIVE = ROOT / "plugins/module_utils/_rpc/keepalive.py"
# The unit's settings: Restart=always, RestartSec=1, IgnoreSIGPIPE=true, and ExecStartPost=.
KEEP = r"""
trap '' PIPE
pid_file=$1 python=$2 keepalive=$3 port=$4
shift 4
while :; do
    "$@" &
    echo $! >"$pid_file"
    "$python" "$keepalive" $! "$port" || :
    wait $!
    sleep 1
done
"""
PROMPT = "Here's a knock knock joke for children:"
LONG_PROMPT = "garden " * 4000


@dataclass
class Kept:
    """A worker that is started again whenever it ends."""

    port: int
    address: str
    pid_file: Path
    keeper: subprocess.Popen[bytes] = field(repr=False)
    log: Path = field(repr=False)

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{self.port}"

    @property
    def pid(self) -> int:
        return int(self.pid_file.read_text() or 0)

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def listens(self) -> bool:
        return self.pid_file.exists() and listens(self.pid, self.port)

    def held(self) -> bool:
        """Return whether a client holds the worker, according to the worker's network namespace."""
        lines = [line.split() for line in Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]]
        return any(fields[1].endswith(f":{self.port:04X}") and fields[3] == "01" for fields in lines)


@contextmanager
def kept(
    release: Release,
    folder: Path,
    *,
    prefix: tuple[str, ...] = (),
    address: str = "127.0.0.1",
) -> Iterator[Kept]:
    """Keep a worker running; yield it, and end it with everything that was started for it."""
    port = free_port()
    pid_file, log = folder / f"worker-{port}.pid", folder / f"worker-{port}.log"
    server = [str(release.rpc_server), "-H", address, "-p", str(port), "-t", "1"]
    command = ["sh", "-c", KEEP, "sh", str(pid_file), sys.executable, str(KEEPALIVE), str(port)]
    with log.open("wb") as output:
        keeper = subprocess.Popen(
            [*prefix, *command, *server],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        )  # fmt: skip
    worker = Kept(port, address, pid_file, keeper, log)
    try:
        wait_for(worker.listens, START_LIMIT_S)
        yield worker
    finally:
        os.killpg(keeper.pid, signal.SIGKILL)
        keeper.wait(HANG_S)


def infer(release: Release, model: Path, over: list[Kept], **given: Any) -> dict[str, Any]:
    """Run the module on this machine."""
    environment, prefix = given.pop("environment", None), given.pop("prefix", ())
    arguments: dict[str, Any] = {
        "bin_folder": str(release.bin),
        "model": str(model),
        "prompt": PROMPT,
        "workers": [worker.endpoint for worker in over],
        "n_predict": 8,
        "threads": 1,
        **given,
    }
    return run_module("distributed_inference", arguments, environment=environment, prefix=prefix)


class Running:
    """A run that goes on while something happens to it."""

    def __init__(self, release: Release, model: Path, workers: list[Kept], folder: Path, given: dict[str, Any]) -> None:
        self.workers = workers
        self._file = folder / f"progress-{time.monotonic_ns()}"
        environment = {VARIABLE: str(self._file), **given.pop("environment", {})}
        self._pool = ThreadPoolExecutor(1)
        self._result = self._pool.submit(infer, release, model, workers, environment=environment, **given)
        self._struck = 0.0

    def phase(self) -> str:
        """Return the phase of the run, empty if there is none yet; fail if the run has ended."""
        assert not self._result.done(), self._result.result().get("msg")
        try:
            step = read_step(self._file.read_text())
        except OSError:
            return ""
        return step.what if step else ""

    def reaches(self, phase: str, worker: Kept | None = None) -> None:
        """Wait until the run is in this phase, and the worker is at work."""
        wait_for(lambda: self.phase() == phase and (worker is None or worker.held()))

    def strike(self, what: Callable[[], Any]) -> None:
        """Make something happen, and measure time from then on."""
        what()
        self._struck = time.monotonic()

    def result(self) -> tuple[dict[str, Any], float]:
        """Return the result, and how many seconds after the strike it came."""
        try:
            found = self._result.result(HANG_S)
        finally:
            self._pool.shutdown()
        return found, time.monotonic() - self._struck


def ready_after(workers: list[Kept], limit_s: float, since: float | None = None) -> float:
    """Return the seconds, from now or from `since`, until all workers are ready."""
    since = time.monotonic() if since is None else since
    left = limit_s - (time.monotonic() - since)
    found = probe_until_ready([parse_endpoint(worker.endpoint) for worker in workers], 5, wait=max(0.0, left))
    assert [status.state for status in found] == ["ready"] * len(workers), [status.message for status in found]
    return time.monotonic() - since
