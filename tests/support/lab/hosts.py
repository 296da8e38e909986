# SPDX-License-Identifier: GPL-3.0-or-later
"""The test hosts as a user sees them: over SSH, and through Ansible."""

from __future__ import annotations

import ast
import atexit
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROOT = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("LLAMA_CPP_CLUSTER_CACHE") or Path.home() / ".cache" / "llama_cpp_cluster")
NUMBER = int(os.environ.get("LAB_NUMBER") or 0)
LAB = CACHE / "lab" / str(NUMBER)
INVENTORY = ROOT / "inventories/lab/hosts.yml"
ADDRESS = {
    name: f"10.87.{NUMBER}.{last}"
    for name, last in (("master", 10), ("worker1", 11), ("worker2", 12), ("outsider", 20))
}
WORKERS = ("worker1", "worker2")
PORT = 50052
UNIT = f"llama-rpc-server@{PORT}.service"

# Prints "connected" or the error, on a host that has nothing but Python.
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()
    print("connected")
except OSError as error:
    print(type(error).__name__, error)
"""


def _alone(*names: str) -> str:
    """Return files of the package _rpc as one program, for hosts that have nothing but Python."""
    program = ["from __future__ import annotations"]
    for name in names:
        tree = ast.parse((ROOT / f"plugins/module_utils/_rpc/{name}.py").read_text(encoding="utf-8"))
        for node in tree.body:
            source = ast.unparse(node)
            if not source.startswith(("from __future__", "from .")):
                program.append(source)
            elif source.endswith(" import sentences"):
                program.append("import sys; sentences = sys.modules[__name__]")
    return "\n".join(program)


# Gives the same as rpc_worker_info, without starting Ansible.
PARTS = ("endpoint", "worker_status", "protocol", "resolver", "sentences", "connection", "listeners", "prober")
ASK = f"""{_alone(*PARTS)}
import json, sys
print(json.dumps({{str(status.endpoint): status.state for status in probe(parse_endpoints(sys.argv[1:]), timeout=10)}}))
"""


_SOCKETS: dict[str, Path] = {}
_OPENING = threading.Lock()


def ssh_command(host: str, *, anew: bool = False) -> list[str]:
    """Return the command that starts programs on a test host over a shared connection, or over a new one (`anew`)."""
    command = ["ssh", "-F", str(LAB / "ssh_config")]
    if anew:
        return [*command, host]
    with _OPENING:
        if host not in _SOCKETS:
            _SOCKETS[host] = Path(tempfile.mkdtemp(prefix="llama-lab-")) / host
            shared = ["-o", "ControlMaster=yes", "-o", "ControlPersist=300", "-o", f"ControlPath={_SOCKETS[host]}"]
            subprocess.run(
                [*command, *shared, host, "true"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=60,
            )  # fmt: skip
    # Without the shared connection, ssh makes one of its own.
    return [*command, "-o", f"ControlPath={_SOCKETS[host]}", host]


@atexit.register
def close_connections() -> None:
    """End the shared connections."""
    while _SOCKETS:
        _host, path = _SOCKETS.popitem()
        subprocess.run(["ssh", "-o", f"ControlPath={path}", "-O", "exit", "-"], capture_output=True, check=False)
        shutil.rmtree(path.parent, ignore_errors=True)


def ssh(
    host: str, *argv: str, check: bool = True, timeout: float = 60, text_in: str = "", anew: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a program as root on a test host."""
    done = subprocess.run(
        [*ssh_command(host, anew=anew), "sudo", *(shlex.quote(word) for word in argv)],
        capture_output=True, text=True, timeout=timeout, check=False, input=text_in,
    )  # fmt: skip
    assert not check or done.returncode == 0, f"{host}: {argv}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def connect(host: str, address: str, port: int = PORT) -> str:
    """Return the result of a connection that a program on a test host opens and closes at once."""
    return ssh(host, "python3", "-", address, str(port), text_in=CONNECT).stdout.strip()


def ask(host: str, *endpoints: str) -> dict[str, str]:
    """Return the state of each worker as a test host sees it."""
    return dict(json.loads(ssh(host, "python3", "-", *endpoints, text_in=ASK).stdout))


def cable(host: str) -> str:
    """Return the name of this machine's end of a host's cable."""
    number = ssh(host, "cat", "/sys/class/net/host0/iflink").stdout.strip()
    for row in json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, check=True).stdout):
        if row["ifindex"] == int(number):
            return str(row["ifname"])
    raise AssertionError(number)


@contextmanager
def unplugged(host: str) -> Iterator[float]:
    """Unplug a host's cable for a while; yield the time of that."""
    end = cable(host)
    subprocess.run(["ip", "link", "set", end, "down"], check=True)
    try:
        yield time.monotonic()
    finally:
        subprocess.run(["ip", "link", "set", end, "up"], check=True)


@contextmanager
def with_model_copied() -> Iterator[str]:
    """Have a copy of the model on each worker for a while; yield its path."""
    model = (CACHE / "lab" / "random-weights.gguf").read_bytes()
    try:
        for worker in WORKERS:
            subprocess.run([*ssh_command(worker), "sudo tee /srv/seed.gguf >/dev/null"], input=model, check=True)
        yield "/srv/seed.gguf"
    finally:
        for worker in WORKERS:
            ssh(worker, "rm", "-f", "/srv/seed.gguf")


