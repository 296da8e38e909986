# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the limits of llama.cpp for one run."""

# GGML_SCHED_MAX_BACKENDS is 16 devices, and the master's CPU is one of them (ggml/include/ggml-backend.h).
MAX_WORKERS = 15
