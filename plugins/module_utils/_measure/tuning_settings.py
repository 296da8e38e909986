# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: what a sweep for the quickest options is asked for: which options to try, on what, how long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Mapping, Sequence

from .bench import CACHE_TYPES

# How much prompt and generation count, as exponents: what is compared is the product of both gains.
GOALS = {"generation": (0.0, 1.0), "prompt": (1.0, 0.0), "balanced": (0.5, 0.5)}
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


@dataclass(frozen=True)
class Settings:
    """What to try, on what."""

    goal: str = "balanced"
    n_prompt: int = 1024
    n_gen: int = 32
    repetitions: int = 3
    # In seconds.
    time_limit: int = 1800
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

    def asked(read: Callable[..., Any], name: str, *limits: object) -> Any:  # noqa: ANN401 - what `read` returns
        return read(f"tune_{name}", given.get(f"tune_{name}", getattr(default, name)), *limits)

    known = ("workers", "threads_now", "usable_cores", "fits_alone", "layers")
    config, _rest = options_of(
        _listed("inference_extra_args", given.get("extra_args", ()), "[--check-tensors]"), bool(given.get("old"))
    )
    settings = Settings(
        goal=goal,
        n_prompt=asked(_number, "n_prompt", 1, 1_000_000),
        n_gen=asked(_number, "n_gen", 1, 1_000_000),
        # With one there is no spread.
        repetitions=asked(_number, "repetitions", 2, 100),
        time_limit=asked(_number, "time_limit", 1, 604800),
        shorten=asked(_flag, "shorten"),
        ubatch_sizes=asked(_numbers, "ubatch_sizes", 1, 65536, "[64, 128]"),
        batch_sizes=asked(_numbers, "batch_sizes", 1, 65536, "[64, 128]"),
        flash_attn=asked(_words, "flash_attn", ("on", "off")),
        split_modes=asked(_words, "split_modes", default.split_modes),
        cache_types=asked(_words, "cache_types", CACHE_TYPES),
        tensor_split=asked(_flag, "tensor_split"),
        worker_threads=asked(_flag, "worker_threads"),
        threads=None if given.get("tune_threads") is None else asked(_numbers, "threads", 1, 512, "[4, 8]"),
        threads_problem=str(given.get("threads_problem", "")),
        start=replace(config, tensor_split=tuple(float(share) for share in given.get("tensor_split", ()))),
        **{name: tuple(given.get(name, ())) for name in known},
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
