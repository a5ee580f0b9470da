"""Which software a node has."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeVersions:
    """What an agent runs on, and jobs that name no interpreter; empty: it was not told."""

    python: str = ""
    torch: str = ""  # empty where `python` is known: not installed
    coddl: str = ""
