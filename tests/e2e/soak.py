"""A pool under a mixed load for as long as asked for, with deaths: python -m tests.e2e.soak

Jobs of one slot and of two are submitted, suspended, resumed, cancelled and moved; workers, agents
and the server are killed; policies change. At the end each training must have a lone run's weights,
no slot may ever have had two jobs at work, and nothing may be left behind.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from coddl.api.client import RequestRefused
from tests.e2e.conftest import train_alone
from tests.e2e.deciding import folded
from tests.e2e.pool import OVER, Pool
from tests.e2e.training import Training

STEPS = (40, 80, 160)
BATCH = ("--global-batch", "4")
ACTIVE_MAX = 9
POLICIES = ("gandiva:quantum_s=2", "gandiva:quantum_s=2,asks=minimum", "afs-p", "fifo")


class Soak:
    """What is done to a pool, at random, and what came of it."""

    def __init__(self, pool: Pool, seed: int, lone: dict[int, str]) -> None:
        self._pool = pool
        self._chance = random.Random(seed)
        self._lone = lone
        self._jobs: dict[str, tuple[Training, int]] = {}  # with its steps, by name
        self.done: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        """Do something every second or two."""
        often: list[Callable[[], str | None]] = [self.submit] * 6 + [self.suspend, self.resume] * 3
        seldom = [self.cancel, self.kill_worker, self.kill_agent, self.kill_server, self.change]
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            if (what := self._chance.choice(often + seldom)()) is not None:
                self.done[what] += 1
            self.check_ended()
            time.sleep(self._chance.uniform(0.5, 2.0))

    def end(self) -> None:
        """Let all jobs come to their ends."""
        self._pool.cli("policy", POLICIES[0])
        for training, _ in self._jobs.values():
            training.pace(0.0)
        while self._jobs:
            self.resume()
            self.check_ended()
            time.sleep(0.2)

    def submit(self) -> str | None:
        if len(self._jobs) >= ACTIVE_MAX:
            return None
        name, steps = f"job{sum(self.done.values())}", self._chance.choice(STEPS)
        gpus, pace_s = self._chance.choice([1, 1, 1, "1..2", 2]), self._chance.uniform(0.005, 0.05)
        args = " ".join(("--strict", *BATCH))
        training = Training(self._pool, name, steps=steps, pace_s=pace_s, args=args, gpus=gpus)
        self._jobs[name] = (training, steps)
        return "submitted"

    def suspend(self) -> str | None:
        return self._ask("suspend", lambda state: state not in ("SUSPENDED", *OVER))

    def resume(self) -> str | None:
        return self._ask("resume", lambda state: state == "SUSPENDED")

    def cancel(self) -> str | None:
        return self._ask("cancel", lambda state: state not in OVER, often=0.3)

    def _ask(self, what: str, fits: Callable[[str], bool], often: float = 1.0) -> str | None:
        names = [name for name, (each, _) in self._jobs.items() if fits(each.view["state"])]
        if not names or self._chance.random() > often:
            return None
        job = self._jobs[self._chance.choice(names)][0].job
        try:
            self._pool.ask(lambda client: client.post(f"/jobs/{job}:{what}"))
        except RequestRefused:  # it has only just started, or ended meanwhile
            return f"{what} refused"
        return what

    def kill_worker(self) -> str | None:
        if not (sitters := self._pool.observer.sitters()):
            return None
        os.kill(self._chance.choice(sitters).pid, signal.SIGKILL)
        return "worker killed"

    def kill_agent(self) -> str | None:
        if self._chance.random() > 0.3:
            return None
        node = self._chance.choice(self._pool.nodes)
        self._pool.kill(node)
        self._pool.start_agent(node)
        return "agent killed"

    def kill_server(self) -> str | None:
        if self._chance.random() > 0.5:
            return None
        self._pool.kill("server")
        time.sleep(self._chance.uniform(0.0, 3.0))
        self._pool.start_server()
        return "server killed"

    def change(self) -> str:
        self._pool.cli("policy", self._chance.choice(POLICIES))
        return "policy changed"

    def check_ended(self) -> None:
        """See to jobs that are over: they must have ended well, with a lone run's weights."""
        for name, (training, steps) in list(self._jobs.items()):
            state = training.view["state"]
            if state in OVER:
                del self._jobs[name]
                assert state in ("SUCCEEDED", "CANCELLED"), training.view
                assert state == "CANCELLED" or training.hash == self._lone[steps], name
                self.done[state] += 1


def main() -> None:
    """Run for a while."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak") as name:
        folder, lone = Path(name), {}
        for steps in STEPS:
            result = folder / f"alone{steps}"
            train_alone("--strict", "--steps", str(steps), *BATCH, "--result", str(result))
            lone[steps] = result.read_text()
        pool = Pool(folder, lease_s=30.0, nodes=("n1", "n2"))
        pool.server_words += ["--policy", POLICIES[0]]
        pool.env["CODDL_GPU_MEMORY"] = "0" if options.seed % 2 else ""
        with pool:
            soak = Soak(pool, options.seed, lone)
            soak.run(options.minutes * 60.0)
            soak.end()
            folded(pool.records())
            print(dict(soak.done), f"{pool.last_seq()} records")  # noqa: T201


if __name__ == "__main__":
    main()
