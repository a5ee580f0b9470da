import pytest

from coddl.runtime.errors import TrainingError
from coddl.runtime.vnodes import batch_of, owned_by, seed_of, shares

CUTS = {
    "the default is 16 parts if they come out even": (256, None, 16),
    "fewer, if the batch is odd": (12, None, 4),
    "one, if nothing divides it": (7, None, 1),
    "as asked": (32, 4, 8),
    "the whole batch in one": (32, 32, 1),
}


@pytest.mark.parametrize(("global_batch", "micro_batch", "want"), CUTS.values(), ids=CUTS.keys())
def test_the_global_batch_is_cut_into_equal_virtual_nodes(
    global_batch: int, micro_batch: int | None, want: int
) -> None:
    cut = batch_of(global_batch, micro_batch)
    assert cut.virtual_nodes == want
    assert cut.virtual_nodes * cut.micro_batch == global_batch


@pytest.mark.parametrize(("global_batch", "micro_batch"), [(0, None), (32, 5), (32, 0), (32, 64)])
def test_a_batch_that_cannot_be_cut_is_refused(global_batch: int, micro_batch: int | None) -> None:
    with pytest.raises(TrainingError) as refused:
        batch_of(global_batch, micro_batch)
    assert str(global_batch) in str(refused.value)


SHARES = {
    "equal workers share alike": (8, [1.0, 1.0], (4, 4)),
    "what is left over goes to the oldest": (8, [1.0, 1.0, 1.0], (3, 3, 2)),
    "one is alone": (5, [3.0], (5,)),
    "a worker half as fast gets half": (9, [1.0, 2.0], (6, 3)),
    "even the slowest works": (4, [1.0, 100.0], (3, 1)),
    "as many as there are": (3, [1.0, 5.0, 9.0], (1, 1, 1)),
}


@pytest.mark.parametrize(("nodes", "pass_s", "want"), SHARES.values(), ids=SHARES.keys())
def test_virtual_nodes_follow_the_workers_speed(
    nodes: int, pass_s: list[float], want: tuple[int, ...]
) -> None:
    assert shares(nodes, pass_s) == want


def test_every_virtual_node_has_one_owner() -> None:
    counts = (3, 1, 4)
    owned = [node for rank in range(3) for node in owned_by(rank, counts)]
    assert owned == list(range(8))


def test_neighbouring_seeds_are_unrelated_and_fit_every_generator() -> None:
    seeds = {
        seed_of(0, epoch, step, node)
        for epoch in range(3)
        for step in range(9)
        for node in range(9)
    }
    assert len(seeds) == 3 * 9 * 9
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(1, 23) != seed_of(12, 3)
