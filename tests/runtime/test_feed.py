"""A loader whose part of each batch changes while its processes load ahead."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from coddl.runtime.worker.feed import Feed
from coddl.runtime.worker.loader import Cut, ElasticLoader
from coddl.runtime.worker.session import TrainingSession

BATCH, STEPS = 12, 20
HALF = (6, 6)


class Numbers(Dataset[Tensor]):
    """Samples that tell their number, and the process they were loaded by."""

    def __init__(self, broken: int = -1) -> None:
        self._broken = broken

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, number: int) -> Tensor:
        if number == self._broken:
            raise ValueError("broken")
        return torch.tensor([number, os.getpid()])


def opened(**settings: Any) -> ElasticLoader:
    """Give a loader in its first round; nothing of it asks its session."""
    plain = DataLoader(settings.pop("data", Numbers()), BATCH, num_workers=2, **settings)
    loader = ElasticLoader(plain, cast(TrainingSession, None))
    loader.begin()
    loader.open(None, keep=False)
    return loader


def fetched(loader: ElasticLoader, count: int = STEPS) -> Iterator[tuple[list[int], set[int]]]:
    """Fetch batches; give the numbers of each, and the processes they come from."""
    for _ in range(count):
        try:
            batch = loader.fetch()
        except StopIteration:
            return
        yield batch[:, 0].tolist(), set(batch[:, 1].tolist())


@pytest.mark.parametrize("persistent", [False, True])
def test_processes_serve_another_part_of_each_batch(persistent: bool) -> None:
    loader = opened(persistent_workers=persistent)
    before = [*fetched(loader, 3)]
    loader.own(Cut(3, 1, HALF))
    later = [*fetched(loader, 5)]
    loader.own(Cut(8, 0, (1,)))
    rest = [*fetched(loader)]
    loader.close()
    had = [numbers for numbers, _ in before + later + rest]
    whole = [[*range(n * BATCH, (n + 1) * BATCH)] for n in range(STEPS)]
    assert had == whole[:3] + [batch[6:] for batch in whole[3:8]] + whole[8:]
    assert len(set().union(*(pids for _, pids in before + later + rest))) == 2


def test_a_part_may_begin_later_than_the_next_batch() -> None:
    loader = opened()
    loader.own(Cut(2, 0, HALF))
    sizes = [len(numbers) for numbers, _ in fetched(loader, 5)]
    loader.close()
    assert sizes == [12, 12, 6, 6, 6]


def test_the_last_batches_of_a_round_are_asked_for_once_more() -> None:
    loader = opened()
    assert len([*fetched(loader, STEPS - 2)]) == STEPS - 2  # the last ones are being loaded
    loader.own(Cut(STEPS - 2, 1, HALF))
    rest = [numbers for numbers, _ in fetched(loader)]
    assert rest == [[*range(222, 228)], [*range(234, 240)]]


@pytest.mark.parametrize("comes", [True, False])
def test_an_expected_part_is_used_only_if_it_comes(comes: bool) -> None:
    loader = opened()
    for _ in fetched(loader, 3):
        loader.note_update()
    loader.expect(1, HALF)
    had = [numbers for numbers, _ in fetched(loader, 1)]
    if comes:
        loader.own(Cut(4, 1, HALF))
    had += [numbers for numbers, _ in fetched(loader, 2)]
    loader.close()
    first = 6 if comes else 0
    assert had == [
        [*range(36, 48)],
        [*range(48 + first, 60)],
        [*range(60 + first, 72)],
    ]


def test_what_can_not_be_loaded_and_is_not_wanted_any_more_does_not_matter() -> None:
    loader = opened(data=Numbers(broken=30))
    [*fetched(loader, 2)]
    loader.own(Cut(2, 0, HALF))
    (had,) = [numbers for numbers, _ in fetched(loader, 1)]
    assert had == [*range(24, 30)]
    loader.own(Cut(3, 0, (1,)))
    (had,) = [numbers for numbers, _ in fetched(loader, 1)]
    assert had == [*range(36, 48)]
    loader.close()


def test_the_scripts_random_stream_stays_where_it_is() -> None:
    loader = opened(data=Numbers(broken=30), shuffle=False)
    [*fetched(loader, 2)]
    before = torch.get_rng_state()
    loader.own(Cut(2, 0, HALF))
    [*fetched(loader, 4)]  # in processes that were started anew
    loader.close()
    assert torch.equal(torch.get_rng_state(), before)


class Slow(Dataset[int]):
    """Samples whose first one takes until there is a file; each that is loaded is written down."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, number: int) -> int:
        with (self._folder / "loaded").open("a") as notes:
            notes.write(f"{number}\n")
        while number == 0 and not (self._folder / "go").exists():
            pass
        return number


def test_a_process_skips_what_is_not_wanted_any_more(tmp_path: Path) -> None:
    asked = iter([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]])

    def ask() -> tuple[list[int], int]:
        indices = next(asked)
        return indices, indices[0]

    plain: DataLoader[int] = DataLoader(Slow(tmp_path), 2, num_workers=1, prefetch_factor=4)
    feed = Feed(plain, ask)
    feed.start(None)
    assert feed.wanted == [0, 2, 4, 6]
    assert feed.withdraw(keep=1) == [2, 4, 6]
    (tmp_path / "go").touch()
    assert [feed.next()[1] for _ in range(2)] == [0, 8]
    feed.close()
    loaded = [int(line) for line in (tmp_path / "loaded").read_text().splitlines()]
    assert loaded == [0, 1, 2, 4, 6, 8, 9]


class Counting(IterableDataset[int]):
    """A stream that goes on from where it was."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.at += 1
            yield self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_a_rehearsal_leaves_a_stream_where_it_was() -> None:
    data = Counting()
    loader = ElasticLoader(DataLoader(data, BATCH), cast(TrainingSession, None))
    loader.begin()
    loader.open(None, keep=False)
    loader.fetch()
    assert data.at == BATCH
    loader.forget()
    assert data.at == 0
