# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve a model on this machine, with workers on loopback and an API over them, until Ctrl-C ends them.

The program that runs the API is that of role llama_server. With --groups there are several APIs, each over its own
workers, behind an HAProxy that role llama_gateway configures. Linux only; standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from demo_workers import SIGNAL_WHEN_PARENT_ENDS, end, free_ports, start_worker

TOP = Path(__file__).resolve().parents[2]
SERVICE = TOP / "roles/llama_server/files/llama_server_service.py"
GATEWAY_FILES = TOP / "playbooks/files/gateway_files.yml"
SLOTS = 2
START_LIMIT_S, CONFIGURE_LIMIT_S = 60, 300
STALL_LIMIT_S = 600


def reason_for_no_page(args: argparse.Namespace) -> Path:
    """Return the file that says why there can be no chat page. playbooks/files/demo_page.yml writes it."""
    return Path(f"{args.page}.none")


def has_page(args: argparse.Namespace) -> bool:
    """Return whether there is a chat page, or will be: it may be built while the API serves already."""
    return not reason_for_no_page(args).exists()


def model_name(args: argparse.Namespace) -> str:
    """Return the model's name for clients: its file name with only the characters that the roles accept."""
    return re.sub(r"[^A-Za-z0-9._:+-]", "-", args.model.stem)


def where_the_page_is(args: argparse.Namespace, api_port: int) -> str:
    """Return the URL of the chat page, or why there is none, or "" while it is being built."""
    if not has_page(args):
        return "none: " + reason_for_no_page(args).read_text(encoding="utf-8").strip()
    return f"http://127.0.0.1:{api_port}/" if (args.page / "index.html").exists() else ""


