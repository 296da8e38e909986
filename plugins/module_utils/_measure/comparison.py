# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: figures of two runs are compared where all that they depend on is equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .._run.worker_run import OptionError
from .baseline import SHAPES, TEST_KEY, Baseline, are_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Tolerance(NamedTuple):
    """By how many percent a test may be slower than its baseline, by its kind."""

    prompt: float
    generation: float
    mixed: float


def check_tolerance(
    tolerance_percent: float, prompt_tolerance_percent: float | None, generation_tolerance_percent: float | None
) -> Tolerance:
    """Return the tolerance by kind; raises OptionError."""
    given = {
        "tolerance_percent": tolerance_percent,
        "prompt_tolerance_percent": prompt_tolerance_percent,
        "generation_tolerance_percent": generation_tolerance_percent,
    }
    for name, value in given.items():
        if value is not None and not 0 <= value < 100:
            raise OptionError(f"{name} is {value:g}; give a number from 0 to below 100, as no run loses 100 percent.")
    prompt, generation = prompt_tolerance_percent, generation_tolerance_percent
    return Tolerance(
        prompt=tolerance_percent if prompt is None else prompt,
        generation=tolerance_percent if generation is None else generation,
        mixed=tolerance_percent,
    )


def _same_commit(one: str | None, other: str | None) -> bool:
    # One may be abbreviated.
    length = min(len(one or ""), len(other or ""))
    return one == other or (length >= 7 and (one or "")[:length] == (other or "")[:length])


def _test_names(tests: Iterable[Mapping[str, Any]]) -> str:
    names = [f"{test['name']} b{test['batch_size']:g} ub{test['ubatch_size']:g}" for test in tests]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def differences(baseline: Baseline, now: Baseline) -> list[dict[str, Any]]:
    """Return what makes the figures of two runs incomparable: what differs, with both values."""
    found: list[dict[str, Any]] = []

    def differ(what: str, before: object, after: object) -> None:
        found.append({"what": what, "baseline": before, "now": after})

    before, after = baseline.build, now.build
    commits = before["commit"], after["commit"]
    if not _same_commit(*commits):
        differ("build commit", *commits)
    elif commits == (None, None) and before["number"] != after["number"]:
        differ("build number", before["number"], after["number"])
    patches = before.get("patches"), after.get("patches")
    if None not in patches and patches[0] != patches[1]:
        differ("build patches", *patches)
    for name in ("type", "n_params", "size_bytes"):
        if baseline.model[name] != now.model[name]:
            differ(f"model {name}", baseline.model[name], now.model[name])
    digests = baseline.model["sha256"], now.model["sha256"]
    if all(digests) and digests[0] != digests[1]:
        differ("model sha256", *digests)
    if len(baseline.workers) != len(now.workers):
        differ("number of workers", len(baseline.workers), len(now.workers))
    for name in SHAPES["options"]:
        if baseline.options[name] != now.options[name]:
            differ(name, baseline.options[name], now.options[name])
    if {_key(test) for test in baseline.tests} != {_key(test) for test in now.tests}:
        differ("tests", _test_names(baseline.tests), _test_names(now.tests))
    return found


def _key(test: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(test[name] for name in TEST_KEY)


def _figures(rates: Mapping[str, Any]) -> dict[str, Any]:
    return {name: rates.get(name) for name in ("mean", "stddev", "min", "max")}


def metrics(baseline: Baseline, now: Baseline, tolerance: Tolerance) -> list[dict[str, Any]]:
    """Return each test with both figures, the change, and whether that is more of a loss than is tolerated."""
    before = {_key(test): test["tokens_per_second"] for test in baseline.tests}
    found = []
    for test in now.tests:
        old, new = before[_key(test)], test["tokens_per_second"]
        change = 100 * (new["mean"] / old["mean"] - 1)
        allowed: float = getattr(tolerance, test["kind"])
        found.append(
            {
                "name": test["name"],
                **dict(zip(TEST_KEY, _key(test))),
                "baseline": _figures(old),
                "now": _figures(new),
                "change_percent": round(change, 2),
                "tolerance_percent": allowed,
                # As printed: what is shown as equal to the tolerance is within it.
                "regression": round(change, 2) < -allowed,
            }
        )
    return found


def _with_spread(figures: Mapping[str, Any]) -> str:
    spread = "one run" if figures["stddev"] is None else f"± {figures['stddev']:.2f}"
    return f"{figures['mean']:.2f} ({spread})"


def _label(metric: Mapping[str, Any], among: Sequence[Mapping[str, Any]]) -> str:
    several = len({(other["batch_size"], other["ubatch_size"]) for other in among}) > 1
    return str(metric["name"]) + (f" b{metric['batch_size']} ub{metric['ubatch_size']}" if several else "")


def regression_message(found: Sequence[Mapping[str, Any]], path: str) -> str | None:
    """Return one sentence with all that became slower than is tolerated, or None."""
    slower = [
        f"{_label(m, found)} {_with_spread(m['now'])} after {_with_spread(m['baseline'])} tokens per second, "
        f"{m['change_percent']:+.1f} % with {m['tolerance_percent']:g} % tolerated"
        for m in found
        if m["regression"]
    ]
    return f"Slower than the baseline {path}: {'; '.join(slower)}." if slower else None


def difference_message(found: Sequence[Mapping[str, Any]], path: str) -> str:
    """Return one sentence that says why figures are not compared."""
    said = "; ".join(f"{d['what']} was {_said(d['baseline'])} and is {_said(d['now'])}" for d in found)
    return f"Not compared with the baseline {path}: {said}."


def _said(value: object) -> str:
    if isinstance(value, list) and value and are_texts(value):
        return ", ".join(value)
    return "unknown" if value in (None, "") else "none" if value == [] else str(value)
