"""The pool as REST shows it."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec

from coddl import __version__
from coddl.api import rest
from coddl.api.wire import GpuUse, RunProgress
from coddl.core.lifecycle import Phase
from coddl.core.named import Plugged, described
from coddl.core.pool import records as r
from coddl.core.pool.estimates import links_of, outline_of
from coddl.core.pool.explain import (
    Explanation,
    SpeedRow,
    code_of,
    sentence,
    sentence_of,
    speed_rows,
)
from coddl.core.pool.job import LOSSES_SHOWN, JobState
from coddl.core.pool.known_profiles import remembered_steps
from coddl.core.pool.lengths import length_of, length_sentence
from coddl.core.pool.nodes import NodeState, SlotState
from coddl.core.pool.parking import parked_on
from coddl.core.pool.preview import Effect
from coddl.core.pool.scaling import wanted_because
from coddl.core.pool.slot_sharing import lacks_turn, partners, turn_s_of_jobs
from coddl.core.pool.state import Pool
from coddl.core.registry import Registry
from coddl.core.speed.profile import TrainingProfile
from coddl.core.speed.training_length import thinned
from coddl.server.folding import UnreadableRecord
from coddl.server.journal import Journal, ReadEntry
from coddl.server.logs import StoredLogLine

BULKY: Final = ("rows", "memory")  # of a decision: of use to programs that replay, not to people


def state_of(job: JobState) -> rest.State:
    """Name a job's phase as people see it."""
    return state_named(job.phase)


def state_named(phase: Phase) -> rest.State:
    """Name a phase as people see it."""
    return cast(rest.State, phase.upper())


def job_view(
    pool: Pool,
    job: JobState,
    run: RunProgress | None,
    now_s: float,
    awaited: Collection[str] = (),
) -> rest.JobView:
    """Show a job as it stands; `awaited`: nodes without a report since the server's restart.

    A job that waits for its turn makes no step, and should not: it does not stand still.
    """
    runtime_s = job.executed_by(end_s := job.ended_s if job.ended_s is not None else now_s)
    is_training = job.phase in ("running", "resizing")
    is_told = run is not None and job.has_run and run.progressed.attempt == job.attempt
    still_s = run.still_s if run is not None and is_told and not lacks_turn(pool, job) else 0.0
    return rest.JobView(
        id=job.id,
        name=job.spec.name,
        user=job.spec.user,
        priority=job.priority,
        tier=job.spec.tier,
        state=state_of(job),
        gpus=len(job.granted),
        gpus_min=job.gpus_least,
        gpus_max=job.gpus_max,
        nodes=list(pool.nodes_of(job.granted)),
        slots=list(job.granted),
        attempt=job.attempt,
        step=job.step,
        steps=job.steps,
        progress=min(1.0, job.step / job.steps) if job.steps else None,
        eta_s=_eta_s(job) if is_training and not still_s else None,
        samples_per_s=run.samples_per_s if run is not None and is_training else 0.0,
        still_s=still_s,
        submitted_s=job.submitted_s,
        started_s=job.first_start_s,
        ended_s=job.ended_s,
        runtime_s=runtime_s,
        waited_s=max(0.0, end_s - job.submitted_s - runtime_s),
        jct_s=None if job.ended_s is None else job.ended_s - job.submitted_s,
        resizes=job.resizes,
        restarts=job.restarts,
        last_pause_s=job.last_pause_s,
        switch_s=job.last_switch_s,
        state_bytes=max(job.state_bytes, job.turn_bytes),
        code=code_of(job),
        reason=sentence(pool, job, now_s, awaited, is_brief=True),
        exit_code=job.exit_code,
        trouble=_trouble(job.trouble),
        metrics=dict(run.metrics) if run is not None else {},
        saved_step=run.saved_step if run is not None else None,
        command=list(job.spec.launch.argv),
        failures=job.failures,
        lead=job.lead,
        unsaved=_trouble(job.unsaved),
        left_early=job.left_early,
        memory_limit=job.fit_sentence or None,
        parked=_parked(pool, job),
        turns=_turns(pool, job),
        length=_length(job),
        losses=_losses(job),
        trials=job.trials,
        in_history=job.is_over and job.id not in pool.jobs,
    )


