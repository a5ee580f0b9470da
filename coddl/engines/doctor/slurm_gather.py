"""Asks a Slurm cluster what `coddl doctor` judges. Runs one command on a machine, for a moment."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from coddl import __version__
from coddl.core.errors import UserError
from coddl.engines.doctor import slurm_probe
from coddl.engines.doctor.machine import existing_part
from coddl.engines.doctor.slurm import SlurmFacts, SlurmNodeFacts
from coddl.engines.slurm.commands import SlurmCommands
from coddl.engines.slurm.options import SlurmOptions
from coddl.engines.slurm.pilot_words import pilot_words, would_wait

COMMANDS: Final = ("sbatch", "squeue", "scancel", "sinfo", "scontrol")
FREE_WITHIN_S: Final = 15
PROBE_MINUTES: Final = 1  # a first import from a cold network disk
PROBE: Final = ("-P", "-m", slurm_probe.__name__)
# Options of sbatch that say which machine, and that srun has, too.
ALSO_OF_SRUN: Final = (
    *("--mem", "--qos", "-q", "--constraint", "-C", "--reservation", "--nodelist", "-w"),
    *("--wckey", "--licenses", "-L"),
)
NOT_ALLOCATED: Final = "Unable to allocate resources: "


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmQuestion:
    """What a pool in a cluster would need."""

    options: SlurmOptions = field(default_factory=SlurmOptions)
    gpus_per_node: int = 1
    server: str = ""  # to be reached from a machine; empty: there is none yet
    jobs_dir: str = ""


def gather_slurm(asked: SlurmQuestion, commands: SlurmCommands | None = None) -> SlurmFacts:
    """Look at a cluster."""
    facts = SlurmFacts(
        options=asked.options,
        gpus_per_node=asked.gpus_per_node,
        missing=tuple(each for each in COMMANDS if shutil.which(each) is None),
        coddl=__version__,
        executable=sys.executable,
        server=asked.server,
        jobs_dir=asked.jobs_dir,
    )
    try:
        return facts if facts.missing else _asked(facts, commands or SlurmCommands())
    except UserError as error:
        return replace(facts, trouble=error)


def _asked(facts: SlurmFacts, slurm: SlurmCommands) -> SlurmFacts:
    """Ask one thing after the other, as far as it makes sense."""
    began_s = time.monotonic()
    slurm.jobs("coddl-doctor")  # as a pool asks all the time
    facts = replace(
        facts,
        answer_s=time.monotonic() - began_s,
        version=slurm.version(),
        settings=slurm.settings(),
        partitions=tuple(slurm.partitions()),
    )
    partition = facts.partition
    if partition is None:
        return facts
    nodes = slurm.nodes(partition=partition["PartitionName"])
    facts = replace(facts, nodes=tuple(nodes))
    if partition.get("State") != "UP" or not facts.takes_jobs:
        return facts  # Slurm says of a job that would wait for drained machines: it can't be had
    words = pilot_words(facts.options, facts.gpus_per_node, nodes)
    verdict = slurm.verdict([*words, "--output=/dev/null", "--wrap=true"])
    facts = replace(facts, verdict=verdict, asked_at_s=time.time())
    if not verdict.is_taken and not would_wait(verdict.said):
        return facts
    return replace(facts, node=_tried(facts, slurm))


def _tried(facts: SlurmFacts, slurm: SlurmCommands) -> SlurmNodeFacts:
    """Run the probe on a machine where it preempts no other job."""
    if not facts.may_be_tried:
        preempts = ", and on others a try could preempt jobs" if facts.preempts else ""
        return SlurmNodeFacts(outcome="busy", said=f"none is idle{preempts}")
    words = _srun_words(facts)
    with _marker(facts.jobs_dir) as marker:
        probe = [sys.executable, *PROBE, facts.server, facts.jobs_dir, marker]
        within_s = FREE_WITHIN_S + 60.0 * PROBE_MINUTES
        try:
            done = slurm.run_on_node([*words, *probe], within_s)
        except UserError as error:
            return SlurmNodeFacts(outcome="refused", said=error.because)
    return node_facts(done, within_s)


def _srun_words(facts: SlurmFacts) -> list[str]:
    """Return the options of `srun`: one GPU of a machine that is free."""
    options, free = facts.options, {node.name for node in facts.may_be_tried}
    taken = [node.name for node in facts.nodes if node.name not in free]
    words = [f"--immediate={FREE_WITHIN_S}", "--nodes=1", "--ntasks=1", "--gres=gpu:1"]
    words += [f"--time={PROBE_MINUTES}", "--chdir=/"]
    for each in options.sbatch_args:
        if each.startswith(("--exclude=", "-x")):
            taken.append(each.removeprefix("--exclude=").removeprefix("-x"))
        elif each.startswith(ALSO_OF_SRUN):
            words.append(each)
    words += [f"--exclude={','.join(taken)}"] if taken else []
    return words + replace(options, time="", sbatch_args=()).sbatch_words


@contextlib.contextmanager
def _marker(folder: str) -> Iterator[str]:
    """Leave a file in a folder for a while; gives its path, or nothing if it can't be written."""
    path = ""
    with contextlib.ExitStack() as stack:
        if folder:
            place = existing_part(Path(folder))
            with contextlib.suppress(OSError):  # it has been judged already
                path = stack.enter_context(
                    tempfile.NamedTemporaryFile(dir=place, prefix=".coddl-doctor-")
                ).name
        yield path


def node_facts(done: subprocess.CompletedProcess[str], within_s: float) -> SlurmNodeFacts:
    """Read what came of the probe."""
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        if line.startswith(slurm_probe.TOLD):  # a prolog may print things, too
            told = json.loads(line.removeprefix(slurm_probe.TOLD))
            known = {name: told.get(name, "") for name in slurm_probe.NAMES}  # by any version
            return SlurmNodeFacts(outcome="answered", **known)
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    said = lines[-1] if lines else "it said nothing"
    for line in lines:
        _, is_slurm, why = line.partition(NOT_ALLOCATED)
        if is_slurm and (would_wait(why) or "Immediate" in why):
            why = f"none had a free GPU within {FREE_WITHIN_S} s"
            return SlurmNodeFacts(outcome="busy", said=why)
        if is_slurm:
            return SlurmNodeFacts(outcome="refused", said=why)
    if done.returncode < 0:
        return SlurmNodeFacts(outcome="silent", said=f"{within_s:.0f} s were over: {said}")
    own = [line for line in lines if not line.startswith("srun: ")]  # which says the code alone
    return SlurmNodeFacts(outcome="failed", said=own[-1] if own else said)
