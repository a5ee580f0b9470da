"""One HTML file that shows how runs went: to look at, to explore, to put on a slide."""

from coddl.sim.report.page import write_report

__all__ = ["write_report"]
