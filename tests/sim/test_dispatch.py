"""The compiled loop knows every rule of the registry, and is compiled once for all processes."""

import subprocess
import sys

from tests.sim.dispatch import FILE, source

RUN = """
import coddl
from coddl.sim.compiled import run_compiled
coddl.simulate(policies="fifo", gpus=8, first=5)
print(sum(run_compiled.stats.cache_misses.values()))
"""


def test_the_rules_are_those_of_the_registry() -> None:
    assert FILE.read_text() == source(), "python -m tests.sim.dispatch writes it anew"


def test_a_second_process_compiles_nothing() -> None:
    for misses in ("any", "0"):
        said = subprocess.check_output([sys.executable, "-c", RUN], text=True).split()[-1]
        assert misses in ("any", said)
