import pytest
from coddl.core.pool import records as r
from tests.e2e.test_parking import (
    one_node,
    strict_job,
    resumed,
    check_ends,
    suspend,
    parked,
    resume,
    kill_first,
    kill_last,
    STEPS,
)

pytestmark = pytest.mark.slow


def story(pool):
    for seq, at_s, record in pool.records():
        if isinstance(
            record,
            (
                r.Aimed,
                r.RunChanged,
                r.RunEnded,
                r.RunStepped,
                r.ParkingEnded,
                r.SlotFreed,
                r.NodeLost,
                r.NodeJoined,
                r.StartOverdue,
            ),
        ):
            print(f"{seq} {at_s % 1000:.2f} {record}")


def test_quantum(tmp_path, alone):
    with one_node(tmp_path, 1, "gandiva:quantum_s=1") as pool:
        jobs = [strict_job(pool, name) for name in ("a", "b", "c")]
        for job in jobs:
            pool.wait(f"a turn of job {job.job}", lambda job=job: resumed(pool, job) >= 2)
        check_ends(pool, jobs, alone)
        story(pool)
        print(pool.observer.seen())


@pytest.mark.parametrize("strike", [kill_first, kill_last])
def test_kill(tmp_path, alone, strike):
    with one_node(tmp_path, 2) as pool:
        a = strict_job(pool, "a", 2)
        suspend(pool, a)
        strike(parked(pool, a))
        import time

        time.sleep(2)
        print("view", a.view["parked"], pool.observer.sitters())
        resume(pool, a)
        check_ends(pool, [a], alone)
        story(pool)
        print(pool.observer.seen())
        print(pool.log("n1"))
