"""Runs scripts one by one, each in a process forked from one that has torch imported already.

Each line of the input names a script, its environment and its working directory, where it leaves
the files stdout and stderr; each line of the output is an exit status.
"""

import json
import os
import runpy
import sys
import traceback
from typing import Any

import torch._dynamo  # noqa: F401 (this is what takes long; optimizers import it when first used)


def become(run: dict[str, Any]) -> None:
    """Run a script in this process, which ends with it."""
    os.chdir(run["cwd"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.environ.update(run["env"])
    sys.argv = [run["script"]]
    sys.path[0] = os.path.dirname(run["script"])
    code = 0
    try:
        runpy.run_path(run["script"], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


for line in sys.stdin:
    child = os.fork()
    if not child:
        become(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201
