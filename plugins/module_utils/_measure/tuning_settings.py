# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the settings of a sweep for the fastest options: the values to try, the load and the time limit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Mapping, Sequence

from .._serve.options import refusals
from .bench import CACHE_TYPES

# The weights of prompt and generation, as exponents: a sweep compares the product of both gains. The goal serving
# compares another figure: the tokens of all clients.
SERVING = "serving"
GOALS = {"generation": (0.0, 1.0), "prompt": (1.0, 0.0), "balanced": (0.5, 0.5), SERVING: (0.0, 0.0)}
# The stages by importance: if time is short, the sweep leaves out the last ones first. It also runs them in this order,
# except for the threads: it tries these last, with all winners, so that workers restart only then.
STAGES = {
    "ubatch_size": "physical batch",
    "worker_threads": "threads of the workers",
    "split_mode": "split mode",
    "tensor_split": "tensor split by speed",
    "flash_attn": "flash attention",
    "cache_type": "cache types",
    "batch_size": "logical batch",
}
# The stages of the goal serving, in the same way. Each value is measured with its own server.
SERVING_STAGES = {
    "split_mode": "split mode",
    "kv_unified": "unified KV cache",
    "ubatch_size": "physical batch",
    "parallel": "slots",
    "speculation": "speculation",
}
TITLES = {**SERVING_STAGES, **STAGES}
# The tuned options, by their names in llama.cpp (common/arg.cpp).
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
# Options of llama-server, which only the goal serving measures.
KV_UNIFIED = {"-kvu": True, "--kv-unified": True, "-no-kvu": False, "--no-kv-unified": False}
# common/speculative.cpp: drafts from n-grams, from a draft model, or from layers of the model itself.
SPECULATION = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "draft-simple", "draft-mtp")
_UNLESS_ASKED = ("ngram-simple", "ngram-mod", "draft-simple", "draft-mtp")
_SPECULATION_NEEDS = {
    "draft-simple": "a draft model: give its GGUF file in llama_server_draft_model",
    "draft-mtp": "a model with layers that predict further tokens, which this one lacks",
}
_MODES = ("layer", "tensor")
_FLASH = {"1": "on", "true": "on", "on": "on", "0": "off", "false": "off", "off": "off", "-1": "auto", "auto": "auto"}
_TRUE, _FALSE = (True, "true", "True", "yes"), (False, "false", "False", "no")


class TuningError(ValueError):
    """The settings make no sweep, or none that ends in time; the message is one sentence."""


@dataclass(frozen=True)
class Config:
    """The tuned options of llama.cpp; `worker_threads` is None if the workers keep their threads."""

    batch_size: int = 2048
    ubatch_size: int = 512
    flash_attn: str = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    worker_threads: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the options as data."""
        return {**self.__dict__, "tensor_split": list(self.tensor_split)}


@dataclass(frozen=True)
class ServingConfig(Config):
    """The tuned options of llama-server; `parallel` is the number of its slots."""

    parallel: int = 4
    kv_unified: bool = False
    speculation: str = "none"


@dataclass(frozen=True)
class Settings:
    """The values to try, and on what. For the goal serving, `clients` at a time ask `prompts`, if there are any."""

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
    split_modes: tuple[str, ...] = _MODES
    cache_types: tuple[str, ...] = ()
    tensor_split: bool = True
    worker_threads: bool = False
    # None: numbers that follow from the workers' cores.
    threads: tuple[int, ...] | None = None
    # The facts of the cluster; empty before it was asked.
    workers: tuple[str, ...] = ()
    threads_now: tuple[int, ...] = ()
    usable_cores: tuple[int, ...] = ()
    # The reason why not all numbers of threads were tried.
    threads_problem: str = ""
    # Whether each worker can hold the whole model; empty if that cannot be planned.
    fits_alone: tuple[bool, ...] = ()
    # The layers of each worker in the current split.
    layers: tuple[int, ...] = ()
    start: Config = Config()
    clients: int = 4
    prompts: tuple[str, ...] = ()
    # Numbers of slots; None: numbers that follow from the clients.
    parallel: tuple[int, ...] | None = None
    speculation: tuple[str, ...] = ()

    @property
    def stages(self) -> dict[str, str]:
        """The stages of this goal, with their titles."""
        return SERVING_STAGES if self.goal == SERVING else STAGES


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


def _value(where: str, option: str, value: str) -> Any:  # noqa: ANN401 - a number or a word
    if option.endswith("_size"):
        return _number(where, value, 1, 1_000_000)
    if value not in (CACHE_TYPES if option.startswith("cache") else _MODES):
        raise TuningError(f"{where} is {value or 'without a value'}, which cannot be measured over RPC.")
    return value


def options_of(extra_args: Sequence[str], old: bool = False, kind: type[Config] = Config) -> tuple[Config, list[str]]:
    """Return the tuned options among options of llama.cpp, and the other options; raises TuningError.

    In `old` builds (RPC protocol 2), flash attention is off by default and a flag without a value turns it on.
    """
    found: dict[str, Any] = {"flash_attn": "off"} if old else {}
    rest: list[str] = []
    words = [str(word) for word in extra_args]
    serving = kind is ServingConfig
    while words:
        word = words.pop(0)
        name = word.replace("_", "-") if word.startswith("--") else word
        option = OPTIONS.get(name)
        if serving and name in KV_UNIFIED:
            found["kv_unified"] = KV_UNIFIED[name]
        elif option is None:
            rest.append(word)
        elif option == "flash_attn":
            has_value = bool(words) and words[0] in _FLASH
            found[option] = _FLASH[words.pop(0)] if has_value else "on"
        else:
            where = f"{'llama_server' if serving else 'inference'}_extra_args, {word}"
            found[option] = _value(where, option, words.pop(0) if words else "")
    return kind(**found), rest


def start_of(given: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """Return the current configuration, and the options that are not tuned; raises TuningError."""
    serving = given.get("tune_goal") == SERVING
    kind = ServingConfig if serving else Config
    name = "llama_server_extra_args" if serving else "inference_extra_args"
    extra_args = _listed(name, given.get("extra_args", ()), "[--check-tensors]")
    config, rest = options_of(extra_args, bool(given.get("old")), kind)
    if isinstance(config, ServingConfig):
        refused = refusals(extra_args, name)
        if refused:
            raise TuningError(" ".join(refused))
        config = replace(config, parallel=_number("llama_server_parallel", given.get("parallel", 4), 1, 256))
        ubatch = _number("llama_server_ubatch_size", given.get("ubatch_size", 0), 0, 65536)
        config = replace(config, ubatch_size=ubatch or config.ubatch_size, speculation=given.get("spec_type", "none"))
    return replace(config, tensor_split=tuple(float(share) for share in given.get("tensor_split", ()))), rest


def _speculation(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of speculation to try, any kind if those of the service are unknown; raises TuningError."""
    possible = given.get("speculation", dict.fromkeys(SPECULATION))
    now = given.get("spec_type", "none")
    if now != "none" and now not in possible:
        raise TuningError(
            f"llama_server_spec_type is {now}, which needs {_SPECULATION_NEEDS.get(now, 'another name')}."
        )
    if given.get("tune_speculation") is None:
        return tuple(kind for kind in _UNLESS_ASKED if kind in possible)
    asked = _words("tune_speculation", given["tune_speculation"], SPECULATION)
    for kind in asked:
        if kind not in possible:
            raise TuningError(f"tune_speculation holds {kind}, which needs {_SPECULATION_NEEDS[kind]}.")
    return asked


