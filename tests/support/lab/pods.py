# SPDX-License-Identifier: GPL-3.0-or-later
"""Test hosts in the place of a cluster: they run the pods of a group as its manifests say.

There is no Kubernetes. `Node` stands in for a kubelet: a pod is a service of systemd in the unpacked image, with the
account, limits, volumes and variables of the manifest, and in namespaces of its own but for the network. `policies`
stands in for a network plugin, with the packet filter of each host. `Controller` stands in for that of LeaderWorkerSet:
when a pod ends, all of its group are ended and made anew. What a scheduler, a registry and a real controller add to the
time of that is not in it.
"""

from __future__ import annotations

import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from support.kubernetes import labels, lets_through, of_kind, templates
from support.lab.hosts import NUMBER, at_once, eventually, ssh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHARED = "/mnt/shared"
UID = 10001
NAME, NAMESPACE, SIZE = "llama", "default", 3
API_PORT, READY_PORT, RPC_PORT = 8080, 8081, 50052
LEADER, WORKERS = "llama-0", ("llama-0-1", "llama-0-2")
PODS = (LEADER, *WORKERS)
HOST = {"llama-0": "master", "llama-0-1": "worker1", "llama-0-2": "worker3"}
ADDRESS = {
    **{pod: f"10.87.{NUMBER}.{last}" for pod, last in zip(PODS, (10, 11, 13))},
    # Others of the namespace: this machine, and a host.
    "chat": f"10.87.{NUMBER}.1",
    "outsider": f"10.87.{NUMBER}.20",
}
# What was measured, for the end of a run.
FIGURES: list[str] = []
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


