# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks whether hosts form a cluster, and whether it is healthy. Private to this collection; contacts no hosts."""

from __future__ import annotations

import time
from typing import Any, Iterable, Mapping, Sequence

from .limits import MAX_WORKERS
from .report import render_table

# A timer cleans a worker's cache every five minutes. For a disk full of new entries, this takes an hour or two.
MOST_UNTIDY_S = 86400


def group_problems(masters: Sequence[str], workers: Sequence[str]) -> list[str]:
    """Return a sentence for each of the two groups of the inventory that is empty."""
    found = []
    if not masters:
        found.append("There is no master: put a host into the group llama_masters of the inventory.")
    if not workers:
        found.append("There are no workers: put at least one host into the group llama_workers of the inventory.")
    return found


def member_problems(masters: Mapping[str, Sequence[str]], workers: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the problems of groups; the arguments map groups to their masters, and to their workers (host:port)."""
    found = []
    for group in dict.fromkeys([*masters, *workers]):
        own, endpoints = masters.get(group, ()), workers.get(group, ())
        if not group:
            found.append(
                f"{', '.join([*own, *endpoints])} has no llama_group, and other hosts have one: give it to all."
            )
            continue
        if not own:
            found.append(
                f"Group {group} has no master: set llama_group: {group} for a host of llama_masters, "
                f"or give {', '.join(endpoints)} another group."
            )
        if len(own) > 1:
            found.append(f"Group {group} has the masters {', '.join(own)}, and a group has one: give each its own.")
        if not endpoints:
            found.append(
                f"Group {group} has no workers: set llama_group: {group} for hosts of llama_workers, "
                f"or group: {group} in their rpc_server_instances."
            )
        found += size_problems(endpoints, f"Group {group} has")
    return found


def size_problems(endpoints: Sequence[str], begin: str = "There are") -> list[str]:
    """Return a sentence if there are more workers (host:port) than llama.cpp takes."""
    if len(endpoints) <= MAX_WORKERS:
        return []
    too_many = ", ".join(endpoints[MAX_WORKERS:])
    sentence = f"{begin} {len(endpoints)} workers and llama.cpp takes at most {MAX_WORKERS} in one run: leave out"
    return [f"{sentence} {too_many}."]


def twin_problems(places: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a sentence for each host that has a second name; `places` are (host, where Ansible connects to)."""
    found: dict[str, str] = {}
    first: dict[str, str] = {}
    for host, place in places:
        other = first.setdefault(place.lower(), host)
        if other != host:
            found[host] = (
                f"{other} and {host} are the same host ({place}): keep one of the names, "
                "and give it rpc_server_instances if it is to run several workers."
            )
    return found


def endpoint_problems(endpoints: Iterable[tuple[str, str]]) -> list[str]:
    """Return a sentence for each worker that llama.cpp cannot distinguish; `endpoints` are (host, host:port)."""
    found: list[str] = []
    owners: dict[str, str] = {}
    for host, endpoint in endpoints:
        other = owners.get(endpoint.lower())
        if other is None:
            owners[endpoint.lower()] = host
        else:
            whose = "" if host == other else f", of {other} and of {host}"
            found.append(f"{endpoint} is named twice as a worker{whose}: give each an address or a port of its own.")
    return found


def release_problems(releases: Mapping[str, Mapping[str, Any]], master: str) -> list[str]:
    """Return a sentence for each host that has another llama.cpp than the master, or an unknown one.

    A value is the release's manifest, or a dictionary with only the key `unknown`: why the manifest could not be read.
    """
    found = []
    own = releases.get(master, {"unknown": "it was not asked"})
    for host in [master, *(name for name in releases if name != master)]:
        manifest = releases.get(host, own)
        reason = manifest.get("unknown")
        if reason is not None:
            found.append(
                f"It is not known which llama.cpp {host} has ({str(reason).strip().rstrip('.')}): "
                "install it there with the playbook site, or with the role llama_cpp."
            )
        elif "unknown" not in own and source_of(manifest) != source_of(own):
            found.append(
                f"{host} has llama.cpp {shown(manifest)} and the master {master} has {shown(own)}: "
                "install the same on both with the playbook site."
            )
    return found


def verify(looks: Mapping[str, Mapping[str, Any]], seen: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of a cluster, as filter cluster_status documents it; a host without `servers` was not asked."""
    links = [{"master": name, **link} for name, master in seen.items() for link in master.get("links") or []]
    # The first master of each group, with its manifest.
    owns: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for name, master in seen.items():
        if master.get("manifest"):
            owns.setdefault(master.get("group") or "", (name, master["manifest"]))
    # A host that several groups share also has workers of groups whose masters were not asked.
    asked = {master.get("group") or "" for master in seen.values()}
    rows = []
    for host, look in looks.items():
        groups = look.get("groups") or [""] * len(look["endpoints"])
        for endpoint, group in zip(look["endpoints"], groups):
            if len(set(groups)) > 1 and group not in asked:
                continue
            views = {
                name: view
                for name, master in seen.items()
                for view in master["workers"]
                if view["endpoint"].lower() == endpoint.lower()
            }
            views = _with_causes(endpoint, views, links)
            rows.append({"group": group, **_row(host, look, endpoint, views, owns.get(group))})
    problems = [
        f"{name} could not be asked. {master['failure']}"
        if master.get("failure")
        else f"{name} has no llama.cpp release: run the playbook site."
        for name, master in seen.items()
        if master.get("failure") or not master.get("manifest")
    ]
    halfway = [name for name, view in (*looks.items(), *seen.items()) if view.get("upgrade")]
    if halfway:
        problems.insert(
            0,
            f"An upgrade was interrupted, and has not ended on {', '.join(dict.fromkeys(halfway))}: "
            "run the playbook upgrade, which ends it.",
        )
    services = [
        {"group": master.get("group", ""), "host": name, **service}
        for name, master in seen.items()
        for service in master.get("services") or []
    ]
    for row in rows:
        row["problems"] += _foreign_clients(row, services)
        row["healthy"] = not row["problems"]
    problems += [problem for row in rows for problem in row["problems"]]
    problems += _links_down(links, rows, problems)
    problems += [
        " ".join([f"{service['host']}: {_message(service, rows)}", *_competing_apis(service, services)])
        for service in services
        if not service["healthy"]
    ]
    return {
        "healthy": bool(rows) and not problems,
        "workers": rows,
        "links": links,
        "services": services,
        "problems": list(dict.fromkeys(problems)),
        "notes": [
            *_unsafe(rows),
            *_degraded(services),
            *_notes([each for each in services if each["address"] != seen[each["host"]].get("inside")]),
        ],
    }


def _with_causes(
    endpoint: str, views: Mapping[str, Mapping[str, Any]], links: Sequence[Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Return the views, with the message of a broken tunnel link in place of that of the worker behind it."""
    down = {
        link["master"]: link["message"]
        for link in links
        if link["message"] and link["address"] == endpoint.rpartition(":")[0]
    }
    return {
        name: {**view, "message": down[name]} if name in down and view["state"] == "unreachable" else view
        for name, view in views.items()
    }


def _links_down(
    links: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], problems: Sequence[str]
) -> list[str]:
    """Return a sentence for each broken link of gateways, and of workers that no master asked because they serve.

    The problems of a worker already name its other links.
    """
    asked = {row["endpoint"].rpartition(":")[0] for row in rows if row["state"] in ("ready", "unreachable")}
    return [
        f"As {link['master']} sees it: {link['message']}"
        for link in links
        if link["message"]
        and (link["address"] not in asked or not link["through_tunnel"])
        and not any(link["message"] in problem for problem in problems)
    ]


def _awaited(service: Mapping[str, Any]) -> list[str]:
    """Return the workers (host:port) that an API waits for, from the first sentence of its message."""
    if service["state"] != "waiting":
        return []
    return str(service["message"]).partition(". ")[0].rstrip(".").split(", ")[1:]


def _foreign_clients(row: Mapping[str, Any], services: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence on the client that holds a worker, if an API waits for this worker and no other API uses it."""
    clients = sorted({client.rpartition(":")[0] for client in row["clients"]})
    waiting = [service["host"] for service in services if row["endpoint"] in _awaited(service)]
    others = [service["workers"] for service in services if service["state"] in ("serving", "loading")]
    if not clients or not waiting or any(row["endpoint"] in workers for workers in others):
        return []
    port = row["endpoint"].rpartition(":")[2]
    sentence = (
        f"A client at {', '.join(clients)} holds {row['endpoint']} of {row['host']}, and the API of {waiting[0]} waits "
        f"for this worker: find the program there with `ss -tnp 'dport = :{port}'`, and wait for its end, or end it."
    )
    return [sentence]


def _message(service: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the message of an API, without the causes that its workers' problems already name."""
    message = str(service["message"])
    explained = {row["endpoint"] for row in rows if row["problems"]}
    awaited = _awaited(service)
    if not awaited or not explained.issuperset(awaited):
        return message
    # Why the other workers do not serve alone is not in the workers' problems.
    others = message.find(" The others do not serve")
    return f"{message.partition('. ')[0].rstrip('.')}." + (message[others:] if others >= 0 else "")


def _competing_apis(service: Mapping[str, Any], services: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each other API that holds workers for which this API waits."""
    if service["state"] != "waiting":
        return []
    return [
        f"{other['unit']} of {other['host']} holds {', '.join(sorted(shared))}, and a worker serves one master at a "
        "time: give one of the two other workers, or stop it."
        for other in services
        if other["state"] in ("serving", "loading")
        for shared in [set(other["workers"]) & set(service["workers"])]
        if shared
    ]


def _unsafe(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence on the hosts whose release lacks the patch rpc-safety, for each release."""
    hosts: dict[str, list[str]] = {}
    for row in rows:
        if row["release"] and "rpc-safety" not in row["patches"]:
            hosts.setdefault(row["release"], []).append(row["host"])
    return [
        f"llama.cpp {release} of {', '.join(dict.fromkeys(names))} lacks the patch rpc-safety, so whoever reaches its "
        "RPC server can run code on the host: install the default llama_cpp_version, or let in only trusted clients."
        for release, names in hosts.items()
    ]


def _degraded(services: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each API that serves without one of its workers, with the remedy."""
    found = []
    for service in services:
        division = service.get("division") or {}
        if service["state"] != "serving" or not division.get("degraded"):
            continue
        missing = [worker for worker in service["workers"] if worker not in division["serving"]]
        excluded = [worker for worker in missing if worker in division["excluded"]]
        if excluded:
            remedy = (
                f"{', '.join(excluded)} was lost three times within an hour, or the model could not be loaded with it, "
                "so repair it and run the playbook serve"
            )
        elif set(division["ready"]).issuperset(missing):
            remedy = "it takes it back as llama_server_rejoin says, and the playbook serve does so now"
        else:
            remedy = "start it, or give its place to another host with the playbook replace"
        found.append(
            f"The API of {service['host']} serves without {', '.join(missing)} "
            f"({len(division['serving'])} of {len(service['workers'])} workers): {remedy}."
        )
    return found


def _notes(services: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each fact that is no problem but that people should know."""
    return [
        f"Clients reach {service['address']}:{service['port']} of {service['host']} without encryption: put a proxy "
        "with TLS in front of it, or keep it on a network of your own."
        for service in services
        if not service["address"].startswith("127.")
    ]


def render_cluster(workers: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the workers of a verification."""
    # Only releases with the patch rpc-repack report this.
    repacked = ("repacked",) if any(worker.get("repack") for worker in workers) else ()
    cached = ("cache",) if any(worker.get("cache") for worker in workers) else ()
    keys = ("host", "endpoint", "service", "firewall", "state", "protocol", "release")
    grouped = _grouped(workers)
    header = (*grouped, "worker", *keys[1:-1], "llama.cpp", *repacked, *cached, "client", "healthy")
    rows = [
        [*(worker[key] for key in (*grouped, *keys)),
         *(_repacked(worker.get("repack")) for _column in repacked),
         *(_cached(worker.get("cache")) for _column in cached),
         # A client has a different port each time.
         ", ".join(client.rpartition(":")[0] for client in worker.get("clients") or []) or None,
         "no" if worker["problems"] else "yes"]
        for worker in workers
    ]  # fmt: skip
    return "Workers\n" + render_table(header, rows, left=len(header))


def render_services(services: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the API services of a verification."""
    keys = ("host", "address", "port", "alias", "state", "restarts")
    grouped = _grouped(services)
    rows = [
        [*(service[key] for key in (*grouped, *keys)),
         # Like the workers' column, without the suffix that distinguishes two builds of a source.
         (service["release"] or "").rpartition("-")[0] or None,
         "yes" if service["healthy"] else "no"]
        for service in services
    ]  # fmt: skip
    header = (*grouped, "master", *keys[1:], "llama.cpp", "healthy")
    return "APIs\n" + render_table(header, rows, left=len(header))


def render_links(links: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the links of the tunnel."""
    header = ("master", "peer", "handshake", "received", "sent", "round trip", "RPC")
    rows = [
        [
            link["master"],
            link["host"],
            None if link["handshake_age_s"] is None else f"{link['handshake_age_s']} s ago",
            f"{link['received_bytes'] / (1 << 20):.1f} MiB",
            f"{link['sent_bytes'] / (1 << 20):.1f} MiB",
            None if link["round_trip_ms"] is None else f"{link['round_trip_ms']:.2f} ms",
            f"through it, {link['connections']} open" if link["through_tunnel"] else "past it",
        ]
        for link in links
    ]
    return "Tunnel\n" + render_table(header, rows, left=len(header))


def _grouped(entries: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the column of groups if there is a group with a name."""
    return ("group",) if any(entry.get("group") for entry in entries) else ()


def _repacked(repack: Mapping[str, Any] | None) -> str | None:
    if not repack:
        return None
    if not (repack["enabled"] and repack["kernels"]):
        return "no kernels" if repack["enabled"] else "off"
    return f"{repack['mib']:.0f} of {repack['of_mib']:.0f} MiB" if repack["of_weights"] else "on"


def _cached(cache: Mapping[str, Any] | None) -> str | None:
    if not cache:
        return None
    held = f"{cache['bytes'] / (1 << 30):.1f}"
    return f"{held} of {cache['max_bytes'] / (1 << 30):.1f} GiB" if cache["max_bytes"] else f"{held} GiB"


def _row(
    host: str,
    look: Mapping[str, Any],
    endpoint: str,
    views: Mapping[str, Mapping[str, Any]],
    own: tuple[str, Mapping[str, Any]] | None,
) -> dict[str, Any]:
    """Return the facts of one worker, with a sentence for each problem."""
    port = int(endpoint.rpartition(":")[2])
    server = next((server for server in look.get("servers") or [] if server["port"] == port), None) or {}
    clients, cache, manifest = server.get("clients", []), server.get("cache"), look.get("manifest") or {}
    service = firewall = None
    problems = []
    if look.get("failure"):
        problems.append(f"{host} could not be asked. {look['failure']}")
        views = _without_remedies(views, stopped=True, filtered=True)
    elif "servers" in look:
        service, stopped = _service(host, port, server, manifest)
        firewall, unlike = _firewall(host, look.get("firewall"))
        # Name a missing release first: without a release, no service starts.
        if own is not None:
            unknown = {"unknown": "no release is in use there"}
            problems += release_problems({own[0]: own[1], host: manifest or unknown}, own[0])
        problems += [*stopped, *unlike, *_untidy(host, port, cache)]
        views = _without_remedies(views, stopped=service == "stopped", filtered=firewall == "differs")
    problems += _seen(host, endpoint, views, serves=bool(clients), asked="servers" in look)
    # No master asks a worker that serves, because each connection would wait in its queue.
    view: Mapping[str, Any] = next(iter(views.values()), {"state": "busy"} if clients else {})
    return {
        "host": host,
        "endpoint": endpoint,
        "service": service,
        "firewall": firewall,
        "state": view.get("state"),
        "protocol": (view.get("protocol") or {}).get("version"),
        "release": shown(manifest) if manifest else None,
        # Artifacts from outside this collection do not name their patches.
        "patches": [patch["name"] for patch in manifest.get("patches") or []],
        "repack": server.get("repack"),
        # Leave out the free space, because other files on the disk change it.
        "cache": {key: value for key, value in cache.items() if key != "free_bytes"} if cache else None,
        "clients": clients,
        "healthy": not problems,
        "problems": problems,
    }


def _without_remedies(
    views: Mapping[str, Mapping[str, Any]], *, stopped: bool, filtered: bool
) -> dict[str, Mapping[str, Any]]:
    """Return the views without a master's advice where the worker's host explains the cause, or could not be asked."""
    explained = {"refused": stopped, "unreachable": filtered}
    return {
        name: {**view, "message": f"{view['message'].partition(': ')[0]}."} if explained.get(view["state"]) else view
        for name, view in views.items()
    }


def _seen(host: str, endpoint: str, views: Mapping[str, Mapping[str, Any]], *, serves: bool, asked: bool) -> list[str]:
    """Return a sentence for each problem that masters see with a worker."""
    found = []
    for master, view in views.items():
        # A busy worker is healthy if its client is known.
        if view["state"] != "ready" and not (view["state"] == "busy" and serves):
            found.append(
                f"{endpoint} of {host} answers nobody and has no client: "
                f"`systemctl restart llama-rpc-server@{endpoint.rpartition(':')[2]}.service` there."
                if view["state"] == "busy" and asked
                else f"As {master} sees it: {view['message']}"
            )
    if not views and not serves:
        found.append(f"No master asked {endpoint} of {host}: look at the masters.")
    return found


def _service(host: str, port: int, server: Mapping[str, Any], manifest: Mapping[str, Any]) -> tuple[str, list[str]]:
    unit = f"llama-rpc-server@{port}.service"
    listeners = server.get("listeners")
    if not listeners:
        return "stopped", [
            f"Nothing listens on port {port} of {host}: see `journalctl -u {unit}` there, or run the playbook site."
        ]
    # Another program may have the same port on another address.
    listener = next((found for found in listeners if found.get("unit") == unit), listeners[0])
    program = str(listener.get("program") or "")
    if listener.get("unit") != unit:
        other = listener.get("unit") or program or f"process {listener.get('pid')}"
        return "other", [
            f"Port {port} of {host} belongs to {other}, not to {unit}: end it, or set another rpc_server_port."
        ]
    if manifest and "/releases/" in program and f"/releases/{manifest.get('id')}/" not in program:
        return "old", [
            f"The worker on port {port} of {host} still runs the previous release: the playbook site restarts it."
        ]
    return "running", []


def _untidy(host: str, port: int, cache: Mapping[str, Any] | None) -> list[str]:
    if cache is None:
        return []
    never = cache["tidied_at"] is None
    at = cache["kept_since"] if never else cache["tidied_at"]
    if at is None or time.time() - at <= MOST_UNTIDY_S:
        return []
    hours = f"{(time.time() - at) / 3600:.0f} hours"
    was = f"never tidied in the {hours} since its timer was made" if never else f"last tidied {hours} ago"
    sentence = (
        f"The tensor cache of {host}:{port} was {was}: "
        f"see `journalctl -u llama-rpc-cache@{port}` there, or run the playbook site."
    )
    return [sentence]


def _firewall(host: str, firewall: Mapping[str, Any] | None) -> tuple[str, list[str]]:
    if firewall is None:
        return "left alone", []
    if firewall["firewalld"] != "running":
        return str(firewall["firewalld"]), [f"The firewall of {host} does not run: run the playbook site."]
    differing = [*firewall["problems"], *firewall["changes"]]
    if differing:
        remedy = "run the playbook site" if firewall["problems"] else "run the playbook site, which repairs it"
        return "differs", [f"The firewall of {host} is not as expected: {remedy} ({differing[0].rstrip('.')})."]
    return "closed", []


def source_of(manifest: Mapping[str, Any]) -> str:
    """Return the source of a release: the commit if it is known, else the digest of the source."""
    source = manifest.get("source") or {}
    return str(source.get("commit") or source.get("sha256") or manifest.get("id"))


def shown(manifest: Mapping[str, Any]) -> str:
    """Return the name of a release for people."""
    return str(manifest.get("version") or source_of(manifest)[:9])
