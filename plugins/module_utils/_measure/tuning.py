# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Private: a bounded search for the options with which a cluster is quickest: what to measure next, and what won.

The search goes along one option at a time and keeps what won (`Sweep.steps`, a generator that asks for runs and is sent
what came of them). Whoever runs it keeps a record of each run and asks anew after each, so that nothing is held in
between. Measures nothing itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

# Of the JSON file. A change that readers of it would notice makes it another number.
SCHEMA_VERSION = 1
# How much prompt and generation count, as exponents: what is compared is the product of both gains.
GOALS = {"generation": (0.0, 1.0), "prompt": (1.0, 0.0), "balanced": (0.5, 0.5)}
# Less than that is no gain, however small the spread.
LEAST_GAIN = 0.02
# What a run takes beside llama-bench (connection, verification, plan), and what it takes to start the workers anew.
RUN_S, RESTART_S = 5.0, 15.0
# So many times longer than expected is a run that hangs; a minute is granted in any case.
PATIENCE, LEAST_PATIENCE_S = 5.0, 60.0
# A worker whose share is changed to learn its speed gives a quarter of its layers away.
SHIFTED = 4
CACHE_TYPES = ("f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
FLOATING = ("f16", "bf16")
# The stages by importance: where time is short, the last ones are left out first. They are gone through in this order
# too, but for the threads, which are tried with all that has won before, so that workers are started anew only then.
STAGES = {
    "ubatch_size": "physical batch",
    "worker_threads": "threads of the workers",
    "split_mode": "split mode",
    "tensor_split": "tensor split by speed",
    "flash_attn": "flash attention",
    "cache_type": "cache types",
    "batch_size": "logical batch",
}
# common/arg.cpp: what is tuned, as options of llama.cpp.
OPTIONS = {
    "-b": "batch_size",
    "--batch-size": "batch_size",
    "-ub": "ubatch_size",
    "--ubatch-size": "ubatch_size",
    "-fa": "flash_attn",
    "--flash-attn": "flash_attn",
    "-ctk": "cache_type_k",
    "--cache-type-k": "cache_type_k",
    "-ctv": "cache_type_v",
    "--cache-type-v": "cache_type_v",
    "-sm": "split_mode",
    "--split-mode": "split_mode",
}
_FLASH = {"1": "on", "true": "on", "on": "on", "0": "off", "false": "off", "off": "off", "-1": "auto", "auto": "auto"}
_TRUE, _FALSE = (True, "true", "True", "yes"), (False, "false", "False", "no")


class TuningError(ValueError):
    """What was asked for makes no sweep, or none that ends in time; the message is one sentence."""


@dataclass(frozen=True)
class Config:
    """Options of llama.cpp that are tuned; `worker_threads` is None for those that workers have already."""

    batch_size: int = 2048
    ubatch_size: int = 512
    flash_attn: str = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    worker_threads: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as data."""
        return {**self.__dict__, "tensor_split": list(self.tensor_split)}


class Rate(NamedTuple):
    """Tokens per second, with their standard deviation."""

    mean: float
    stddev: float


@dataclass(frozen=True)
class Measured:
    """How quick a configuration is; what was not measured is None."""

    config: Config
    prompt: Rate | None
    generation: Rate | None


@dataclass(frozen=True)
class Run:
    """One run of llama-bench; of `ubatch_sizes` and `batch_sizes` each number is measured.

    With `weights`, the tensor split is to be planned from these speeds.
    """

    stage: str
    title: str
    config: Config
    workers: tuple[str, ...]
    prompt: bool = True
    generation: bool = True
    ubatch_sizes: tuple[int, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    restarts: bool = False

    @property
    def tests(self) -> int:
        """How many figures there are of each kind."""
        return max(1, len(self.ubatch_sizes)) * max(1, len(self.batch_sizes))


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    measured: tuple[Measured, ...]
    failure: str | None
    wall_s: float
    elapsed_s: float


@dataclass(frozen=True)
class Settings:
    """What to try, on what."""

    goal: str = "balanced"
    n_prompt: int = 1024
    n_gen: int = 32
    repetitions: int = 3
    time_limit_s: int = 1800
    shorten: bool = False
    ubatch_sizes: tuple[int, ...] = (64, 128, 256, 512, 1024)
    batch_sizes: tuple[int, ...] = (512, 1024, 2048)
    flash_attn: tuple[str, ...] = ("on", "off")
    split_modes: tuple[str, ...] = ("layer", "tensor")
    cache_types: tuple[str, ...] = ()
    tensor_split: bool = True
    worker_threads: bool = False
    # None: those that the workers' cores suggest.
    threads: tuple[int, ...] | None = None
    # What is known of the cluster; before it was asked, nothing.
    workers: tuple[str, ...] = ()
    threads_now: tuple[int, ...] = ()
    usable_cores: tuple[int, ...] = ()
    # Why they were not tried to their end.
    threads_problem: str = ""
    # Whether each worker can hold the whole model; empty if that cannot be planned.
    fits_alone: tuple[bool, ...] = ()
    # The layers of each worker in the present split.
    layers: tuple[int, ...] = ()
    start: Config = Config()


# What is asked for


def _flag(name: str, value: object) -> bool:
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise TuningError(f"{name} is {value}: give true or false.")


def _number(name: str, value: object, low: int, high: int) -> int:
    text = str(value)
    if isinstance(value, (bool, float)) or not (text.isascii() and text.isdecimal() and low <= int(text) <= high):
        raise TuningError(f"{name} is {value}: give a whole number from {low} to {high}.")
    return int(text)


def _listed(name: str, value: object, example: str) -> list[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise TuningError(f"{name} is {value}: give a list, such as {example} (with -e as JSON).")
    return list(value)


def _numbers(name: str, value: object, low: int, high: int, example: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_number(name, item, low, high) for item in _listed(name, value, example)))


def _words(name: str, value: object, known: Sequence[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(_listed(name, value, f"[{', '.join(known[:2])}]")))
    for word in found:
        if word not in known:
            raise TuningError(f"{name} holds {word}: give some of {', '.join(known)}, in quotes.")
    return found


def options_of(extra_args: Sequence[str], old: bool = False) -> tuple[Config, list[str]]:
    """Return what options of llama.cpp say of what is tuned, and the others; raises TuningError.

    `old` builds (RPC protocol 2) have flash attention off, and a flag without a value that turns it on.
    """
    found: dict[str, Any] = {"flash_attn": "off"} if old else {}
    rest: list[str] = []
    words = [str(word) for word in extra_args]
    while words:
        word = words.pop(0)
        option = OPTIONS.get(word.replace("_", "-") if word.startswith("--") else word)
        if option is None:
            rest.append(word)
        elif option == "flash_attn":
            has_value = bool(words) and words[0] in _FLASH
            found[option] = _FLASH[words.pop(0)] if has_value else "on"
        else:
            value = words.pop(0) if words else ""
            where = f"inference_extra_args, {word}"
            if option.endswith("_size"):
                found[option] = _number(where, value, 1, 1_000_000)
            elif value not in (CACHE_TYPES if option.startswith("cache") else ("layer", "tensor")):
                raise TuningError(
                    f"{where} is {value or 'without a value'}, which llama-bench cannot measure over RPC."
                )
            else:
                found[option] = value
    return Config(**found), rest


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Return the settings from the playbook's variables and what it knows of the cluster; raises TuningError."""
    default = Settings()
    goal = given.get("tune_goal", default.goal)
    if goal not in GOALS:
        raise TuningError(f"tune_goal is {goal}: give generation, prompt or balanced.")
    sizes = {
        name: _numbers(f"tune_{name}", given.get(f"tune_{name}", getattr(default, name)), 1, 65536, "[64, 128]")
        for name in ("ubatch_sizes", "batch_sizes")
    }
    threads = given.get("tune_threads")
    config, _rest = options_of(
        _listed("inference_extra_args", given.get("extra_args", ()), "[--check-tensors]"), bool(given.get("old"))
    )
    settings = Settings(
        goal=goal,
        n_prompt=_number("tune_n_prompt", given.get("tune_n_prompt", default.n_prompt), 1, 1_000_000),
        n_gen=_number("tune_n_gen", given.get("tune_n_gen", default.n_gen), 1, 1_000_000),
        # With one there is no spread.
        repetitions=_number("tune_repetitions", given.get("tune_repetitions", default.repetitions), 2, 100),
        time_limit_s=_number("tune_time_limit", given.get("tune_time_limit", default.time_limit_s), 1, 604800),
        shorten=_flag("tune_shorten", given.get("tune_shorten", False)),
        flash_attn=_words("tune_flash_attn", given.get("tune_flash_attn", default.flash_attn), ("on", "off")),
        split_modes=_words("tune_split_modes", given.get("tune_split_modes", default.split_modes), default.split_modes),
        cache_types=_words("tune_cache_types", given.get("tune_cache_types", ()), CACHE_TYPES),
        tensor_split=_flag("tune_tensor_split", given.get("tune_tensor_split", True)),
        worker_threads=_flag("tune_worker_threads", given.get("tune_worker_threads", False)),
        threads=None if threads is None else _numbers("tune_threads", threads, 1, 512, "[4, 8]"),
        workers=tuple(given.get("workers", ())),
        threads_now=tuple(given.get("threads_now", ())),
        usable_cores=tuple(given.get("usable_cores", ())),
        threads_problem=str(given.get("threads_problem", "")),
        fits_alone=tuple(given.get("fits_alone", ())),
        layers=tuple(given.get("layers", ())),
        start=replace(config, tensor_split=tuple(float(share) for share in given.get("tensor_split", ()))),
        **sizes,
    )
    if _flag("tune_apply", given.get("tune_apply", False)) and not settings.worker_threads:
        raise TuningError(
            "tune_apply is true, and only threads of workers can be applied: set tune_worker_threads too."
        )
    least = min(settings.usable_cores, default=512)
    for count in settings.threads or ():
        if settings.worker_threads and count > least:
            raise TuningError(
                f"tune_threads holds {count}, and there is a worker with {least} usable cores: more threads than cores "
                f"are slower, so give at most {least}."
            )
    return settings


# The search


def gain(goal: str, candidate: Measured, other: Measured) -> float:
    """Return by what factor a candidate is quicker; what was not measured of it is as with the other."""
    product = 1.0
    for exponent, now, before in _pairs(goal, candidate, other):
        product *= (now.mean / before.mean) ** exponent
    return product


def margin(goal: str, candidate: Measured, other: Measured) -> float:
    """Return the gain that could be chance: the spread of both, each as a part of its mean."""
    return max(
        LEAST_GAIN,
        sum(
            exponent * (now.stddev / now.mean + before.stddev / before.mean)
            for exponent, now, before in _pairs(goal, candidate, other)
        ),
    )


def beats(goal: str, candidate: Measured, other: Measured) -> bool:
    """Whether a candidate is quicker by more than what could be chance."""
    return gain(goal, candidate, other) - 1 > margin(goal, candidate, other)


def _pairs(goal: str, candidate: Measured, other: Measured) -> Iterable[tuple[float, Rate, Rate]]:
    now, before = candidate.config, other.config
    # Batches are of prompts: a difference of generation would be chance.
    alike = now != before and replace(now, batch_size=0, ubatch_size=0) == replace(before, batch_size=0, ubatch_size=0)
    prompt, generation = GOALS[goal]
    if prompt and candidate.prompt and other.prompt:
        yield prompt, candidate.prompt, other.prompt
    if generation and candidate.generation and other.generation and not alike:
        yield generation, candidate.generation, other.generation


def speeds_from_shifts(layers: Sequence[int], before_s: float, shifted: Sequence[tuple[int, float]]) -> list[float]:
    """Return each worker's layers per second, from the time of a token with the present split and with others.

    A token takes the sum of what each worker takes for its layers. In run i, worker i gives `shifted[i][0]` of its
    layers to the last one. Raises TuningError where the figures allow no answer.
    """
    more = [(before_s - after_s) / moved for moved, after_s in shifted]
    last = (before_s - sum(count * extra for count, extra in zip(layers, more))) / sum(layers)
    costs = [last + extra for extra in more] + [last]
    if min(costs) <= 0:
        raise TuningError("the differences of the runs are within their spread")
    return [1 / cost for cost in costs]


def flash_attn_needed(config: Config) -> str:
    """Return what of a configuration needs flash attention, as a reason; empty if nothing does.

    src/llama-context.cpp, llama_init_from_model: "SPLIT_MODE_TENSOR requires flash_attn to be enabled", "quantized V
    cache requires flash_attn to be enabled".
    """
    if config.split_mode == "tensor":
        return "split mode tensor needs it"
    return "" if config.cache_type_v in FLOATING else "quantised values of the cache need it"


class Sweep:
    """One sweep. `steps` asks for runs; the rest is what is known by then."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.goal = settings.goal
        self.start: Measured | None = None
        self.again: Measured | None = None
        self.best = Measured(settings.start, None, None)
        self.confirmed: Measured | None = None
        self.runs: list[tuple[Run, Outcome]] = []
        self.left_out: dict[str, str] = {}
        self.notes: list[str] = []
        self.estimate_s: float | None = None
        self.refusal = ""
        self.threads: int | None = None
        self.stages = self._stages()

    # Which stages there are, and what they cost

    def _stages(self) -> list[str]:
        """Return the stages with something to try, by importance; why the others have nothing is in `left_out`."""
        settings, start = self.settings, self.settings.start
        without = {
            "ubatch_size": "" if len(self.ubatch_sizes(start.batch_size)) > 1 else "there is one size alone",
            "worker_threads": ""
            if settings.worker_threads
            else settings.threads_problem or "workers are not started anew unless told so",
            "split_mode": "" if self.split_modes() else "there is no other to try",
            "tensor_split": "" if settings.tensor_split else "it was not asked for",
            "flash_attn": self.no_flash_attn(settings.start),
            "cache_type": ""
            if self.cache_types(settings.start)
            else "they change what the model says, and were not asked for",
            "batch_size": "" if len(self.batch_sizes()) > 1 else "there is one size alone",
        }
        if self.goal == "generation":
            without.update(dict.fromkeys(("ubatch_size", "batch_size"), "it does not change generation"))
        if settings.workers and len(settings.workers) == 1:
            without.update(dict.fromkeys(("split_mode", "tensor_split"), "there is one worker alone"))
        elif settings.workers and settings.tensor_split and not settings.fits_alone:
            without["tensor_split"] = "what fits where is not known"
        if settings.worker_threads and settings.usable_cores and not self.thread_counts():
            without["worker_threads"] = "there is no other number to try"
        self.left_out = {name: why for name, why in without.items() if why}
        return [name for name in STAGES if name not in self.left_out]

    def ubatch_sizes(self, batch_size: int) -> tuple[int, ...]:
        """Return the physical batches to measure, the present one among them."""
        most = min(batch_size, self.settings.n_prompt)
        # Beyond the prompt all are alike.
        sizes = {min(size, most) for size in (*self.settings.ubatch_sizes, self.settings.start.ubatch_size)}
        return tuple(sorted(sizes)) if self.settings.ubatch_sizes else ()

    def batch_sizes(self) -> tuple[int, ...]:
        """Return the logical batches to measure, the present one among them."""
        sizes = {
            min(size, self.settings.n_prompt) for size in (*self.settings.batch_sizes, self.best.config.batch_size)
        }
        low = min(self.best.config.ubatch_size, self.settings.n_prompt)
        return tuple(sorted(size for size in sizes if size >= low)) if self.settings.batch_sizes else ()

    def split_modes(self) -> list[str]:
        """Return the split modes to try."""
        return [mode for mode in self.settings.split_modes if mode != self.settings.start.split_mode]

    def flash_attn(self, config: Config) -> list[str]:
        """Return what to try of flash attention; left to itself, it is on with CPU workers."""
        now = "on" if config.flash_attn == "auto" else config.flash_attn
        needed = flash_attn_needed(config)
        return [value for value in self.settings.flash_attn if value != now and not (needed and value == "off")]

    def no_flash_attn(self, config: Config) -> str:
        """Return why there is nothing to try of flash attention; empty if there is something."""
        if self.flash_attn(config):
            return ""
        needed = flash_attn_needed(config) if "off" in self.settings.flash_attn else ""
        return needed or "there is no other value to try"

    def cache_types(self, config: Config) -> list[str]:
        """Return the cache types to try, for keys and values alike."""
        return [
            kind for kind in self.settings.cache_types if (kind, kind) != (config.cache_type_k, config.cache_type_v)
        ]

    def thread_counts(self) -> list[int]:
        """Return the numbers of threads to try, alike on all workers."""
        cores = min(self.settings.usable_cores, default=1)
        wanted = self.settings.threads
        if wanted is None:
            wanted = tuple(sorted({max(1, cores // 2), max(1, cores - 1), cores}))
        return [count for count in wanted if {count} != set(self.settings.threads_now)]

    def counts(self, name: str) -> tuple[int, int]:
        """Return how many runs a stage takes at most, and how many tests of each kind are in all of them."""
        settings, workers = self.settings, max(2, len(self.settings.workers))
        if name == "ubatch_size":
            return 1, len(self.ubatch_sizes(settings.start.batch_size))
        if name == "batch_size":
            return 1, len(self.batch_sizes())
        if name == "split_mode":
            return len(self.split_modes()), 2 * len(self.split_modes())
        if name == "tensor_split":
            alone = workers if all(settings.fits_alone) else workers - 1
            return alone + 1, alone + 1
        if name == "flash_attn":
            return (self._most_of(self.flash_attn),) * 2
        if name == "cache_type":
            return (self._most_of(self.cache_types),) * 2
        if name == "worker_threads":
            counts = len(self.thread_counts()) if settings.usable_cores else 3
            return counts + 1, counts + 1
        # The start, and both once more.
        return 2, 2

    def _most_of(self, values: Callable[[Config], list[str]]) -> int:
        """Return how many values there are to try, also after one of them has won and is not to be tried any more."""
        return max(len(values(config)) for config in (self.settings.start, self.best.config))

    def sizes_of_mode(self) -> tuple[int, ...]:
        """Return the physical batches that are measured anew if another split mode wins and there is time left."""
        wanted = "ubatch_size" in self.stages and bool(self.split_modes())
        return self.ubatch_sizes(self.settings.start.batch_size) if wanted else ()

    def most(self, name: str) -> tuple[int, int]:
        """Return how many runs and tests a stage takes if there is time left for more than it must."""
        runs, tests = self.counts(name)
        sizes = len(self.sizes_of_mode()) if name == "split_mode" else 0
        return (runs + len(self.split_modes()), tests + len(self.split_modes()) * sizes) if sizes else (runs, tests)

    def _metrics(self, name: str) -> tuple[bool, bool]:
        """Return whether a stage measures prompt and generation: what counts for the goal, and can change."""
        prompt, generation = (exponent > 0 for exponent in GOALS[self.goal])
        if name in ("ubatch_size", "batch_size"):
            return True, False
        return (True, True) if name in ("start", "again") else (prompt, generation)

    def _test_s(self, name: str) -> float:
        """Return how long one test of a stage takes, warm-up included."""
        start = self.start or self.best
        if start.prompt is None or start.generation is None:
            return 0.0
        prompt, generation = self._metrics(name)
        tokens = (
            (self.settings.repetitions + 1) * self.settings.n_prompt,
            self.settings.repetitions * self.settings.n_gen + 1,
        )
        return prompt * tokens[0] / start.prompt.mean + generation * tokens[1] / start.generation.mean

    def _load_s(self) -> float:
        """Return what a run takes beside its tests."""
        return RUN_S + max(0.0, self.runs[0][1].wall_s - self._test_s("again"))

    def cost_s(self, name: str) -> float:
        """Return how long a stage will take, by what the first run took."""
        runs, tests = self.counts(name)
        restarts = runs * RESTART_S if name == "worker_threads" else 0
        return runs * self._load_s() + tests * self._test_s(name) + restarts

    def _budget(self) -> None:
        """Refuse what takes too long, or leave out what is least important of it."""
        limit = self.settings.time_limit_s
        spent = self.runs[0][1].elapsed_s + self.cost_s("again")
        total = spent + sum(map(self.cost_s, self.stages))
        self.estimate_s = total
        if total <= limit:
            return
        kept: list[str] = []
        for name in self.stages:
            if spent + self.cost_s(name) <= limit:
                spent += self.cost_s(name)
                kept.append(name)
        if not self.settings.shorten or not kept:
            way = "raise it, take fewer tokens (tune_n_prompt, tune_n_gen) or repetitions"
            if kept:
                gone = ", ".join(STAGES[name] for name in self.stages if name not in kept)
                way += f", or set tune_shorten to leave out what does not fit ({gone})"
            self.refusal = (
                f"The sweep would take about {math.ceil(total)} s, by what its first run took, and tune_time_limit is "
                f"{limit} s: {way}; nothing was changed."
            )
            return
        for name in self.stages:
            if name not in kept:
                self.left_out[name] = f"with it the sweep would have taken {math.ceil(total)} s, of {limit} s"
        self.stages = kept
        self.estimate_s = spent

    # The runs

    def steps(self) -> Generator[Run, Outcome, None]:
        """Ask for one run after the other."""
        outcome = yield from self._measure(self._run("start", "as it is now", self.best.config))
        if outcome.failure or not outcome.measured:
            self.refusal = outcome.failure or "The first run gave no figures."
            return
        self.start = self.best = outcome.measured[0]
        self._budget()
        if self.refusal:
            return
        for name in self.stages:
            if name != "worker_threads":
                yield from getattr(self, f"_try_{name}")()
        yield from self._confirm()
        if "worker_threads" in self.stages:
            yield from self._try_worker_threads()

    def _measure(self, run: Run) -> Generator[Run, Outcome, Outcome]:
        outcome = yield run
        self.runs.append((run, outcome))
        return outcome

    def _in_time(self, name: str) -> bool:
        """Whether another run fits, with what must come after it; if not, it is noted."""
        if not self.runs or self.estimate_s is None:
            return True
        after = self.cost_s("again") if name != "worker_threads" else 0.0
        if name != "worker_threads" and "worker_threads" in self.stages:
            after += self.cost_s("worker_threads")
        if self.runs[-1][1].elapsed_s + self._load_s() + self._test_s(name) + after <= self.settings.time_limit_s:
            return True
        self.notes.append(
            f"The {STAGES[name]} was not tried to its end, since the runs took longer than the first one."
        )
        return False

    def _judge(self, candidates: Iterable[Measured]) -> None:
        """Keep the quickest, if it is quicker than the best so far by more than what could be chance."""
        found = [candidate for candidate in candidates if any(_pairs(self.goal, candidate, self.best))]
        if not found:
            return
        first = max(found, key=lambda candidate: gain(self.goal, candidate, self.best))
        if beats(self.goal, first, self.best):
            self.best = Measured(
                first.config, first.prompt or self.best.prompt, first.generation or self.best.generation
            )

    def _run(self, name: str, title: str, config: Config) -> Run:
        """Return a run of a stage over all workers."""
        prompt, generation = self._metrics(name)
        return Run(name, title, config, self.settings.workers, prompt=prompt, generation=generation)

    def _try(self, run: Run) -> Generator[Run, Outcome, Outcome | None]:
        """Measure; None if there is no time, or if it cannot run, which is noted."""
        if not self._in_time(run.stage):
            return None
        outcome = yield from self._measure(run)
        if outcome.failure:
            self.notes.append(f"{run.title[0].upper()}{run.title[1:]} cannot be used: {outcome.failure}")
            return None
        return outcome

    def _try_sizes(self, name: str, sizes: tuple[int, ...]) -> Generator[Run, Outcome, None]:
        title = f"{STAGES[name]} of {', '.join(map(str, sizes))}"
        run = self._run(name, title, self.best.config)
        run = replace(run, ubatch_sizes=sizes) if name == "ubatch_size" else replace(run, batch_sizes=sizes)
        outcome = yield from self._try(run)
        if outcome is None:
            return
        now = min(getattr(self.best.config, name), max(sizes))
        for measured in outcome.measured:
            # The present one was measured beside the others, which is the fairer figure.
            if getattr(measured.config, name) == now:
                self.best = replace(self.best, prompt=measured.prompt)
        self._judge(measured for measured in outcome.measured if getattr(measured.config, name) != now)

    def _try_ubatch_size(self) -> Generator[Run, Outcome, None]:
        yield from self._try_sizes("ubatch_size", self.ubatch_sizes(self.best.config.batch_size))

    def _try_batch_size(self) -> Generator[Run, Outcome, None]:
        yield from self._try_sizes("batch_size", self.batch_sizes())

    def _try_split_mode(self) -> Generator[Run, Outcome, None]:
        for mode in self.split_modes():
            # The shares of layers mean nothing to the other mode, and what is a good physical batch for one need not
            # be one for the other: the two that are known decide whether it is worth a search.
            config = replace(self.best.config, split_mode=mode, tensor_split=())
            if config.flash_attn == "off" and flash_attn_needed(config):
                config = replace(config, flash_attn="on")
            sizes = tuple(sorted({self.best.config.ubatch_size, self.settings.start.ubatch_size}))
            outcome = yield from self._try(
                replace(self._run("split_mode", f"split mode {mode}", config), ubatch_sizes=sizes)
            )
            self._judge(outcome.measured if outcome else ())
            if self.best.config.split_mode == mode and self.sizes_of_mode():
                yield from self._try_sizes_of_mode(mode)

    def _try_sizes_of_mode(self, mode: str) -> Generator[Run, Outcome, None]:
        """Search the physical batch of a split mode that won: no part of the estimate, as most often none wins."""
        after = [name for name in self.stages if name not in ("ubatch_size", "split_mode")]
        if mode != "layer" and "tensor_split" in after:
            after.remove("tensor_split")
        needed = self._load_s() + len(self.sizes_of_mode()) * self._test_s("ubatch_size")
        needed += sum(map(self.cost_s, [*after, "again"]))
        if self.runs[-1][1].elapsed_s + needed <= self.settings.time_limit_s:
            yield from self._try_ubatch_size()
        else:
            self.notes.append(f"The physical batch was not searched anew with split mode {mode}, for want of time.")

    def _try_flash_attn(self) -> Generator[Run, Outcome, None]:
        why = self.no_flash_attn(self.best.config)
        if why:
            self.left_out["flash_attn"] = why
        for value in self.flash_attn(self.best.config):
            config = replace(self.best.config, flash_attn=value)
            outcome = yield from self._try(self._run("flash_attn", f"flash attention {value}", config))
            self._judge(outcome.measured if outcome else ())

    def _try_cache_type(self) -> Generator[Run, Outcome, None]:
        for kind in self.cache_types(self.best.config):
            config = replace(self.best.config, cache_type_k=kind, cache_type_v=kind)
            if flash_attn_needed(config):
                config = replace(config, flash_attn="on")
            outcome = yield from self._try(self._run("cache_type", f"cache type {kind}", config))
            self._judge(outcome.measured if outcome else ())

    def _try_tensor_split(self) -> Generator[Run, Outcome, None]:
        if self.best.config.split_mode != "layer":
            self.left_out["tensor_split"] = "it is planned for split mode layer alone"
            return
        try:
            speeds = yield from (self._speeds_alone() if all(self.settings.fits_alone) else self._speeds_shifted())
        except TuningError as reason:
            self.notes.append(f"The speed of each worker is not known: {reason}.")
            return
        if not speeds:
            return
        shown = " : ".join(f"{speed / max(speeds):.2f}" for speed in speeds)
        if max(speeds) / min(speeds) - 1 <= LEAST_GAIN:
            self.notes.append(f"The workers are equally quick ({shown}).")
            return
        outcome = yield from self._try(
            replace(
                self._run("tensor_split", f"tensor split by speed, {shown}", self.best.config), weights=tuple(speeds)
            )
        )
        self._judge(outcome.measured if outcome else ())

    def _speeds_alone(self) -> Generator[Run, Outcome, list[float]]:
        """Measure each worker with the whole model."""
        speeds: list[float] = []
        first: Measured | None = None
        for worker in self.settings.workers:
            config = replace(self.best.config, tensor_split=())
            outcome = yield from self._try(
                replace(self._run("tensor_split", f"worker {worker} alone", config), workers=(worker,))
            )
            if outcome is None or not outcome.measured:
                return []
            measured = outcome.measured[0]
            first = first or measured
            speeds.append(gain(self.goal, measured, first))
        return speeds

    def _speeds_shifted(self) -> Generator[Run, Outcome, list[float]]:
        """Take layers from one worker after the other, where none can hold all of them."""
        layers = self.settings.layers
        shifted: list[tuple[int, float]] = []
        for index in range(len(layers) - 1):
            moved = max(1, layers[index] // SHIFTED)
            if layers[index] <= moved:
                raise TuningError(f"worker {self.settings.workers[index]} has no layers to spare")
            split = [float(count) for count in layers]
            split[index] -= moved
            # The output is on the last worker, and counts as one more layer.
            split[-1] += moved + 1
            config = replace(self.best.config, tensor_split=tuple(split))
            title = f"worker {self.settings.workers[index]} with {moved} layers fewer"
            outcome = yield from self._try(self._run("tensor_split", title, config))
            if outcome is None or not outcome.measured:
                return []
            shifted.append((moved, 1 / gain(self.goal, outcome.measured[0], self.best)))
        return speeds_from_shifts(layers, 1.0, shifted)

    def _confirm(self) -> Generator[Run, Outcome, None]:
        """Measure what won as a whole, then the start once more; without an advantage over both the start is kept.

        A cluster that becomes quicker or slower meanwhile, by itself, does so on one of both sides.
        """
        first, won = self.start or self.best, self.best.config
        self.best = first
        if won != first.config:
            outcome = yield from self._measure(self._run("again", "what won, as a whole", won))
            self.confirmed = outcome.measured[0] if outcome.measured else None
            if outcome.failure or self.confirmed is None:
                self.notes.append(f"What won in parts cannot be used as a whole: {outcome.failure}")
        outcome = yield from self._measure(self._run("again", "as it was, once more", first.config))
        if outcome.failure or not outcome.measured:
            self.notes.append(f"Nothing is certain, since the first run could not be repeated: {outcome.failure}")
            return
        self.again = outcome.measured[0]
        if self.confirmed is None:
            return
        if beats(self.goal, self.confirmed, first) and beats(self.goal, self.confirmed, self.again):
            self.best = self.confirmed
        else:
            self.notes.append("What won in parts is as a whole not quicker than before by more than the spread.")

    def _try_worker_threads(self) -> Generator[Run, Outcome, None]:
        """Start the workers with other threads, at last with those that they had: the best must beat both ends."""
        before, config = self.best, self.best.config
        found: list[Measured] = []
        for count in self.thread_counts():
            title = f"workers with {count} thread{'s' if count > 1 else ''}"
            run = self._run("worker_threads", title, replace(config, worker_threads=count))
            outcome = yield from self._try(replace(run, restarts=True))
            found.extend(outcome.measured if outcome else ())
        if not found:
            return
        run = self._run("worker_threads", "workers with the threads that they had", config)
        outcome = yield from self._measure(replace(run, restarts=True))
        if outcome.failure or not outcome.measured:
            self.notes.append(f"No number of threads is better for certain: {outcome.failure}")
            return
        after = outcome.measured[0]
        first = max(found, key=lambda candidate: gain(self.goal, candidate, before))
        if beats(self.goal, first, before) and beats(self.goal, first, after):
            self.best = first
            self.threads = first.config.worker_threads

    def patience_s(self, run: Run) -> int:
        """Return after how many seconds a run is ended."""
        limit = self.settings.time_limit_s
        if not self.runs or self.start is None:
            return limit
        expected = self._load_s() + run.tests * self._test_s("again")
        remaining = limit - self.runs[-1][1].elapsed_s
        return max(1, math.ceil(min(remaining, max(LEAST_PATIENCE_S, PATIENCE * expected))))


# Records of runs, as a playbook keeps them


def _rate(test: Mapping[str, Any]) -> Rate:
    rate = test["tokens_per_second"]
    return Rate(float(rate["mean"]), float(rate["stddev"] or 0.0))


def _outcome(run: Run, record: Mapping[str, Any]) -> Outcome:
    split = tuple(float(share) for share in record.get("tensor_split") or run.config.tensor_split)
    by_size: dict[tuple[int, int], dict[str, Rate]] = {}
    for test in record.get("tests") or ():
        by_size.setdefault((test["batch_size"], test["ubatch_size"]), {})[test["kind"]] = _rate(test)
    measured = tuple(
        Measured(
            replace(
                run.config,
                tensor_split=split,
                batch_size=batch if run.batch_sizes else run.config.batch_size,
                ubatch_size=ubatch if run.ubatch_sizes else run.config.ubatch_size,
            ),
            rates.get("prompt"),
            rates.get("generation"),
        )
        for (batch, ubatch), rates in by_size.items()
    )
    return Outcome(
        measured,
        record.get("failure") or None,
        float(record.get("wall_time_ms") or 0.0) / 1000,
        float(record.get("elapsed_s") or 0.0),
    )


def replay(settings: Settings, records: Sequence[Mapping[str, Any]]) -> tuple[Sweep, Run | None]:
    """Return the sweep after these records, and its next run."""
    sweep = Sweep(settings)
    steps = sweep.steps()
    try:
        run = next(steps)
        for record in records:
            run = steps.send(_outcome(run, record))
    except StopIteration:
        return sweep, None
    return sweep, run


def run_dict(sweep: Sweep, run: Run) -> dict[str, Any]:
    """Return a run as arguments of llama_bench and what else it takes."""
    settings, config = sweep.settings, run.config
    return {
        "stage": run.stage,
        "title": run.title,
        "workers": list(run.workers),
        "n_prompt": [settings.n_prompt] if run.prompt else [],
        "n_gen": [settings.n_gen] if run.generation else [],
        "batch_size": list(run.batch_sizes or (config.batch_size,)),
        "ubatch_size": list(run.ubatch_sizes or (config.ubatch_size,)),
        # Old builds do not know auto.
        "flash_attn": None if config.flash_attn == "auto" else config.flash_attn,
        "cache_type_k": config.cache_type_k,
        "cache_type_v": config.cache_type_v,
        "split_mode": config.split_mode,
        "tensor_split": list(config.tensor_split),
        "weights": list(run.weights),
        "worker_threads": config.worker_threads,
        "restarts": run.restarts,
        "timeout_s": sweep.patience_s(run),
    }


# The result


def _percent(factor: float) -> str:
    return f"{abs(factor - 1):.0%} {'more' if factor >= 1 else 'less'}"


def _shares(split: Sequence[float]) -> str:
    return " : ".join(f"{share:g}" for share in split)


def _shown(rate: Rate | None) -> str:
    return "not measured" if rate is None else f"{rate.mean:.1f} ± {rate.stddev:.1f}"


def summary(sweep: Sweep) -> str:
    """Return the outcome in a sentence."""
    start, best = sweep.start, sweep.best
    if start is None or start.prompt is None or start.generation is None:
        return sweep.refusal or "Nothing was measured yet."
    changes = changed(sweep)
    if not changes:
        return (
            f"Nothing was quicker than what there is by more than the spread (prompt {_shown(start.prompt)}, "
            f"generation {_shown(start.generation)} tokens per second)."
        )
    parts = []
    for name, now, before in (
        ("prompt", best.prompt, start.prompt),
        ("generation", best.generation, start.generation),
    ):
        if now is not None:
            factor = now.mean / before.mean
            parts.append(f"{name} {before.mean:.1f} → {now.mean:.1f} tokens per second ({_percent(factor)})")
    return f"{', '.join(changes)}: {', '.join(parts)}."


def changed(sweep: Sweep) -> list[str]:
    """Return what the winner has otherwise than the start, in words."""
    start, best = sweep.settings.start.as_dict(), sweep.best.config.as_dict()
    return [
        f"{name} {_shares(value) if isinstance(value, list) else value}"
        for name, value in best.items()
        if value != start[name] and not (name == "tensor_split" and not value)
    ]


def arguments(config: Config, rest: Sequence[str], old: bool) -> list[str]:
    """Return options of llama.cpp for a configuration, without those that are upstream's defaults."""
    default = Config()
    words = list(rest)
    for name, option in (
        ("batch_size", "--batch-size"),
        ("ubatch_size", "--ubatch-size"),
        ("cache_type_k", "--cache-type-k"),
        ("cache_type_v", "--cache-type-v"),
        ("split_mode", "--split-mode"),
    ):
        if getattr(config, name) != getattr(default, name):
            words += [option, str(getattr(config, name))]
    if old:
        words += ["--flash-attn"] if config.flash_attn == "on" else []
    elif config.flash_attn != default.flash_attn:
        words += ["--flash-attn", config.flash_attn]
    return words


def variables(sweep: Sweep, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables with which the roles do what won."""
    config = sweep.best.config
    _now, rest = options_of(given.get("extra_args", ()), bool(given.get("old")))
    found: dict[str, Any] = {"inference_extra_args": arguments(config, rest, bool(given.get("old")))}
    # Without a share of its own, the split is planned before each load.
    planned = config.tensor_split == sweep.settings.start.tensor_split and not given.get("tensor_split_given")
    found["inference_tensor_split"] = [] if planned else [int(x) if x == int(x) else x for x in config.tensor_split]
    if sweep.threads is not None:
        found["rpc_server_threads"] = sweep.threads
    return found


def _quoted(value: object) -> str:
    """Return a value as YAML, and text always in quotes: on and off are none otherwise."""
    if isinstance(value, list):
        return f"[{', '.join(map(_quoted, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, int) else _text(value)


def _text(value: object) -> str:
    shown = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isascii() and c.isprintable() else f"\\U{ord(c):08x}" for c in shown) + '"'


def _comment(text: str) -> str:
    """Return text that cannot leave its comment."""
    return "# " + " ".join("".join(c if c.isprintable() else " " for c in text).split())


def render(sweep: Sweep, given: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Return the file of variables: figures as comments, what won as YAML."""
    settings = sweep.settings
    build, model = about.get("build") or {}, about.get("model") or {}
    prompt, generation = GOALS[settings.goal]
    lines = [
        _comment(f"Written by playbook llama_cpp.cluster.tune on {about.get('time', '')}; the next sweep replaces it."),
        _comment(summary(sweep)),
        "#",
        _comment(f"Build: {build.get('version') or 'llama.cpp'}, commit {build.get('commit') or 'unknown'}"),
        _comment(f"Model: {model.get('type') or 'unknown'}, {model.get('path') or ''}"),
        _comment(f"Workers: {', '.join(settings.workers)}"),
        _comment(
            f"Goal: {settings.goal} (prompt counts {prompt:g}, generation {generation:g}); {settings.n_prompt} tokens "
            f"read, {settings.n_gen} generated, {settings.repetitions} times each"
        ),
    ]
    drift = drift_percent(sweep)
    if drift is not None:
        way = "quicker" if drift >= 0 else "slower"
        lines.append(
            _comment(f"Drift: at the end, what there was before was {abs(drift):.1f} % {way} than at the start")
        )
    lines += ["#", _comment("What was tried, in tokens per second:")]
    for run, outcome in sweep.runs:
        if outcome.failure or not outcome.measured:
            lines.append(_comment(f"- {run.title}: {outcome.failure or 'it is what there is'}"))
        for measured in outcome.measured:
            size = "".join(
                f", {name} {getattr(measured.config, name)}"
                for name, sizes in (("ubatch_size", run.ubatch_sizes), ("batch_size", run.batch_sizes))
                if sizes
            )
            title = run.title
            if run.stage in ("ubatch_size", "batch_size"):
                other = run.config.split_mode if run.config.split_mode != settings.start.split_mode else ""
                title = STAGES[run.stage] + (f" with split mode {other}" if other else "")
            if run.weights:
                title += f" ({_shares(measured.config.tensor_split)})"
            rates = [("prompt", measured.prompt), ("generation", measured.generation)]
            shown = ", ".join(f"{name} {_shown(rate)}" for name, rate in rates if rate is not None)
            lines.append(_comment(f"- {title}{size}: {shown}"))
    lines += [_comment(f"- not tried, {STAGES[name]}: {why}") for name, why in sweep.left_out.items()]
    lines += [_comment(f"- {note}") for note in sweep.notes]
    lines.append("---")
    lines += [f"{name}: {_quoted(value)}" for name, value in variables(sweep, given).items()]
    return "\n".join(lines) + "\n"


def drift_percent(sweep: Sweep) -> float | None:
    """Return by how many percent the same configuration was quicker at the end than at the start."""
    if sweep.start is None or sweep.again is None:
        return None
    return round(100 * (gain(sweep.goal, sweep.again, sweep.start) - 1), 2)


def _measured_dict(measured: Measured | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    return {
        "options": measured.config.as_dict(),
        "prompt": measured.prompt._asdict() if measured.prompt else None,
        "generation": measured.generation._asdict() if measured.generation else None,
    }


def figures(
    sweep: Sweep, given: Mapping[str, Any], records: Sequence[Mapping[str, Any]], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything as data."""
    settings = sweep.settings
    prompt, generation = GOALS[settings.goal]
    return {
        "schema_version": SCHEMA_VERSION,
        **about,
        "workers": list(settings.workers),
        "goal": {"name": settings.goal, "prompt": prompt, "generation": generation},
        "n_prompt": settings.n_prompt,
        "n_gen": settings.n_gen,
        "repetitions": settings.repetitions,
        "time_limit_s": settings.time_limit_s,
        "estimate_s": sweep.estimate_s,
        "start": _measured_dict(sweep.start),
        "again": _measured_dict(sweep.again),
        "winner": _measured_dict(sweep.best),
        "drift_percent": drift_percent(sweep),
        "summary": summary(sweep),
        "left_out": {STAGES[name]: why for name, why in sweep.left_out.items()},
        "notes": sweep.notes,
        "variables": variables(sweep, given),
        "runs": list(records),
    }


def advice(given: Mapping[str, Any], records: Sequence[Mapping[str, Any]], time: str = "") -> dict[str, Any]:
    """Return what is to be measured next, and all that is known by now; raises TuningError for what is asked for."""
    settings = settings_of(given)
    sweep, run = replay(settings, records)
    first = records[0] if records else {}
    about = {"time": time, "build": first.get("build"), "model": first.get("model")}
    stages = [*(name for name in sweep.stages if name != "worker_threads"), "again"]
    if "worker_threads" in sweep.stages:
        stages.append("worker_threads")
    plan = [
        {
            "stage": name,
            "title": STAGES.get(name, "what there is and what won, once more"),
            "runs": sweep.most(name)[0],
            "tests": sweep.most(name)[1],
        }
        for name in stages
    ]
    done = run is None and bool(records)
    return {
        "next": None if run is None or sweep.refusal else run_dict(sweep, run),
        "refusal": sweep.refusal,
        "stages": plan,
        "runs_at_most": 1 + sum(sweep.most(name)[0] for name in stages),
        "estimate_s": sweep.estimate_s,
        "left_out": [f"{STAGES[name]}: {why}" for name, why in sweep.left_out.items()],
        "notes": sweep.notes,
        "worker_threads": sweep.threads,
        "summary": summary(sweep),
        "variables": render(sweep, given, about) if done and not sweep.refusal else "",
        "figures": figures(sweep, given, records, about) if done and not sweep.refusal else {},
    }
