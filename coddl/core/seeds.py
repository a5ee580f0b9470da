"""Seeds: a minimal-standard generator (Park and Miller), the same in kernels and in plain Python.

Its states are 1..2**31-2; 0 would stay 0.
"""

from typing import Final

MODULUS: Final = 2**31 - 1


def first_seed(number: int) -> int:
    """The seed that any number stands for."""
    return 1 + number % (MODULUS - 2)


def next_seed(seed: int) -> int:
    """The seed of the next decision."""
    return seed * 16807 % MODULUS