@dataclass
class Pod:
    """A pod of the group, on the node that it has for itself."""

    name: str
    template: dict[str, Any]
    objects: list[dict[str, Any]]

    @property
    def host(self) -> str:
        """The test host that is its node."""
        return HOST[self.name]

    @property
    def unit(self) -> str:
        """The service that it is there."""
        return f"pod-{self.name}.service"

    @property
    def folder(self) -> str:
        """Where its node keeps the files that its volumes are made of."""
        return f"/var/lib/pods/{self.name}"

    @property
    def container(self) -> dict[str, Any]:
        """Its only container."""
        [found] = self.template["spec"]["containers"]
        return dict(found)

    def environment(self) -> dict[str, str]:
        """Return the variables of the container, with those that LeaderWorkerSet adds."""
        fields = {"status.podIP": ADDRESS[self.name]}
        own = {
            it["name"]: it["value"] if "value" in it else fields[it["valueFrom"]["fieldRef"]["fieldPath"]]
            for it in self.container["env"]
        }
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            **own,
            "LWS_LEADER_ADDRESS": f"{LEADER}.{NAME}.{NAMESPACE}",
            "LWS_GROUP_SIZE": str(SIZE),
            "LWS_WORKER_INDEX": str(PODS.index(self.name)),
        }

    def files(self, volume: dict[str, Any]) -> dict[str, str]:
        """Return the files of a volume that is made of objects of the API."""
        sources = volume["projected"]["sources"] if "projected" in volume else [volume]
        found: dict[str, str] = {}
        for source in sources:
            if "configMap" in source:
                [data] = [
                    it["data"] for it in of_kind(self.objects, "ConfigMap") if self.is_named(it, source["configMap"])
                ]
                found.update(data)
            if "secret" in source:
                [data] = [
                    it["stringData"] for it in of_kind(self.objects, "Secret") if self.is_named(it, source["secret"])
                ]
                found.update({item["path"]: data[item["key"]] for item in source["secret"]["items"]})
        return found

    @staticmethod
    def is_named(found: dict[str, Any], reference: dict[str, str]) -> bool:
        """Whether an object is the one that a volume names."""
        return bool(found["metadata"]["name"] == reference["name"])

    def prepare(self) -> list[str]:
        """Bring what the volumes hold to the node; returns what systemd mounts from there."""
        volumes = {it["name"]: it for it in self.template["spec"]["volumes"]}
        mounts = []
        for mount in self.container["volumeMounts"]:
            volume = volumes[mount["name"]]
            if "hostPath" in volume:
                place = volume["hostPath"]["path"]
            else:
                place = f"{self.folder}/{mount['name']}"
                self.run("mkdir", "-p", place)
                for name, text in self.files(volume).items():
                    # As fsGroup has it: the group may read.
                    file = f"{place}/{name}"
                    write = f"cat >{file} && chmod 0440 {file} && chgrp {UID} {file}"
                    ssh(self.host, "sh", "-c", write, text_in=text)
            kind = "BindReadOnlyPaths" if mount.get("readOnly") else "BindPaths"
            mounts.append(f"{kind}={place}:{mount['mountPath']}")
            if not mount.get("readOnly"):
                mounts.append(f"ReadWritePaths=+{mount['mountPath']}")
        names = "".join(f"{ADDRESS[pod]} {pod}.{NAME}.{NAMESPACE}\n" for pod in PODS)
        ssh(self.host, "sh", "-c", f"cat >{self.folder}/hosts", text_in=f"127.0.0.1 localhost\n{names}")
        return [*mounts, f"BindReadOnlyPaths={self.folder}/hosts:/etc/hosts"]

    def properties(self) -> list[str]:
        """Return the confinement of the pod, as systemd calls it."""
        spec, own = self.template["spec"], self.container["securityContext"]
        account, limits = spec["securityContext"], self.container["resources"]["limits"]
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert account["seccompProfile"] == {"type": "RuntimeDefault"}
        memory = int(limits["memory"][:-2]) * UNITS[limits["memory"][-2:]]
        return [
            f"RootDirectory={SHARED}/image/rootfs",
            "MountAPIVFS=yes",
            "PrivatePIDs=yes",
            "PrivateIPC=yes",
            "PrivateDevices=yes",
            *(["ReadOnlyPaths=+/"] if own["readOnlyRootFilesystem"] else []),
            f"User={account['runAsUser']}",
            f"Group={account['runAsGroup']}",
            f"NoNewPrivileges={'no' if own['allowPrivilegeEscalation'] else 'yes'}",
            "CapabilityBoundingSet=",
            "SystemCallFilter=@system-service",
            f"CPUQuota={int(limits['cpu']) * 100}%",
            # The kubelet's static CPU manager: as many processors, for this pod alone.
            f"CPUAffinity=0-{int(limits['cpu']) - 1}",
            f"MemoryMax={memory}",
            "MemorySwapMax=0",
            f"TimeoutStopSec={spec['terminationGracePeriodSeconds']}",
        ]

    def start(self) -> None:
        """Start it; its node has nothing of another one that was called so."""
        self.run("mkdir", "-p", self.folder)
        options = [f"--property={it}" for it in (*self.properties(), *self.prepare())]
        options += [f"--setenv={name}={value}" for name, value in self.environment().items()]
        self.run(
            "systemd-run", "--quiet", f"--unit={self.unit}", "--service-type=exec", *options, *self.container["command"]
        )

    def run(self, *command: str, check: bool = True) -> str:
        """Return what a program on the node prints."""
        return ssh(self.host, *command, check=check, timeout=120).stdout.strip()

    @property
    def pid(self) -> int:
        """Its first process, as its node numbers it; 0 if there is none."""
        return int(self.run("systemctl", "show", "--property=MainPID", "--value", self.unit) or 0)

    @property
    def active(self) -> bool:
        """Whether its program runs."""
        return self.run("systemctl", "is-active", self.unit, check=False) == "active"

    def inside(self, *command: str) -> tuple[int, str]:
        """Run a program in the pod, as `kubectl exec` does; returns its exit status and what it says."""
        given = [f"{name}={value}" for name, value in self.environment().items()]
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--ipc", "--root", "--wd"]
        enter += [f"--setuid={UID}", f"--setgid={UID}"]
        done = ssh(self.host, *enter, "env", "-i", *given, *command, check=False, timeout=120)
        return done.returncode, done.stdout + done.stderr

    def passes(self, probe: str) -> bool:
        """Whether one of its probes passes, asked from its node."""
        asked = self.container[probe]
        if "exec" in asked:
            return self.inside(*asked["exec"]["command"])[0] == 0
        ports = {it["name"]: it["containerPort"] for it in self.container["ports"]}
        url = f"http://{ADDRESS[self.name]}:{ports[asked['httpGet']['port']]}{asked['httpGet']['path']}"
        return ssh(self.host, "python3", "-", url, text_in=GET).stdout.strip() == "200"

    def said(self) -> str:
        """Return what it has said since it was last started, as `kubectl logs` does."""
        invocation = self.run("systemctl", "show", "--property=InvocationID", "--value", self.unit)
        return self.run("journalctl", "--no-pager", "--output=cat", f"_SYSTEMD_INVOCATION_ID={invocation}")

    def kill(self) -> None:
        """End all of it at once."""
        self.run("systemctl", "kill", "--signal=KILL", self.unit)

    def delete(self) -> None:
        """End it as a kubelet does: first what is to be done before, then with a signal, at last by force."""
        before = self.container.get("lifecycle", {}).get("preStop")
        if before and self.active:
            self.inside(*before["exec"]["command"])
        self.run("systemctl", "stop", self.unit, check=False)
        self.run("systemctl", "reset-failed", self.unit, check=False)


