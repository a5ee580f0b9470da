"""Inner loops that several policies share. Each reads as the plain Python it also is."""

from typing import NamedTuple

import numpy as np

from coddl.core.columns import BoolColumn, FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import ONE, ZERO, kernel_int, part
from coddl.core.heaps import comes_before, make_heap, sink, sort_heap
from coddl.core.jobs import CURVE, GPUS, GPUS_MAX, GPUS_MIN, LAST_START_S, REMAINING_ITERATIONS
from coddl.core.seeds import MODULUS
from coddl.core.snapshot import KernelSnapshot

NO_ROW, ANY = kernel_int(-1), kernel_int(2**62)
BLOCK = kernel_int(32)  # contenders that are looked at together
STRICT, SKIP = ONE, ZERO  # what `fill_in_order` does where a job does not fit: end, or go on
LENGTH, COIN, KEEP = range(3)  # how a duel that gains alone do not decide is decided
REMAINING_TIME, SPEEDUP = range(2)  # what a step gains, for `grow_by_gain`


@part
def flip(coin: IntColumn) -> bool:
    """Draw the next bit of `coin[0]`, a minimal-standard generator: the same in compiled and in
    plain Python.
    """
    coin[0] = coin[0] * 48271 % MODULUS
    return bool(coin[0] > MODULUS // 2)


class RankedRows(NamedTuple):
    """Rows that stand in line for GPUs, by position."""

    keys: FloatMatrix  # their order: by keys[0], then keys[1], …, then position
    need: IntColumn
    holds: BoolColumn  # whether the row holds GPUs now; says nothing about the order


@part
def empty_ranking(levels: int, size: int) -> RankedRows:
    """A line to be filled in."""
    return RankedRows(np.empty((levels, size)), np.empty(size, np.int64), np.empty(size, np.bool_))


@part
def select_first(ranked: RankedRows, largest: int, after: int, most: int, out: IntColumn) -> int:
    """Put the first `most` rows into `out`, a heap with the last of them on top; return how many.

    Only those count that need at most `largest` and come behind row `after` (-1: any). One pass
    with a heap of the best so far: for the few that fit out of thousands that wait, far cheaper
    than a sort. Rows that hold GPUs come first: most of them stay, and few get past them.
    """
    size, keys = ZERO, ranked.keys
    for held in (True, False):
        for k in range(keys.shape[1]):
            if ranked.holds[k] != held or ranked.need[k] > largest:
                continue
            if after >= 0 and not comes_before(keys, after, k):
                continue
            if size < most:
                out[size] = k
                size += 1
                if size == most:
                    make_heap(out, size, keys)
            elif keys[0, k] <= keys[0, out[0]] and comes_before(keys, k, out[0]):
                out[0] = k
                sink(out, ZERO, size, keys)
    if size < most:
        make_heap(out, size, keys)
    return size


@part
def fill_in_order(ranked: RankedRows, free: int, strict: int, out: IntColumn) -> int:
    """Give each row its whole need, in order; return what stays free.

    What does not fit is skipped, or, if `strict`, ends the hand-out.
    """
    need = ranked.need
    count = need.shape[0]
    order = np.empty(count, np.int64)
    for k in range(count):
        out[k] = 0
    after = NO_ROW
    while free > 0:
        # At most `free` rows can still be served; and what does not fit now never will.
        largest = ANY if strict else free
        found = select_first(ranked, largest, after, min(free, count), order)
        if found == 0:
            break
        after = order[0]
        needed = 0
        for i in range(found):
            needed += need[order[i]]
        if needed > free:  # else all are served, in whatever order
            sort_heap(order, found, ranked.keys)
        for i in range(found):
            k = order[i]
            if need[k] <= free:
                out[k] = need[k]
                free -= need[k]
            elif strict:
                return free
    return free


class Contenders(NamedTuple):
    """The rows that can use another GPU, one entry each, with what a duel needs to know of them."""

    at: IntColumn  # position in the snapshot's rows
    curve: IntColumn
    limit: IntColumn  # the largest share it can use
    length: FloatColumn  # seconds left at the present share
    short: FloatColumn  # (p'-p)/p
    long: FloatColumn  # (p'-p)/p'
    below: FloatColumn  # which part is missing of the share it holds
    coin: IntColumn


@part
def beats(them: Contenders, rule: int, x: int, champion: int) -> bool:
    """Return whether x takes the next GPU from the champion.

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


@part
def challengers(them: Contenders, start: int, stop: int, champion: int) -> int:
    """How many of these entries take the next GPU from the champion, by length.

    The simulator's inner loop: `beats` without a branch, and over a number of entries that the
    compiler does not know, as it would unroll the loop instead of comparing many at once.
    """
    length, short, long = them.length[champion], them.short[champion], them.long[champion]
    count = ZERO
    for x in range(np.uint64(start), np.uint64(stop)):  # unsigned: no index counts from the end
        shorter, longer = them.length[x] < length, them.length[x] >= length
        wins = (shorter & (them.short[x] > long)) | (longer & (them.long[x] >= short))
        count += int(wins)
    return int(count)


@part
def reign_by_length(
    them: Contenders, start: int, count: int, champions: IntColumn, reign: int
) -> int:
    """One pass of duels by length, from entry `start` on; return which of its champions is the
    last.

    `champions[:reign + 1]` are those before `start`; each was beaten by the next.
    """
    x = start
    if reign < 0:
        reign, x = 0, 1
        champions[0] = 0
    while x < count:
        stop = min(x + BLOCK, count)
        if challengers(them, x, stop, champions[reign]) > 0:
            while not beats(them, LENGTH, x, champions[reign]):
                x += 1
            reign += 1
            champions[reign] = x
            stop = x + 1
        x = stop
    return reign


@part
def seconds_left(snapshot: KernelSnapshot, row: int, share: int) -> float:
    """Time to the end at this share; unknown lengths count as endless."""
    left = snapshot.jobs.floats[REMAINING_ITERATIONS, row]
    return (
        float(left * snapshot.step_s[snapshot.jobs.ints[CURVE, row], share])
        if left >= 0.0
        else np.inf
    )


@part
def next_share(snapshot: KernelSnapshot, k: int, share: int) -> int:
    """The next larger share position k can use, 0 if there is none."""
    row = snapshot.rows[k]
    following = snapshot.steps.next[snapshot.jobs.ints[CURVE, row], share]
    return int(following) if following <= snapshot.jobs.ints[GPUS_MAX, row] else 0


@part
def largest_share(snapshot: KernelSnapshot, k: int) -> int:
    """The largest share that position k can use."""
    row = snapshot.rows[k]
    most = min(snapshot.jobs.ints[GPUS_MAX, row], snapshot.steps.last.shape[1] - 1)
    return int(snapshot.steps.last[snapshot.jobs.ints[CURVE, row], most])


@part
def grow_all(snapshot: KernelSnapshot, left: int, shares: IntColumn) -> bool:
    """Let all rows that hold GPUs grow as far as they can, if `left` is enough for that.

    Where it is, every way of handing out GPUs one by one ends here.
    """
    for k in range(snapshot.rows.shape[0]):
        if shares[k] > 0:
            left -= max(0, largest_share(snapshot, k) - shares[k])
            if left < 0:
                return False
    for k in range(snapshot.rows.shape[0]):
        if shares[k] > 0:
            shares[k] = max(shares[k], largest_share(snapshot, k))
    return True


@part
def weigh(snapshot: KernelSnapshot, them: Contenders, rule: int, x: int, share: int) -> None:
    """Bring entry x up to date for this share, as far as the rule looks at it."""
    row, curve = snapshot.rows[them.at[x]], them.curve[x]
    them.short[x] = snapshot.steps.short[curve, share]
    them.long[x] = snapshot.steps.long[curve, share]
    if rule == LENGTH:
        them.length[x] = seconds_left(snapshot, row, share)
    elif rule == KEEP:
        held = snapshot.jobs.ints[GPUS, row]
        them.below[x] = 1.0 - share / held if share < held else 0.0


@part
def contend(snapshot: KernelSnapshot, rule: int, shares: IntColumn) -> tuple[Contenders, int]:
    """Line up the rows that hold GPUs and can use more, as submitted; say how many they are."""
    size = snapshot.rows.shape[0]
    ints, floats = np.empty((4, size + 1), np.int64), np.empty((4, size))
    coin = ints[3, :1]
    coin[0] = snapshot.seed
    them = Contenders(ints[0], ints[1], ints[2], floats[0], floats[1], floats[2], floats[3], coin)
    count = ZERO
    for k in range(size):
        if shares[k] > 0 and next_share(snapshot, k, shares[k]) > 0:
            them.at[count] = k
            them.curve[count] = snapshot.jobs.ints[CURVE, snapshot.rows[k]]
            them.limit[count] = largest_share(snapshot, k)
            weigh(snapshot, them, rule, count, shares[k])
            count += 1
    return them, count


@part
def promote(
    snapshot: KernelSnapshot, them: Contenders, x: int, left: int, shares: IntColumn
) -> int:
    """Move entry x to its next share; return the GPUs that takes, 0 if there are not enough."""
    k = them.at[x]
    following = snapshot.steps.next[them.curve[x], shares[k]]
    added = following - shares[k]
    if added > left:
        return 0
    shares[k] = following
    return int(added)


@part
def leave(them: Contenders, x: int, count: int) -> None:
    """Take entry x out of line; `count` are left."""
    for y in range(x, count):
        them.at[y], them.curve[y], them.limit[y] = (
            them.at[y + 1],
            them.curve[y + 1],
            them.limit[y + 1],
        )
        them.length[y], them.below[y] = them.length[y + 1], them.below[y + 1]
        them.short[y], them.long[y] = them.short[y + 1], them.long[y + 1]


@part
def grow_by_scan(snapshot: KernelSnapshot, rule: int, left: int, shares: IntColumn) -> None:
    """Hand out `left` GPUs, each to the champion of one pass over all contenders: as published.

    `shares` is by position in `snapshot.rows`. The champions up to the last winner are the same in
    the next pass, so where no coin is flipped the pass starts there.
    """
    them, count = contend(snapshot, rule, shares)
    champions, reign, champion = np.empty(count, np.int64), NO_ROW, ZERO
    while left > 0 and count > 0:
        if rule == LENGTH:
            reign = reign_by_length(them, champion, count, champions, reign)
            champion = champions[reign]
            reign -= 1
        else:
            champion = ZERO
            for x in range(1, count):
                if beats(them, rule, x, champion):
                    champion = x
        added = promote(snapshot, them, champion, left, shares)
        left -= added
        share = shares[them.at[champion]]
        if added > 0 and share < them.limit[champion]:
            weigh(snapshot, them, rule, champion, share)
        else:
            count -= 1
            leave(them, champion, count)


@part
def play(them: Contenders, rule: int, tree: IntColumn, node: int) -> None:
    """Let the winners of a node's two halves meet; the half submitted earlier defends."""
    defender, challenger = tree[2 * node], tree[2 * node + 1]
    if defender < 0 or (challenger >= 0 and beats(them, rule, challenger, defender)):
        tree[node] = challenger
    else:
        tree[node] = defender


@part
def grow_by_tournament(snapshot: KernelSnapshot, rule: int, left: int, shares: IntColumn) -> None:
    """The same duels as a knock-out tree: after each GPU only the winner's path is played again.

    O(GPUs x log jobs). The rule is not transitive, so a few shares may differ from the scan's.
    """
    them, count = contend(snapshot, rule, shares)
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
        added = promote(snapshot, them, champion, left, shares)
        left -= added
        share = shares[them.at[champion]]
        if added > 0 and share < them.limit[champion]:
            weigh(snapshot, them, rule, champion, share)
        else:
            tree[leaves + champion] = -1
        node = (leaves + champion) // 2
        while node > 0:
            play(them, rule, tree, node)
            node //= 2


@part
def gain_of_step(snapshot: KernelSnapshot, gain: int, k: int, share: int, following: int) -> float:
    """What the step to `following` gains per added GPU."""
    row = snapshot.rows[k]
    curve = snapshot.jobs.ints[CURVE, row]
    added = following - share
    if gain == REMAINING_TIME:
        now_s, then_s = seconds_left(snapshot, row, share), seconds_left(snapshot, row, following)
        return (now_s - then_s) / added if now_s < np.inf else 0.0
    base_s = snapshot.step_s[curve, snapshot.jobs.ints[GPUS_MIN, row]]
    speedup = base_s / snapshot.step_s[curve, following] - base_s / snapshot.step_s[curve, share]
    return float(speedup / added)


@part
def grow_by_gain(snapshot: KernelSnapshot, gain: int, left: int, shares: IntColumn) -> int:
    """Hand out `left` GPUs, each where it gains most, ties to the job submitted first; return what
    no job could use.

    A step's gain depends on its own job alone, so a heap gives just what a scan of all jobs would.
    """
    size = snapshot.rows.shape[0]
    heap = np.empty(size, np.int64)
    keys = np.empty((2, size))
    count = ZERO
    for k in range(size):
        following = next_share(snapshot, k, shares[k])
        if shares[k] > 0 and following > 0:
            keys[0, k] = gain_of_step(snapshot, gain, k, shares[k], following)
            keys[1, k] = -k
            heap[count] = k
            count += 1
    make_heap(heap, count, keys)
    while left > 0 and count > 0:
        k = heap[0]
        added = next_share(snapshot, k, shares[k]) - shares[k]
        fits = added <= left
        if fits:
            shares[k] += added
            left -= added
        following = next_share(snapshot, k, shares[k])
        if fits and following > 0:
            keys[0, k] = gain_of_step(snapshot, gain, k, shares[k], following)
        else:
            count -= 1
            heap[0] = heap[count]
        sink(heap, ZERO, count, keys)
    return left


@part
def grant_minimum(snapshot: KernelSnapshot, shares: IntColumn) -> int:
    """Give every row its gpus_min; return what stays free, less than 0 if there is not enough."""
    left = snapshot.gpus
    if snapshot.rows.shape[0] > left:
        return -1  # each needs one at least
    for k in range(snapshot.rows.shape[0]):
        shares[k] = snapshot.jobs.ints[GPUS_MIN, snapshot.rows[k]]
        left -= shares[k]
    return left


@part
def grant_minimum_as_submitted(snapshot: KernelSnapshot, shares: IntColumn) -> int:
    """Give rows their gpus_min as they came, skipping misfits; return what stays free."""
    free, size = snapshot.gpus, snapshot.rows.shape[0]
    for k in range(size):
        shares[k] = 0
    for k in range(size):
        if free == 0:
            break
        need = snapshot.jobs.ints[GPUS_MIN, snapshot.rows[k]]
        if need <= free:
            shares[k] = need
            free -= need
    return free


@part
def serve_running_first(
    snapshot: KernelSnapshot, column: int, strict: int, shares: IntColumn
) -> int:
    """Give rows their need, first those that run, by their start, then others as they came.

    The need is a column of jobs.whole. What does not fit is skipped, or, if `strict`, ends the
    hand-out. Returns what stays free.
    """
    ints, size = snapshot.jobs.ints, snapshot.rows.shape[0]
    free = snapshot.gpus
    for k in range(size):
        row = snapshot.rows[k]
        shares[k] = ints[column, row] if ints[GPUS, row] > 0 else 0
        free -= shares[k]
    if free < 0:  # GPUs were lost: not all that run can stay
        ranked = empty_ranking(ONE, size)
        for k in range(size):
            row = snapshot.rows[k]
            ranked.need[k] = ints[column, row]
            ranked.holds[k] = ints[GPUS, row] > 0
            ranked.keys[0, k] = (
                snapshot.jobs.floats[LAST_START_S, row] if ranked.holds[k] else np.inf
            )
        return fill_in_order(ranked, snapshot.gpus, strict, shares)
    for k in range(size):
        if free == 0:
            break
        need_k = ints[column, snapshot.rows[k]]
        if shares[k] > 0:
            continue
        if need_k <= free:
            shares[k] = need_k
            free -= need_k
        elif strict:
            break
    return free