def described_job(pool: Pool, job: JobState, view: rest.JobView) -> rest.JobView:
    """Add the fields shown only for a single job: its speed at each size."""
    if not job.spec.is_elastic:
        return view
    return view.model_copy(update={"speeds": _speed_views(speed_rows(pool, job))})


def _speed_views(rows: Iterable[SpeedRow]) -> list[rest.SpeedView]:
    return [rest.SpeedView(**asdict(row)) for row in rows]


def estimate_input(pool: Pool, job: JobState, profile: TrainingProfile) -> rest.EstimateInputView:
    """Show what the speed of a job is estimated from."""
    links = {
        name: rest.ExchangeLinkView(
            gb_s=link.gb_s,
            latency_us=link.latency_us,
            call_us=link.call_us,
            backend=link.backend,
            workers=list(link.workers),
            factors=[
                rest.ExchangeFactorView(workers=n, bytes=bytes_, factor=factor)
                for n, bytes_, factor in link.factors
            ],
        )
        for name, link in links_of(pool).items()
    }
    measured, remembered = (
        [rest.MeasuredStepView(gpus=gpus, step_s=step_s) for gpus, step_s in sorted(each.items())]
        for each in (job.speeds, remembered_steps(pool, job))
    )
    return rest.EstimateInputView(
        profile=rest.ProfileView.model_validate(profile.as_data()),
        links={str(name): link for name, link in links.items()},
        node_gpus=outline_of(pool).node_gpus,
        measured=measured,
        remembered=remembered,
    )


def _parked(pool: Pool, job: JobState) -> rest.ParkedView | None:
    node = parked_on(pool, job)
    return rest.ParkedView(node=node, bytes=job.parked_bytes) if node is not None else None


def _turns(pool: Pool, job: JobState) -> rest.TurnsView | None:
    others = partners(pool, job)
    if not others:
        return None
    told = pool.slots[job.granted[0]].turns
    return rest.TurnsView(
        turn_s=turn_s_of_jobs([job, *others]),
        jobs=[each.id for each in others],
        has_turn=None if told is None else told.job == job.id,
        share=None if told is None else told.shares.get(job.id),
    )


def _eta_s(job: JobState) -> float | None:
    measured = job.step_s.get(len(job.serves or job.granted))
    left = length_of(job).steps_left
    if left is None or measured is None:
        return None
    return left * measured.step_s * job.sharers


def _length(job: JobState) -> rest.LengthView | None:
    if job.is_over or not job.prepared:
        return None
    length = length_of(job)
    return rest.LengthView(**asdict(length), sentence=length_sentence(job))


def _losses(job: JobState) -> list[rest.LossView]:
    points = thinned(job.loss_points, LOSSES_SHOWN)
    return [rest.LossView(step=each.step, loss=each.loss) for each in points]


def _trouble(trouble: r.Trouble | None) -> rest.TroubleView | None:
    if trouble is None:
        return None
    words = {"what": trouble.what, "because": trouble.because, "try": trouble.try_}
    return rest.TroubleView.model_validate(words)


