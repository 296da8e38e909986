# SPDX-License-Identifier: GPL-3.0-or-later
"""GGUF files: what their headers say, and what the described model needs.

What reads or reckons with a model file belongs here; nothing here knows of workers or of Ansible.
Floor 1: it imports no other package; every package above may import it.
"""
