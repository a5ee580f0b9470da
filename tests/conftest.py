"""Properties are tested on the same examples in every run: a failure is there for everybody."""

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")
