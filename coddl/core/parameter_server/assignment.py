"""Which parameter server holds which parameters (PAA; Optimus, EuroSys '18, §5.3)."""

from collections.abc import Sequence
from typing import Final, NamedTuple

SMALL: Final = 0.01  # of an even share: for smaller blocks requests cost more than bytes


class Piece(NamedTuple):
    """A part of a block of parameters, on a server; each is one request per worker and step."""

    block: int
    server: int
    size: int


def assign_parameters(sizes: Sequence[int], servers: int) -> list[Piece]:
    """Deal out blocks so that servers hold about as much and answer about as many requests.

    With an even share of all parameters in mind, the largest block comes first. A small one goes to
    the server with the fewest requests; one of up to a share where it fits best, else to the
    emptiest; a larger one is cut, and each piece fills up the emptiest server.
    """
    share = -(-sum(sizes) // servers)
    held, requests, pieces = [0] * servers, [0] * servers, []

    def put(block: int, server: int, size: int) -> None:
        held[server] += size
        requests[server] += 1
        pieces.append(Piece(block, server, size))

    def emptiest() -> int:
        return min(range(servers), key=lambda server: (held[server], server))

    def fitting(size: int) -> int:
        roomy = [server for server in range(servers) if held[server] + size <= share]
        return max(roomy, key=lambda server: (held[server], -server)) if roomy else emptiest()

    for block in sorted(range(len(sizes)), key=lambda block: (-sizes[block], block)):
        size = sizes[block]
        if size <= SMALL * share:
            put(block, min(range(servers), key=lambda at: (requests[at], at)), size)
            continue
        while size > share - held[emptiest()] > 0 and sizes[block] > share:
            some = share - held[emptiest()]
            put(block, emptiest(), some)
            size -= some
        if size > 0:
            put(block, fitting(size), size)
    return pieces
