"""Inner loops that several policies share. Each reads as the plain Python it also is."""

from typing import NamedTuple

import numpy as np

from coddl.core.columns import BoolColumn, FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import ONE, ZERO, kernel, whole_number
from coddl.core.jobs import CURVE, GPUS, GPUS_MAX, GPUS_MIN, REMAINING_ITERATIONS
from coddl.core.snapshot import Picture

NOBODY, ANY = whole_number(-1), whole_number(2**62)
STRICT, SKIP = ONE, ZERO  # what `fill_in_order` does where a job does not fit: end, or go on
LENGTH, COIN, KEEP = range(3)  # how a duel that gains alone do not decide is decided
REMAINING_TIME, SPEEDUP = range(2)  # what a step gains, for `grow_by_gain`


@kernel
def flip(coin: IntColumn) -> bool:
    """Draw the next bit of `coin[0]`, a minimal-standard generator: the same in compiled and in
    plain Python.
    """
    coin[0] = coin[0] * 48271 % 2147483647
    return bool(coin[0] > 1073741823)


@kernel
def comes_before(keys: FloatMatrix, a: int, b: int) -> bool:
    """Compare two rows by key 0, then key 1, …, then by position, so that the order is total."""
    for level in range(keys.shape[0]):
        if keys[level, a] != keys[level, b]:
            return bool(keys[level, a] < keys[level, b])
    return a < b


