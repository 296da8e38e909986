# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the values of each option that a sweep tries."""

from __future__ import annotations

from dataclasses import replace

from .tuning_settings import SERVING, SERVING_STAGES, Config, ServingConfig, Settings

FLOATING = ("f16", "bf16")


def flash_attn_needed(config: Config) -> str:
    """Return the reason why a configuration needs flash attention; empty if it does not need it.

    src/llama-context.cpp, llama_init_from_model: "SPLIT_MODE_TENSOR requires flash_attn to be enabled", "quantized V
    cache requires flash_attn to be enabled".
    """
    if config.split_mode == "tensor":
        return "split mode tensor needs it"
    return "" if config.cache_type_v in FLOATING else "quantised values of the cache need it"


def ubatch_sizes(settings: Settings, batch_size: int) -> tuple[int, ...]:
    """Return the physical batches to measure, including the current one."""
    most = min(batch_size, settings.n_prompt)
    # All sizes above the length of the prompt behave alike.
    sizes = {min(size, most) for size in (*settings.ubatch_sizes, settings.start.ubatch_size)}
    return tuple(sorted(sizes)) if settings.ubatch_sizes else ()


def batch_sizes(settings: Settings, config: Config) -> tuple[int, ...]:
    """Return the logical batches to measure, including the current one."""
    sizes = {min(size, settings.n_prompt) for size in (*settings.batch_sizes, config.batch_size)}
    low = min(config.ubatch_size, settings.n_prompt)
    return tuple(sorted(size for size in sizes if size >= low)) if settings.batch_sizes else ()


def split_modes(settings: Settings) -> list[str]:
    """Return the split modes to try."""
    return [mode for mode in settings.split_modes if mode != settings.start.split_mode]


def flash_attn(settings: Settings, config: Config) -> list[str]:
    """Return the values of flash attention to try. With CPU workers, `auto` turns it on."""
    now = "on" if config.flash_attn == "auto" else config.flash_attn
    needed = flash_attn_needed(config)
    return [value for value in settings.flash_attn if value != now and not (needed and value == "off")]


def no_flash_attn(settings: Settings, config: Config) -> str:
    """Return the reason why there is no value of flash attention to try; empty if there is one."""
    if flash_attn(settings, config):
        return ""
    needed = flash_attn_needed(config) if "off" in settings.flash_attn else ""
    return needed or "there is no other value to try"


def cache_types(settings: Settings, config: Config) -> list[str]:
    """Return the cache types to try, each for both keys and values."""
    return [kind for kind in settings.cache_types if (kind, kind) != (config.cache_type_k, config.cache_type_v)]


