"""A restartable program: counts, saves where it is when it is told to leave, and goes on there."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import spot  # noqa: F401 - before anything takes time

options = argparse.ArgumentParser()
options.add_argument("--to", type=int, required=True)
options.add_argument("--pace", type=Path, required=True, help="a file: seconds per number")
options.add_argument("--diary", type=Path, required=True)
asked = options.parse_args()

saved = Path(os.environ["CODDL_CHECKPOINT_DIR"]) / "count"
count = int(saved.read_text()) if saved.exists() else 0
told: list[int] = []
signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
while count < asked.to and not told:
    with asked.diary.open("a") as diary:
        diary.write(f"{count}\n")
    count += 1
    time.sleep(float(asked.pace.read_text()))
if told:
    saved.write_text(str(count))
    print("leaves, as", Path(os.environ["CODDL_NOTICE"]).read_text().strip())
    sys.exit(1)  # as any program might that is told to end
print("counted to", count)
