"""Why a job waits. Without NumPy, as agents and clients read it too."""

from typing import Literal, NamedTuple

WaitingCode = Literal[
    "Resources",
    "Priority",
    "QueueQuota",
    "UserLimit",
    "Topology",
    "Held",
    "Infeasible",
    "CoolDown",
    "NodeDown",
    "PolicyFailed",
]


class Waiting(NamedTuple):
    """Why a job has no GPUs: a code for programs, a sentence for people."""

    code: WaitingCode
    sentence: str
