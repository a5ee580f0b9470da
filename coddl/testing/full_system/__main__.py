"""Runs seeds of the full-system simulation.

    python -m coddl.testing.full_system --seeds 0..1000 --jobs 2
    python -m coddl.testing.full_system --seeds 48 --story
    python -m coddl.testing.full_system --seeds 48 --shrink --keep tests/testing/regressions
    python -m coddl.testing.full_system --plan tests/testing/regressions/adopted.json --story

The exit status is 0 if all invariants held, 1 if one was broken, 2 for options that can't be.
"""

import argparse
import json
import multiprocessing
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from coddl.testing.full_system.plan import SimulationPlan, draw
from coddl.testing.full_system.report import SwarmReport, shown
from coddl.testing.full_system.shrink import shrink
from coddl.testing.full_system.simulation import Outcome, run

TOLD_EVERY: Final = 100  # seeds


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; give its exit status."""
    options = _parser().parse_args(words)
    plans = [_read(options.plan)] if options.plan else None
    report, began_s = SwarmReport(), time.monotonic()
    show = not options.json
    for outcome in _outcomes(options, plans):
        report.add(outcome)
        if options.story and show:
            _print(outcome.story)
        if outcome.broken is not None and show:
            _print(f"{report.failures[-1]}")
            if options.shrink:
                _shrink(outcome, options.keep)
        _progress(report, options)
    took_s = time.monotonic() - began_s
    if options.json:
        _print(json.dumps({**report.as_data(), "took_s": took_s}, indent=2))
    else:
        _print(f"{report.coverage}\n\n{report.summary}; took {took_s:.1f} s")
    return 1 if report.failures else 0


def _outcomes(
    options: argparse.Namespace, plans: Sequence[SimulationPlan] | None
) -> Iterator[Outcome]:
    if plans is not None:
        yield from map(run, plans)
        return
    if options.jobs == 1 or len(options.seeds) == 1:
        yield from map(_run_seed, options.seeds)
        return
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        yield from pool.imap(_run_seed, options.seeds, chunksize=4)


def _run_seed(seed: int) -> Outcome:
    return run(draw(seed))


def _shrink(outcome: Outcome, keep: Path | None) -> None:
    """Find the smallest plan that breaks the same invariant; show it, and keep it."""
    assert outcome.broken is not None
    invariant = outcome.broken.invariant

    def fails(plan: SimulationPlan) -> bool:
        broken = run(plan).broken
        return broken is not None and broken.invariant == invariant

    plan = shrink(outcome.plan, fails)
    _print("the same invariant is broken by:\n" + "\n".join(f"  {line}" for line in shown(plan)))
    if keep is not None:
        name = re.sub(r"[^a-z]+", "-", invariant.lower()).strip("-")
        keep.mkdir(parents=True, exist_ok=True)
        path = keep / f"{name}-{plan.seed}.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(plan)) + b"\n")
        _print(f"kept as {path}")


def _read(path: Path) -> SimulationPlan:
    return msgspec.json.decode(path.read_bytes(), type=SimulationPlan)


def _seeds(text: str) -> range:
    """Read `A..B`, without B, or one seed."""
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f'"{text}" is not A..B, or a number')
    begin = int(found[1])
    end = int(found[2]) if found[2] else begin + 1
    if end <= begin:
        raise argparse.ArgumentTypeError(f'"{text}" has no seeds: the second is not one of them')
    return range(begin, end)


def _processes(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f'"{text}" is not at least 1')
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m coddl.testing.full_system",
        description="Run whole pools in virtual time, with all that goes wrong, by seeds.",
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seeds", type=_seeds, default=range(100), help="A..B, without B; or one (0..100)"
    )
    parser.add_argument("--jobs", type=_processes, default=1, help="processes to run them in (1)")
    parser.add_argument("--plan", type=Path, help="a plan that was kept, instead of seeds")
    parser.add_argument("--story", action="store_true", help="print the story of each run")
    parser.add_argument("--shrink", action="store_true", help="find out what a failure needs")
    parser.add_argument("--keep", type=Path, help="a folder for the plans of shrunk failures")
    parser.add_argument("--json", action="store_true", help="print the report as JSON alone")
    return parser


def _progress(report: SwarmReport, options: argparse.Namespace) -> None:
    """Tell how far it is: always in a terminal, and in a log now and then."""
    total = 1 if options.plan else len(options.seeds)
    told = f"{report.runs}/{total} seeds, {len(report.failures)} failed"
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{told}\033[K" + "\n" * (report.runs == total))
    elif report.runs % TOLD_EVERY == 0:
        sys.stderr.write(f"{told}\n")
    sys.stderr.flush()


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
