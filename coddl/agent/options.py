"""What an agent is told when it starts; never changes."""

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

SERVER_GONE: Final = 69  # the exit code of an agent that has ended with its lease


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """How `coddl agent` was called."""

    server: str  # as http://host:port
    token: str = field(repr=False)  # what the server wants to hear
    tls_ca: str = ""  # a file with the CA of the server's certificate; empty: the machine's CAs
    state_dir: Path
    jobs_dir: Path | None = None  # all agents of a pool share it; None: under the state folder
    name: str = ""  # of the node; empty: the machine's
    slots: int | None = None  # places for CPU workers; None: GPUs, or one place per core
    slot_ids: tuple[int, ...] = ()  # the engine's numbers of those places; empty: counted from 0
    host: str = ""  # by which other nodes reach our workers; empty: that of the way to the server
    warm: bool = True  # have an interpreter ready before the first job
    ends_with_lease: bool = False  # end when the server is not heard of for a lease
    host_memory_bytes: int | None = None  # for jobs without their GPUs; None: half of it
    gpu_memory_bytes: int | None = None  # of a GPU, for all that take turns; None: all of it
    log_format: Literal["console", "json"] = "console"

    @property
    def node(self) -> str:
        """Give the node's name."""
        return self.name or socket.gethostname()

    @property
    def folder(self) -> Path:
        """Give the folder that is this agent's own."""
        return self.state_dir.absolute() / "agents" / self.node

    @property
    def jobs_folder(self) -> Path:
        """Give the folder with what jobs keep, one folder a job."""
        return (self.jobs_dir or self.state_dir / "jobs").absolute()