@dataclass
class Controller:
    """In the place of LeaderWorkerSet's: it makes a group anew as one when a pod of it has ended."""

    pods: dict[str, Pod]
    made: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def make(self) -> None:
        """Make all pods at once, as startup policy LeaderCreated has it."""
        at_once(lambda name: self.pods[name].start(), self.pods)
        self.made += 1

    def remove(self) -> None:
        """End all pods."""
        at_once(lambda name: self.pods[name].delete(), self.pods)

    def watch(self) -> None:
        """Look at the pods until told that it is over; a node that fails is asked again, as a controller does."""
        while not self.over.wait(0.5):
            try:
                if not all(at_once(lambda name: self.pods[name].active, self.pods).values()):
                    self.remove()
                    self.make()
            except (AssertionError, subprocess.TimeoutExpired) as error:
                print(f"The stand-in for the controller tries again: {error}")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep the group; it is gone in the end."""
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


def pods_of(manifests: list[dict[str, Any]]) -> dict[str, Pod]:
    """Return the pods of the first group."""
    parts = templates(manifests)
    return {name: Pod(name, parts["leader" if name == LEADER else "worker"], manifests) for name in PODS}


def pod_labels(manifests: list[dict[str, Any]], name: str) -> dict[str, str]:
    """Return the labels of a pod, or of another one of the namespace."""
    if name not in PODS:
        return {"app": name}
    return labels(manifests, "leader" if name == LEADER else "worker", 0)


def policies(manifests: list[dict[str, Any]], name: str) -> str:
    """Return the packet filter of a node, by the policies of the pod that is on it."""
    own = pod_labels(manifests, name)
    ins, outs = [], []
    for other, address in ADDRESS.items():
        for port in (API_PORT, READY_PORT, RPC_PORT):
            theirs = pod_labels(manifests, other)
            if lets_through(manifests, theirs, own, port):
                ins.append(f"ip saddr {address} tcp dport {port} accept")
            if lets_through(manifests, own, theirs, port):
                outs.append(f"ip daddr {address} tcp dport {port} accept")
    if name == LEADER:
        outs += ["udp dport 53 accept", "tcp dport 53 accept"]
    both = ("ct state established,related accept", "meta iif lo accept")
    # By which the tests reach the node.
    lines = "\n".join([*both, *ins, "tcp dport 22 accept", "drop"])
    said = "\n".join([*both, f"meta skuid != {UID} accept", *outs, "drop"])
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
    """Have the packet filter of each node let through what the policies do."""
    for name in PODS:
        ssh(HOST[name], "nft", "-f", "-", text_in=policies(manifests, name))


def prepare_nodes() -> None:
    """Nodes have a packet filter, and the folder of the workers' caches, as an administrator makes it."""

    def prepare(host: str) -> None:
        ssh(host, "apt-get", "-qq", "update", timeout=300)
        ssh(host, "apt-get", "-qqy", "install", "--no-install-recommends", "nftables", timeout=300)
        ssh(host, "install", "-d", "-o", str(UID), "-g", str(UID), "/var/cache/llama_rpc")

    at_once(prepare, HOST.values())


def serves(pods: dict[str, Pod]) -> bool:
    """Whether all pods are ready."""
    return all(at_once(lambda name: pods[name].passes("readinessProbe"), pods).values())


def back_after(pods: dict[str, Pod], answers: Callable[[], Any], limit_s: float = 180) -> float:
    """Return how many seconds from now on a token of the API comes, and all pods are ready."""
    began = time.monotonic()
    eventually(answers, limit_s, "the API answers")
    took = time.monotonic() - began
    eventually(lambda: serves(pods), 60, "all pods are ready")
    return took
