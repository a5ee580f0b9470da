"""What a worker reports about its training when it has arrived at its loop."""

from typing import TYPE_CHECKING

from coddl.runtime.wire import Message
from coddl.runtime.worker.footprint import model_of
from coddl.runtime.worker.guard import Guard

if TYPE_CHECKING:
    from coddl.runtime.worker.session import TrainingSession


def about(session: "TrainingSession", guard: Guard) -> Message:
    """Describe a training: how its batch is cut, how long it is, and what identifies it."""
    settings, parameters = session.settings, session.parameters()
    datasets = [loader.dataset for loader in session.loaders]
    sizes = [p.numel() * p.element_size() for p in parameters]
    model = model_of(parameters, datasets, in_parts=settings.micro_batch is not None)
    return {
        "parts": settings.global_batch,
        "workers_max": settings.workers_max,
        "global_batch": settings.global_batch,
        "micro_batch": settings.micro_batch,
        "steps": session.steps,
        "epoch_steps": _epoch_steps(session),
        "until": session.until,
        "signature": session.signature(),
        "data": guard.fingerprint(datasets),
        "model": model,
        "training": session.state.training(model, settings.global_batch, settings.micro_batch),
        "gradient_bytes": sum(sizes),
        "largest_tensor_bytes": max(sizes, default=0),
    }


def _epoch_steps(session: "TrainingSession") -> int | None:
    try:
        return len(session.loaders[0]) if session.loaders else None
    except TypeError:
        return None  # a stream
