"""The poster that CoDDL began with: static against dynamic allocation, and where GPUs lie."""

from typing import Final

from coddl.sim.api import simulate
from coddl.sim.reproduce.experiment import Experiment, Figure, Finding, Plot, Setting, Table

SOURCE: Final = 'poster "Distributed Deep Learning over Shared GPU Cluster"'
GPUS: Final = 512
POLICIES: Final = {"static (fifo)": "fifo", "dynamic (max-min)": "max-min", "afs-l": "afs-l"}


def static_or_dynamic(setting: Setting) -> Finding:
    """512 jobs of 8 models on 512 GPUs."""
    study = simulate("poster", list(POLICIES.values()), gpus=GPUS, seeds=setting.seeds)
    jct, makespan = "average JCT, h", "makespan, h"
    hours = {
        shown: [float(study[column][at]) / 3600 for at in range(len(POLICIES))]
        for shown, column in ((jct, "avg_jct_s"), (makespan, "makespan_s"))
    }
    spread = {
        shown: study[f"{column}_ci95"] / 3600 if setting.seeds > 1 else None
        for shown, column in ((jct, "avg_jct_s"), (makespan, "makespan_s"))
    }

    def cell(shown: str, at: int) -> str:
        widths = spread[shown]
        return f"{hours[shown][at]:.2f}" + ("" if widths is None else f" ± {widths[at]:.2f}")

    rows = [[name, cell(jct, at), cell(makespan, at)] for at, name in enumerate(POLICIES)]
    return Finding(
        tuple(
            Figure(
                f"{shown.partition(',')[0]}, static / dynamic",
                "dynamic is better",
                f"{values[0] / values[1]:.2f}x",
            )
            for shown, values in hours.items()
        ),
        Plot("512 jobs on 512 GPUs", "allocation", "hours", bars=hours, categories=list(POLICIES)),
        (
            "The poster shows both as bars without numbers.",
            f"Means of {setting.seeds} seeds, with 95 % intervals in the table.",
        ),
        Table(["allocation", jct, makespan], rows),
    )


EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    Experiment(
        "poster-512",
        "Static against dynamic allocation of 512 jobs",
        f"{SOURCE}, experiment: online job submission",
        "The poster states jobs, models and cluster, but no requests, lengths or arrivals. "
        "Here a job asks for all GPUs its model can use, runs for 10 to 120 minutes on those "
        "(uniform), and comes a minute (exponential) after the one before. The eight models, "
        "which the poster does not name, are those of the AFS authors' code of the time.",
        static_or_dynamic,
    ),
)
