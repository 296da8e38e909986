# SPDX-License-Identifier: GPL-3.0-or-later
"""What llama-plan says that a model takes, compared with what llama-server and its workers then allocate."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Sequence

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import SHAPES, Shape
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.engine import (
    Bytes,
    Engine,
    EngineError,
    EnginePlan,
)

from support.builds import PATCHES, QUICK, build
from support.gguf_headers import header_only
from support.harness import Release, Worker, running_worker
from support.runs import wait_for
from support.server_buffers import adapter, allocated, server_log, serving
from support.synthetic_models import KINDS, LAYERS, write_synthetic
from support.tiny_projector import write_projector
from support.tree import ROOT, load_yaml

pytestmark = pytest.mark.llama

MIB = 1 << 20
PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h
DRAFT = re.compile("loading draft model|creating MTP draft context")


def planned(
    release: Release,
    options: Sequence[str | Path],
    workers: Sequence[int] | int = 2,
    *variants: Sequence[str],
    limit_s: int = 120,
) -> list[EnginePlan]:
    """Return the plan for each variant of the options, of which one process is asked."""
    devices = [1] * workers if isinstance(workers, int) else workers
    model, *rest = (str(it) for it in options[1:])
    with closing(Engine(str(release.plan), model, devices, limit_s=limit_s)) as engine:
        return [engine.ask([*rest, *variant]) for variant in variants or [()]]


def shape(name: str) -> Shape:
    return next(it for it in SHAPES if it.name == name)


def mib(held: Bytes) -> tuple[float, float, float]:
    return held.weights / MIB, held.context / MIB, held.compute / MIB


# What is published


def test_the_guides_model_takes_what_the_guide_logged(release: Release, tmp_path: Path) -> None:
    """Llama 70B in Q4_0 over two workers, of which the first has 41 layers: the buffers that the guide shows."""
    path = header_only(tmp_path / "m.gguf", shape("70B"))
    options = ["-m", path, "-c", "4096", "-ub", "512", "-np", "1", "-fa", "off"]
    (plan,) = planned(release, options, 2, ["-ts", "41,40"])
    first, second, master = (mib(plan.on(device)) for device in ("RPC0", "RPC1", ""))
    assert first[:2] == pytest.approx((18821.56, 656), abs=1)
    assert second[:2] == pytest.approx((18725.42, 624), abs=1)
    assert master[:2] == pytest.approx((563.62, 0), abs=1)
    assert [layer.device for layer in plan.layers] == ["RPC0"] * 41 + ["RPC1"] * 40
    assert sum(layer.context for layer in plan.layers) == plan.on("RPC0").context + plan.on("RPC1").context
    of_layers = sum(layer.weights for layer in plan.layers)
    assert of_layers == plan.on("RPC0").weights + plan.on("RPC1").weights
    assert abs(of_layers + plan.input_bytes - plan.model_bytes) < MIB


# What is real

SERVER = ["-c", "4096", "-ub", "256", "-lm", "none"]
CASES: dict[str, tuple[str, int, list[str]]] = {
    "one slot": ("dense", 2, ["-np", "1"]),
    "eight slots": ("dense", 3, ["-np", "8"]),
    "slots of no round size": ("dense", 2, ["-c", "2100", "-ub", "200", "-np", "3"]),
    "embeddings": ("dense", 2, ["-np", "2", "--embeddings", "--pooling", "mean"]),
    "slots that share a cache": ("dense", 2, ["-np", "4", "-kvu"]),
    "slots as by default": ("grouped queries", 1, []),
    "a small cache": ("dense", 3, ["-np", "2", "-ctk", "q8_0", "-ctv", "q8_0"]),
    "no flash attention": ("grouped queries", 2, ["-np", "2", "-fa", "off"]),
    "experts with the master": ("experts", 2, ["-np", "2", "-ncmoe", "3"]),
    "tensors with the master": ("dense", 2, ["-np", "2", "-ot", "ffn_down=CPU"]),
    "layers with the master": ("dense", 2, ["-np", "2", "-ngl", "4"]),
    "a cache with the master": ("dense", 2, ["-np", "2", "-nkvo"]),
    "an adapter": ("dense", 2, ["-np", "2"]),
    "a draft over the workers": ("dense", 2, ["-np", "2", "--spec-type", "draft-simple"]),
    "a draft with the master": ("dense", 2, ["-np", "2", "--spec-type", "draft-simple", "--spec-draft-device", "none"]),
    "layers that predict": ("a layer that predicts", 2, ["-np", "4", "--spec-type", "draft-mtp"]),
    "layers that predict, of a large model": (
        "layers and states of a 27B",
        2,
        ["-np", "4", "-c", "16384", "--spec-type", "draft-mtp"],
    ),
    **{f"kind: {kind}": (kind, 1 + number % 3, ["-np", "2"]) for number, kind in enumerate(KINDS)},
}
EACH_TIME = ("eight slots", "experts with the master", "a draft over the workers", "layers that predict")
LAYERS_OF = {"a layer that predicts": 5, "layers and states of a 27B": 65}


def wrong(
    plan: EnginePlan, real: dict[str, dict[str, float]], used: Sequence[Worker], parts: Sequence[str]
) -> list[str]:
    """Return what differs by more than 1 % from llama.cpp's MiB, which have two decimal places for each buffer."""
    found = []
    devices = {"": "CPU", **{f"RPC{number}": worker.endpoint for number, worker in enumerate(used)}}
    for device, name in devices.items():
        theirs = real.get(name, {})
        mine = [sum(numbers) for numbers in zip(*(mib(plan.on(device, part)) for part in parts))]
        kinds = (("model", "LoRA"), ("KV", "RS", "state"), ("compute",))
        for what, value, names in zip(("weights", "context", "compute"), mine, kinds):
            other = sum(theirs.get(kind, 0.0) for kind in names)
            print(f"{device or 'master'}: {'+'.join(parts)}: {what} {value:.2f} as {other:.2f} MiB")
            if abs(value - other) > other * 0.01 + 0.03:
                found.append(f"{device or 'master'}: {what} {value:.2f}, not {other:.2f} MiB")
    return found


