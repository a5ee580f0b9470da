"""Gandiva (OSDI '18): jobs get GPUs at once, and take turns where there are too many."""
