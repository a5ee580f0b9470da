"""The step-time model of Pollux (OSDI '21), fitted to logarithms, to compare ours with.

    T = (T_grad^g + T_sync^g)^(1/g),  1 <= g <= 10
    T_grad = alpha_c + beta_c b                b samples on each GPU
    T_sync = alpha + beta (n - 2)              one pair for GPUs of a node, one for several nodes

Seven parameters, all above 0, fitted to the logarithms of step times. The network's four and g can
be taken from other models, as multiples of their gradient bytes: that is the calibration. A fit to
a model's own rows starts there, and is pulled back there by how far its logarithms move.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from coddl.core.columns import FloatColumn

ROUNDS: Final = 40
STIFFER, SOFTER, TRIES = 4.0, 0.2, 12  # of the damping in a round
PULL: Final = 0.2  # back to the calibration; of 0.001 to 1 the best on the T4 data, in hindsight
Network = FloatColumn  # logarithms: alpha, beta of nodes; alpha, beta between them; and of g - 1
START: Final = (-4.6, -5.3, -2.3, -4.6)  # of the network's, from where fits find their way
OVERLAPS_FIRST: Final = (-3.0, -0.7, 2.0)  # of g: fits may get stuck, and the best is taken


class FormRows(NamedTuple):
    """Steps of a model on several GPUs, and on one."""

    gpus: FloatColumn
    nodes: FloatColumn
    batch: FloatColumn  # samples on each GPU
    step_s: FloatColumn
    alone_batch: FloatColumn
    alone_s: FloatColumn
    scale: float  # of T_sync: the model's gradient bytes, in any unit

    def only(self, rows: Sequence[int]) -> "FormRows":
        """The same with a few of the rows on several GPUs."""
        few = list(rows)
        return self._replace(
            gpus=self.gpus[few],
            nodes=self.nodes[few],
            batch=self.batch[few],
            step_s=self.step_s[few],
        )


def grad_fit(rows: FormRows) -> FloatColumn:
    """Logarithms of alpha_c and beta_c, fitted to one GPU."""
    first = np.log(rows.alone_s[0] / 2.0)
    start = np.array([first, first - np.log(rows.alone_batch[0])])
    return least_squares(lambda x: _grad_errors(x, rows), start)


def calibrated_network(others: Sequence[FormRows]) -> Network:
    """Fit the network to other models, all with the same weight."""
    grads = [grad_fit(each) for each in others]

    def errors(x: FloatColumn) -> FloatColumn:
        pairs = zip(grads, others, strict=True)
        return np.concatenate([_step_errors(grad, x, rows) for grad, rows in pairs])

    found = [least_squares(errors, np.array([*START, g]), 200) for g in OVERLAPS_FIRST]
    return min(found, key=lambda x: float(np.square(errors(x)).sum()))


def predicted_s(grad: FloatColumn, network: Network, rows: FormRows) -> FloatColumn:
    """Seconds of the steps on several GPUs."""
    alpha_in, beta_in, alpha_out, beta_out = np.exp(network[:4])
    several = rows.nodes > 1
    alpha = np.where(several, alpha_out, alpha_in)
    beta = np.where(several, beta_out, beta_in)
    sync = rows.scale * (alpha + beta * (rows.gpus - 2.0))
    compute = np.exp(grad[0]) + np.exp(grad[1]) * rows.batch
    g = 1.0 + 9.0 / (1.0 + np.exp(-network[4]))
    longer, shorter = np.maximum(compute, sync), np.minimum(compute, sync)
    both: FloatColumn = longer * (1.0 + (shorter / longer) ** g) ** (1.0 / g)
    return both


def fitted_s(network: Network, rows: FormRows, known: Sequence[int]) -> FloatColumn:
    """Seconds of all steps, by a fit to one GPU and the known rows that starts at a network."""
    few, grad = rows.only(known), grad_fit(rows)

    def errors(x: FloatColumn) -> FloatColumn:
        pulled = PULL * (x[2:] - network)
        return np.concatenate([_grad_errors(x[:2], few), _step_errors(x[:2], x[2:], few), pulled])

    best = least_squares(errors, np.concatenate([grad, network]))
    return predicted_s(best[:2], best[2:], rows)


def _grad_errors(grad: FloatColumn, rows: FormRows) -> FloatColumn:
    computed = np.log(np.exp(grad[0]) + np.exp(grad[1]) * rows.alone_batch)
    off: FloatColumn = (computed - np.log(rows.alone_s)) / np.sqrt(len(computed))
    return off


def _step_errors(grad: FloatColumn, network: Network, rows: FormRows) -> FloatColumn:
    logs = np.log(predicted_s(grad, network, rows)) - np.log(rows.step_s)
    off: FloatColumn = logs / np.sqrt(len(logs))
    return off


def least_squares(
    errors: Callable[[FloatColumn], FloatColumn], start: FloatColumn, rounds: int = ROUNDS
) -> FloatColumn:
    """The x with the least sum of squared errors near a start (Levenberg and Marquardt)."""
    x, off, damping = start, errors(start), 1e-2
    for _ in range(rounds):
        slopes = np.stack([(errors(x + step) - off) / 1e-5 for step in 1e-5 * np.eye(len(x))], 1)
        square, gradient = slopes.T @ slopes, slopes.T @ off
        for _ in range(TRIES):
            damped = square + damping * (np.diag(np.diag(square)) + 1e-9 * np.eye(len(x)))
            trial = np.clip(x - np.linalg.solve(damped, gradient), -30.0, 30.0)
            trial_off = errors(trial)
            if trial_off @ trial_off < off @ off:
                break
            damping *= STIFFER
        else:
            break
        gained = off @ off - trial_off @ trial_off
        ended = gained < 1e-9 * (off @ off)
        x, off, damping = trial, trial_off, max(damping * SOFTER, 1e-9)
        if ended:
            break
    return x