@kernel
def push(heap: IntColumn, size: int, row: int, keys: FloatMatrix) -> None:
    """Add a row to a heap that has the last in order on top."""
    at = size
    heap[at] = row
    while at > 0 and comes_before(keys, heap[(at - 1) // 2], heap[at]):
        heap[at], heap[(at - 1) // 2] = heap[(at - 1) // 2], heap[at]
        at = (at - 1) // 2


@kernel
def sink(heap: IntColumn, size: int, keys: FloatMatrix) -> None:
    """Restore the heap after its top was replaced."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            return
        if child + 1 < size and comes_before(keys, heap[child], heap[child + 1]):
            child += 1
        if not comes_before(keys, heap[at], heap[child]):
            return
        heap[at], heap[child] = heap[child], heap[at]
        at = child


@kernel
def first_in_order(
    keys: FloatMatrix, need: IntColumn, largest: int, after: int, out: IntColumn, most: int
) -> int:
    """Put the first `most` rows, in order, into `out`: of those behind row `after` (-1: of all) that
    need at most `largest`. Return how many there are.

    One pass with a heap of the best so far: for the few that fit out of thousands that wait, far
    cheaper than a sort.
    """
    size = ZERO
    for k in range(keys.shape[1]):
        if need[k] > largest or (after >= 0 and not comes_before(keys, after, k)):
            continue
        if size < most:
            push(out, size, k, keys)
            size += 1
        elif keys[0, k] <= keys[0, out[0]] and comes_before(keys, k, out[0]):
            out[0] = k
            sink(out, size, keys)
    for last in range(size - 1, 0, -1):
        out[0], out[last] = out[last], out[0]
        sink(out, last, keys)
    return size


@kernel
def fill_in_order(
    keys: FloatMatrix, need: IntColumn, free: int, strict: int, out: IntColumn
) -> int:
    """Give each row its whole need in order of its keys; return what stays free.

    What does not fit is skipped, or, if `strict`, ends the hand-out.
    """
    count = need.shape[0]
    order = np.empty(count, np.int64)
    for k in range(count):
        out[k] = 0
    after = NOBODY
    while free > 0:
        # At most `free` rows can still be served; and what does not fit now never will.
        largest = ANY if strict else free
        found = first_in_order(keys, need, largest, after, order, min(free, count))
        if found == 0:
            break
        for i in range(found):
            k = order[i]
            if need[k] <= free:
                out[k] = need[k]
                free -= need[k]
            elif strict:
                return free
        after = order[found - 1]
    return free


class Contenders(NamedTuple):
    """The rows that can use another GPU, one entry each, with what a duel needs to know of them."""

    at: IntColumn  # position in Picture.rows
    length: FloatColumn  # seconds left at the present share
    short: FloatColumn  # (p'-p)/p
    long: FloatColumn  # (p'-p)/p'
    below: FloatColumn  # which part is missing of the share it holds
    coin: IntColumn


@kernel
def beats(them: Contenders, rule: int, x: int, champion: int) -> bool:
    """Tell whether x takes the next GPU from the champion.

    The AFS rule: of two jobs the longer one gets it if its (p'-p)/p' reaches the shorter one's
    (p'-p)/p, else the shorter one. Without lengths x wins if it would win as the longer one, loses
    if the champion would, and else by coin, or if it is further below the share it holds.
    """
    if rule == LENGTH:
        if them.length[x] < them.length[champion]:
            return bool(them.short[x] > them.long[champion])
        return bool(them.long[x] >= them.short[champion])
    if them.long[x] >= them.short[champion]:
        return True
    if them.long[champion] >= them.short[x]:
        return False
    if rule == COIN:
        return flip(them.coin)
    return bool(them.below[x] > them.below[champion])


@kernel
def champion_by_length(them: Contenders, start: int, count: int, champion_at: IntColumn) -> int:
    """One pass of duels by length from entry `start` on; the champions before it stand in
    `champion_at`.

    The same as `beats` for each entry in turn, with the champion's numbers at hand: this is the
    simulator's inner loop.
    """
    champion = champion_at[start - 1] if start > 0 else ZERO
    length, short, long = them.length[champion], them.short[champion], them.long[champion]
    for x in range(start, count):
        wins = them.short[x] > long if them.length[x] < length else them.long[x] >= short
        if wins and x > 0:
            champion = x
            length, short, long = them.length[x], them.short[x], them.long[x]
        champion_at[x] = champion
    return int(champion)


@kernel
def seconds_left(picture: Picture, row: int, share: int) -> float:
    """Time to the end at this share; unknown lengths count as endless."""
    left = picture.jobs.real[REMAINING_ITERATIONS, row]
    return (
        float(left * picture.step_s[picture.jobs.whole[CURVE, row], share])
        if left >= 0.0
        else np.inf
    )


@kernel
def next_share(picture: Picture, k: int, share: int) -> int:
    """The next larger share position k can use, 0 if there is none."""
    row = picture.rows[k]
    following = picture.steps.next[picture.jobs.whole[CURVE, row], share]
    return int(following) if following <= picture.jobs.whole[GPUS_MAX, row] else 0


@kernel
def weigh(picture: Picture, them: Contenders, x: int, share: int) -> None:
    """Bring entry x up to date for this share."""
    row = picture.rows[them.at[x]]
    curve = picture.jobs.whole[CURVE, row]
    them.length[x] = seconds_left(picture, row, share)
    them.short[x] = picture.steps.short[curve, share]
    them.long[x] = picture.steps.long[curve, share]
    held = picture.jobs.whole[GPUS, row]
    them.below[x] = 1.0 - share / held if share < held else 0.0


@kernel
def contend(picture: Picture, shares: IntColumn) -> tuple[Contenders, int]:
    """Line up the rows that hold GPUs and can use more, in order of submission; say how many they
    are.
    """
    size = picture.rows.shape[0]
    whole, real = np.empty(size + 1, np.int64), np.empty((4, size))
    them = Contenders(whole[1:], real[0], real[1], real[2], real[3], whole[:1])
    them.coin[0] = picture.seed
    count = ZERO
    for k in range(size):
        if shares[k] > 0 and next_share(picture, k, shares[k]) > 0:
            them.at[count] = k
            weigh(picture, them, count, shares[k])
            count += 1
    return them, count


@kernel
def grow_by_scan(picture: Picture, rule: int, left: int, shares: IntColumn) -> int:
    """Hand out `left` GPUs, each to the champion of one pass over all contenders: the published
    form.

    `shares` is by position in `picture.rows`. Returns what nobody could use. The champions up to
    the last winner are the same in the next pass, so where no coin is flipped the pass starts
    there.
    """
    them, count = contend(picture, shares)
    champion_at = np.empty(count, np.int64)
    start = ZERO
    while left > 0 and count > 0:
        if rule == LENGTH:
            champion = champion_by_length(them, start, count, champion_at)
            start = champion
        else:
            champion = ZERO
            for x in range(1, count):
                if beats(them, rule, x, champion):
                    champion = x
        k = them.at[champion]
        added = next_share(picture, k, shares[k]) - shares[k]
        fits = added <= left
        if fits:
            shares[k] += added
            left -= added
        if fits and next_share(picture, k, shares[k]) > 0:
            weigh(picture, them, champion, shares[k])
        else:
            count -= 1
            for x in range(champion, count):
                them.at[x] = them.at[x + 1]
                them.length[x], them.below[x] = them.length[x + 1], them.below[x + 1]
                them.short[x], them.long[x] = them.short[x + 1], them.long[x + 1]
    return left


@kernel
def play(them: Contenders, rule: int, tree: IntColumn, node: int) -> None:
    """Let the winners of a node's two halves meet; the half submitted earlier defends."""
    defender, challenger = tree[2 * node], tree[2 * node + 1]
    if defender < 0 or (challenger >= 0 and beats(them, rule, challenger, defender)):
        tree[node] = challenger
    else:
        tree[node] = defender


@kernel
def grow_by_tournament(picture: Picture, rule: int, left: int, shares: IntColumn) -> int:
    """The same duels as a knock-out tree: after each GPU only the winner's path is played again.

    O(GPUs x log jobs). The rule is not transitive, so a few shares may differ from the scan's.
    """
    them, count = contend(picture, shares)
    leaves = 1
    while leaves < count:
        leaves *= 2
    tree = np.full(2 * leaves, -1, np.int64)
    for x in range(count):
        tree[leaves + x] = x
    for node in range(leaves - 1, 0, -1):
        play(them, rule, tree, node)
    while left > 0 and tree[1] >= 0:
        champion = tree[1]
        k = them.at[champion]
        added = next_share(picture, k, shares[k]) - shares[k]
        fits = added <= left
        if fits:
            shares[k] += added
            left -= added
        if fits and next_share(picture, k, shares[k]) > 0:
            weigh(picture, them, champion, shares[k])
        else:
            tree[leaves + champion] = -1
        node = (leaves + champion) // 2
        while node > 0:
            play(them, rule, tree, node)
            node //= 2
    return left


@kernel
def gain_of_step(picture: Picture, gain: int, k: int, share: int, following: int) -> float:
    """What the step to `following` gains per added GPU."""
    row = picture.rows[k]
    curve = picture.jobs.whole[CURVE, row]
    added = following - share
    if gain == REMAINING_TIME:
        now_s, then_s = seconds_left(picture, row, share), seconds_left(picture, row, following)
        return (now_s - then_s) / added if now_s < np.inf else 0.0
    base_s = picture.step_s[curve, picture.jobs.whole[GPUS_MIN, row]]
    speedup = base_s / picture.step_s[curve, following] - base_s / picture.step_s[curve, share]
    return float(speedup / added)


@kernel
def grow_by_gain(picture: Picture, gain: int, left: int, shares: IntColumn) -> int:
    """Hand out `left` GPUs, each where it gains most, ties to the job submitted first; return what
    nobody could use.

    A step's gain depends on its own job alone, so a heap gives just what a scan of all jobs would.
    """
    size = picture.rows.shape[0]
    heap = np.empty(size, np.int64)
    keys = np.empty((2, size))
    count = ZERO
    for k in range(size):
        following = next_share(picture, k, shares[k])
        if shares[k] > 0 and following > 0:
            keys[0, k] = gain_of_step(picture, gain, k, shares[k], following)
            keys[1, k] = -k
            push(heap, count, k, keys)
            count += 1
    while left > 0 and count > 0:
        k = heap[0]
        added = next_share(picture, k, shares[k]) - shares[k]
        fits = added <= left
        if fits:
            shares[k] += added
            left -= added
        following = next_share(picture, k, shares[k])
        if fits and following > 0:
            keys[0, k] = gain_of_step(picture, gain, k, shares[k], following)
        else:
            count -= 1
            heap[0] = heap[count]
        sink(heap, count, keys)
    return left


@kernel
def grant_minimum(picture: Picture, shares: IntColumn) -> int:
    """Give every row its gpus_min; return what stays free, less than 0 if there is not enough."""
    left = picture.gpus
    for k in range(picture.rows.shape[0]):
        shares[k] = picture.jobs.whole[GPUS_MIN, picture.rows[k]]
        left -= shares[k]
    return left


@kernel
def grant_minimum_in_order(picture: Picture, keys: FloatMatrix, shares: IntColumn) -> int:
    """Give rows their gpus_min in order of the keys, skipping what does not fit; return the rest."""
    need = shares.copy()
    for k in range(picture.rows.shape[0]):
        need[k] = picture.jobs.whole[GPUS_MIN, picture.rows[k]]
    return fill_in_order(keys, need, picture.gpus, SKIP, shares)
