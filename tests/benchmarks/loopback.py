# SPDX-License-Identifier: GPL-3.0-or-later
"""What benchmarks on this machine alone share: workers on loopback bound to cores, a model of a useful size."""

from __future__ import annotations

import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict

from measure import CACHE, ROOT, BenchError, machine, say, spread

sys.path[:0] = [str(ROOT / "tests/integration"), str(ROOT / ".venv/collections")]
from ansible_collections.llama_cpp.cluster.plugins.module_utils._cpu_topology import read_topology
from harness import RELEASES, AnyRelease, Release, Worker, run_module, running_worker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

# 47 million parameters in a layer of this width; the weights of the default shape are 0.43 GB as Q4_0.
LAYERS, WIDTH = 16, 2048
# Four times as many in one of this width, so that less of the time is spent between layers: 0.86 GB.
WIDE_LAYERS, WIDE_WIDTH = 8, 4096
SMOKE_LAYERS, SMOKE_WIDTH = 4, 512
MODEL_LIMIT_S = 600
PLAY_LIMIT_S = 600
# As many as the most workers of one core each: figures of a machine with more are of the same case.
MOST_CORES = 4
PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact:
        began: "{{ now().timestamp() }}"
    - llama_cpp.cluster.MODULE: "{{ arguments }}"
      register: result
    - ansible.builtin.set_fact:
        ended: "{{ now().timestamp() }}"
    - ansible.builtin.copy:
        content: "{{ {'began': began, 'ended': ended, 'result': result} | to_json }}"
        dest: "{{ out }}"
        mode: "0600"
"""

# Figures by their names, and what measures some.
Rates = Dict[str, float]
Case = Callable[[], Rates]


def one_of_each(cores: Iterable[Collection[int]], allowed: Collection[int]) -> list[int]:
    """Return a CPU of each physical core that may be used, of not too many cores.

    Two threads of a worker on one core are not twice as fast, and roles count cores as well.
    """
    usable = sorted(min(set(core) & set(allowed)) for core in cores if set(core) & set(allowed))
    return (usable or sorted(allowed))[:MOST_CORES]


CORES = one_of_each(read_topology().cores, os.sched_getaffinity(0))


# While a program holds it open with a latency of 0 in it, the kernel lets no CPU of the machine sleep.
AWAKE = Path("/dev/cpu_dma_latency")


def can_keep_awake() -> bool:
    return os.access(AWAKE, os.W_OK)


@contextmanager
def cores_awake() -> Iterator[None]:
    """Let idle CPUs wait instead of sleep: they are there at once, as quick as they were, and take power for it."""
    with AWAKE.open("wb", buffering=0) as latency:
        latency.write(struct.pack("i", 0))
        yield


def release() -> Release:
    """Return the default release, as `make test` builds it."""
    found = RELEASES["7.0.0"]
    missing = [
        name
        for name in ("rpc-server", "llama-completion", "llama-bench", "llama-quantize")
        if not (found.bin / name).exists()
    ]
    if missing:
        raise BenchError(f"There is no {', '.join(missing)} in {found.bin}; build it with `make test`.")
    return found


def model(*, smoke: bool, wide: bool = False) -> Path:
    """Return a model of random weights in four bits, made on first use and kept in the cache."""
    layers, width = (SMOKE_LAYERS, SMOKE_WIDTH) if smoke else (WIDE_LAYERS, WIDE_WIDTH) if wide else (LAYERS, WIDTH)
    path = CACHE / "benchmarks" / "models" / f"random-{layers}x{width}-q4_0.gguf"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    say(f"making {path.name}, a model of random weights")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        eight, four = Path(folder, "q8_0.gguf"), Path(folder, "q4_0.gguf")
        make = [
            sys.executable,
            ROOT / "playbooks/files/random_model.py",
            eight,
            "--layers",
            str(layers),
            "--width",
            str(width),
        ]
        # Of Q8_0, which the weights are made in: they are random either way.
        quantise = [release().bin / "llama-quantize", "--allow-requantize", eight, four, "Q4_0"]
        for command in (make, quantise):
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=MODEL_LIMIT_S, check=False
            )
            if done.returncode:
                raise BenchError(f"{Path(command[0]).name} could not make the model: {done.stderr.strip()[-300:]}")
        four.replace(path)
    return path


def task(name: str, arguments: dict[str, Any], *, check: bool = False) -> dict[str, Any]:
    """Run a module of the collection as Ansible does on a host, and return its result."""
    result = run_module(name, arguments, check=check)
    if result.get("failure"):
        raise BenchError(f"{name} failed: {result['msg']}")
    return result


def timed_task(name: str, arguments: dict[str, Any], folder: Path) -> tuple[float, dict[str, Any]]:
    """Run a module of the collection in a play on this machine; return how long the task took, and its result."""
    out, playbook = folder / "out.json", folder / "play.yml"
    playbook.write_text(PLAY.replace("MODULE", name))
    variables = {
        "arguments": arguments,
        "out": str(out),
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
    }
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,", "-e", json.dumps(variables), playbook],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_LOCALHOST_WARNING": "false"},
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PLAY_LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"The play failed: {done.stdout.strip()[-600:]}")
    said = json.loads(out.read_text())
    return float(said["ended"]) - float(said["began"]), said["result"]


def in_rounds(cases: dict[str, Case], repetitions: int, what: str) -> list[dict[str, Rates]]:
    """Measure each case once in each round, every round beginning with another one."""
    names = list(cases)
    rounds = []
    for number in range(repetitions):
        first = number % len(names)
        rounds.append({name: cases[name]() for name in [*names[first:], *names[:first]]})
        say(f"{what}: round {number + 1} of {repetitions}")
    return rounds


@contextmanager
def workers(
    *of_each: tuple[int, Sequence[int]], cached: bool = False, repack: bool = True, build: AnyRelease | None = None
) -> Iterator[list[Worker]]:
    """Run one worker for each pair of threads and cores, of the default release if no other is given.

    If asked, each keeps the weights it was sent in a cache, or leaves them as upstream's does.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = []
        for number, (threads, cores) in enumerate(of_each):
            cache = folder / f"cache{number}"
            bound = ("env", f"LLAMA_CACHE={cache}", f"GGML_RPC_REPACK={int(repack)}")
            bound += ("taskset", "-c", ",".join(map(str, cores)))
            options = ("-c",) if cached else ()
            worker = running_worker(
                build or release(), folder / f"{number}.log", *options, threads=threads, prefix=bound
            )
            found.append(stack.enter_context(worker))
        yield found


def ratios(ones: Sequence[float], others: Sequence[float]) -> dict[str, Any]:
    """Return how much more the ones are than the others, measured in the same round each."""
    return precise([one / other for one, other in zip(ones, others)])


def precise(values: Sequence[float]) -> dict[str, Any]:
    """Return what the repetitions of a ratio or of a short time say, to four digits."""
    return {**spread(values), "median": round(statistics.median(values), 4), "min": round(min(values), 4),
            "max": round(max(values), 4), "values": [round(value, 4) for value in values]}  # fmt: skip


def shown_ratio(figure: dict[str, Any]) -> str:
    """Return the median and the range of a ratio."""
    return f"{figure['median']:.3f} ({figure['min']:.3f} to {figure['max']:.3f})"


def keep(name: str, results: dict[str, Any]) -> Path:
    """Write all values as JSON, and return where."""
    path = CACHE / "benchmarks" / name / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), "cores": CORES, **results}, indent=2) + "\n")
    return path
