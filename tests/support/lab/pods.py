# SPDX-License-Identifier: GPL-3.0-or-later
"""Test hosts in place of a cluster: they run the pods of a group as its manifests say.

There is no Kubernetes. `Pod` stands in for a kubelet: a pod is a service of systemd in the unpacked image, with the
account, limits, volumes and variables of the manifest, and in namespaces of its own except for the network. `policies`
stands in for a network plugin, with the packet filter of each host. `Controller` stands in for LeaderWorkerSet's: when
a pod ends, it ends all pods of the group and makes them anew. The measured times exclude what a scheduler, a registry
and a real controller add.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.kubernetes import labels, lets_through, of_kind, templates, the_set
from support.lab.hosts import CONNECT, NUMBER, at_once, eventually, ssh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHARED = "/mnt/shared"
UID = 10001
NAME, NAMESPACE = "llama", "default"
API_PORT, READY_PORT, RPC_PORT, DOOR_PORT = 8080, 8081, 50052, 8000
KEY = "key-of-this-test-alone"
# A leader and two workers. Tests of other groups change some of these.
VARIABLES: dict[str, Any] = {
    "kubernetes_worker_cpu": 1,
    "kubernetes_worker_memory": "1Gi",
    "kubernetes_leader_cpu": 1,
    "kubernetes_leader_memory": "2Gi",
    "kubernetes_model_volume": {"hostPath": {"path": f"{SHARED}/models", "type": "Directory"}},
    "kubernetes_cache_volume": {"hostPath": {"path": "/var/cache/llama_rpc", "type": "Directory"}},
    "kubernetes_trusted_peers": [{"podSelector": {"matchLabels": {"app": "chat"}}}],
    "gguf_model_path": "/models/random-q4_0.gguf",
    "llama_server_alias": "random",
    "llama_server_parallel": 2,
    "llama_server_ctx_size": 512,
    "llama_server_cache_ram": 64,
    "llama_server_api_keys": [KEY],
}
LEADER, WORKERS = "llama-0", ("llama-0-1", "llama-0-2")
GATEWAY = "llama-gateway"
# The node of each possible pod.
HOST = {
    LEADER: "worker7",
    "llama-0-1": "worker1",
    "llama-0-2": "worker3",
    "llama-1": "worker4",
    "llama-1-1": "worker5",
    GATEWAY: "worker6",
}
ADDRESS = {
    **{pod: f"10.87.{NUMBER}.{last}" for pod, last in zip(HOST, (17, 11, 13, 14, 15, 16))},
    # Other clients in the namespace: this machine, and a host.
    "chat": f"10.87.{NUMBER}.1",
    "outsider": f"10.87.{NUMBER}.20",
}
# Measurements, printed at the end of a run.
FIGURES: list[str] = []
CONTROLLERS = Path("/sys/fs/cgroup")
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}
GET = """
import sys, urllib.request, urllib.error
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=5).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError:
    print(0)
"""


def _text(path: Path) -> str:
    """Return the text of a file of the kernel, empty if the file is gone."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@dataclass