def at_once(look: Callable[[str], Any], hosts: Iterable[str]) -> dict[str, Any]:
    """Return the result of a look at each host; the looks run side by side."""
    with ThreadPoolExecutor() as threads:
        return dict(zip(hosts, threads.map(look, hosts)))


def eventually(true: Callable[[], Any], limit: float, what: str) -> Any:
    """Return what `true` returns once it is true, within `limit` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found = true()
        if found:
            return found
        time.sleep(0.3)
    raise AssertionError(f"not within {limit} s: {what}")


def _ansible(program: str, *arguments: str, timeout: float, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *arguments],
        cwd=ROOT, env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "NO_COLOR": "1", **environment},
        capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done


def play(
    playbook: str | Path, *options: str, check: bool = True, timeout: float = 1800, inventory: Path = INVENTORY
) -> subprocess.CompletedProcess[str]:
    """Run a playbook (a path, or the name of one in playbooks/) over the lab's inventory."""
    path = playbook if isinstance(playbook, Path) else ROOT / "playbooks" / f"{playbook}.yml"
    done = _ansible("ansible-playbook", "-i", str(inventory), str(path), *options, timeout=timeout)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def inventory_of(path: Path, *workers: str) -> Path:
    """Write the lab's inventory with these workers alone; return its path."""
    whole, more = (
        yaml.safe_load((ROOT / f"inventories/lab/{name}.yml").read_text()) for name in ("hosts", "more_workers")
    )
    known = {**whole["llama_workers"]["hosts"], **more["llama_workers"]["hosts"]}
    whole["llama_workers"]["hosts"] = {name: known[name] for name in workers}
    path.write_text(yaml.safe_dump(whole))
    return path


def require_lab() -> None:
    """End the tests if there are no hosts."""
    if not (LAB / "ssh_config").exists():
        pytest.exit(f"Lab {NUMBER} is not up: scripts/molecule.sh makes that of a scenario.", returncode=1)


def over(overlay: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a playbook over the lab's inventory and the one that comes after it."""

    def playbook(
        name: str, *options: str, check: bool = True, timeout: float = 1800, **variables: Any
    ) -> subprocess.CompletedProcess[str]:
        given = ["-e", json.dumps(variables)] if variables else []
        return play(name, "-i", str(overlay), *given, *options, check=check, timeout=timeout)

    return playbook


def words(done: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a play, in one line."""
    return " ".join((done.stdout + done.stderr).split())


def refused(cases: dict[str, tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the tasks of a play in which each role must fail with its variables, and the next case follows."""
    return [
        {
            "name": f"Refused: {case}",
            "block": [
                {"ansible.builtin.include_role": {"name": role}, "vars": variables},
                {"ansible.builtin.fail": {"msg": "It was not refused."}},
            ],
            "rescue": [{"name": f"End of {case}", "ansible.builtin.debug": {"msg": "."}}],
        }
        for case, (role, variables) in cases.items()
    ]


def refusals_in(output: str) -> dict[str, str]:
    """Return the output of such a play for each case, in one line."""
    found = re.split(r"TASK \[End of (\S+)\]", output)
    cases = dict(zip(found[1::2], (" ".join(text.split()) for text in found[::2])))
    assert not [case for case, text in cases.items() if "It was not refused." in text], output
    return cases


def module(host: str, name: str, overlay: Path = INVENTORY, **arguments: Any) -> dict[str, Any]:
    """Return the result of a module of this collection on a test host, failed or not; `overlay` may add the host."""
    inventories = ["-i", str(INVENTORY), "-i", str(overlay)]
    # Ansible would take an empty object for a word.
    given = ["-a", json.dumps(arguments)] if arguments else []
    done = _ansible(
        "ansible", *inventories, host, "-m", f"llama_cpp.cluster.{name}", *given,
        timeout=300, ANSIBLE_CALLBACK_RESULT_FORMAT="json",
    )  # fmt: skip
    _host, separator, result = done.stdout.partition(" => ")
    assert separator, done.stdout + done.stderr
    return dict(json.loads(result))


def releases_of(*hosts: str) -> dict[str, str]:
    """Return the release of each host, according to the link."""
    look = "basename $(readlink /opt/llama_cpp/current)"
    return at_once(lambda host: ssh(host, "sh", "-c", look).stdout.strip(), hosts)


def as_artifacts(releases: dict[str, str], folder: Path) -> Path:
    """Return an inventory that gives each host the artifact of this release: the same programs, as another release.

    So there is a release to upgrade to, and nothing has to be compiled.
    """
    hosts = {}
    for host, release in releases.items():
        record = json.loads((CACHE / f"artifacts/{release}.json").read_text())
        hosts[host] = {
            "llama_cpp_artifact": str(CACHE / f"artifacts/{release}.tar.gz"),
            "llama_cpp_sha256": record["sha256"],
            "llama_cpp_commit": record["manifest"]["source"]["commit"] or "",
        }
    path = folder / "artifacts.json"
    path.write_text(json.dumps({"all": {"hosts": hosts}}))
    return path
