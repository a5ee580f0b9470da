"""Nodes whose workers only advance: the real agent around trainings that are only computed."""
