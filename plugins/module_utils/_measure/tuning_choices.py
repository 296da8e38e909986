# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: which values of each option a sweep tries."""

from __future__ import annotations

from .tuning_settings import Config, Settings

FLOATING = ("f16", "bf16")


def flash_attn_needed(config: Config) -> str:
    """Return what of a configuration needs flash attention, as a reason; empty if nothing does.

    src/llama-context.cpp, llama_init_from_model: "SPLIT_MODE_TENSOR requires flash_attn to be enabled", "quantized V
    cache requires flash_attn to be enabled".
    """
    if config.split_mode == "tensor":
        return "split mode tensor needs it"
    return "" if config.cache_type_v in FLOATING else "quantised values of the cache need it"


def ubatch_sizes(settings: Settings, batch_size: int) -> tuple[int, ...]:
    """Return the physical batches to measure, the present one among them."""
    most = min(batch_size, settings.n_prompt)
    # Beyond the prompt all are alike.
    sizes = {min(size, most) for size in (*settings.ubatch_sizes, settings.start.ubatch_size)}
    return tuple(sorted(sizes)) if settings.ubatch_sizes else ()


def batch_sizes(settings: Settings, config: Config) -> tuple[int, ...]:
    """Return the logical batches to measure, the present one among them."""
    sizes = {min(size, settings.n_prompt) for size in (*settings.batch_sizes, config.batch_size)}
    low = min(config.ubatch_size, settings.n_prompt)
    return tuple(sorted(size for size in sizes if size >= low)) if settings.batch_sizes else ()


def split_modes(settings: Settings) -> list[str]:
    """Return the split modes to try."""
    return [mode for mode in settings.split_modes if mode != settings.start.split_mode]


def flash_attn(settings: Settings, config: Config) -> list[str]:
    """Return what to try of flash attention; left to itself, it is on with CPU workers."""
    now = "on" if config.flash_attn == "auto" else config.flash_attn
    needed = flash_attn_needed(config)
    return [value for value in settings.flash_attn if value != now and not (needed and value == "off")]


def no_flash_attn(settings: Settings, config: Config) -> str:
    """Return why there is nothing to try of flash attention; empty if there is something."""
    if flash_attn(settings, config):
        return ""
    needed = flash_attn_needed(config) if "off" in settings.flash_attn else ""
    return needed or "there is no other value to try"


def cache_types(settings: Settings, config: Config) -> list[str]:
    """Return the cache types to try, for keys and values alike."""
    return [kind for kind in settings.cache_types if (kind, kind) != (config.cache_type_k, config.cache_type_v)]


def thread_counts(settings: Settings) -> list[int]:
    """Return the numbers of threads to try, alike on all workers."""
    cores = min(settings.usable_cores, default=1)
    wanted = settings.threads
    if wanted is None:
        wanted = tuple(sorted({max(1, cores // 2), max(1, cores - 1), cores}))
    return [count for count in wanted if {count} != set(settings.threads_now)]


def nothing_to_try(settings: Settings) -> dict[str, str]:
    """Return the stages that have nothing to try, and why."""
    start = settings.start
    one_size = "there is one size alone"
    without = {
        "ubatch_size": "" if len(ubatch_sizes(settings, start.batch_size)) > 1 else one_size,
        "worker_threads": ""
        if settings.worker_threads
        else settings.threads_problem or "workers are not started anew unless told so",
        "split_mode": "" if split_modes(settings) else "there is no other to try",
        "tensor_split": "" if settings.tensor_split else "it was not asked for",
        "flash_attn": no_flash_attn(settings, start),
        "cache_type": "" if cache_types(settings, start) else "they change what the model says, and were not asked for",
        "batch_size": "" if len(batch_sizes(settings, start)) > 1 else one_size,
    }
    if settings.goal == "generation":
        without.update(dict.fromkeys(("ubatch_size", "batch_size"), "it does not change generation"))
    if settings.workers and len(settings.workers) == 1:
        without.update(dict.fromkeys(("split_mode", "tensor_split"), "there is one worker alone"))
    elif settings.workers and settings.tensor_split and not settings.fits_alone:
        without["tensor_split"] = "what fits where is not known"
    if settings.worker_threads and settings.usable_cores and not thread_counts(settings):
        without["worker_threads"] = "there is no other number to try"
    return {name: why for name, why in without.items() if why}
