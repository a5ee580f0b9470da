"""An image comes to each node once, whatever the number of workers that need it there."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
from torch._C._distributed_c10d import TCPStore

from coddl.runtime.worker.group import Group, GroupError, connect
from coddl.runtime.worker.state_transfer import CHUNK_BYTES, brought, writers

NODES = (0, 0, 1, 1, 1, 2)  # of each rank
SOURCE = 1


def at_once(action: Callable[[int], None]) -> None:
    """Do it as all ranks at the same time; raises what one of them raised."""
    failures: list[Exception] = []

    def act(rank: int) -> None:
        try:
            action(rank)
        except Exception as failure:  # raised below
            failures.append(failure)

    ranks = [threading.Thread(target=act, args=(r,), daemon=True) for r in range(len(NODES))]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(60)
    assert not any(thread.is_alive() for thread in ranks)
    for failure in failures:
        raise failure


@pytest.fixture(scope="module")
def groups() -> Iterator[list[Group]]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    at, made = ("127.0.0.1", store.port), dict[int, Group]()

    def join(rank: int) -> None:
        made[rank] = connect(at, "all", rank, len(NODES), backend="gloo", host="127.0.0.1")

    at_once(join)
    yield [made[rank] for rank in range(len(NODES))]
    for group in made.values():
        group.drop()


@pytest.mark.parametrize(
    ("behind", "wanted"),
    [
        ([0], {0: SOURCE}),
        ([5], {5: 5}),
        ([0, 2, 3, 4, 5], {0: SOURCE, 2: 2, 3: 2, 4: 2, 5: 5}),
        ([4, 3], {4: 3, 3: 3}),
    ],
    ids=[
        "a worker on the source's node reads its image",
        "a lone worker of a node receives it",
        "one worker of each other node receives it for all there",
        "a node whose other workers have the state receives it once, too",
    ],
)
def test_one_worker_of_a_node_writes_for_all(behind: list[int], wanted: dict[int, int]) -> None:
    assert writers(SOURCE, behind, NODES) == wanted


@pytest.mark.parametrize("behind", [[0, 2, 3, 4, 5], [3], [0]])
def test_everybody_behind_reads_the_same_bytes(
    groups: list[Group], tmp_path: Path, behind: list[int]
) -> None:
    image = tmp_path / "image"
    image.write_bytes(os.urandom(2 * CHUNK_BYTES + 12345))
    writer_of = writers(SOURCE, behind, NODES)
    read: dict[int, Path] = {}

    def take_part(rank: int) -> None:
        received = tmp_path / f"received-{rank}"
        mine = image if rank == SOURCE else None
        with brought(groups[rank], SOURCE, writer_of, image=mine, received=received) as path:
            if path is not None:
                assert path.read_bytes() == image.read_bytes()
                read[rank] = path

    at_once(take_part)
    assert read == {
        rank: image if writer == SOURCE else tmp_path / f"received-{writer}"
        for rank, writer in writer_of.items()
    }
    assert list(tmp_path.iterdir()) == [image]


def test_a_received_file_stays_until_the_last_worker_has_read_it(
    groups: list[Group], tmp_path: Path
) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"state")
    writer_of = writers(SOURCE, [2, 3], NODES)
    may_leave, has_left = threading.Event(), threading.Event()

    def take_part(rank: int) -> None:
        received = tmp_path / f"received-{rank}"
        mine = image if rank == SOURCE else None
        with brought(groups[rank], SOURCE, writer_of, image=mine, received=received) as path:
            if rank == 2:
                may_leave.set()  # the writer is the first to be done
            elif rank == 3:
                assert may_leave.wait(30)
                assert not has_left.wait(0.2)
                assert path is not None
                assert path.read_bytes() == b"state"
        if rank == 2:
            has_left.set()

    at_once(take_part)
    assert list(tmp_path.iterdir()) == [image]


def test_what_was_received_is_removed_when_a_worker_fails(
    groups: list[Group], tmp_path: Path
) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"state")

    def take_part(rank: int) -> None:
        received = tmp_path / f"received-{rank}"
        mine = image if rank == SOURCE else None
        with brought(groups[rank], SOURCE, {5: 5}, image=mine, received=received) as path:
            if path is not None:
                raise GroupError("a peer died")

    with pytest.raises(GroupError, match="a peer died"):
        at_once(take_part)
    assert list(tmp_path.iterdir()) == [image]