class Pod:
    """A pod on a node of its own."""

    name: str
    template: dict[str, Any]
    objects: list[dict[str, Any]]

    @property
    def host(self) -> str:
        """The test host that is the pod's node."""
        return HOST[self.name]

    @property
    def unit(self) -> str:
        """The pod's service on its node."""
        return f"pod-{self.name}.service"

    @property
    def folder(self) -> str:
        """The folder where the node keeps the files of the pod's volumes."""
        return f"/var/lib/pods/{self.name}"

    @property
    def container(self) -> dict[str, Any]:
        """The pod's only container."""
        [found] = self.template["spec"]["containers"]
        return dict(found)

    def environment(self) -> dict[str, str]:
        """Return the variables of the container, with those that LeaderWorkerSet adds."""
        fields = {"status.podIP": ADDRESS[self.name]}
        own = {
            it["name"]: it["value"] if "value" in it else fields[it["valueFrom"]["fieldRef"]["fieldPath"]]
            for it in self.container["env"]
        }
        group, index = place(self.name)
        of_its_group = {
            "LWS_LEADER_ADDRESS": f"{NAME}-{group}.{NAME}.{NAMESPACE}",
            "LWS_GROUP_SIZE": str(group_size(self.objects)),
            "LWS_WORKER_INDEX": str(index),
        }
        return {"PATH": "/usr/local/bin:/usr/bin:/bin", **own, **({} if group is None else of_its_group)}

    def files(self, volume: dict[str, Any]) -> dict[str, str]:
        """Return the files of a volume that consists of objects of the API."""
        sources = volume["projected"]["sources"] if "projected" in volume else [volume]
        found: dict[str, str] = {}
        for source in sources:
            if "configMap" in source:
                [data] = [
                    it["data"] for it in of_kind(self.objects, "ConfigMap") if self.is_named(it, source["configMap"])
                ]
                found.update(data)
            if "secret" in source:
                named = {"name": source["secret"].get("secretName") or source["secret"]["name"]}
                [data] = [it["stringData"] for it in of_kind(self.objects, "Secret") if self.is_named(it, named)]
                items = source["secret"].get("items") or [{"key": key, "path": key} for key in data]
                found.update({item["path"]: data[item["key"]] for item in items})
        return found

    @staticmethod
    def is_named(found: dict[str, Any], reference: dict[str, str]) -> bool:
        """Return whether a volume refers to this object."""
        return bool(found["metadata"]["name"] == reference["name"])

    def prepare(self) -> list[str]:
        """Copy the content of the volumes to the node; return systemd's properties that mount it."""
        volumes = {it["name"]: it for it in self.template["spec"]["volumes"]}
        mounts = []
        for mount in self.container["volumeMounts"]:
            volume = volumes[mount["name"]]
            if "hostPath" in volume:
                path = volume["hostPath"]["path"]
            else:
                path = f"{self.folder}/{mount['name']}"
                self.run("install", "-d", "-m", "2770", "-g", str(UID), path)
                for name, text in self.files(volume).items():
                    # The group may read, as fsGroup has it.
                    file = f"{path}/{name}"
                    write = f"cat >{file} && chmod 0440 {file} && chgrp {UID} {file}"
                    ssh(self.host, "sh", "-c", write, text_in=text)
            kind = "BindReadOnlyPaths" if mount.get("readOnly") else "BindPaths"
            mounts.append(f"{kind}={path}:{mount['mountPath']}")
            if not mount.get("readOnly"):
                mounts.append(f"ReadWritePaths=+{mount['mountPath']}")
        ssh(self.host, "sh", "-c", f"cat >{self.folder}/hosts", text_in=f"127.0.0.1 localhost\n{names(self.objects)}")
        return [*mounts, f"BindReadOnlyPaths={self.folder}/hosts:/etc/hosts"]

    def properties(self) -> list[str]:
        """Return the pod's confinement as properties of systemd."""
        spec, own = self.template["spec"], self.container["securityContext"]
        account = spec["securityContext"]
        # The kubelet's static CPU manager gives a pod so many processors, its own as far as the machine has them.
        first = list(HOST).index(self.name) * self.processors
        processors = {(first + number) % (os.cpu_count() or 1) for number in range(self.processors)}
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert account["seccompProfile"] == {"type": "RuntimeDefault"}
        return [
            # The gateway uses HAProxy of its node instead of an image of HAProxy.
            *([] if self.name == GATEWAY else [f"RootDirectory={SHARED}/image/rootfs", "MountAPIVFS=yes"]),
            "PrivatePIDs=yes",
            "PrivateIPC=yes",
            "PrivateDevices=yes",
            *(["ReadOnlyPaths=+/"] if own["readOnlyRootFilesystem"] else []),
            f"User={account['runAsUser']}",
            f"Group={account['runAsGroup']}",
            f"NoNewPrivileges={'no' if own['allowPrivilegeEscalation'] else 'yes'}",
            "CapabilityBoundingSet=",
            "SystemCallFilter=@system-service",
            f"CPUQuota={self.processors * 100}%",
            f"CPUAffinity={','.join(map(str, sorted(processors)))}",
            f"MemoryMax={self.memory}",
            "MemorySwapMax=0",
            f"TimeoutStopSec={spec['terminationGracePeriodSeconds']}",
        ]

    def start(self) -> None:
        """Start the pod; its node keeps nothing of an earlier pod of this name."""
        self.run("rm", "-rf", self.folder)
        self.run("mkdir", "-p", self.folder)
        options = [f"--property={it}" for it in (*self.properties(), *self.prepare())]
        options += [f"--setenv={name}={value}" for name, value in self.environment().items()]
        self.run(
            "systemd-run", "--quiet", f"--unit={self.unit}", "--service-type=exec", *options, *self.container["command"]
        )
        self.confine()

    def run(self, *command: str, check: bool = True) -> str:
        """Run a program on the node; return its output."""
        return ssh(self.host, *command, check=check, timeout=120).stdout.strip()

    def confine(self) -> None:
        """Enforce the pod's limits by control groups (v1) of this machine, if its hosts have none."""
        ends = f"/lab{NUMBER}-{self.host}/payload/system.slice/{self.unit}"
        processes = [it.parent.name for it in Path("/proc").glob("[0-9]*/cgroup") if _text(it).endswith(ends)]
        assert processes, f"{self.name} has no process"
        limits = {
            "memory": ("memory.limit_in_bytes", self.memory),
            "cpu": ("cpu.cfs_quota_us", self.processors * 100000),
        }
        for controller, (file, limit) in limits.items():
            if (CONTROLLERS / controller / "cgroup.procs").exists():
                group = self.group(controller)
                group.mkdir(exist_ok=True)
                if (group / file).exists():
                    (group / file).write_text(str(limit))
                for process in processes:
                    with suppress(ProcessLookupError):
                        (group / "cgroup.procs").write_text(process)

    def group(self, controller: str) -> Path:
        """Return the pod's folder of a cgroup controller of this machine."""
        return CONTROLLERS / controller / f"lab{NUMBER}-{self.name}"

    @property
    def memory(self) -> int:
        """The pod's limit of memory, in bytes."""
        text = self.container["resources"]["limits"]["memory"]
        return int(text[:-2]) * UNITS[text[-2:]]

    @property
    def processors(self) -> int:
        """The number of processors that the pod may use."""
        return int(self.container["resources"]["limits"]["cpu"])

    @property
    def peak(self) -> int:
        """The pod's largest use of memory so far, in bytes."""
        found = _text(self.group("memory") / "memory.max_usage_in_bytes")
        return int(found or self.run("systemctl", "show", "--property=MemoryPeak", "--value", self.unit))

    @property
    def pid(self) -> int:
        """The node's id of the pod's first process; 0 if there is none."""
        return int(self.run("systemctl", "show", "--property=MainPID", "--value", self.unit) or 0)

    @property
    def active(self) -> bool:
        """Whether the pod's program runs."""
        return self.run("systemctl", "is-active", self.unit, check=False) == "active"

    def inside(self, *command: str) -> tuple[int, str]:
        """Run a program in the pod, as `kubectl exec` does; return its exit status and its output."""
        given = [f"{name}={value}" for name, value in self.environment().items()]
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--ipc", "--root", "--wd"]
        enter += [f"--setuid={UID}", f"--setgid={UID}"]
        done = ssh(self.host, *enter, "env", "-i", *given, *command, check=False, timeout=120)
        return done.returncode, done.stdout + done.stderr

    def passes(self, probe: str) -> bool:
        """Return whether one of the pod's probes passes, sent from its node."""
        asked = self.container[probe]
        if "exec" in asked:
            return self.inside(*asked["exec"]["command"])[0] == 0
        ports = {it["name"]: it["containerPort"] for it in self.container["ports"]}
        url = f"http://{ADDRESS[self.name]}:{ports[asked['httpGet']['port']]}{asked['httpGet']['path']}"
        return ssh(self.host, "python3", "-", url, text_in=GET).stdout.strip() == "200"

    def said(self) -> str:
        """Return the pod's output since its last start, as `kubectl logs` does."""
        invocation = self.run("systemctl", "show", "--property=InvocationID", "--value", self.unit)
        return self.run("journalctl", "--no-pager", "--output=cat", f"_SYSTEMD_INVOCATION_ID={invocation}")

    def reaches(self, address: str, port: int) -> str:
        """Return the result of a connection from the pod."""
        return self.inside("python3", "-c", CONNECT, address, str(port))[1].strip()

    def kill(self) -> None:
        """Kill all processes of the pod at once."""
        self.run("systemctl", "kill", "--signal=KILL", self.unit)

    def delete(self) -> None:
        """End the pod as a kubelet does: run its preStop hook, then send a signal, and at last use force."""
        before = self.container.get("lifecycle", {}).get("preStop")
        if before and self.active:
            self.inside(*before["exec"]["command"])
        self.run("systemctl", "stop", self.unit, check=False)
        self.run("systemctl", "reset-failed", self.unit, check=False)
        for controller in ("memory", "cpu"):
            with suppress(OSError):
                self.group(controller).rmdir()