@pytest.mark.parametrize("case", [pytest.param(it, marks=() if it in EACH_TIME else pytest.mark.long) for it in CASES])
def test_llama_server_allocates_what_the_engine_planned(
    release: Release, workers: list[Worker], tmp_path: Path, case: str
) -> None:
    kind, count, options = CASES[case]
    path = write_synthetic(tmp_path / "m.gguf", kind, layers=LAYERS_OF.get(kind, LAYERS))
    options = [*SERVER, *options] if "-c" not in options else ["-ub", "256", "-lm", "none", *options]
    if "draft" in case:
        options += ["-md", str(path)]
    if "adapter" in case:
        options += ["--lora", str(adapter(tmp_path / "lora.gguf"))]
    split = ["-ts", ("1", "1,2", "1,2,1")[count - 1]]
    (plan,) = planned(release, ["-m", path, *options, *split], count)
    used = workers[:count]
    over = ["--rpc", ",".join(it.endpoint for it in used), *split]
    log = server_log(release, path, tmp_path / "server.log", *over, *options)
    own, *more = (allocated(part) for part in DRAFT.split(log))
    found = wrong(plan, own, used, ("model", "adapters"))
    for draft in more:
        found += wrong(plan, draft, used, ("draft",))
    assert len(more) == ("draft" in case or "predict" in case)
    assert found == []


@pytest.mark.long
@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_it_does_for_every_architecture(release: Release, workers: list[Worker], tmp_path: Path, mode: str) -> None:
    """Upstream's own test program makes a small model of each architecture that it can load."""
    made = build("archs", {**QUICK, "LLAMA_BUILD_TESTS": "ON"}, ["test-llama-archs"], PATCHES)
    subprocess.run([made.bin / "test-llama-archs", "-o", tmp_path], check=True, capture_output=True, timeout=600)
    models = sorted(tmp_path.glob("*.gguf"))
    assert len(models) > 100
    found = {}
    for number, path in enumerate(models):
        count = 1 + number % 3
        options = ["-sm", mode, "-c", "1024", "-np", "2", "-ub", "128", "-lm", "none"]
        try:
            (plan,) = planned(release, ["-m", path, *options], count)
        except EngineError as error:
            refused = loaded(release, path, tmp_path, workers[:count], options)
            found[path.stem] = [] if refused is None else [f"{error}, and it can"]
            continue
        if mode == "tensor":
            real = gained(release, path, tmp_path, count, options)
            found[path.stem] = ["it is not refused"] if real is None else otherwise(plan, real)
            continue
        log = loaded(release, path, tmp_path, workers[:count], options)
        found[path.stem] = (
            ["it is not refused"] if log is None else wrong(plan, allocated(log), workers[:count], ("model",))
        )
    bad = {name: lines for name, lines in found.items() if lines}
    print(f"{len(models)} models, {len(bad)} of them otherwise than planned: {bad}")
    assert bad == {}


