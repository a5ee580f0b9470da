"""strict=True: calls that belong to loops of another form say so."""

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import coddl  # noqa: E402
from coddl.runtime.errors import TrainingError  # noqa: E402
from tests.runtime.test_strict import linear, numbers, one_session  # noqa: E402

pytestmark = pytest.mark.usefixtures(one_session.__name__)

REFUSED: dict[str, Callable[[], object]] = {
    "epochs": lambda: coddl.epochs(2),
    "steps": lambda: coddl.steps(2),
    "slice": lambda: coddl.slice(torch.ones(4)),
    "state": lambda: coddl.state(best=0.0),
    "stop": coddl.stop,
    "no_sync": coddl.no_sync,
    "backward": lambda: coddl.backward(torch.ones((), requires_grad=True), weight=3),
    "sum": lambda: coddl.sum(1.0),
    "gather": lambda: coddl.gather(torch.ones(1)),
    "barrier": coddl.barrier,
}


@pytest.mark.parametrize("call", REFUSED)
def test_calls_of_other_loops_are_refused(call: str) -> None:
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    coddl.prepare(model, optimizer, numbers(), global_batch=16, strict=True)
    with pytest.raises(TrainingError, match=rf"coddl\.{call}.* can't be used with strict=True"):
        REFUSED[call]()