@dataclass
class Controller:
    """A stand-in for LeaderWorkerSet's controller: if a pod ends, it makes the whole group again."""

    pods: dict[str, Pod]
    made: int = 0
    late: set[str] = field(default_factory=set)
    """Pods for which no node has room yet."""
    over: threading.Event = field(default_factory=threading.Event)

    def make(self) -> None:
        """Make all pods at once, as with startup policy LeaderCreated."""
        at_once(lambda name: self.pods[name].start(), self.pods.keys() - self.late)
        self.made += 1

    def remove(self) -> None:
        """End all pods."""
        at_once(lambda name: self.pods[name].delete(), self.pods)

    def watch(self) -> None:
        """Look at the pods until `over` is set; ask a node that fails again, as a controller does."""
        while not self.over.wait(0.5):
            try:
                if not all(at_once(lambda name: self.pods[name].active, self.pods.keys() - self.late).values()):
                    self.remove()
                    self.make()
            except (AssertionError, subprocess.TimeoutExpired) as error:
                print(f"The stand-in for the controller tries again: {error}")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep the group running; remove it in the end."""
        self.remove()
        self.make()
        thread = threading.Thread(target=self.watch)
        thread.start()
        try:
            yield
        finally:
            self.over.set()
            thread.join()
            self.remove()


def place(name: str) -> tuple[int | None, int]:
    """Return the group of a pod, and its number there; the gateway has no group."""
    _name, *numbers = name.removeprefix(NAME).split("-")
    return (None, 0) if name == GATEWAY else (int(numbers[0]), int(numbers[1]) if numbers[1:] else 0)


def group_size(manifests: list[dict[str, Any]]) -> int:
    """Return how many pods a group has."""
    return int(the_set(manifests)["spec"]["leaderWorkerTemplate"]["size"])


def part(name: str) -> str:
    """Return the name of the template that a pod is made from."""
    group, index = place(name)
    return "gateway" if group is None else "worker" if index else "leader"


def groups_of(manifests: list[dict[str, Any]]) -> list[list[str]]:
    """Return the names of the pods of each group, its leader first."""
    return [
        [f"{NAME}-{group}", *(f"{NAME}-{group}-{number}" for number in range(1, group_size(manifests)))]
        for group in range(the_set(manifests)["spec"]["replicas"])
    ]


def all_of(manifests: list[dict[str, Any]]) -> list[str]:
    """Return the names of all pods."""
    gateway = [GATEWAY] if "gateway" in templates(manifests) else []
    return [*(name for group in groups_of(manifests) for name in group), *gateway]


def names(manifests: list[dict[str, Any]]) -> str:
    """Return the names in the cluster's DNS, as a hosts file; a Service of one pod is that pod."""
    found = {f"{pod}.{NAME}.{NAMESPACE}": pod for group in groups_of(manifests) for pod in group}
    found |= {f"{NAME}-group-{number}": group[0] for number, group in enumerate(groups_of(manifests))}
    return "".join(f"{ADDRESS[pod]} {name}\n" for name, pod in found.items())