def _serving_settings(given: Mapping[str, Any], asked: Callable[..., Any]) -> dict[str, Any]:
    """Return the settings of the goal serving; raises TuningError."""
    if _flag("tune_worker_threads", given.get("tune_worker_threads", False)):
        raise TuningError("tune_worker_threads is true, and tune_goal=serving takes the workers as they are: tune them "
                          "with another goal first.")  # fmt: skip
    prompts = _listed("tune_prompts", given.get("tune_prompts", ()), "['What is a cluster?']")
    if not all(isinstance(prompt, str) and prompt for prompt in prompts):
        raise TuningError("tune_prompts holds something that is not a text: give a list of what clients ask.")
    return {
        "clients": asked(_number, "clients", 1, 256),
        "prompts": tuple(prompts),
        "parallel": None if given.get("tune_parallel") is None else asked(_numbers, "parallel", 1, 256, "[4, 8]"),
        "speculation": _speculation(given),
    }


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Return the settings from the playbook's variables and its facts of the cluster; raises TuningError."""
    default = Settings()
    goal = given.get("tune_goal", default.goal)
    if goal not in GOALS:
        raise TuningError(f"tune_goal is {goal}: give generation, prompt, balanced or serving.")
    if goal == SERVING:
        # Prompts are as long as those of conversations, not documents. Each value needs its own server, so try fewer.
        default = replace(default, goal=goal, n_prompt=128, ubatch_sizes=(64, 128, 512))

    def asked(read: Callable[..., Any], name: str, *limits: object) -> Any:  # noqa: ANN401 - what `read` returns
        return read(f"tune_{name}", given.get(f"tune_{name}", getattr(default, name)), *limits)

    known: dict[str, Any] = {
        name: tuple(given.get(name, ())) for name in ("workers", "threads_now", "usable_cores", "fits_alone", "layers")
    }
    if goal == SERVING:
        known.update(_serving_settings(given, asked))
    start, _rest = start_of(given)
    settings = Settings(
        goal=goal,
        n_prompt=asked(_number, "n_prompt", 1, 1_000_000),
        n_gen=asked(_number, "n_gen", 1, 1_000_000),
        # One repetition has no spread.
        repetitions=asked(_number, "repetitions", 2, 100),
        time_limit=asked(_number, "time_limit", 1, 604800),
        shorten=asked(_flag, "shorten"),
        ubatch_sizes=asked(_numbers, "ubatch_sizes", 1, 65536, "[64, 128]"),
        batch_sizes=asked(_numbers, "batch_sizes", 1, 65536, "[64, 128]"),
        flash_attn=asked(_words, "flash_attn", ("on", "off")),
        split_modes=asked(_words, "split_modes", _MODES),
        cache_types=asked(_words, "cache_types", CACHE_TYPES),
        tensor_split=asked(_flag, "tensor_split"),
        worker_threads=asked(_flag, "worker_threads"),
        threads=None if given.get("tune_threads") is None else asked(_numbers, "threads", 1, 512, "[4, 8]"),
        threads_problem=str(given.get("threads_problem", "")),
        start=start,
        **known,
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
