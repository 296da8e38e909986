# SPDX-License-Identifier: GPL-3.0-or-later
"""GGUF files: what their headers say.

Code that reads model files or calculates from them belongs here. Nothing here knows of workers or of Ansible.
Floor 1: it imports no other package; every package above may import it.
"""