def thread_counts(settings: Settings) -> list[int]:
    """Return the numbers of threads to try, the same on all workers."""
    cores = min(settings.usable_cores, default=1)
    wanted = settings.threads
    if wanted is None:
        wanted = tuple(sorted({max(1, cores // 2), max(1, cores - 1), cores}))
    return [count for count in wanted if {count} != set(settings.threads_now)]


def _in_turn(settings: Settings) -> int:
    """Return the number of clients in a batch if batches follow one another through the workers."""
    return max(1, -(-settings.clients // max(1, len(settings.workers))))


def slot_counts(settings: Settings) -> tuple[int, ...]:
    """Return the numbers of slots to try. With fewer slots than clients, some clients wait and batches are smaller."""
    if settings.parallel is not None:
        return settings.parallel
    return tuple({settings.clients, max(1, settings.clients // 2)})


def speculation(settings: Settings) -> tuple[str, ...]:
    """Return the kinds of speculation to measure, with `none` for comparison; empty if there is no kind."""
    return ("none", *settings.speculation) if settings.prompts and settings.speculation else ()


def most_serving(settings: Settings, name: str) -> int:
    """Return the maximum number of runs of a stage of the goal serving, whatever won before it."""
    return {
        "split_mode": len(split_modes(settings)),
        "kv_unified": 2 if len(settings.workers) > 1 else 1,
        "ubatch_size": len(settings.ubatch_sizes),
        "parallel": len(slot_counts(settings)),
        "speculation": len(speculation(settings)),
        # The first configuration and the winner, once more.
        "again": 2,
    }[name]


def serving(settings: Settings, config: Config, name: str) -> list[tuple[str, ServingConfig]]:
    """Return the variants of the best configuration so far that a stage of the goal serving tries, with titles."""
    if not isinstance(config, ServingConfig):
        return []
    if name == "split_mode":
        found = [
            (f"split mode {mode}", replace(config, split_mode=mode, tensor_split=())) for mode in split_modes(settings)
        ]
        # Split mode tensor needs flash attention. With CPU workers, `auto` turns it on.
        found = [
            (title, replace(other, flash_attn="auto") if flash_attn_needed(other) else other) for title, other in found
        ]
    elif name == "kv_unified":
        other = replace(config, kv_unified=not config.kv_unified)
        found = [(f"unified KV cache {'on' if other.kv_unified else 'off'}", other)]
        if other.kv_unified and len(settings.workers) > 1 and config.split_mode == "layer":
            # Only a unified cache lets llama.cpp cut a step of several clients into batches that follow one another
            # through the workers (src/llama-context.cpp). A small physical batch makes several batches of a step.
            small = _in_turn(settings)
            found.append((f"unified KV cache on, physical batch of {small}", replace(other, ubatch_size=small)))
    elif name == "ubatch_size":
        sizes = sorted(set(settings.ubatch_sizes) - {config.ubatch_size})
        found = [(f"physical batch of {size}", replace(config, ubatch_size=size)) for size in sizes]
    elif name == "parallel":
        counts = sorted(set(slot_counts(settings)) - {config.parallel})
        found = [(f"{count} slot{'s' if count > 1 else ''}", replace(config, parallel=count)) for count in counts]
    else:
        kinds = [kind for kind in speculation(settings) if kind != config.speculation]
        found = [(f"speculation {kind}", replace(config, speculation=kind)) for kind in kinds]
    return found


def _no_serving_stage(settings: Settings) -> dict[str, str]:
    """Return the stages of the goal serving that have nothing to try, and why."""
    without = {
        name: "there is no other to try" for name in SERVING_STAGES if not serving(settings, settings.start, name)
    }
    if len(settings.workers) == 1:
        without["split_mode"] = "there is only one worker"
    if not settings.prompts:
        # Speculation guesses random words too badly, and an answer that continues after its end too well.
        without["speculation"] = "it depends on what clients ask: give some of it in tune_prompts"
    return without


def nothing_to_try(settings: Settings) -> dict[str, str]:
    """Return the stages that have nothing to try, and why."""
    if settings.goal == SERVING:
        return _no_serving_stage(settings)
    start = settings.start
    one_size = "there is only one size"
    without = {
        "ubatch_size": "" if len(ubatch_sizes(settings, start.batch_size)) > 1 else one_size,
        "worker_threads": ""
        if settings.worker_threads
        else settings.threads_problem or "tune_worker_threads is not set",
        "split_mode": "" if split_modes(settings) else "there is no other to try",
        "tensor_split": "" if settings.tensor_split else "it was not asked for",
        "flash_attn": no_flash_attn(settings, start),
        "cache_type": "" if cache_types(settings, start) else "tune_cache_types names none",
        "batch_size": "" if len(batch_sizes(settings, start)) > 1 else one_size,
    }
    if settings.goal == "generation":
        without.update(dict.fromkeys(("ubatch_size", "batch_size"), "it does not change generation"))
    if settings.workers and len(settings.workers) == 1:
        without.update(dict.fromkeys(("split_mode", "tensor_split"), "there is only one worker"))
    elif settings.workers and settings.tensor_split and not settings.fits_alone:
        without["tensor_split"] = "it is not known which worker can hold the model"
    if settings.worker_threads and settings.usable_cores and not thread_counts(settings):
        without["worker_threads"] = "there is no other number to try"
    return {name: why for name, why in without.items() if why}