def loaded(release: Release, path: Path, folder: Path, used: Sequence[Worker], options: Sequence[str]) -> str | None:
    """Return the log of a llama-server that has loaded a model over these workers, or None if it refuses it."""
    over = ["--rpc", ",".join(it.endpoint for it in used)]
    try:
        return server_log(release, path, folder / "server.log", *over, *options)
    except AssertionError:
        return None


def gained(release: Release, path: Path, folder: Path, count: int, options: Sequence[str]) -> list[int] | None:
    """Return the bytes that so many new workers have more once llama-server serves, or None if it refuses the model.

    In split mode tensor, llama.cpp logs no buffers of workers.
    """

    def data_of(worker: Worker) -> int:
        status = Path(f"/proc/{worker.process.pid}/status").read_text()
        return int(re.findall(r"VmData:\s+(\d+) kB", status)[0]) << 10

    with ExitStack() as stack:
        used = [stack.enter_context(running_worker(release, folder / f"{index}.log")) for index in range(count)]
        before = [data_of(it) for it in used]
        over = ["--rpc", ",".join(it.endpoint for it in used), *options]
        with serving(release, path, folder / "server.log", *over) as (server, _port):
            if server.poll() is not None:
                return None
            return [data_of(it) - was for it, was in zip(used, before)]


def otherwise(plan: EnginePlan, real: Sequence[int]) -> list[str]:
    """Return what differs by more than 1 %, or more than 2 MiB, which the programs take besides."""
    found = []
    for number, theirs in enumerate(real):
        mine = plan.on(f"RPC{number}")
        print(f"RPC{number}: {mib(mine)}, in all {mine.total / MIB:.2f} as {theirs / MIB:.2f} MiB")
        if abs(mine.total - theirs) > max(0.01 * theirs, 2 * MIB):
            found.append(f"RPC{number}: {mine.total / MIB:.2f}, not {theirs / MIB:.2f} MiB")
    return found


@pytest.mark.parametrize("kind", ["dense", pytest.param("grouped queries", marks=pytest.mark.long)])
def test_each_worker_holds_its_part_of_a_model_that_is_spread(release: Release, tmp_path: Path, kind: str) -> None:
    path = write_synthetic(tmp_path / "m.gguf", kind)
    options = ["-sm", "tensor", "-c", "16384", "-np", "2", "-ub", "512", "-lm", "none", "-ts", "1,1"]
    (plan,) = planned(release, ["-m", path, *options])
    real = gained(release, path, tmp_path, 2, options)
    assert real is not None
    assert otherwise(plan, real) == []


def test_each_device_of_a_worker_gets_its_part(release: Release, tmp_path: Path) -> None:
    """A worker that has its CPU as two devices, and one that has it as one."""
    path = write_synthetic(tmp_path / "m.gguf", "dense")
    options = ["-c", "4096", "-np", "2", "-ub", "256", "-lm", "none", "-ts", "2,1,3"]
    (plan,) = planned(release, ["-m", path, *options], [2, 1])
    with ExitStack() as stack:
        used = [
            stack.enter_context(running_worker(release, tmp_path / f"{index}.log", "-d", devices))
            for index, devices in enumerate(("CPU,CPU", "CPU"))
        ]
        over = ["--rpc", ",".join(it.endpoint for it in used)]
        log = server_log(release, path, tmp_path / "server.log", *over, *options)
    # The log calls a buffer by the number of the device within its worker.
    names = [f"RPC0[{used[0].endpoint}]", f"RPC1[{used[0].endpoint}]", f"RPC0[{used[1].endpoint}]"]
    kinds = ("model", "KV", "compute")
    for number, name in enumerate(names):
        real = [
            sum(float(size) for size in re.findall(re.escape(name) + rf" +{kind} buffer size = +([\d.]+) MiB", log))
            for kind in kinds
        ]
        assert all(real), name
        assert list(mib(plan.on(f"RPC{number}"))) == pytest.approx(real, rel=0.01, abs=0.03)


