# SPDX-License-Identifier: GPL-3.0-or-later
"""The division of a model among workers, and the memory that each worker needs for its part.

Calculations before a run belong here; they contact no hosts. `engine` asks a release's program, `asking` reads files.
Floor 2: it imports from `_gguf` and `_status`; floors 3 and 4 may import it.
"""
