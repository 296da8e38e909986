# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared parts of benchmarks: options, figures with their spread, test hosts, and runs of Ansible on them."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = Path(os.environ.get("LLAMA_CPP_CLUSTER_CACHE") or Path.home() / ".cache/llama_cpp_cluster")
MODELS = CACHE / "benchmarks" / "models"
INVENTORIES = (ROOT / "inventories/lab/hosts.yml", ROOT / "inventories/lab/more_workers.yml")
SSH_LIMIT_S = 60
MODEL_LIMIT_S = 600
LAB_LIMIT_S = 900  # the first lab makes the hosts' system as well
# The lines in which a long command shows its progress.
PROGRESS = re.compile(r"^\[[\w-]+\] ")


class BenchError(Exception):
    """An error with one sentence for the user."""


class NotRunError(BenchError):
    """This machine or this account cannot run the benchmark."""


def say(text: str) -> None:
    print(f"bench: {text}", flush=True)


def interrupted(number: int, frame: object) -> NoReturn:  # noqa: ARG001
    raise BenchError("interrupted; what it started is ended.")


def run_to_end(main: Callable[[], int]) -> NoReturn:
    """Run a benchmark and exit with its status; a signal raises BenchError, so that open resources are closed first."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        sys.exit(main())
    except NotRunError as error:
        print(f"Not run: {error}", file=sys.stderr)
        sys.exit(77)
    except (BenchError, RuntimeError, subprocess.SubprocessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(1)


def parser_of(about: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def asked(parser: argparse.ArgumentParser, smoke: str, rounds: int = 5, smoke_rounds: int = 1) -> argparse.Namespace:
    """Return the arguments of a benchmark over loopback: the rounds, or few rounds that only show that it runs."""
    parser.add_argument("--repetitions", type=int, default=rounds, help="rounds (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help=smoke)
    args = parser.parse_args()
    if args.repetitions < 1:
        parser.error("--repetitions must be 1 or more.")
    if args.smoke:
        args.repetitions = smoke_rounds
    return args


def asked_of_hosts(
    parser: argparse.ArgumentParser, output: Path, what: str = "", sizes: Sequence[int] = (), most: int = 0
) -> argparse.Namespace:
    """Return the arguments of a benchmark over test hosts: repetitions, and numbers of hosts if there is a choice."""
    if sizes:
        parser.add_argument("--sizes", type=int, nargs="+", default=sizes, help=f"numbers of {what}, up to {most}")
    parser.add_argument("--repetitions", type=int, default=5, help="of what is timed (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=output, help="the JSON report (default: %(default)s)")
    args = parser.parse_args()
    if args.repetitions < 1:
        parser.error("--repetitions must be 1 or more.")
    if sizes:
        args.sizes = sorted(set(args.sizes))
        if not 1 <= args.sizes[0] <= args.sizes[-1] <= most:
            parser.error(f"there are 1 to {most} {what}.")
    if os.geteuid() != 0:
        raise NotRunError(f"{parser.prog}; it makes containers, which needs root: sudo make bench")
    return args


def reported(report: dict[str, Any], text: str, output: Path) -> int:
    """Write all values of a benchmark over test hosts as JSON, print the text, and return the exit status."""
    output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\n{text}\n\nAll of it: {output}")
    return 1 if report["missed"] else 0


def output_of(command: Sequence[str | Path], failed: str, limit_s: float, **options: Any) -> str:
    """Run a program and return its output; if it fails, raise BenchError with a sentence that begins with `failed`."""
    options = {"stdin": subprocess.DEVNULL, **options}
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, **options)
    if done.returncode:
        raise BenchError(f"{failed}: {(done.stdout + done.stderr).strip()[-600:]}")
    return done.stdout


def random_model(layers: int, width: int, folder: Path = MODELS) -> Path:
    """Return the path of a model of random weights in eight bits, made on first use and kept in the cache."""
    path = folder / f"random-{layers}x{width}-q8_0.gguf"
    if not path.exists():
        say(f"making {path.name}, a model of random weights")
        program = ROOT / "playbooks/files/random_model.py"
        command = [sys.executable, program, path, "--layers", str(layers), "--width", str(width)]
        output_of(command, "The model could not be made", MODEL_LIMIT_S)
    return path


# --- figures --------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float], digits: int = 2) -> dict[str, Any]:
    """Return median, minimum, maximum and all values of the repetitions of one measurement."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
        "values": [round(value, digits) for value in values],
    }


def shown(figure: dict[str, Any], digits: int = 1) -> str:
    """Return the median and the range."""
    return f"{figure['median']:.{digits}f} ({figure['min']:.{digits}f} to {figure['max']:.{digits}f})"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [list(map(str, row)) for row in (head, *rows)]
    wide = [max(len(line[column]) for line in lines) for column in range(len(head))]
    lines.insert(1, ["-" * width for width in wide])
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, wide)).rstrip() for line in lines)


