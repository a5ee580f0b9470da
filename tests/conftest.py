"""All tests run under the same conditions, whoever starts them."""

import signal

from hypothesis import settings

# Properties are tested on the same examples in every run: a failure is there for everybody.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

# A script that runs tests in the background ignores Ctrl-C, and what tests start would do so too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
