"""Which nodes a job may run on: those that share a jobs folder, where its checkpoints lie.

Usually all nodes of a pool share one, or keep checkpoints at one URI, which counts as a folder.
Where they do not, each folder's nodes are scheduled by themselves, for a job can neither span two
folders nor take its checkpoints from one to another.
"""

from dataclasses import dataclass
from typing import Final

from coddl.core.pool.job import JobState
from coddl.core.pool.snapshot import usable
from coddl.core.pool.state import Pool
from coddl.core.waiting import Waiting

STRANDED: Final = (
    "no node that is up can read the jobs folder with its files: start agents with the --jobs-dir "
    "that it had"
)
STRANDED_AT: Final = "its files are at {}: start the pool with --checkpoints {}"


@dataclass(frozen=True, slots=True)
class FolderGroup:
    """Nodes that share a jobs folder, and the jobs that may run on them."""

    nodes: frozenset[str]
    jobs: frozenset[int]


def stranded(pool: Pool) -> dict[int, Waiting]:
    """Name the jobs whose files no node can reach now."""
    folders = folders_of(pool)
    return {
        job.id: Waiting("NodeDown", _why_stranded(job.jobs_folder))
        for job in pool.live_jobs()
        if job.jobs_folder and job.jobs_folder not in folders and not job.has_run and folders
    }


def _why_stranded(folder: str) -> str:
    return STRANDED_AT.format(folder, folder) if "://" in folder else STRANDED


def folder_groups(pool: Pool) -> list[FolderGroup]:
    """Group the nodes of a pool by the jobs folder they share; one group, if all do."""
    folders = folders_of(pool)
    if len(folders) <= 1:
        return [FolderGroup(frozenset(pool.nodes), frozenset(pool.active))]
    chosen = _chosen(pool, folders)
    return [
        FolderGroup(frozenset(nodes), frozenset(job for job, at in chosen.items() if at == folder))
        for folder, nodes in folders.items()
    ]


def folders_of(pool: Pool) -> dict[str, list[str]]:
    """Name the jobs folders of the nodes that are up, and their nodes."""
    found: dict[str, list[str]] = {}
    for node in sorted(pool.nodes.values(), key=lambda node: node.name):
        if node.is_up:
            found.setdefault(node.folder, []).append(node.name)
    return found


def _chosen(pool: Pool, folders: dict[str, list[str]]) -> dict[int, str]:
    """Return in which folder each job runs: where its files are, or where most room is left."""
    slots = usable(pool)
    room = {
        folder: sum(node in nodes for node in slots.values()) for folder, nodes in folders.items()
    }
    chosen = {job.id: job.jobs_folder for job in pool.live_jobs() if job.jobs_folder in folders}
    for number, folder in chosen.items():
        room[folder] -= _least(pool.jobs[number])
    for job in pool.live_jobs():
        if job.id not in chosen:
            best = max(room, key=lambda folder: (room[folder], folder))
            chosen[job.id] = best
            room[best] -= _least(job)
    return chosen


def _least(job: JobState) -> int:
    return 0 if job.suspended else job.gpus_least
