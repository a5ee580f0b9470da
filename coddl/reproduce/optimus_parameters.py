"""Which parameter server holds which parameters: four rules, on the blocks of real models."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, permutations
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from coddl.core.cluster import Links
from coddl.core.columns import IntColumn, IntMatrix
from coddl.core.parameter_server.assignment import Piece, assign_parameters
from coddl.core.parameter_server.costs import costs_of_curve
from coddl.core.speed.estimate import unit_bytes
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from coddl.traces.files import packaged_speeds
from coddl.traces.models import BYTES

SplitRule: TypeAlias = Callable[[Sequence[int], int], list[Piece]]

LARGE: Final = 1_000_000  # parameters, from which MXNet splits a block
PRIME: Final = 9973  # MXNet's hash of a block's number is this many times it
LINK: Final = Links().cluster  # between workers and servers
UNIT: Final = round(unit_bytes(LINK) / BYTES)  # parameters
SERVERS: Final = range(2, 17)
FEW, MORE = 5, 6  # servers before and after one is added


def _convolution(inputs: int, outputs: int, width: int) -> int:
    return inputs * outputs * width * width


def vgg16() -> list[int]:
    """Parameters of each block: weights and biases of 13 convolutions and 3 full layers.

    Simonyan and Zisserman, 2015, configuration D, for 224 x 224 images of 1000 classes.
    """
    channels = (3, 64, 64, 128, 128, 256, 256, 256, *(512,) * 6)
    full = (512 * 7 * 7, 4096, 4096, 1000)
    out = [size for i, o in pairwise(channels) for size in (_convolution(i, o, 3), o)]
    return out + [size for i, o in pairwise(full) for size in (i * o, o)]


def resnet50() -> list[int]:
    """Parameters of each block: 53 convolutions, each with two of its normalisation, and a layer.

    He et al., 2016: a bottleneck has three convolutions, the first of a stage one on the shortcut.
    """
    out = _normalised(3, 64, 7)
    inputs = 64
    for bottlenecks, inner in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for at in range(bottlenecks):
            out += _normalised(inputs, inner, 1)
            out += _normalised(inner, inner, 3)
            out += _normalised(inner, 4 * inner, 1)
            out += _normalised(inputs, 4 * inner, 1) if at == 0 else []
            inputs = 4 * inner
    return [*out, inputs * 1000, 1000]


def _normalised(inputs: int, outputs: int, width: int) -> list[int]:
    return [_convolution(inputs, outputs, width), outputs, outputs]


MODELS: Final[Mapping[str, Callable[[], list[int]]]] = {"vgg16": vgg16, "resnet50": resnet50}


def round_robin(sizes: Sequence[int], servers: int) -> list[Piece]:
    """Whole blocks in turn, as TensorFlow does by default."""
    return [Piece(block, block % servers, size) for block, size in enumerate(sizes)]


def hashed(sizes: Sequence[int], servers: int) -> list[Piece]:
    """Large blocks over all servers, small ones by a hash of their number, as MXNet does."""
    out = []
    for block, size in enumerate(sizes):
        if size < LARGE:
            out.append(Piece(block, block * PRIME % servers, size))
            continue
        cuts = [round(size * server / servers) for server in range(servers + 1)]
        out += [Piece(block, at, end - start) for at, (start, end) in enumerate(pairwise(cuts))]
    return out


def units(sizes: Sequence[int], servers: int) -> list[Piece]:
    """All parameters in a row, cut into units that are worth a message, whatever the blocks."""
    total = sum(sizes)
    nowhere = [Piece(at, -1, min(UNIT, total - at * UNIT)) for at in range(-(-total // UNIT))]
    return moved_units(nowhere, servers)


def moved_units(pieces: Sequence[Piece], servers: int) -> list[Piece]:
    """Units on another number of servers, of which only those move that must.

    A tensor that is on no server any more goes to the emptiest. Then the fullest server gives units
    to the emptiest, as long as that leaves the two closer.
    """
    out, held = list(pieces), [0] * servers
    on: list[list[int]] = [[] for _ in held]

    def put(unit: int, server: int) -> None:
        out[unit] = out[unit]._replace(server=server)
        held[server] += out[unit].size
        on[server].append(unit)

    for unit, piece in enumerate(pieces):
        if 0 <= piece.server < servers:
            put(unit, piece.server)
    for unit, piece in enumerate(pieces):
        if not 0 <= piece.server < servers:
            put(unit, held.index(min(held)))
    while True:
        fullest, emptiest = held.index(max(held)), held.index(min(held))
        unit = on[fullest][-1]
        if held[fullest] - held[emptiest] <= out[unit].size:
            return out
        held[fullest] -= out[on[fullest].pop()].size
        put(unit, emptiest)


RULES: Final[Mapping[str, SplitRule]] = {
    "round robin": round_robin,
    "MXNet": hashed,
    "PAA": assign_parameters,
    "units": units,
}


def imbalance(pieces: Sequence[Piece], servers: int) -> float:
    """What the fullest server holds, over the average."""
    held = np.bincount([piece.server for piece in pieces], [piece.size for piece in pieces])
    return float(held.max() / held.sum() * servers)


def busiest(pieces: Sequence[Piece]) -> int:
    """The most requests that a worker sends to one server in a step."""
    return int(np.bincount([piece.server for piece in pieces]).max())


def shared(before: Sequence[Piece], after: Sequence[Piece]) -> IntMatrix:
    """How many parameters were on each server (row) and are on each (column) after a change."""
    (ends, was), (ends_after, now) = _in_a_row(before), _in_a_row(after)
    cuts = np.union1d(ends, ends_after)  # between two cuts no parameter changes its server
    out = np.zeros((was.max() + 1, now.max() + 1), np.int64)
    at = was[np.searchsorted(ends, cuts)], now[np.searchsorted(ends_after, cuts)]
    np.add.at(out, at, np.diff(cuts, prepend=0))
    return out


def _in_a_row(pieces: Sequence[Piece]) -> tuple[IntColumn, IntColumn]:
    """Where each piece ends, if all parameters are in a row, and its server."""
    row = sorted(pieces, key=lambda piece: piece.block)
    return np.cumsum([piece.size for piece in row]), np.array([piece.server for piece in row])


def moved(before: Sequence[Piece], after: Sequence[Piece], *, renumbered: bool = False) -> float:
    """Which part of all parameters a change moves.

    Servers keep their numbers, and the last one comes or leaves. `renumbered`: with the numbers of
    the servers after the change dealt out such that least moves.
    """
    both = shared(before, after)
    servers = both.shape[1]
    stay = both[:servers]  # those that are there before and after
    row = np.arange(len(stay))
    orders = permutations(range(servers), len(stay)) if renumbered else [tuple(row)]
    return 1.0 - float(max(stay[row, order].sum() for order in orders) / both.sum())


def changed(rule: str, sizes: Sequence[int], servers: int, then: int) -> list[Piece]:
    """Where everything is on another number of servers; units alone remember where they were."""
    deal = RULES[rule]
    return moved_units(units(sizes, servers), then) if deal is units else deal(sizes, then)


def step_factor(model: str, servers: int, imbalance: float) -> float:
    """How many times longer a step takes than with even servers, on as many workers.

    The transfer is as long as that of the fullest server.
    """
    table, count = packaged_speeds(model), np.array([servers])
    costs = costs_of_curve(table.step_s[0, 1 : int(table.gpus_max[0]) + 1].tolist())
    even_s, transfer_s = costs.step_s(count, count), costs.transfer_s(count, count)
    return 1.0 + float((imbalance - 1.0) * (transfer_s / even_s)[0])


class ParameterSplit(NamedTuple):
    """What a rule makes of a model, on six servers and when one comes or leaves."""

    worst: float  # the fullest server over the average, on any number of them
    fullest: float  # the same on six
    step: float  # over one with even servers
    requests: int  # of a worker and step
    busiest: int
    added: float  # the part of all bytes that moves
    added_renumbered: float
    taken: float
    taken_renumbered: float


def split_by(rule: str, model: str) -> ParameterSplit:
    """Deal a model's parameters out by a rule."""
    sizes, deal = MODELS[model](), RULES[rule]
    few, more = deal(sizes, FEW), deal(sizes, MORE)
    added, taken = changed(rule, sizes, FEW, MORE), changed(rule, sizes, MORE, FEW)
    fullest = imbalance(more, MORE)
    return ParameterSplit(
        max(imbalance(deal(sizes, servers), servers) for servers in SERVERS),
        fullest,
        step_factor(model, MORE, fullest),
        len(more),
        busiest(more),
        moved(few, added),
        moved(few, added, renumbered=True),
        moved(more, taken),
        moved(more, taken, renumbered=True),
    )


