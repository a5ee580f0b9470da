"""`coddl demo`: start a pool, hand in real PyTorch jobs, show how shares move and why."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coddl.cli.output import AsJson, Output, wants_json
from coddl.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from coddl.api.client import Client
    from coddl.cli.demo.display import DemoDisplay
    from coddl.cli.demo.history import DemoHistory
    from coddl.cli.demo.summary import DemoSummary
    from coddl.engines.pool import PoolOptions

EXAMPLES = "Examples:  coddl demo   coddl demo --slots 8   coddl demo -o json"
PLACES: Final = 4  # for CPU workers
# What takes hours in life takes a minute here: shares stay for two seconds after a change, and
# leases last for some five.
POLICY: Final = "afs-p"
COOL_DOWN_S: Final = 2.0
LEASE_H: Final = 0.0015
LOOK_S: Final = 0.2
PATIENCE_S: Final = 900.0
EVENTS: Final = 500

Slots = Annotated[
    int | None,
    typer.Option(
        min=2,
        max=64,
        metavar="N",
        help="Number of CPU slots (default: use the GPUs; without GPUs, 4).",
    ),
]


def demo(slots: Slots = None, output: Output = "table", as_json: AsJson = False) -> None:
    """Run a small pool for about a minute: training jobs grow and shrink as others come and go.

    The demo has its own pool and leaves no files or processes behind.
    """
    import tempfile

    from rich.console import Console

    from coddl.cli.demo.display import LineDisplay, NoDisplay, TerminalDisplay

    for_program = wants_json(output, as_json)
    console = Console(highlight=False)
    display: DemoDisplay = NoDisplay() if for_program else LineDisplay(console)
    if not for_program and console.is_terminal:
        display = TerminalDisplay(console)
    with tempfile.TemporaryDirectory(prefix="coddl-demo-", ignore_cleanup_errors=True) as folder:
        summary = played(Path(folder), slots, display, for_program)
    _tell(summary, console, for_program)
    raise typer.Exit(0 if all(job.state == "SUCCEEDED" for job in summary.jobs) else 1)


def _tell(summary: "DemoSummary", console: "Console", for_program: bool) -> None:
    from coddl.cli.demo.summary import summary_lines
    from coddl.cli.poolview import show

    if for_program:
        print(json.dumps(summary.as_data(), indent=2))
    else:
        show(summary_lines(summary), console)


def played(
    folder: Path, slots: int | None, display: "DemoDisplay", for_program: bool
) -> "DemoSummary":
    """Play the demo with a pool in a folder, and sum it up."""
    from coddl.cli.demo.history import DemoHistory
    from coddl.engines.pool import PoolOptions
    from coddl.engines.sharing_options import SharingOptions

    slots, kind = _devices(slots)
    policy = f"{POLICY}:tie=keep,lease_h={LEASE_H}"
    sharing = SharingOptions(policy=policy, cool_down_s=COOL_DOWN_S)
    options = PoolOptions(folder=folder, port=0, slots=slots, sharing=sharing)
    if not for_program:
        print("starting a pool on this machine …", file=sys.stderr, flush=True)
    with pool(options) as client:
        about = client.get("/pool")
        code = _rehearse(client)
        history = DemoHistory(about["slots_total"], kind, POLICY, time.time())
        with display:
            _play(client, history, display, code)
        return _summed_up(client, history)


def _devices(slots: int | None) -> tuple[int | None, str]:
    """Choose what to show it on: GPUs where there are some to share."""
    if slots is None:
        from coddl.agent.devices import discover, gpus_here

        found = [each for each in discover(gpus_here(), None, 1).devices if each.gpu is not None]
        if len(found) > 1:
            return None, "GPUs"
    return slots or PLACES, "CPU slots"


@contextlib.contextmanager
def pool(options: "PoolOptions") -> Iterator["Client"]:
    """Keep a pool up for the time of the demo; it ends with this process, however that ends."""
    from coddl.cli.pool import is_ready, own_client, words_of_up
    from coddl.engines.pool import await_ready, make_folder
    from coddl.engines.processes import Child

    make_folder(options.folder)
    child = Child("pool", words_of_up(options), options.folder / "output" / "pool.log")
    child.start(time.monotonic())
    try:
        await_ready(child, lambda: is_ready(options))
        with own_client(options.folder) as client:
            try:
                yield client
            finally:
                _cancel(client)
    finally:
        child.end()


def _cancel(client: "Client") -> None:
    """Leave nothing that would have to be saved."""
    from coddl.cli.jobs import cancel_all

    with contextlib.suppress(UserError):  # the pool may be what has failed
        cancel_all(client)


def _rehearse(client: "Client") -> str:
    """Send the scripts, and run one, so that no job waits for the first worker; give their hash."""
    import tempfile

    from coddl.api.client import user
    from coddl.api.code import pack
    from coddl.cli.demo.scenario import SCRIPTS, WARM_UP_JOB
    from coddl.cli.waiting import wait_for

    with tempfile.TemporaryDirectory(prefix="coddl-") as scratch:
        archive = pack(SCRIPTS, Path(scratch) / "code.tar.gz")
        with archive.path.open("rb") as file:
            client.send_code(archive.hash, file)
    job = client.submit(WARM_UP_JOB.request(1, user()) | {"code": archive.hash})
    ended = wait_for(client, str(job["id"]), within_s=PATIENCE_S)
    if ended["state"] != "SUCCEEDED":
        told = ended["trouble"] or {}
        raise UserError(
            "the demo's training job failed on this machine",
            f"{told.get('what', 'a small training')}: {told.get('because', ended['state'])}",
            told.get("try", "make install"),
        )
    return archive.hash


def _play(client: "Client", history: "DemoHistory", display: "DemoDisplay", code: str) -> None:
    """Hand in the jobs when their time has come, and show what happens until all are over."""
    from coddl.api.client import user
    from coddl.cli.demo.scenario import SCHEDULED_JOBS

    after = client.get("/events", limit=1)["next"]
    left = list(SCHEDULED_JOBS)
    while left or not history.is_over:
        now_s = time.time()
        while left and now_s - history.begin_s >= left[0].at_s:
            scheduled = left.pop(0)
            history.enter(
                scheduled, client.submit(scheduled.request(history.gpus, user()) | {"code": code})
            )
        history.see(client.get("/jobs", limit=EVENTS)["items"], time.time())
        page = client.get("/events", after=after, limit=EVENTS)
        after = page["next"]
        display.show(history, history.hear(page["items"]))
        if now_s - history.begin_s > PATIENCE_S:
            raise UserError(
                "the demo did not finish",
                f"its jobs did not end within {PATIENCE_S:.0f} s",
                "coddl demo --slots 2, or a machine with less load",
            )
        time.sleep(LOOK_S)


def _summed_up(client: "Client", history: "DemoHistory") -> "DemoSummary":
    from coddl.cli.demo.summary import DemoSummary, fared, fifo_jct_s

    jobs = []
    for part in history.parts:
        told = client.get(f"/jobs/{part.number}/explain")
        jobs.append(fared(part.scheduled.kind, told, history.begin_s, part.pauses_s))
    return DemoSummary(
        history.policy, history.gpus, tuple(jobs), tuple(fifo_jct_s(jobs, history.gpus))
    )
