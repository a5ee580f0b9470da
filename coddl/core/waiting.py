"""Why a job waits, and words for that. Without NumPy, as agents and clients read it too."""

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


def counted(count: int, what: str) -> str:
    """Write a number of things: "1 GPU", "2 GPUs"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


class Waiting(NamedTuple):
    """Why a job has no GPUs: a code for programs, a sentence for people."""

    code: WaitingCode
    sentence: str