def figures_of(model: str, found: Mapping[str, ParameterSplit]) -> list[Figure]:
    """The rules side by side on one model."""
    parts = {
        f"fullest server over the average, at worst of {SERVERS[0]} to {SERVERS[-1]}": [
            f"{each.worst:.2f}x" for each in found.values()
        ],
        f"step on {MORE} servers, over one with even servers": [
            f"{each.step:.2f}x" for each in found.values()
        ],
        f"requests of a worker and step, {MORE} servers": [
            f"{each.requests}" for each in found.values()
        ],
        f"bytes that move from {FEW} to {MORE} servers, renumbered": [
            f"{each.added_renumbered:.0%}" for each in found.values()
        ],
    }
    names = " / ".join(found)
    return [
        Figure(f"{model}, {what}: {names}", "", " / ".join(ours)) for what, ours in parts.items()
    ]


def row_of(model: str, rule: str, each: ParameterSplit) -> list[str]:
    """One row of the table, on six servers."""
    parts = (each.added, each.added_renumbered, each.taken, each.taken_renumbered)
    return [
        model,
        rule,
        f"{each.fullest:.2f}x",
        str(each.requests),
        str(each.busiest),
        *(f"{part:.0%}" for part in parts),
    ]


HEAD: Final = (
    "model", "rule", "fullest", "requests", "busiest",
    "added", "added, renumbered", "taken", "taken, renumbered",
)  # fmt: skip


