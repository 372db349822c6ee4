"""Runs `reticent` commands in children of one process that has imported everything: a server starts in a second.

Reads one JSON list of words a line; answers with the child's process id, and later with its wait status. The child's
standard error goes to this process's.
"""

import json
import os
import signal
import sys

import torch
import transformers.models.llama.modeling_llama  # noqa: F401 - imported once for all children

from reticent.cli import main as cli
from reticent.server import running, service  # noqa: F401
from reticent.worlds import run_directory as collection  # noqa: F401

torch.set_num_threads(1)
# As from a terminal, also where the tests themselves run under `nohup`.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = cli.main(json.loads(line))
        finally:
            sys.stderr.flush()
            os._exit(code)
    sys.stdout.write(f"{child}\n")
    sys.stdout.flush()
    _, status = os.waitpid(child, 0)
    sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
    sys.stdout.flush()
