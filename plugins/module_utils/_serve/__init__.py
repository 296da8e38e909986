# SPDX-License-Identifier: GPL-3.0-or-later
"""The API service of a master: its files on a host, its state and its answers.

Code that speaks HTTP with llama-server belongs here; code that starts it belongs to role llama_server.
Floor 1: it imports nothing of the other packages; floors 2 to 4 may import it.
"""
