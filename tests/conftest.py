"""All tests run under the same conditions, whoever starts them."""

import os
import signal
from itertools import groupby, islice

import pytest
from hypothesis import settings

# Properties are tested on the same examples in every run: a failure is there for everybody.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

# A script that runs tests in the background ignores Ctrl-C, and what tests start would do so too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--matrix", action="store_true", help="run tests that take minutes each, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = with_pools_first(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    if not config.getoption("--matrix"):
        skip = pytest.mark.skip(reason="takes minutes: make test-long, or pytest --matrix")
        for item in items:
            if item.get_closest_marker("matrix"):
                item.add_marker(skip)


def with_pools_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Have all workers but one begin with whole pools, a module at a time.

    Each of these takes a minute: at the end all would wait for the last. More at a time would
    disturb each other. `--dist worksteal` deals the tests in parts of equal length.
    """
    pools = [item for item in items if "e2e" in item.path.parts]
    others = (item for item in items if "e2e" not in item.path.parts)
    heads: list[list[pytest.Item]] = [[] for _ in range(max(1, workers - 1))]
    for number, (_, module) in enumerate(groupby(pools, key=lambda item: item.path)):
        heads[number % len(heads)].extend(module)
    dealt: list[pytest.Item] = []
    for head in heads:
        dealt += [*head, *islice(others, max(0, len(items) // workers - len(head)))]
    return [*dealt, *others]