def events_removed(journal: Journal, job: JobState) -> str:
    """Return a note that a job's oldest events were removed; empty if they were not."""
    begin = journal.begin()
    if begin is None or begin.at_s <= job.submitted_s:
        return ""
    since = datetime.fromtimestamp(begin.at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"events from before {since} were removed"


def explain_view(explanation: Explanation, job: rest.JobView, removed: str) -> rest.ExplainView:
    """Show why a job is where it is; `removed` says which events are missing."""
    return rest.ExplainView(
        job=job,
        sentence=explanation.sentence,
        code=explanation.code,
        position=explanation.position,
        ahead=explanation.ahead,
        speeds=_speed_views(explanation.speeds),
        story=[rest.StoryView(**msgspec.to_builtins(line)) for line in explanation.story],
        parked_sentence=explanation.parked_sentence,
        removed=removed,
    )


def effect_view(effect: Effect) -> rest.EffectView:
    """Show how a job's share would change."""
    return rest.EffectView(**effect._asdict())


def event_view(entry: ReadEntry, unit: str, job: int | None = None) -> rest.EventView:
    """Show a record; in a job's own story, the part that concerns it."""
    record = entry.record
    if isinstance(record, UnreadableRecord):
        return rest.EventView(
            number=entry.seq,
            at_s=entry.at_s,
            kind="Unreadable",
            job=job,
            node=None,
            text=f"this event cannot be shown: {record.because}",
            detail={"kind": record.kind},
        )
    number: int | None = getattr(record, "job", None)
    return rest.EventView(
        number=entry.seq,
        at_s=entry.at_s,
        kind=r.kind_of(type(record)),
        job=number if number is not None else job,
        node=getattr(record, "node", None),
        text=sentence_of(record, job, unit),
        detail=_detail(record),
    )


def _detail(record: r.Record) -> dict[str, Any]:  # Any: JSON
    """Return what a record holds, less what is bulky and what may be secret."""
    found: dict[str, Any] = msgspec.to_builtins(record, str_keys=True)
    for name in BULKY:
        found.pop(name, None)
    if isinstance(record, r.JobSubmitted):
        launch = found["spec"]["launch"]
        launch["env"] = dict.fromkeys(launch["env"], "…")  # users put keys and passwords there
    return found


def line_view(kept: StoredLogLine) -> rest.LogLineView:
    """Show a line that a job has printed."""
    return rest.LogLineView(number=kept.number, **msgspec.structs.asdict(kept.line))


def node_view(
    pool: Pool,
    node: NodeState,
    lease_left_s: float | None,
    use: Mapping[int, GpuUse],
    *,
    is_awaited: bool,
) -> rest.NodeView:
    """Show a node and its devices; `use` is how its GPUs are used, by index."""
    slots = [pool.slots[slot] for slot in node.slots]
    jobs = sorted({job for slot in slots for job in slot.owners})
    used = sum(bool(slot.owners) for slot in slots)
    free = sum(not slot.owners and not slot.others for slot in slots)
    return rest.NodeView(
        name=node.name,
        host=node.host,
        state=_node_state(node),
        is_up=node.is_up,
        is_silent=node.is_silent,
        is_drained=node.is_drained,
        leaves_at_s=node.leaves_at_s,
        is_awaited=is_awaited,
        lease_left_s=lease_left_s if node.is_up else None,
        slots=[_slot_view(slot, use.get(slot.device.index)) for slot in slots],
        used=used,
        free=free if node.is_up and not node.is_drained else 0,
        jobs=jobs,
        python=node.versions.python,
        torch=node.versions.torch,
        coddl=node.versions.coddl,
        parked=len(node.parked),
        parked_bytes=sum(pool.jobs[job].parked_bytes for job in node.parked),
    )


def _slot_view(slot: SlotState, use: GpuUse | None) -> rest.SlotView:
    return rest.SlotView(
        slot=slot.slot,
        index=slot.device.index,
        kind=slot.device.kind,
        gpu=slot.device.gpu,
        memory_bytes=slot.device.memory_bytes,
        job=_job_on(slot),
        jobs=list(slot.owners),
        used_by_others=slot.others,
        busy=min(1.0, max(0.0, use.busy)) if use is not None else None,
        memory_used_bytes=max(0, use.memory_bytes) if use is not None else None,
    )


def _job_on(slot: SlotState) -> int | None:
    """Name the job that has a device now: of several, the one that has the turn."""
    has_turn = slot.turns.job if slot.turns is not None else None
    return has_turn if has_turn is not None else next(iter(slot.owners), None)


def engine_view(
    pool: Pool, trouble: str | None, notes: Sequence[str], now_s: float
) -> rest.EngineView:
    """Show what brings the nodes of the pool."""
    engine, bounds = pool.engine, pool.engine.bounds
    return rest.EngineView(
        engine=engine.name,
        nodes_min=bounds.least if bounds else 0,
        nodes_max=bounds.most if bounds else 0,
        slots=bounds.gpus if bounds else 0,
        wanted=engine.wanted,
        because=wanted_because(pool, now_s),
        starting=sorted(engine.acquired.keys() - pool.nodes.keys()),
        trouble=trouble or "",
        notes=list(notes),
        is_connected=trouble is not None,
    )


def _node_state(node: NodeState) -> rest.NodeCondition:
    if not node.is_up:
        return "LOST"
    return "SILENT" if node.is_silent else "DRAINED" if node.is_drained else "UP"


def devices(pool: Pool) -> int:
    """Count the devices of nodes that are up."""
    return sum(len(node.slots) for node in pool.nodes.values() if node.is_up)


def devices_at_most(pool: Pool) -> int:
    """Count the devices that there may be, as far as that is known."""
    bounds = pool.engine.bounds
    return max(devices(pool), bounds.most * bounds.gpus if bounds is not None else 0)


def used(pool: Pool) -> int:
    """Count the devices of nodes that are up that some job's processes may be on."""
    return sum(
        bool(pool.slots[slot].owners)
        for node in pool.nodes.values()
        if node.is_up
        for slot in node.slots
    )


def pool_view(
    pool: Pool,
    *,
    pool_id: str,
    lease_s: float,
    started_s: float,
    is_ready: bool,
    checkpoints: str,
    now_s: float,
    time_scale: float,
) -> rest.PoolView:
    """Show the pool in one screen."""
    total, taken = devices(pool), used(pool)
    return rest.PoolView(
        id=pool_id,
        slots_total=total,
        slots_used=taken,
        slots_free=total - taken,
        nodes=len(pool.nodes),
        nodes_up=sum(node.is_up for node in pool.nodes.values()),
        jobs=_counts(pool),
        policy=pool.policy,
        version=__version__,
        lease_s=lease_s,
        started_s=started_s,
        is_ready=is_ready,
        checkpoints=checkpoints,
        now_s=now_s,
        time_scale=time_scale,
    )


def _counts(pool: Pool) -> dict[str, int]:
    """Count jobs by state, also those that have left memory."""
    counts = Counter[str](state_of(job) for job in pool.jobs.values())
    counts.update({state_named(phase): count for phase, count in pool.forgotten.items()})
    return dict(counts)


def plugin_problems(pool: Pool, registry: Registry) -> list[str]:
    """Say what is wrong with plug-ins: with what decides, and with files that were not loaded."""
    trouble = pool.policy_trouble
    failed = [f"{trouble.sentence}; jobs keep their {pool.unit}s"] if trouble is not None else []
    return failed + [f"{error.what}: {error.because}" for error in registry.unusable.values()]


def unsaved(pool: Pool) -> list[str]:
    """Return which jobs' state can't be saved."""
    return [
        f'job {job.id} "{job.spec.name}": {job.unsaved_sentence}'
        for job in pool.live_jobs()
        if job.unsaved is not None
    ]


def policy_view(pool: Pool) -> rest.PolicyView:
    """Show by what rule devices are shared."""
    return rest.PolicyView(
        policy=pool.policy,
        placement=pool.placement,
        since_s=pool.policy_since_s,
        by=pool.policy_by,
        trouble=_trouble(pool.policy_trouble),
    )


def plugins_view(registry: Registry) -> rest.PluginsView:
    """Show what plug-ins offer."""

    def shown(offered: Mapping[str, Plugged]) -> list[rest.PluggedView]:
        found = [asdict(described(name, each)) for name, each in offered.items()]
        return [rest.PluggedView.model_validate(each) for each in found]

    return rest.PluginsView(
        policies=shown(registry.policies), placements=shown(registry.placements)
    )
