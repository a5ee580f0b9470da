"""Drives the scheduling core in virtual time."""
