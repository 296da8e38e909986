# SPDX-License-Identifier: GPL-3.0-or-later
"""The API service of a master: what of it is on a host, and how it answers.

What speaks HTTP with llama-server belongs here; what starts it is with role llama_server.
Floor 1: it imports nothing of the other packages; floors 2 to 4 may import it.
"""
