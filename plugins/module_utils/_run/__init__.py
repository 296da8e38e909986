# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of a llama.cpp program over workers: its options, watch, progress, log and failures.

Code that several programs share belongs here, and code that is special to inference.
Floor 3: it imports from floors 1 and 2; floor 4 may import it. Only `runner.py` knows Ansible.
"""