def pods_of(manifests: list[dict[str, Any]]) -> dict[str, Pod]:
    """Return all pods."""
    return {name: Pod(name, templates(manifests)[part(name)], manifests) for name in all_of(manifests)}


def pod_labels(manifests: list[dict[str, Any]], name: str) -> dict[str, str]:
    """Return the labels of a pod, or of another client in the namespace."""
    return labels(manifests, part(name), place(name)[0]) if name in HOST else {"app": name}


def policies(manifests: list[dict[str, Any]], name: str) -> str:
    """Return the packet filter of a node, from the policies for the pod on it."""
    own = pod_labels(manifests, name)
    ins, outs = [], []
    for other in (*all_of(manifests), "chat", "outsider"):
        theirs, address = pod_labels(manifests, other), ADDRESS[other]
        for port in (API_PORT, READY_PORT, RPC_PORT, DOOR_PORT):
            if lets_through(manifests, theirs, own, port):
                ins.append(f"ip saddr {address} tcp dport {port} accept")
            if lets_through(manifests, own, theirs, port):
                outs.append(f"ip daddr {address} tcp dport {port} accept")
    if part(name) != "worker":
        outs += ["udp dport 53 accept", "tcp dport 53 accept"]
    known = "ct state established,related accept"
    # The tests reach the node by port 22.
    lines = "\n".join([known, "meta iif lo accept", *ins, "tcp dport 22 accept", "drop"])
    said = "\n".join([known, "meta oif lo accept", f"meta skuid != {UID} accept", *outs, "drop"])
    return f"""
        table inet pods {{}}
        delete table inet pods
        table inet pods {{
            chain input {{
                type filter hook input priority 0;
                {lines}
            }}
            chain output {{
                type filter hook output priority 0;
                {said}
            }}
        }}"""


