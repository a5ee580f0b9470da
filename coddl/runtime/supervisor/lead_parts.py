"""What a supervisor reaches the world with: its loop, worker hosts, and where state is kept."""

from collections.abc import Callable
from dataclasses import dataclass

from coddl.runtime.supervisor.checkpoint_store import Checkpoints
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.loop import Loop, SupervisorLoop
from coddl.runtime.supervisor.remote_checkpoints import checkpoints_of_lead
from coddl.runtime.supervisor.remote_worker_host import Dial, tcp_dial


@dataclass(frozen=True, slots=True)
class LeadParts:
    """Parts of the lead of a job in a pool that tests replace."""

    loop: SupervisorLoop
    dial: Dial
    open_checkpoints: Callable[[Job], Checkpoints]  # raises if a newer attempt has them


def machine_parts(loop: Loop) -> LeadParts:
    """Give the parts of a lead on this machine."""
    return LeadParts(
        loop,
        tcp_dial(loop),
        lambda job: checkpoints_of_lead(job.folder, job.remote, job.script, job.attempt),
    )
