# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules that run a program over workers have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """Found by its name: C(extends_documentation_fragment)."""

    DOCUMENTATION = r"""
options:
  model:
    description: Path of the GGUF file on the master. Of a split model, the first part.
    type: path
    required: true
  workers:
    description:
      - The workers as V(host) or V(host:port), in the order in which they get the layers. The default port is 50052.
      - At most 15 host names or IPv4 addresses. llama.cpp's RPC does not support IPv6.
    type: list
    elements: str
    required: true
  n_gpu_layers:
    description: How many layers to offload to the workers, at least one for each worker. A number larger than the
      model's layers means all.
    type: int
    default: 999
  tensor_split:
    description:
      - The share of each worker, in the order of O(workers). Only the ratios count, and each must be above 0.
      - By default llama.cpp divides by the free memory that the workers report.
      - The share of a worker with several devices is divided among them by their free memory if O(verify=true).
    type: list
    elements: float
    default: []
  threads:
    description: The threads of the master. By default llama.cpp decides. The threads of a worker are an option of its
      RPC server.
    type: int
  worker_link:
    description:
      - Whether two workers add up partial results by themselves in split mode C(tensor), over a link of their own, for
        which both need C(rpc_server_link) of the role P(llama_cpp.cluster.rpc_server#role).
      - Without the link, or if it cannot be made, the master adds them up.
    type: bool
    default: false
    version_added: 0.4.0
  bin_folder:
    description: Folder of the llama.cpp programs on the master.
    type: path
    default: /opt/llama_cpp/current/bin
  verify:
    description:
      - Whether to ask every worker at protocol level before anything is loaded. The module fails unless all workers are
        ready within 5 s, have the RPC protocol of this master, and differ from each other.
      - Without this check, only O(timeout) ends a run whose worker is held by another client. That worker then dies
        when it reaches the abandoned connection. A GPU of the master that llama.cpp can use may also take part.
    type: bool
    default: true
  timeout:
    description:
      - The time limit of the run in seconds, including repetitions. The module then stops the program, and returns what
        it has until then.
      - A worker that answers a master that has exited dies (SIGPIPE), so workers may have to be restarted then. A
        service manager should do that.
      - By default 120 s, plus the time that the model (all its parts) takes over a link of 100 Mbit/s (10 MB/s), plus
        one second for each 10 tokens or words or 40 bytes read, plus 2 s for each token generated, of all tests,
        repetitions and clients.
    type: int
attributes:
  check_mode:
    description: In check mode the module checks everything, including the workers, and runs nothing.
    support: full
  diff_mode:
    description: The module changes nothing, so there is no difference to show.
    support: none
  idempotent:
    description: The module changes no host.
    support: full
notes:
  - The program has no standard input and a time limit, so the task always ends.
  - Environment variables that begin with V(LLAMA_ARG_) or V(LLAMA_LOG_) are not passed on to the program.
  - Needs Python 3.8 or newer on the host, and only Python's standard library.
requirements:
  - GNU coreutils, for C(timeout)
"""