def apply_policies(manifests: list[dict[str, Any]]) -> None:
    """Make the packet filter of each node let through what the policies allow."""
    for name in all_of(manifests):
        ssh(HOST[name], "nft", "-f", "-", text_in=policies(manifests, name))


def prepare_nodes(manifests: list[dict[str, Any]]) -> None:
    """Give nodes a packet filter, and the folder of the workers' caches as an administrator makes it."""
    # systemd takes the number of an account only if it has a name.
    account = f"id pod || {{ groupadd --gid {UID} pod && useradd --uid {UID} --gid {UID} --home-dir / pod; }}"

    def prepare(name: str) -> None:
        host, packages = HOST[name], ["nftables", *(["haproxy"] if name == GATEWAY else [])]
        ssh(host, "apt-get", "-qq", "update", timeout=300)
        ssh(host, "apt-get", "-qqy", "install", "--no-install-recommends", *packages, timeout=300)
        ssh(host, "sh", "-c", account)
        ssh(host, "install", "-d", "-o", str(UID), "-g", str(UID), "/var/cache/llama_rpc")

    at_once(prepare, all_of(manifests))


def serves(pods: dict[str, Pod]) -> bool:
    """Return whether all pods are ready."""
    return all(at_once(lambda name: pods[name].passes("readinessProbe"), pods).values())


def back_after(pods: dict[str, Pod], answers: Callable[[], Any], began: float, limit_s: float = 180) -> float:
    """Return the seconds from `began` until a token of the API came; then wait until all pods are ready."""
    eventually(answers, limit_s, "the API answers")
    took = time.monotonic() - began
    eventually(lambda: serves(pods), 60, "all pods are ready")
    return took