def machine() -> dict[str, Any]:
    """Return the facts of this machine that a reader of figures must know."""
    cpu = re.search(r"^(?:model name|Model)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "cpu": cpu[1] if cpu else platform.processor(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "cores_used": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else None,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "ansible_core": version("ansible-core"),
        "load_before": [round(load, 1) for load in os.getloadavg()],
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def machine_line(facts: dict[str, Any]) -> str:
    """Return these facts as a line above the tables."""
    return (
        f"{facts['cpu']}, {facts['cores_used']} of {facts['cores']} cores, {facts['memory_gib']} GiB, "
        f"Linux {facts['kernel']}, ansible-core {facts['ansible_core']}, load before {facts['load_before'][0]}, "
        f"{facts['date']}"
    )


# --- test hosts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One run of a playbook: its seconds, and the results of its tasks."""

    seconds: float
    results: list[dict[str, Any]]

    @property
    def compiled(self) -> list[dict[str, Any]]:
        """The builds that really ran, from the results of the tasks that run long commands."""
        return [
            {"on": line["on"], "seconds": line["elapsed_s"]}
            for line in self.results
            if line["action"].endswith("watched_command") and Path(line["log"]).name == "build.log"
        ]

    @property
    def changed(self) -> int:
        return sum(line["changed"] for line in self.results)


class Hosts:
    """The hosts of a lab that is up."""

    def __init__(self, number: int, names: Sequence[str], scratch: Path) -> None:
        self.number = number
        self.names = names
        self.scratch = scratch
        self.folder = CACHE / "lab" / str(number)
        # A separate folder, so that no connection to an earlier lab's hosts is used for these.
        self.sockets = scratch / "cp"

    def ssh(self, host: str, command: str) -> str:
        ssh = ["ssh", "-F", str(self.folder / "ssh_config"), host, command]
        return output_of(ssh, f'"{command}" failed on {host}', SSH_LIMIT_S).strip()

    def disconnect(self) -> None:
        """Close the connections, so that the next run of Ansible connects anew, as that of a user does."""
        for socket in self.sockets.glob("*"):
            command = ["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "any"]
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=SSH_LIMIT_S)

    def play(
        self, playbook: Path, variables: dict[str, Any], *, forks: int, limit_s: int, log: Path,
        checkout: Path = ROOT, inventories: Sequence[Path] = INVENTORIES,
        more_environment: Mapping[str, str] | None = None,
    ) -> Run:  # fmt: skip
        """Run a playbook over new connections; write its output to `log`, and print the progress of long commands.

        The collection is that of `checkout`; by default the hosts are those of this checkout's inventories.
        """
        self.disconnect()
        said = self.scratch / "results"
        environment = {
            **os.environ,
            "ANSIBLE_CALLBACKS_ENABLED": "task_results",
            "ANSIBLE_CALLBACK_PLUGINS": str(HERE / "callbacks"),
            "ANSIBLE_CONFIG": str(checkout / "ansible.cfg"),
            "ANSIBLE_HOME": str(CACHE / "ansible"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.sockets),
            "LAB_NUMBER": str(self.number),
            "LLAMA_CPP_CLUSTER_CACHE": str(CACHE),
            "PYTHONUNBUFFERED": "1",
            "TASK_RESULTS": str(said),
            **(more_environment or {}),
        }
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "--forks", str(forks)]
        command += [word for path in inventories for word in ("-i", str(path))]
        command += ["--extra-vars", json.dumps(variables), str(playbook)]
        began = time.monotonic()
        with log.open("w") as out, subprocess.Popen(
            command, cwd=checkout, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        ) as process:  # fmt: skip
            ended = threading.Timer(limit_s, os.killpg, (process.pid, signal.SIGKILL))
            ended.start()
            try:
                for line in process.stdout or ():
                    out.write(line)
                    if PROGRESS.match(line):
                        say(f"  {line.strip()}")
                process.wait()
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            finally:
                ended.cancel()
        seconds = time.monotonic() - began
        if process.returncode:
            late = f" after its limit of {limit_s} s" if seconds >= limit_s else ""
            raise BenchError(f"{playbook.name} failed ({process.returncode}){late}: see {log}.")
        return Run(seconds, [json.loads(line) for line in said.read_text().splitlines()])


@contextlib.contextmanager
def lab(usual: int, names: Sequence[str]) -> Iterator[Hosts]:
    """Make bare hosts in the usual lab or that of LAB_NUMBER, yield them, and remove them in the end."""
    number = int(os.environ.get("LAB_NUMBER") or usual)
    environment = {**os.environ, "LAB_NUMBER": str(number), "LLAMA_CPP_CLUSTER_CACHE": str(CACHE)}

    def make(*words: str) -> None:
        command = [sys.executable, str(ROOT / "tests/lab/lab.py"), *words]
        if subprocess.run(command, env=environment, check=False, timeout=LAB_LIMIT_S).returncode:
            raise BenchError(f"lab.py {' '.join(words)} failed: see above.")

    scratch = Path(tempfile.mkdtemp(prefix="bench-"))
    hosts = Hosts(number, names, scratch)
    try:
        make("up", *names)
        yield hosts
    finally:
        hosts.disconnect()
        make("down")
        shutil.rmtree(scratch)
