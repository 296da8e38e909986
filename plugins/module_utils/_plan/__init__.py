# SPDX-License-Identifier: GPL-3.0-or-later
"""How a model is divided among workers, and what memory each of them needs for it.

What reckons before a run belongs here; nothing is read and nobody is asked.
Floor 2: it imports from `_gguf` and `_status`; floors 3 and 4 may import it.
"""
