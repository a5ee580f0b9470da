"""When a plug-in policy or placement fails: jobs keep what they hold, and the reason is recorded.

A plug-in is third-party code. Whatever it does, the journal must be readable afterwards, and
no job may lose its devices for it.
"""

from math import isfinite
from typing import Final, NamedTuple, get_args

from coddl.core.cluster import Cluster
from coddl.core.errors import UserError
from coddl.core.invariants import InvalidAllocation
from coddl.core.named import is_plugin, plugin_parts
from coddl.core.pool.decision import decide, leaving
from coddl.core.pool.records import Decided, DecisionFailed, Trouble
from coddl.core.pool.state import Pool
from coddl.core.registry import BUILT_IN, Registry
from coddl.core.scheduler import Stability
from coddl.core.waiting import Waiting, WaitingCode

BECAUSE_MAX: Final = 400  # characters of what an exception says
RETRY_S: Final = 60.0  # after which a policy that has failed is asked again, if nothing happens


class FailedDecision(NamedTuple):
    """A decision that failed; `record` only if there is something new to say."""

    policy: str
    error: BaseException
    record: DecisionFailed | None


def decide_or_hold(
    pool: Pool,
    stability: Stability,
    why: str,
    now_s: float,
    site: Cluster | None = None,
    *,
    registry: Registry = BUILT_IN,
) -> Decided | FailedDecision:
    """Decide, or say why that failed; a failure of our own policies is a bug, and is raised."""
    is_foreign = any(registry.foreign(pool.policy, pool.placement))
    try:
        decided = decide(pool, stability, why, now_s, site, registry=registry)
        if is_foreign:
            _check_recordable(decided)
    except (Exception, SystemExit) as error:
        if not is_foreign:
            raise
        return _held(pool, error, why, registry)
    return decided


def _check_recordable(decided: Decided) -> None:
    """Raise InvalidAllocation if a decision could not be read back from the journal."""
    for job, (code, _) in decided.waiting.items():
        if code not in get_args(WaitingCode) or type(code) is not str:
            codes = ", ".join(get_args(WaitingCode))
            raise _invalid(f'job {job} waits for "{code}", which is none of {codes}')
    for job, memory in decided.memory.items():
        if not all(map(isfinite, memory)):
            raise _invalid(f"its memory of job {job} has values that are not finite")


def _held(pool: Pool, error: BaseException, why: str, registry: Registry) -> FailedDecision:
    """Return the outcome of a failed decision: jobs keep devices, waiting jobs get the reason."""
    trouble = _trouble(pool, error, registry)
    waits = Waiting("PolicyFailed", trouble.sentence)
    waiting = {
        job.id: waits
        for job in pool.live_jobs()
        if job.is_waiting and not (job.target or job.suspended or job.cancelled)
        if job.waiting != waits
    }
    targets = leaving(pool)
    record = DecisionFailed(pool.policy, pool.placement, why, trouble, targets, waiting)
    is_news = bool(targets or waiting) or trouble != pool.policy_trouble
    return FailedDecision(pool.policy, error, record if is_news else None)


def _trouble(pool: Pool, error: BaseException, registry: Registry) -> Trouble:
    foreign = list(registry.foreign(pool.policy, pool.placement))
    what = f"{' or '.join(foreign)} failed"
    if isinstance(error, UserError) and not isinstance(error, InvalidAllocation):
        return Trouble(what, pool.in_units(error.because), error.try_)  # it is unknown
    option = "" if any(name.startswith("policy") for name in foreign) else "--placement "
    try_ = f"coddl policy {option}NAME to switch to another; the server's log has more"
    if isinstance(error, InvalidAllocation):
        return Trouble(what, pool.in_units(error.because), try_)
    said = " ".join(f"{type(error).__name__}: {error}".split())[:BECAUSE_MAX]
    return Trouble(what, said + _place(error, pool.policy, pool.placement), try_)


def _place(error: BaseException, *specs: str) -> str:
    """Name the line of a plug-in's file in which an error came up; empty if there is none."""
    files = [f"/{plugin_parts(spec)[0]}" for spec in specs if is_plugin(spec)]
    place, trace = "", error.__traceback__
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if any(path.endswith(file) for file in files):
            place = f" ({path.rpartition('/')[2]}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place


def _invalid(because: str) -> InvalidAllocation:
    what = "the policy's answer cannot be recorded"
    return InvalidAllocation(what, because, "coddl.testing.PolicyContract on the policy")
