"""Runs one elastic job: decides, starts, watches, saves. Standard library only, no torch."""