def test_the_service_plans_again_without_ansible(release: Release, tmp_path: Path) -> None:
    """With the files that role llama_server installs, and the memory that the last plan found."""
    library = tmp_path / "lib"
    parts = load_yaml(ROOT / "roles/llama_server/vars/main.yml")["__llama_server_parts"]
    for folder, names in parts.items():
        (library / folder).mkdir(parents=True)
        for name in names:
            source = ROOT / "plugins/module_utils" / folder.removeprefix("module_utils/") / f"{name}.py"
            shutil.copy(source, library / folder)
    for name in ("division", "prompts", "service"):
        program = shutil.copy(ROOT / f"roles/llama_server/files/llama_server_{name}.py", library)
    command = [sys.executable, "-B", "-s", program, str(tmp_path / "8080.json"), "--plan"]

    def again() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env={"LC_ALL": "C"})

    none = again()
    assert (none.returncode, none.stdout) == (2, "")
    assert none.stderr.startswith(f"{tmp_path}/8080.plan or its model cannot be read")
    given = {
        "model": str(write_synthetic(tmp_path / "m.gguf", "dense")),
        "bin_folder": str(release.bin),
        "options": ["--ctx-size", "4096", "--parallel", "2"],
        "workers": [{"endpoint": f"10.0.0.{n}:50052", "memory_available_bytes": n << 30} for n in (1, 2)],
    }
    (tmp_path / "8080.plan").write_text(json.dumps({"tensor_split": [], "arguments": given}))
    done = again()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["fits"], found["exact"], sum(found["tensor_split"])) == (True, True, LAYERS + 1)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("dense", "layer"), ("dense", "tensor"), ("hybrid, every fourth", "layer")],
    ids=["layer", "tensor", "states"],
)
def test_workers_that_are_asked_themselves_say_the_same_and_take_no_memory(
    release: Release, tmp_path: Path, kind: str, mode: str
) -> None:
    path = write_synthetic(tmp_path / "m.gguf", kind)
    options = ["-sm", mode, "-c", "16384", "-np", "4", "-ub", "512", "-ts", "2,1"]
    (plan,) = planned(release, ["-m", path, *options])
    with ExitStack() as stack:
        workers = [stack.enter_context(running_worker(release, tmp_path / f"{number}.log")) for number in range(2)]
        before = [resident_bytes(it) for it in workers]
        with closing(Engine(str(release.plan), str(path), endpoints=[it.endpoint for it in workers])) as engine:
            assert engine.ask(options) == plan
            taken = [resident_bytes(it) - was for it, was in zip(workers, before)]
        assert all(it.alive for it in workers)
        assert max(taken) < 8 * MIB < plan.on("RPC0").total
        assert not any("COMM" in it.log.read_text(errors="replace") for it in workers)


