"""A worker without training: speaks to its supervisor as a real one does, misbehaves on request.

Options come as JSON in the first argument. Run by the fork server: a script, with few imports.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from coddl.runtime.imagefile import HEADER_BYTES, ImageHeader, step_of
from coddl.runtime.wire import Lines, Message, encoded

OPTIONS: dict[str, Any] = {
    "steps": 10**9,
    "virtual_nodes": 8,
    "step_s": 0.005,
    "do_at_step": {},  # "worker:step" -> exit:N, kill, hang, rest
    "before": "",  # what to do instead of arriving
    "joiner": "",  # and what those do that come later
    "on_enter": "",  # and instead of training
    "on_leave": "",
    "after": "",  # its loop
    **json.loads(sys.argv[1] if __name__ == "__main__" and sys.argv[1:] else "{}"),
}


class Stub:
    def __init__(self) -> None:
        self.wire = socket.socket(fileno=int(os.environ["CODDL_SOCKET"]))
        self.worker = int(os.environ["CODDL_WORKER"])
        self.lines = Lines()
        self.plans: dict[int, Message] = {}
        self.step = 0
        self.agreed_step = 0  # when its generation began
        self.is_training = False
        self.is_main = False
        self.images = 0
        self.leaving: Message | None = None  # what it leaves by, once its image is on disk

    def tell(self, kind: str, **fields: Any) -> None:
        self.wire.sendall(encoded({"is": kind, **fields}))

    def run(self) -> None:
        if OPTIONS["before"] == "reject":
            self.tell("rejected", what="a bad batch", because="it is 7", **{"try": "8"})
            time.sleep(3600)
        misbehave(OPTIONS["before"])
        misbehave(OPTIONS["joiner"] if os.environ.get("CODDL_REHEARSE") else "")
        nodes = OPTIONS["virtual_nodes"]
        cut = {"parts": nodes, "workers_max": nodes, "virtual_nodes": nodes, "global_batch": 64}
        self.tell("arrived", steps=OPTIONS["steps"], **cut)
        while self.step < OPTIONS["steps"]:
            wait_s = OPTIONS["step_s"] if self.is_training else None
            if select.select([self.wire], [], [], wait_s)[0]:
                for message in self.lines.feed(self.wire.recv(1 << 16)):
                    self.do(message)
            elif self.is_training:
                self.train()
        self.tell("ended", step=self.step)
        if self.worker == 0:
            misbehave(OPTIONS["after"])
        sys.stdout.write(f"ended at {self.step}")  # a last line without an end

    def train(self) -> None:
        self.step += 1
        times = {"window_s": 0.01, "pass_s": 0.001, "data_wait_s": 0.0, "exchange_s": 0.001}
        self.tell("stepped", step=self.told_step, iterations=1, samples=8, **times)
        what = OPTIONS["do_at_step"].get(f"{self.worker}:{self.step}", "")
        if what == "rest":
            self.tell("resting")
            time.sleep(3600)
        misbehave(what)

    @property
    def told_step(self) -> int:
        """Its step. Real workers are in step; of stubs, only the main one tells where it is."""
        return self.step if self.is_main else self.agreed_step

    def do(self, message: Message) -> None:
        match message["do"]:
            case "prepare":
                self.plans[message["generation"]] = message
                self.tell("ready", generation=message["generation"])
            case "commit":
                self.agreed_step = message["step"]
                self.step = max(self.step, self.agreed_step)
                self.enter(self.plans[message["generation"]])
            case "leave" if self.leaving is not None:
                self.swap(self.leaving)
            case "regroup":
                self.leaving = None
                self.enter(message)
            case "capture":
                self.write_image()
            case "stop":
                sys.exit(0)

    def enter(self, plan: Message) -> None:
        number, members = plan["generation"], plan["members"]
        if not self.is_training and plan["image"] is not None:
            self.step = self.agreed_step = step_of(Path(plan["image"]))
        if not members and self.is_main:
            self.leaving, self.is_training = plan, False
            self.write_image(generation=number)
        else:
            self.swap(plan)

    def swap(self, plan: Message) -> None:
        number, members = plan["generation"], plan["members"]
        pause = {"boundary_s": 0.001, "state_s": 0.002, "swap_s": 0.003}
        left = self.worker not in members
        self.tell("swapped", generation=number, step=self.told_step, left=left, pause=pause)
        if left:
            misbehave(OPTIONS["on_leave"])
            sys.exit(0)
        misbehave(OPTIONS["on_enter"])
        self.is_main = members[0] == self.worker
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.tell("metrics", values={f"gpu {self.worker}": gpu, "backend": plan["backend"]})
        self.is_training = True

    def write_image(self, **more: int) -> None:
        self.images += 1
        path = Path(os.environ["CODDL_STASH"]) / f"slot-{self.images % 2}.img"
        write_image(path, self.step)
        self.tell("image", path=str(path), step=self.step, bytes=path.stat().st_size, **more)


def write_image(path: Path, step: int) -> None:
    """Write an image that holds nothing but its step."""
    manifest = json.dumps({"meta": {"step": step}, "tree": None, "tensors": []}).encode()
    header = ImageHeader.of(len(manifest), 0)
    whole = ImageHeader(step, True, header.manifest_bytes, header.payload_offset, 0)
    text = whole.packed() + manifest
    path.write_bytes(text.ljust(max(header.bytes_, HEADER_BYTES), b"\0"))


def misbehave(how: str) -> None:
    verb, _, argument = how.partition(":")
    match verb:
        case "":
            pass
        case "exit":
            sys.exit(int(argument))
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(3600)
        case "wait":  # for a file
            while not Path(argument).exists():
                time.sleep(0.01)
        case "raise":
            raise RuntimeError(argument)
        case _:
            raise AssertionError(how)


if __name__ == "__main__":
    Stub().run()