def compared(_inputs: Inputs) -> Finding:
    """Four rules on two models, on 2 to 16 servers."""
    found = {model: {rule: split_by(rule, model) for rule in RULES} for model in MODELS}
    drawn = {
        rule: [
            (float(servers), imbalance(deal(resnet50(), servers), servers)) for servers in SERVERS
        ]
        for rule, deal in RULES.items()
    }
    return Finding(
        tuple(figure for model, of in found.items() for figure in figures_of(model, of)),
        Plot(
            "ResNet-50 on parameter servers",
            "servers",
            "fullest server / average",
            drawn,
        ),
        (
            "The talk gives no numbers on this: there is no published figure to compare ours with.",
            f"The table is for {MORE} servers: what the fullest holds over the average, requests "
            "of one worker in a step in all and to the busiest, and the part of all bytes that "
            f"moves when a server is added to {FEW} and when it is taken away. Renumbered: at "
            "best, if a rule could choose which server is which.",
            f"The step is that of {MORE} workers, over one with even servers, if the fullest "
            "server sets how long parameters are on the way; requests cost nothing in it.",
            "Blocks of ResNet-50 come in threes, a convolution and two small ones: where 3 divides "
            "the number of servers, convolutions go to a third of them in turn, or by MXNet's hash "
            "those that it does not split.",
            f"A unit is of {UNIT * BYTES / 1e3:.0f} kB, so that messages cost a tenth of their "
            "time on the wire. A large model has more units than blocks.",
        ),
        Details(HEAD, [row_of(model, *each) for model, of in found.items() for each in of.items()]),
    )


EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    Experiment(
        "optimus-parameters",
        "Distribution of parameters over servers",
        "Peng et al., EuroSys '18 (Optimus): PAA; CoDDL's first poster: units of parameters",
        "Nothing is trained: blocks are those of the published architectures, in order, and the "
        "rules are written anew. Round robin is TensorFlow's default, MXNet's hash is a block's "
        f"number times {PRIME}. Units are of all parameters in a row, for Ethernet of "
        f"{LINK.gb_s:g} GB/s with {LINK.latency_us:g} us a message; each goes to the emptiest "
        "server, and on a change the fullest give to the emptiest. A request is for one piece on "
        "one server. How much of a step is transfer is assumed as in the other experiments on "
        "Optimus.",
        compared,
    ),
)
