"""A port that nobody else takes before it is listened at."""

import random
import socket
from typing import Final

BELOW: Final = range(20_000, 32_000)  # no system gives these to sockets that ask for any port


def free_port() -> int:
    """Give a free port of this machine, chosen at random."""
    while True:
        port = random.SystemRandom().choice(BELOW)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
