"""All tests run under the same conditions, whoever starts them."""

import signal

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
    if not config.getoption("--matrix"):
        skip = pytest.mark.skip(reason="takes minutes: make test-engines, or pytest --matrix")
        for item in items:
            if item.get_closest_marker("matrix"):
                item.add_marker(skip)
