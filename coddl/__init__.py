"""CoDDL: elastic sharing of a GPU cluster among deep-learning training jobs."""

__version__ = "0.1.0"
