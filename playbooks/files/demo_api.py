# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve a model on this machine: workers on loopback and the API over them, until Ctrl-C ends all of it.

The API is started as role llama_server starts it, by the same program. Linux only; standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

from demo_workers import end, free_ports, start_worker

TOP = Path(__file__).resolve().parents[2]
SERVICE = TOP / "roles/llama_server/files/llama_server_service.py"
STALL_LIMIT_S = 600


def has_page(args: argparse.Namespace) -> bool:
    """Whether the chat page could be made."""
    return (args.page / "index.html").exists()


def where_the_page_is(args: argparse.Namespace, api_port: int) -> str:
    """Return its address, or why there is none, as playbooks/demo.yml has written it down."""
    if has_page(args):
        return f"http://127.0.0.1:{api_port}/"
    reason = args.page.with_name(f"{args.page.name}.none")
    return "none: " + (reason.read_text(encoding="utf-8").strip() if reason.exists() else "it was not built")


def settings_of(args: argparse.Namespace, ports: list[int], api_port: int) -> dict[str, object]:
    """Return what the service is told, as role llama_server writes it."""
    keys = args.state / "api.keys"
    arguments = ["--model", str(args.model), "--alias", args.model.stem, "--host", "127.0.0.1", "--port", str(api_port)]
    arguments += ["--parallel", "2", "--ctx-size", "4096", "--n-gpu-layers", "999", "--fit", "off", "--metrics"]
    arguments += ["--tensor-split", ",".join("1" for _port in ports), "--api-key-file", str(keys), "--threads", "1"]
    arguments += ["--cors-origins", "localhost", "--cache-ram", "256"]
    arguments += ["--path", str(args.page)] if has_page(args) else ["--no-ui"]
    return {
        "program": str(args.bin / "llama-server"),
        "arguments": arguments,
        "workers": [f"127.0.0.1:{port}" for port in ports],
        "metrics_file": None,
        "model": str(args.model),
        "alias": args.model.stem,
        "address": "127.0.0.1",
        "port": api_port,
        "keys_file": str(keys),
        "stall_timeout_s": STALL_LIMIT_S,
    }


def follow(service: subprocess.Popen[str], log: Path, addresses: list[str]) -> None:
    """Show where the service is, and the addresses once it serves; what llama-server says goes to a file."""
    if service.stdout is None:
        return
    with log.open("w", encoding="utf-8") as said:
        for line in service.stdout:
            said.write(line)
            said.flush()
            if line.startswith(("Waiting", "Loading", "llama-server ")):
                print(line.rstrip(), flush=True)
            elif line.startswith("Serving"):
                print("\n".join(addresses), flush=True)


def main() -> int:
    """Start all, and end all."""
    parser = argparse.ArgumentParser(description="Serve a model on this machine until Ctrl-C.")
    parser.add_argument("--bin", type=Path, required=True, help="folder of the llama.cpp programs")
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--count", type=int, required=True, choices=range(1, 16), help="how many workers")
    parser.add_argument("--page", type=Path, required=True, help="folder of the chat page, if there is one")
    parser.add_argument("--state", type=Path, required=True, help="folder for logs, settings and the key")
    args = parser.parse_args()
    args.state.mkdir(parents=True, exist_ok=True)
    *ports, api_port = free_ports(args.count + 1)
    key = secrets.token_hex(24)
    settings = settings_of(args, ports, api_port)
    keys = Path(str(settings["keys_file"]))
    keys.touch(mode=0o600)
    keys.write_text(f"{key}\n", encoding="utf-8")
    (args.state / "api.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    threads = max(1, len(os.sched_getaffinity(0)) // args.count)
    # Ctrl-C reaches all of them at once; this one ends them in their order, the API before its workers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    workers: list[subprocess.Popen[bytes]] = []
    service: subprocess.Popen[str] | None = None
    try:
        for index, port in enumerate(ports, 1):
            log = args.state / f"worker{index}.log"
            workers.append(start_worker(args.bin / "rpc-server", port, threads, log))
        service = subprocess.Popen(
            [sys.executable, str(SERVICE), str(args.state / "api.json")],
            env={**os.environ, "PYTHONPATH": str(TOP / "plugins/module_utils"), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        addresses = [f"API http://127.0.0.1:{api_port}/v1", f"Key {key}", f"Page {where_the_page_is(args, api_port)}"]
        follow(service, args.state / "api.log", addresses)
        return service.wait()
    except KeyboardInterrupt:
        return 130
    finally:
        if service is not None and service.poll() is None:
            service.terminate()
            service.wait()
        end(workers)
        print("\nThe API and its workers have ended.", flush=True)


if __name__ == "__main__":
    sys.exit(main())