@dataclass
class Group:
    """An API over its own workers. If there is only one group, it has no name."""

    name: str
    folder: Path
    ports: list[int]
    api_port: int
    ready_port: int
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    service: subprocess.Popen[str] | None = None
    serves: threading.Event = field(default_factory=threading.Event)

    def settings(self, args: argparse.Namespace) -> dict[str, object]:
        """Return the settings of the service, as role llama_server writes them."""
        keys = str(args.state / "api.keys")
        arguments = ["--model", str(args.model), "--alias", model_name(args)]
        arguments += ["--host", "127.0.0.1", "--port", str(self.api_port), "--api-key-file", keys]
        arguments += ["--parallel", str(SLOTS), "--ctx-size", "4096", "--n-gpu-layers", "999", "--fit", "off"]
        arguments += ["--tensor-split", ",".join("1" for _port in self.ports), "--threads", "1", "--metrics"]
        arguments += ["--cors-origins", "localhost", "--cache-ram", "256"]
        arguments += ["--path", str(args.page)] if has_page(args) else ["--no-ui"]
        return {
            "program": str(args.bin / "llama-server"),
            "arguments": arguments,
            "workers": [f"127.0.0.1:{port}" for port in self.ports],
            "metrics_file": None,
            "model": str(args.model),
            "alias": model_name(args),
            "address": "127.0.0.1",
            "port": self.api_port,
            "keys_file": keys,
            "stall_timeout_s": STALL_LIMIT_S,
            "ready_port": self.ready_port,
        }

    def start(self, args: argparse.Namespace) -> None:
        """Start the workers and the service that waits for them, except those that run already."""
        threads = max(1, len(os.sched_getaffinity(0)) // (args.count * args.groups))
        for index, port in enumerate(self.ports):
            worker = self.workers[index] if index < len(self.workers) else None
            if worker is None or worker.poll() is not None:
                log = self.folder / f"worker{index + 1}.log"
                self.workers[index : index + 1] = [start_worker(args.bin / "rpc-server", port, threads, log)]
        if self.service is not None and self.service.poll() is None:
            return
        (self.folder / "api.json").write_text(json.dumps(self.settings(args), indent=2), encoding="utf-8")
        self.service = subprocess.Popen(
            [*SIGNAL_WHEN_PARENT_ENDS, "TERM", sys.executable, str(SERVICE), str(self.folder / "api.json")],
            env={**os.environ, "PYTHONPATH": str(TOP / "plugins/module_utils"), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        threading.Thread(target=self.follow, args=(self.service,), daemon=True).start()

    def follow(self, service: subprocess.Popen[str]) -> None:
        """Print the progress of the service, and write all of its output to a file."""
        if service.stdout is None:
            return
        with (self.folder / "api.log").open("a", encoding="utf-8") as said:
            for line in service.stdout:
                said.write(line)
                said.flush()
                if line.startswith(("Waiting", "Loading", "llama-server ")):
                    shown = line.rstrip().replace("are above", f"are in {self.folder / 'api.log'}")
                    print(f"Group {self.name}: {shown}" if self.name else shown, flush=True)
                elif line.startswith("Serving"):
                    if self.name:
                        # Print this each time, because a restarted worker has another process id.
                        loss = f"`kill -9 {self.workers[0].pid}` ends a worker of this group; other groups continue."
                        print(f"Group {self.name}: {line.rstrip()}\nGroup {self.name}: {loss}", flush=True)
                    elif self.serves.is_set():
                        print(line.rstrip(), flush=True)
                    self.serves.set()

    def end(self) -> None:
        """End the service before its workers."""
        if self.service is not None and self.service.poll() is None:
            self.service.terminate()
            self.service.wait()
        end(self.workers)


def start_gateway(args: argparse.Namespace, groups: list[Group], port: int, key: str) -> subprocess.Popen[bytes]:
    """Start an HAProxy in front of the groups and return its process; raise RuntimeError with a sentence."""
    folder = args.state / "gateway"
    folder.mkdir(exist_ok=True)
    variables = {
        "gateway_folder": str(folder),
        "gateway_program": str(args.gateway),
        "llama_gateway_port": port,
        "llama_gateway_ui": has_page(args),
        "llama_gateway_group_key": (args.state / "api.keys").read_text(encoding="utf-8").strip(),
        "llama_gateway_api_keys": [{"name": "you", "key": key}],
        "llama_gateway_groups": [
            {
                "name": group.name,
                "model": model_name(args),
                "address": "127.0.0.1",
                "port": group.api_port,
                "ready_port": group.ready_port,
                "slots": SLOTS,
            }
            for group in groups
        ],
    }
    hosts = {"llama_gateways": {"hosts": {"here": {"ansible_connection": "local"}}}}
    hosts["llama_gateways"]["hosts"]["here"]["ansible_python_interpreter"] = sys.executable
    for name, content in (("hosts.json", hosts), ("variables.json", variables)):
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    command = ["ansible-playbook", "-i", str(folder / "hosts.json"), "-e", f"@{folder}/variables.json"]
    with (folder / "configuration.log").open("wb") as log:
        environment = {**os.environ, "ANSIBLE_STDOUT_CALLBACK": "default"}
        done = subprocess.run(
            [*command, str(GATEWAY_FILES)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=CONFIGURE_LIMIT_S,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"The gateway could not be configured: see {log.name}.")
    with (folder / "haproxy.log").open("wb") as log:
        # -db: one process, in the foreground.
        return subprocess.Popen(
            [*SIGNAL_WHEN_PARENT_ENDS, "TERM", str(args.gateway), "-db", "-f", str(folder / "haproxy.cfg")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def wait_for_gateway(gateway: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the gateway answers; raise RuntimeError with a sentence if it does not."""
    deadline = time.monotonic() + START_LIMIT_S
    while gateway.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"HAProxy does not answer: see {log}.")


def serve(args: argparse.Namespace, groups: list[Group], door: int, key: str) -> int:
    """Start everything, print the addresses, and restart what ends, as systemd does; return 1 if the gateway ends."""
    for group in groups:
        group.start(args)
    for group in groups:
        while not group.serves.wait(0.1):
            if group.service is None or group.service.poll() is not None:
                what = f"Group {group.name}" if group.name else "The API"
                raise RuntimeError(f"{what} has ended before it served: see {group.folder / 'api.log'}.")
    gateways = [start_gateway(args, groups, door, key)] if args.groups > 1 else []
    try:
        for gateway in gateways:
            wait_for_gateway(gateway, door, args.state / "gateway/haproxy.log")
        page = where_the_page_is(args, door)
        shown = page or "is being built; a line says when it is there"
        print(f"API http://127.0.0.1:{door}/v1\nKey {key}\nPage {shown}\nCtrl-C ends it.", flush=True)
        while all(gateway.poll() is None for gateway in gateways):
            time.sleep(1)
            if not page and (page := where_the_page_is(args, door)):
                print(f"Page {page}", flush=True)
            for group in groups:
                group.start(args)
        return 1
    finally:
        end(gateways)


def stop(number: int, _frame: object) -> None:
    """Begin to end the others in order, each API before its workers. A second signal does not disturb that."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    """Parse the arguments, serve, end all processes, and return the exit status."""
    parser = argparse.ArgumentParser(description="Serve a model on this machine until Ctrl-C.")
    parser.add_argument("--bin", type=Path, required=True, help="folder of the llama.cpp programs")
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--count", type=int, required=True, choices=range(1, 16), help="how many workers a group has")
    parser.add_argument("--groups", type=int, default=1, choices=range(1, 9), help="how many groups there are")
    parser.add_argument("--gateway", type=Path, default=Path("/usr/sbin/haproxy"), help="HAProxy, for several groups")
    parser.add_argument("--page", type=Path, required=True, help="folder of the chat page")
    parser.add_argument("--state", type=Path, required=True, help="folder for logs, settings and the key")
    args = parser.parse_args()
    args.state.mkdir(parents=True, exist_ok=True)
    groups = []
    for number in range(args.groups):
        name = chr(ord("a") + number) if args.groups > 1 else ""
        folder = args.state / f"group-{name}" if name else args.state
        folder.mkdir(exist_ok=True)
        (folder / "api.log").unlink(missing_ok=True)
        *ports, api_port, ready_port = free_ports(args.count + 2)
        groups.append(Group(name, folder, ports, api_port, ready_port))
    keys = args.state / "api.keys"
    keys.touch(mode=0o600)
    key = secrets.token_hex(24)
    keys.write_text(f"{key}\n" if args.groups == 1 else f"{secrets.token_hex(24)}\n", encoding="utf-8")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        return serve(args, groups, free_ports(1)[0] if args.groups > 1 else groups[0].api_port, key)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        for group in groups:
            group.end()
        print("\nThe API and its workers have ended.", flush=True)


if __name__ == "__main__":
    sys.exit(main())
