# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for a Kubernetes API server: it keeps objects, and the test decides whether groups serve.

It has no controller and no admission. So it shows the role's requests and messages, but nothing of a cluster's work.
"""

from __future__ import annotations

import copy
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The kinds that the server has, by group and version.
KINDS = {
    "v1": {
        "namespaces": "Namespace",
        "nodes": "Node",
        "pods": "Pod",
        "configmaps": "ConfigMap",
        "secrets": "Secret",
        "services": "Service",
    },
    "apps/v1": {"deployments": "Deployment"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
}
SETS = {"leaderworkerset.x-k8s.io/v1": {"leaderworkersets": "LeaderWorkerSet"}}
_OBJECT = re.compile(r"/apis?/(?P<version>(?:[^/]+/)?v1)(?:/namespaces/[^/]+)?/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?")


@dataclass
class Cluster:
    """The state of the server."""

    kinds: dict[str, dict[str, str]] = field(default_factory=lambda: {**KINDS, **SETS})
    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """The objects by plural and name."""
    serves: bool = True
    """Whether all groups of a set serve as soon as the set exists."""
    log: str = ""
    """The logs of the leaders."""
    writes: list[str] = field(default_factory=list)
    """The requests for changes, without dry runs."""

    def add(self, plural: str, name: str, **parts: Any) -> None:
        self.objects[plural, name] = {"metadata": {"name": name, "resourceVersion": "1"}, **parts}

    def add_node(self, name: str, cpu: str, memory: str, **labels: str) -> None:
        self.add("nodes", name, status={"allocatable": {"cpu": cpu, "memory": memory}})
        self.objects["nodes", name]["metadata"]["labels"] = labels


def _merged(old: Any, patch: Any) -> Any:
    """Return an object after a merge patch (RFC 7386)."""
    if not isinstance(patch, dict) or not isinstance(old, dict):
        return patch
    changed = {name: _merged(old.get(name), value) for name, value in patch.items() if value is not None}
    return {**{name: value for name, value in old.items() if name not in patch}, **changed}


class _Asked(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: Cluster

    def answer(self, body: Any, status: int = 200) -> None:
        text = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def handle(self) -> None:
        # One method answers all HTTP methods.
        for method in ("GET", "POST", "PATCH", "DELETE"):
            setattr(self, f"do_{method}", self.asked)
        super().handle()

    def asked(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size) or "null") if size else None
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        found = self.discovered(url.path)
        if found is not None:
            self.answer(found)
        elif url.path.endswith("/log"):
            self.answer(self.cluster.log)
        else:
            self.reached(url.path, query, body)

    def discovered(self, path: str) -> dict[str, Any] | None:
        """Return the answer to a client's first request: the kinds that exist."""
        kinds = self.cluster.kinds
        if path == "/version":
            return {"major": "1", "minor": "37", "gitVersion": "v1.37.0"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            versions = [{"groupVersion": it, "version": "v1"} for it in kinds if "/" in it]
            groups = [
                {"name": it["groupVersion"].split("/")[0], "versions": [it], "preferredVersion": it} for it in versions
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        version = path.removeprefix("/apis/").removeprefix("/api/")
        if version not in kinds:
            return None
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        resources = [
            {"name": plural, "singularName": "", "namespaced": plural not in ("nodes", "namespaces"), "kind": kind,
             "verbs": verbs}
            for plural, kind in kinds[version].items()
        ]  # fmt: skip
        resources += [{"name": "pods/log", "singularName": "", "namespaced": True, "kind": "Pod", "verbs": ["get"]}] * (
            version == "v1"
        )
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}

    def reached(self, path: str, query: dict[str, str], body: Any) -> None:
        """Answer a request about objects."""
        cluster, place = self.cluster, _OBJECT.fullmatch(path)
        kind = cluster.kinds.get(place["version"], {}).get(place["plural"]) if place else None
        if place is None or kind is None:
            self.answer({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}, 404)
            return
        named = {"apiVersion": place["version"], "kind": kind}
        if self.command == "GET" and not place["name"]:
            wanted = [part.split("=") for part in query.get("labelSelector", "").split(",") if part]
            items = [
                {**named, **self.shown(place["plural"], it)}
                for (plural, _name), it in cluster.objects.items()
                if plural == place["plural"]
                and all(it["metadata"].get("labels", {}).get(name) == value for name, value in wanted)
            ]
            self.answer({"apiVersion": place["version"], "kind": f"{kind}List", "metadata": {}, "items": items})
            return
        key = (place["plural"], place["name"] or body["metadata"]["name"])
        old = cluster.objects.get(key)
        if self.command != "POST" and old is None:
            self.answer({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}, 404)
            return
        new = copy.deepcopy(old if self.command in ("GET", "DELETE") else _merged(old or {}, body))
        if self.command != "GET" and "dryRun" not in query:
            cluster.writes.append(f"{self.command} {kind} {key[1]}")
            if self.command == "DELETE":
                del cluster.objects[key]
            else:
                if new != old:
                    revision = int((old or {}).get("metadata", {}).get("generation", 0)) + 1
                    new["metadata"] |= {"generation": revision, "resourceVersion": str(revision), "uid": key[1]}
                cluster.objects[key] = new
        self.answer({**named, **self.shown(key[0], new)})

    def shown(self, plural: str, it: dict[str, Any]) -> dict[str, Any]:
        """Return an object with the status that a controller would give it."""
        if plural != "leaderworkersets" or "generation" not in it["metadata"]:
            return it
        count = it["spec"]["replicas"]
        status = {"observedGeneration": it["metadata"]["generation"], "updatedReplicas": count}
        return {**it, "status": {**status, "readyReplicas": count if self.cluster.serves else 0}}

    def log_message(self, *_words: object) -> None:
        pass


@contextmanager
def running_cluster(folder: Path) -> Iterator[tuple[Cluster, dict[str, str]]]:
    """Yield a cluster on loopback, and the environment in which Ansible finds it."""
    cluster = Cluster()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Asked", (_Asked,), {"cluster": cluster}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    context = {"name": "test", "context": {"cluster": "test", "user": "test"}}
    address = {"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    (folder / "kubeconfig").write_text(
        json.dumps(
            {"apiVersion": "v1", "kind": "Config", "current-context": "test", "contexts": [context],
             "clusters": [address], "users": [{"name": "test", "user": {}}]}
        )
    )  # fmt: skip
    try:
        # The client keeps the kinds that it has discovered in a file.
        yield cluster, {"KUBECONFIG": str(folder / "kubeconfig"), "TMPDIR": str(folder)}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
