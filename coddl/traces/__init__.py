"""Workloads: our own format, public traces, generators."""