def resident_bytes(worker: Worker) -> int:
    """Return the memory that a worker has itself filled."""
    found = re.search(r"^RssAnon:\s+(\d+)", Path(f"/proc/{worker.process.pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) << 10


# What cannot be planned


def test_the_engines_reason_is_in_one_sentence(release: Release, tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", "dense")
    text = tmp_path / "text.gguf"
    text.write_text("no model")
    cases = {
        "No such file": ["-m", tmp_path / "none.gguf"],
        "magic": ["-m", text],
        "invalid argument: --no-such-option": ["-m", path, "--no-such-option"],
        "quantized V cache": ["-m", path, "-ctv", "q8_0", "-fa", "off", "-c", "512"],
        "none.gguf": ["-m", path, "-c", "512", "--lora", tmp_path / "none.gguf"],
    }
    for said, options in cases.items():
        with pytest.raises(EngineError) as caught:
            planned(release, options)
        message = str(caught.value)
        print(message)
        assert said in message, said
        assert message.endswith(".")
        assert "\n" not in message


def test_one_run_plans_several_variants(release: Release, tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", "dense")
    options = ["-m", path, "-c", "512", "-np", "1"]
    variants = [["-ts", "1,1"], ["-ts", "6,1"], ["-ts", "1,6", "-c", "1024"], ["-ts", "1,0", "-dev", "RPC0"]]
    plans = planned(release, options, 2, *variants)
    assert [sum(layer.device == "RPC0" for layer in plan.layers) for plan in plans] == [4, 6, 1, 7]
    assert [plan.n_ctx for plan in plans] == [512, 512, 1024, 512]
    for plan, variant in zip(plans[:-1], variants):
        (alone,) = planned(release, [*options, *variant])
        assert [plan.on(device) for device in ("", "RPC0", "RPC1")] == [
            alone.on(device) for device in ("", "RPC0", "RPC1")
        ]
        assert plan.layers == alone.layers
    assert plans[-1].on("RPC0") == planned(release, options, 1)[0].on("RPC0")
    with closing(Engine(str(release.plan), str(path), [1])) as engine:
        for bad in ("--no-such-option", "-ctv"):
            with pytest.raises(EngineError):
                engine.ask([bad])
        assert engine.ask(["-c", "512"]).n_ctx == 512


def test_root_gives_up_its_rights_and_the_network(release: Release, tmp_path: Path) -> None:
    """A model of a folder that only root may enter can be planned all the same."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    fifo = folder / "m.gguf"
    os.mkfifo(fifo)
    process = subprocess.Popen([release.plan, "--stand-ins", "1", "-m", fifo], stdin=subprocess.PIPE)
    try:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        with fifo.open("wb"):
            pass  # it has opened the model, so it may read it
        about = Path(f"/proc/{process.pid}/status").read_text()
        if os.getuid() == 0:
            assert re.search(r"^Uid:\s+65534\s+65534\s+65534", about, re.MULTILINE)
            # CAP_DAC_READ_SEARCH
            assert re.search(r"^CapPrm:\s+0+4$", about, re.MULTILINE)
            assert not Path(f"/proc/{process.pid}/ns/net").samefile("/proc/self/ns/net")
        assert re.search(r"^NoNewPrivs:\s+1$", about, re.MULTILINE) or os.getuid() != 0
    finally:
        process.kill()
        process.communicate(timeout=10)


# What it costs


@pytest.mark.parametrize(
    ("of", "limit_s"), [(shape("70B"), 3), pytest.param(shape("DeepSeek-V3"), 5, marks=pytest.mark.long)]
)
def test_a_plan_takes_seconds_and_little_memory(release: Release, tmp_path: Path, of: Shape, limit_s: float) -> None:
    path = header_only(tmp_path / "m.gguf", of, tokenizer=True)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [release.plan, "--stand-ins", "1,1,1,1", "-m", path, "-c", "16384", "-np", "4"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for shares in ("1,1,1,1", "2,1,1,1"):
            process.stdin.write(f"-ts\t{shares}\n")
            process.stdin.flush()
            assert process.stdout.readline().startswith('{"n_ctx": 16384')
        all_of_it = [process.pid, *stand_ins(process.pid)]
        # Of each process its most, since it was started as this program.
        most = [re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{it}/status").read_text())[0] for it in all_of_it]
        process.communicate(timeout=10)
    after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - started
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    kib = sum(map(int, most))
    print(f"{of.name}: {took:.2f} s, {used:.2f} s of processor time, {kib >> 10} MiB in {len(all_of_it)} processes")
    assert len(all_of_it) == 5
    # The host may be busy, so the time of its processors counts.
    assert used < limit_s
    assert kib < 300 << 10


def stand_ins(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(it) for it in tasks.read_text().split()] if tasks.exists() else []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_planner_leaves_nothing(release: Release, tmp_path: Path, number: signal.Signals) -> None:
    path = header_only(tmp_path / "m.gguf", shape("70B"), tokenizer=True)
    process = subprocess.Popen(
        [release.plan, "--stand-ins", "1,1,1", "-m", path, "-c", "4096"],
        stdout=subprocess.DEVNULL,
        stdin=subprocess.PIPE,
    )
    try:
        children = wait_for(lambda: (found := stand_ins(process.pid)) and len(found) == 3 and found, 20)
    finally:
        process.send_signal(number)
        process.communicate(timeout=10)
    assert process.returncode == -number
    wait_for(lambda: not any(Path(f"/proc/{child}").exists() for child in children), 10)


def test_it_ends_with_its_parent_and_at_its_limit(release: Release, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # A file that nobody writes: a plan that never ends.
    started = "import subprocess, sys; subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE).communicate(b'\\n')"
    parent = subprocess.Popen([sys.executable, "-c", started, str(release.plan), "--stand-ins", "1", "-m", str(fifo)])
    try:
        (child,) = wait_for(lambda: stand_ins(parent.pid), 20)
        others = wait_for(lambda: stand_ins(child), 20)
    finally:
        parent.kill()
        parent.wait(10)
    wait_for(lambda: not any(Path(f"/proc/{it}").exists() for it in (child, *others)), 10)
    with pytest.raises(EngineError, match="longer than the time limit"):
        planned(release, ["-m", fifo], limit_s=1)


def test_a_plan_leaves_no_process_to_the_first_one(release: Release, model: Path) -> None:
    # As the first process of a pod, it gets the children of those that end, and nobody else waits for them.
    program = f"""
import ctypes, os
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.engine import Engine
assert ctypes.CDLL(None).prctl({PR_SET_CHILD_SUBREAPER}, 1, 0, 0, 0) == 0
engine = Engine({str(release.plan)!r}, {str(model)!r}, [1, 1])
engine.ask([])
engine.close()
try:
    print("left:", os.waitpid(-1, 0))
except ChildProcessError:
    print("nothing is left")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "nothing is left\n"


def test_experts_that_stay_with_the_master_are_the_masters(release: Release, tmp_path: Path) -> None:
    """Some of the master's weights are in buffers of its processor's own kind, which no list of devices has."""
    path = header_only(tmp_path / "m.gguf", shape("Qwen3-30B-A3B"))
    options = ["-m", path, "-c", "4096", "-np", "1", "-ts", "1,1"]
    plan, without = planned(release, options, 2, ["-ncmoe", "20"], [])
    held = sum(it.bytes.weights for it in plan.held)
    assert abs(held - plan.model_bytes) < MIB
    moved = plan.on("").weights - without.on("").weights
    assert moved > 5000 * MIB
    assert abs(moved - sum(layer.elsewhere for layer in plan.layers)) < MIB
    assert plan.on("RPC0").weights == without.on("RPC0").weights - moved


def test_layers_that_predict_take_what_a_report_measured(release: Release, tmp_path: Path) -> None:
    """A qwen35 of 65 layers, 4 slots of 4096 and 3 drafted tokens: caches and states that llama-server held."""
    path = write_synthetic(tmp_path / "m.gguf", "layers and states of a 27B", layers=65)
    options = ["-c", "16384", "-np", "4", "--spec-type", "draft-mtp", "--spec-draft-n-max", "3", "-ts", "35,31"]
    (plan,) = planned(release, ["-m", path, *options])
    assert mib(plan.on("RPC0"))[1] == pytest.approx(512 + 1346.62, abs=1)
    assert mib(plan.on("RPC1"))[1] == pytest.approx(512 + 1047.38 + 64, abs=1)


def test_it_does_for_a_trained_model(
    release: Release, workers: list[Worker], tmp_path: Path, trained_model: Path
) -> None:
    """Gemma 3 270M, with windows, one head of keys, and a vocabulary that is larger than all layers."""
    options = ["-ts", "9,10", "-c", "4096", "-np", "1", "-lm", "none"]
    (plan,) = planned(release, ["-m", trained_model, *options])
    over = ["--rpc", ",".join(it.endpoint for it in workers[:2])]
    log = server_log(release, trained_model, tmp_path / "server.log", *over, *options)
    assert wrong(plan, allocated(log), workers[:2], ("model",)) == []
    assert mib(plan.on("RPC1"))[0] == pytest.approx(202.77, abs=1)


def test_a_projector_is_in_the_plan(release: Release, tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "m.gguf", "dense")
    projector = write_projector(tmp_path / "p.gguf", 256)
    options = ["-m", path, "-c", "1024", "-np", "1", "--mmproj", projector]
    of_worker, of_master = planned(release, options, 1, [], ["--no-mmproj-offload"])
    assert of_worker.on("RPC0", "projector").total > projector.stat().st_size * 0.8
    assert of_master.on("", "projector").total > projector.stat().st_size * 0.8
    assert of_master.on("RPC0", "projector").total == 0
