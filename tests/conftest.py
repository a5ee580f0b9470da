"""All tests run under the same conditions, whoever starts them."""

import signal
from typing import Final

import pytest
from hypothesis import settings

# Properties are tested on the same examples in every run: a failure is there for everybody.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

# A script that runs tests in the background ignores Ctrl-C, and what tests start would do so too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What takes long, or compiles what others need, comes early in the third of all tests that each of
# the processes of `make test` is dealt: none is left alone with it at the end.
ORDER: Final = ("live", "e2e", "core", "docs", "cli", "sim", "traces", "runtime", "agent")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests by their folder; those of others come last."""
    rank = {name: at for at, name in enumerate(ORDER)}
    items.sort(key=lambda item: rank.get(item.nodeid.split("/")[1], len(ORDER)))
