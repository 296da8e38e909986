# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: which settings of a cluster to measure next, and which of the measured ones are faster."""

from __future__ import annotations

DOCUMENTATION = r"""
name: tuning
short_description: Choose the fastest of measured settings of a cluster
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - The playbook P(llama_cpp.cluster.tune#playbook) uses it. The present settings are measured first and last. In
    between, each candidate is measured with the fastest settings so far, and kept if it is faster than them by more
    than the spread of the present settings.
positional: _input, present, records
options:
  _input:
    description: The candidates, a list of values for each option of llama.cpp in its long form, such as
      C(--ubatch-size), or for C(parallel), C(tensor_split), C(threads) or C(rpc_server_threads).
    type: dict
    required: true
  present:
    description: The present settings, C(extra_args) and the names above.
    type: dict
    default: {}
  records:
    description: For each run so far the C(samples) of its tokens per second, or its C(failure) as a sentence.
    type: list
    elements: dict
    default: []
  clients:
    description: The number of clients. With one, the variables are those of role P(llama_cpp.cluster.inference#role).
    type: int
    default: 1
"""

EXAMPLES = r"""
- name: Show what would be measured
  ansible.builtin.debug:
    msg: "{{ ({'--ubatch-size': [64, 128]} | llama_cpp.cluster.tuning).runs | map(attribute='title') }}"
"""

RETURN = r"""
_value:
  description:
    - C(problem), a sentence that says what is wrong with the candidates; if it is not empty, there are no other keys.
    - C(runs), each with its C(title), C(option) and C(value), and C(settings) of the next run.
    - C(variables) of roles that are better than the present ones, C(table) with a line for each run, and C(summary).
  type: dict
"""

import re
from statistics import mean
from typing import Any, Callable, Mapping, Sequence

from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve.options import OPTION, refusals

# Less may be chance, however small the spread of a few measurements is.
_LEAST_SPREAD = 0.02
_THREADS = "rpc_server_threads"
_SETTINGS = ("parallel", "tensor_split", "threads", _THREADS)
# Of role inference, and for the API too.
_SHARED = ("tensor_split", "threads")
# Of the options that the playbook tries by default: their short forms, and llama.cpp's defaults (common/arg.cpp).
_LONG = {"-ub": "--ubatch-size", "-sm": "--split-mode", "-b": "--batch-size", "-fa": "--flash-attn"}
_DEFAULTS = {"--ubatch-size": "512", "--split-mode": "layer", "--batch-size": "2048"}


def _problem(candidates: object, clients: object) -> str:
    if not re.fullmatch("[1-9][0-9]{0,2}", str(clients)):
        return f"tune_clients is {clients}: give a number from 1 to 999."
    if not isinstance(candidates, Mapping) or not all(isinstance(values, list) for values in candidates.values()):
        return (
            f"tune_candidates is {candidates}: give a list of values for each option, such as "
            '{"--ubatch-size": [64, 128]} (with -e as JSON).'
        )
    for name in candidates:
        if name not in _SETTINGS and not str(name).startswith("--"):
            return f"tune_candidates holds {name}: give long forms of llama.cpp's options, or {', '.join(_SETTINGS)}."
        if name == "parallel" and int(str(clients)) == 1:
            return "tune_candidates holds parallel, and one client needs one slot: set tune_clients, or take it out."
    return " ".join(refusals([name for name in candidates if name not in _SETTINGS], "tune_candidates"))


def _split(words: Sequence[str], option: str) -> tuple[list[str], str | None]:
    """Return options of llama.cpp without this one, and its value; the last one applies."""
    rest: list[str] = []
    value = None
    left = [str(word) for word in words]
    while left:
        word = left.pop(0)
        if _LONG.get(word, word) == option:
            value = left.pop(0) if left and not re.match(OPTION, left[0]) else ""
        else:
            rest.append(word)
    return rest, value


