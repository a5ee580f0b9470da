"""Training with parameter servers, as the authors of Optimus measured it: costs of eight models."""

from importlib.resources import as_file, files
from typing import Final

import numpy as np

from coddl.core.parameter_server.costs import ServerCosts
from coddl.traces.cells import Constraint, cells_of
from coddl.traces.text_file import read_text

TERMS: Final = ("compute_s", "constant_s", "transfer_s", "worker_s", "server_s")
SECONDS: Final = Constraint(lambda v: v >= 0, "be a number of at least 0", "0.4213")


def measured_costs() -> dict[str, ServerCosts]:
    """Where the time of a step of each model goes, with its global batch as the unit."""
    what = "the packaged costs of parameter servers cannot be read"
    with as_file(files("coddl.traces") / "data" / "parameter_servers.csv") as path:
        cells = cells_of(read_text(path, what), what, ("model", "batch", "points", *TERMS))
    theta = np.stack([cells.numbers(name, SECONDS) for name in TERMS], axis=1)
    return {
        model: ServerCosts(tuple(row))
        for model, row in zip(cells.columns["model"], theta.tolist(), strict=True)
    }
