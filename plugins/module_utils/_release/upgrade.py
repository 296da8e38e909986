# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: how the hosts of a cluster change their llama.cpp together; this part does not contact any host."""

from __future__ import annotations

from typing import Any, Mapping

from .._status.cluster import release_problems, shown, source_of


def plan(
    looks: Mapping[str, Mapping[str, Any]],
    master: str,
    wanted: Mapping[str, str] | None = None,
    rollback: bool = False,
    staged: bool = True,
) -> dict[str, Any]:
    """Return what filter upgrade_plan documents; `wanted` is None while it is unknown."""
    unfinished = {host: look["unfinished"] for host, look in looks.items() if look["unfinished"]}
    recover = _recover(looks, unfinished)
    found: dict[str, Any] = {
        "problems": [],
        "recover": recover,
        "interrupted": _interrupted(looks, unfinished, recover),
        "enough": False,
        "targets": {},
        "from": None,
        "to": None,
        "protocols": {"from": None, "to": None},
        "same": False,
    }
    if recover:
        host, note = next(iter(unfinished.items()))
        # A rollback needs nothing more if the recovery withdraws an upgrade or completes a rollback.
        found["enough"] = rollback and (recover[host]["state"] == "finished") == (note["way"] == "rollback")
        return {**found, **{key: _name(looks[host]["releases"], note[key]) for key in ("from", "to")}}
    targets = dict(wanted or {})
    if rollback:
        targets = {host: str((look["finished"] or {"from": ""})["from"]) for host, look in looks.items()}
    problems = release_problems({host: _in_use(look) for host, look in looks.items()}, master)
    problems += _rollback_problems(looks, targets) if rollback else _missing(looks, targets) if staged else []
    if targets and not problems:
        new = {host: look["releases"].get(targets[host], {}) for host, look in looks.items()}
        problems = _unlike(new) if staged else []
        problems += _mute(new) if staged and not rollback else []
        found.update(_change(looks, master, targets, new))
    return {**found, "problems": problems}


