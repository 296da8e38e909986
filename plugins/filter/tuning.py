# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filter: the next measurement of a sweep over a cluster's options, and the results so far."""

from __future__ import annotations

DOCUMENTATION = r"""
name: tuning
short_description: Choose what to measure next to find the fastest options of a cluster
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - The playbook P(llama_cpp.cluster.tune#playbook) uses it.
  - From the playbook's variables and a record of each run so far, it returns the next run, or the best options. It
    keeps no state between two calls.
  - It varies one option at a time. It keeps a value if it is faster than the best so far by more than the spread of
    both. At the end it measures the original options again, and the best options must be faster there too.
positional: _input, records
options:
  _input:
    description:
      - The variables of the playbook that begin with C(tune_), if they are set.
      - Facts about the cluster, as C(workers), C(extra_args), C(old), C(tensor_split), C(tensor_split_given),
        C(layers), C(fits_alone), C(threads_now), C(usable_cores) and C(threads_problem).
    type: dict
    required: true
  records:
    description:
      - The result of each run so far, in order.
      - The keys are its C(run), the C(tests), C(wall_time_ms), C(build) and C(model) of
        M(llama_cpp.cluster.llama_bench), the C(tensor_split) that was used, its C(failure) as a sentence (V(null) after
        success), and C(elapsed_s), the time from the start of the sweep to the end of the run.
    type: list
    elements: dict
    default: []
  time:
    description: The current time, for the files.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show what a sweep would try
  ansible.builtin.debug:
    msg: "{{ ({'tune_goal': 'prompt'} | llama_cpp.cluster.tuning).stages }}"

- name: Show the first run
  ansible.builtin.debug:
    msg: "{{ ({'workers': ['192.0.2.11:50052', '192.0.2.12:50052']} | llama_cpp.cluster.tuning).next.title }}"
"""

RETURN = r"""
_value:
  description: The next run, or the result.
  type: dict
  contains:
    problem:
      description: One sentence that says what is wrong with the variables. If it is not empty, there are no other keys.
      type: str
    refusal:
      description: One sentence that says why the sweep cannot be made; empty if it can.
      type: str
    next:
      description: The next run; V(null) if there is none.
      type: dict
    stages:
      description: The options to try, each with its C(stage), C(title), and the maximum numbers of C(runs) and
        C(tests).
      type: list
      elements: dict
    runs_at_most:
      description: The maximum number of runs, including the first one.
      type: int
    estimate_s:
      description: How long the sweep takes, estimated from its first run; V(null) before that.
      type: float
    left_out:
      description: What is not tried, and why.
      type: list
      elements: str
    notes:
      description: Further sentences about the runs so far.
      type: list
      elements: str
    worker_threads:
      description: The fastest number of threads for the workers; V(null) if it is the current one.
      type: int
    summary:
      description: The outcome in a sentence.
      type: str
    variables:
      description: After the last run, a YAML file of variables with the figures as comments; empty before that.
      type: str
    figures:
      description: After the last run, everything as data; empty before that.
      type: dict
"""

from typing import TYPE_CHECKING, Any, Mapping, Sequence

from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.tuning_result import advice
from ansible_collections.llama_cpp.cluster.plugins.module_utils._measure.tuning_settings import TuningError

if TYPE_CHECKING:
    from collections.abc import Callable


def tuning(given: object, records: Sequence[Mapping[str, Any]] = (), time: str = "") -> dict[str, Any]:
    """Return the next measurement and the results so far, or the problem of the arguments."""
    if not isinstance(given, Mapping):
        raise AnsibleFilterError("tuning needs a dictionary of variables, such as {'tune_goal': 'prompt'}")
    try:
        return {"problem": "", **advice(given, records, time)}
    except TuningError as error:
        return {"problem": str(error)}


class FilterModule:
    """The filter in the form that Ansible expects."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by its name."""
        return {"tuning": tuning}