def _with(settings: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    option, value = run["option"], run["value"]
    if option in ("", *_SETTINGS):
        return {**settings, **({option: value} if option else {})}
    rest, _value = _split(settings["extra_args"], option)
    return {**settings, "extra_args": [*rest, option, str(value)]}


def _runs(candidates: Mapping[str, Any], present: Mapping[str, Any], clients: int) -> list[dict[str, Any]]:
    runs = [{"title": "present settings", "option": "", "value": None}]
    # Threads come last, because workers are restarted for them. Slots take turns only with several clients.
    for option in sorted(candidates, key=lambda name: bool(name == _THREADS)):
        now = present.get(option)
        if option not in _SETTINGS:
            now = _split(present.get("extra_args", ()), option)[1] or _DEFAULTS.get(option)
        runs += [
            {"title": f"{option} {value}", "option": option, "value": value}
            for value in candidates[option]
            if str(value) != str(now) and not (option == "--turns" and clients == 1)
        ]
    return [*runs, {"title": "present settings again", "option": "", "value": None}]


def tuning(
    candidates: Mapping[str, Any],
    present: Mapping[str, Any] | None = None,
    records: Sequence[Mapping[str, Any]] = (),
    clients: int = 1,
) -> dict[str, Any]:
    """Return what to measure next and the result so far, or the problem of the candidates."""
    problem = _problem(candidates, clients)
    if problem:
        return {"problem": problem}
    now = {"extra_args": [], **(present or {})}
    runs = _runs(candidates, now, int(clients))
    if len(runs) == len(("first", "again")):
        return {"problem": "tune_candidates holds nothing but the present settings: give other values."}
    width = max(len(run["title"]) for run in runs)
    best, best_rate, own, kept, table = now, 0.0, list[float](), dict[str, str](), list[str]()
    for run, record in zip(runs, records):
        samples = record.get("samples") or []
        if not samples:
            table.append(f"{run['title']:<{width}}  {' '.join(str(record.get('failure')).split())}")
            continue
        rate, note = mean(samples), ""
        first_rate = mean(own) if own else rate
        if not run["option"]:
            own += samples
            best_rate = best_rate or rate
        elif rate > best_rate * (1 + _spread(own)):
            best, best_rate, note = _with(best, run), rate, "  kept"
            kept[run["option"]] = run["title"]
        table.append(
            f"{run['title']:<{width}}  {rate:.2f} tokens/s ({min(samples):.2f} to {max(samples):.2f})"
            f"  {rate / first_rate - 1:+.1%}{note}"
        )
    again = records[-1] if len(records) == len(runs) else {}
    if not (kept and again.get("samples") and best_rate / mean(own) - 1 > _spread(own)):
        kept = {}
    own_role = "inference_" if int(clients) == 1 else "llama_server_"
    upcoming = runs[min(len(records), len(runs) - 1)]
    return {
        "problem": "",
        "runs": runs,
        "settings": _with(best if upcoming["option"] else now, upcoming),
        "variables": {
            name if name == _THREADS else ("inference_" if name in _SHARED else own_role) + name: value
            for name, value in (best if kept else now).items()
            if value != now.get(name)
        },
        "table": table,
        "summary": _summary(list(kept.values()), best_rate, own, again),
    }


def _spread(samples: Sequence[float]) -> float:
    """Return how far the measurements of the same settings lie apart, relative to their mean."""
    return max(_LEAST_SPREAD, (max(samples) - min(samples)) / mean(samples))


def _summary(won: Sequence[str], rate: float, own: Sequence[float], again: Mapping[str, Any]) -> str:
    if not again.get("samples"):
        why = " ".join(str(again.get("failure")).split())
        return f"Nothing can be recommended, because the present settings could not be measured again. {why}"
    present = f"the present settings ({mean(own):.2f}, with a spread of {_spread(own):.1%})"
    if not won:
        return f"Nothing is certainly faster than {present}."
    return f"{', '.join(won)}: {rate:.2f} tokens/s, {rate / mean(own) - 1:.1%} more than {present}."


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"tuning": tuning}
