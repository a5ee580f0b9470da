"""Distribution of parameters over servers: the blocks of real models, and rules to assign them."""

from collections.abc import Sequence

import pytest

from coddl.core.parameter_server.assignment import Piece
from coddl.reproduce import optimus_parameters
from coddl.reproduce.experiment import Inputs
from coddl.reproduce.optimus_parameters import (
    MODELS,
    RULES,
    UNIT,
    busiest,
    hashed,
    imbalance,
    moved,
    moved_units,
    round_robin,
    step_factor,
    units,
)
from coddl.traces.models import known_models


@pytest.mark.parametrize(
    ("model", "blocks", "total"), [("vgg16", 32, 138_357_544), ("resnet50", 161, 25_557_032)]
)
def test_models_have_their_published_sizes(model: str, blocks: int, total: int) -> None:
    sizes = MODELS[model]()
    assert (len(sizes), sum(sizes)) == (blocks, total)
    assert max(sizes) == pytest.approx(known_models()[model].skew * total)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("servers", [1, 5, 16])
def test_every_parameter_is_on_one_server(rule: str, servers: int) -> None:
    sizes = MODELS["resnet50"]()
    pieces = RULES[rule](sizes, servers)
    assert sum(piece.size for piece in pieces) == sum(sizes)
    assert {piece.server for piece in pieces} == set(range(servers))
    if rule != "units":
        assert [sum(p.size for p in pieces if p.block == b) for b in range(len(sizes))] == sizes


def test_mxnet_splits_large_blocks_and_hashes_the_others() -> None:
    assert hashed([999_999, 1_000_000, 7], 3) == [
        (0, 0, 999_999),
        (1, 0, 333_333),
        (1, 1, 333_334),
        (1, 2, 333_333),
        (2, 2, 7),  # 2 x 9973 is 2 more than a multiple of 3
    ]


def test_units_are_cut_whatever_the_blocks() -> None:
    assert units([UNIT // 2, 2 * UNIT, 3], 2) == [(0, 0, UNIT), (1, 1, UNIT), (2, 0, UNIT // 2 + 3)]


def on(servers: Sequence[int]) -> list[Piece]:
    """Units of the same size on these servers."""
    return [Piece(unit, server, 10) for unit, server in enumerate(servers)]


MOVES = {
    "nothing has to move": ([0, 1, 0, 1], 2, [0, 1, 0, 1]),
    "one more than another is even": ([0, 0, 1], 2, [0, 0, 1]),
    "a new server is filled": ([0, 0, 0, 1, 1, 1], 3, [0, 0, 2, 1, 1, 2]),
    "a server's units go to the emptiest": ([0, 1, 2, 2], 2, [0, 1, 0, 1]),
    "what is uneven is evened out": ([0, 0, 0, 0], 2, [0, 0, 1, 1]),
}


@pytest.mark.parametrize(("before", "servers", "after"), MOVES.values(), ids=MOVES.keys())
def test_no_more_units_move_than_must(before: list[int], servers: int, after: list[int]) -> None:
    assert moved_units(on(before), servers) == on(after)


def test_a_rule_is_as_good_as_its_fullest_and_busiest_server() -> None:
    pieces = round_robin([6, 1, 2], 2)
    assert imbalance(pieces, 2) == pytest.approx(8 / 4.5)
    assert busiest(pieces) == 2


def test_bytes_move_even_where_blocks_are_cut_elsewhere() -> None:
    whole, cut = [Piece(0, 0, 6), Piece(1, 1, 4)], [Piece(0, 0, 3), Piece(0, 2, 3), Piece(1, 1, 4)]
    assert moved(whole, cut) == pytest.approx(0.3)
    assert moved(cut, whole) == pytest.approx(0.3)
    assert moved(whole, [Piece(0, 0, 5), Piece(1, 1, 5)]) == pytest.approx(0.1)


def test_servers_can_be_renumbered_so_that_less_moves() -> None:
    before, after = on([0, 0, 1]), on([2, 1, 0])
    assert moved(before, after) == 1.0
    assert moved(before, after, renumbered=True) == pytest.approx(1 / 3)
    # The last one leaves, whatever its number.
    before, after = on([0, 2, 2]), on([1, 0, 0])
    assert moved(before, after) == 1.0
    assert moved(before, after, renumbered=True) == pytest.approx(2 / 3)


def test_the_fullest_server_lengthens_the_transfer_alone() -> None:
    assert step_factor("vgg16", 6, 1.0) == 1.0
    twice, thrice = (step_factor("vgg16", 6, imbalance) for imbalance in (2.0, 3.0))
    assert 1.0 < twice < 2.0
    assert thrice - twice == pytest.approx(twice - 1.0)


def test_units_move_what_a_new_server_must_get_and_other_rules_more() -> None:
    by_rule = {rule: optimus_parameters.split_by(rule, "resnet50") for rule in RULES}
    assert by_rule["units"].added == pytest.approx(1 / 6, rel=0.05)
    assert all(each.added_renumbered > 2 / 6 for rule, each in by_rule.items() if rule != "units")
    assert by_rule["PAA"].worst < 1.1 < by_rule["MXNet"].worst < by_rule["round robin"].worst


def test_the_table_has_a_row_for_each_rule_and_model() -> None:
    (experiment,) = optimus_parameters.EXPERIMENTS
    finding = experiment.run(Inputs())
    assert finding.details is not None
    assert len(finding.details.rows) == len(RULES) * len(MODELS)
    assert {len(row) for row in finding.details.rows} == {len(finding.details.head)}
    assert set(finding.plot.lines) == set(RULES)
