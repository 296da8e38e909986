# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark of serving: its comparisons, and missed targets."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from benchmarks import serving

OURS, THEIRS = serving.Programs("", Path("/ours")), serving.Programs("upstream", Path("/theirs"))
ARGS = Namespace(loads={"short": (1, 64)}, clients=[8])


def setup(
    division: str, mode: str = "layer", programs: serving.Programs = OURS, arguments: tuple[str, ...] = ()
) -> serving.Setup:
    return serving.Setup(programs, division, mode, arguments)


def rates(per_second: float) -> dict[str, float]:
    times = {f"short 8 {what} {which}": 5.0 for what in ("first", "between") for which in ("median", "p95")}
    return {"short 8": per_second, **times}


def results(**by_setup: list[float]) -> list[str]:
    """Return the targets that these tokens per second of each round miss."""
    setups = {
        "local": setup("local"), "whole": setup("whole"), "one": setup("1"), "layer": setup("2"),
        "tensor": setup("2", "tensor"),
    }  # fmt: skip
    chosen = {name: setups[name] for name in by_setup}
    rounds = [
        {str(found): rates(by_setup[name][number]) for name, found in chosen.items()}
        for number in range(len(next(iter(by_setup.values()))))
    ]
    found = serving.results_of(rounds, list(chosen.values()), ARGS)
    return serving.missed(found, list(chosen.values()))


def test_a_setup_is_compared_with_its_own_programs_and_options() -> None:
    setups = [
        setup("local"), setup("whole"), setup("1"), setup("2"), setup("2", "tensor"), setup("1", programs=THEIRS),
        setup("2", programs=THEIRS), setup("2", arguments=("-kvu",)),
    ]  # fmt: skip
    bases = [serving.base_of(one, setups) for one in setups]
    assert bases == [setups[number] for number in (0, 0, 2, 2, 2, 5, 5, 7)]
    # A setup is also compared with one of other programs or other options.
    firsts = [serving.first_of(one, setups) for one in setups]
    assert firsts == [setups[number] for number in (0, 1, 2, 3, 4, 2, 3, 3)]
    assert len({str(one) for one in setups}) == len(setups)


def test_ratios_are_of_the_same_round_and_targets_of_their_median() -> None:
    # In the second round, the machine is half as fast.
    assert results(local=[20, 10, 20], whole=[20, 10, 10], one=[10, 5, 10], layer=[14, 7, 14], tensor=[16, 8, 9]) == []
    assert results(local=[20.0], whole=[18.0]) == [
        "one worker of 2 threads / without workers, short 8 clients: 0.900, less than 0.95.".replace(
            "2 threads", f"{len(serving.CORES)} threads"
        )
    ]
    assert results(one=[10.0], layer=[13.0], tensor=[14.0]) == [
        "2 workers of one core, layer / one worker of one core, short 8 clients: 1.300, less than 1.35.",
        "Two workers / one, short 8 clients, in the better split mode: 1.400, less than 1.5.",
    ]