def _recover(
    looks: Mapping[str, Mapping[str, Any]], unfinished: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    """Return the run, release and end state for each host on which an upgrade has not ended."""
    ended = {look["finished"]["run"] for look in looks.values() if look["finished"]}
    # If one host has recorded the success, all hosts had the new release by then.
    return {
        host: {
            "run": note["run"],
            "release": note["to"] if note["run"] in ended else note["from"],
            "state": "finished" if note["run"] in ended else "withdrawn",
        }
        for host, note in unfinished.items()
    }


def _missing(looks: Mapping[str, Mapping[str, Any]], targets: Mapping[str, str]) -> list[str]:
    """Return a problem for each host that does not have the release that it was to get."""
    return [
        f"{host} did not get the release {targets[host]}: run the playbook upgrade again."
        for host, look in looks.items()
        if targets and targets[host] not in look["releases"]
    ]


def _change(
    looks: Mapping[str, Mapping[str, Any]],
    master: str,
    targets: Mapping[str, str],
    new: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the old and the new release of the hosts; the manifest of a release that is on no host yet is empty."""
    spoken = [str(manifest["rpc_protocol"]) for manifest in new.values() if manifest.get("rpc_protocol")]
    own = _in_use(looks[master])
    return {
        "targets": targets,
        "from": shown(own),
        "to": shown(new[master]) if new[master] else targets[master],
        "protocols": {"from": own.get("rpc_protocol"), "to": spoken[0] if spoken else None},
        "same": all(look["current"] == targets[host] for host, look in looks.items()),
    }


def outcome(
    known: Mapping[str, Mapping[str, Any]], planned: Mapping[str, Any], end: str = "old", rollback: bool = False
) -> dict[str, Any]:
    """Return what filter upgrade_outcome documents.

    With the end `unknown`, the first host that was to record the success was lost at that moment.
    """
    hosts = {host: {"lost": False, **found, "after": _asked(found)} for host, found in known.items()}
    way = "roll back" if rollback else "upgrade"
    if planned.get("to"):
        way += f" from llama.cpp {planned['from']} to {planned['to']}"
    reasons = [f"{host}: {_whole(found['failure'])}" for host, found in hosts.items() if found["failure"]]
    reasons += [f"{host} stopped answering." for host, found in hosts.items() if found["lost"]]
    stuck = [host for host, found in hosts.items() if found["rollback_failure"]]
    if not reasons and not stuck:
        problem = ""
    elif end == "unknown":
        problem = f"It is unknown whether the {way} was completed: run the playbook upgrade again, which completes it."
    elif end == "new":
        problem = f"The {way} is done, but not everywhere."
    elif not any(found["note"] for found in hosts.values()):
        problem = f"The {way} did not start: every host has its previous release."
    else:
        others = [host for host, found in hosts.items() if found["rollback_failure"] or found["lost"] or _astray(found)]
        which = f"All hosts but {', '.join(others)} have their" if others else "Every host has its"
        problem = f"The {way} failed. {which} previous release."
    return {
        "problem": " ".join([problem, *reasons]) if problem else "",
        "sentences": [_became(host, found, end) for host, found in hosts.items()],
    }


def _asked(known: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the present journal of a host; None if the host stopped answering or release_journal_info failed there."""
    now: Mapping[str, Any] | None = known["after"]
    return now if now and "current" in now and not known.get("lost") else None


def _astray(found: Mapping[str, Any]) -> bool:
    """Return whether a host has another release than the one that it is to go back to."""
    note, now = found["note"], found["after"]
    return bool(note and now and now["current"] != note["from"])


def _became(host: str, found: Mapping[str, Any], end: str) -> str:
    releases, note = (found["before"] or {}).get("releases") or {}, found["note"]

    def name(release: str) -> str:
        return f"llama.cpp {_name(releases, release)}"

    if note and (found["lost"] or found["rollback_failure"]):
        where = {"old": f"back to {name(note['from'])}", "new": f"to {name(note['to'])}"}
        again = f"run the playbook upgrade again, which takes it {where.get(end, 'to the release of the others')}"
        if found["lost"]:
            return f"{host} stopped answering: bring it back, and {again}."
        return (
            f"{host} could not be repaired ({_whole(found['rollback_failure']).rstrip('.')}): look there, and {again}."
        )
    if found["lost"]:
        return f"{host} stopped answering before anything was changed there."
    now = found["after"]["current"] if found["after"] else None
    if now is None:
        return f"{host} has no release in use: run the playbook site."
    if end == "old" and _astray(found):
        again = "run the playbook upgrade again, which takes it to the release of the others"
        return f"{host} still has {name(now)}: {again}."
    if end == "old":
        return f"{host} {'is back at' if note else 'has kept'} {name(now)}."
    return f"{host} has {name(now)}" + (f", and had {name(note['from'])}." if note and note["from"] != now else ".")


def _interrupted(
    looks: Mapping[str, Mapping[str, Any]],
    notes: Mapping[str, Mapping[str, str]],
    recover: Mapping[str, Mapping[str, str]],
) -> str:
    """Return a sentence about an interrupted upgrade and its recovery, empty if there is none."""
    if not notes:
        return ""
    host, note = next(iter(notes.items()))
    old, new = (_name(looks[host]["releases"], note[key]) for key in ("from", "to"))
    done = recover[host]["state"] == "finished"
    how = f"the new release was good, so it is completed with {new}" if done else f"all hosts go back to {old}"
    what = "A roll back" if note["way"] == "rollback" else "An upgrade"
    return (
        f"{what} from llama.cpp {old} to {new}, begun {note['time']}, was interrupted and has not ended on "
        f"{', '.join(notes)}: {how}."
    )


def _name(releases: Mapping[str, Mapping[str, Any]], release: str) -> str:
    return shown(releases[release]) if releases.get(release) else release


def _rollback_problems(looks: Mapping[str, Mapping[str, Any]], targets: Mapping[str, str]) -> list[str]:
    """Return problems that name the hosts with nothing to roll back to."""
    problems = []
    unaware = []
    for host, look in looks.items():
        if not look["finished"] or look["finished"]["to"] != look["current"]:
            unaware.append(host)
        elif targets[host] not in look["releases"]:
            problems.append(
                f"{host} no longer has the release {targets[host]}, to which it would be rolled back: "
                "name its version in llama_cpp_version instead, and raise llama_cpp_keep_releases."
            )
    if unaware:
        problems.append(
            f"No upgrade to the release in use is recorded on {', '.join(unaware)}, so there is nothing to roll "
            "back: name the version to go to in llama_cpp_version instead."
        )
    return problems


def _unlike(releases: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return problems for new releases that do not fit together."""
    problems = []
    for key, of in (("source", "commit"), ("rpc_protocol", "RPC protocol")):
        kinds: dict[str, list[str]] = {}
        for host, manifest in releases.items():
            what = source_of(manifest) if key == "source" else manifest.get("rpc_protocol")
            if what:
                kinds.setdefault(str(what), []).append(host)
        if len(kinds) > 1:
            sides = " and ".join(f"{what} on {', '.join(hosts)}" for what, hosts in kinds.items())
            problems.append(f"The hosts would get llama.cpp of different {of}s: {sides}; give all of them the same.")
    return problems


def _mute(releases: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a problem if new releases were built from a source that does not state its RPC protocol.

    The protocol of an artifact that somebody else made cannot be known. For it, the check that workers answer and that
    a prompt is continued has to be enough.
    """
    mute = [
        host
        for host, manifest in releases.items()
        if not manifest.get("rpc_protocol") and (manifest.get("source") or {}).get("kind") != "artifact"
    ]
    if not mute:
        return []
    what = f"The source of llama.cpp {shown(releases[mute[0]])}, which {', '.join(mute)} would get"
    return [f"{what}, does not say its RPC protocol: name another one in llama_cpp_version, or in its own variable."]


def _in_use(look: Mapping[str, Any]) -> Mapping[str, Any]:
    return look["releases"].get(look["current"]) or {"unknown": "it has no release in use"}


def _whole(reason: str) -> str:
    return reason if reason.endswith((".", "!", "?")) else f"{reason}."
