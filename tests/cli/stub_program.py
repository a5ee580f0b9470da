"""A server, agent or connector that does nothing but be there. Tells of its life in a file.

    python stub_program.py server --state-dir DIR --port PORT ...
    python stub_program.py agent --name NAME --state-dir DIR ...
    python stub_program.py connector --state-dir DIR ...

A file `fail-server`, `fail-connector` or `fail-NAME` in the folder has it fail at its start; a file
`slow` has it take its time to leave.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

words = sys.argv[1:]
options = dict(zip(words[1::2], words[2::2], strict=True))
folder = Path(options["--state-dir"])
name = options.get("--name", words[0])
parent = os.getppid()


def tell(what: str) -> None:
    with (folder / "life").open("a") as file:
        file.write(f"{name} {what} {os.getpid()}\n")


if (folder / f"fail-{name}").exists():
    sys.stderr.write("error: it cannot start\n  because it was told to fail\n  try     again\n")
    sys.exit(2)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until it is waited for
tell(f"starts with {' '.join(words[1:])}")
if name == "server":
    port = options["--port"] if options["--port"] != "0" else "4321"
    half = folder / "half"
    half.write_text(json.dumps({"url": f"http://127.0.0.1:{port}", "pid": os.getpid()}))
    half.rename(folder / "server.json")
signal.sigwait({signal.SIGTERM})
tell("leaves")
while (folder / "slow").exists() and os.getppid() == parent:
    time.sleep(0.01)
tell("ends")
