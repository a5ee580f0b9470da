"""Which jobs stay parked on a node, and which have to go."""

from coddl.agent.parking import ParkingLot


def test_a_job_that_is_told_to_park_is_kept_until_the_server_lets_it_go() -> None:
    lot = ParkingLot(100)
    lot.expect(1)
    assert lot.jobs == [1]
    assert lot.unwanted(()) == [], "the server can't know of it yet"
    assert lot.add(1, 60) == []
    assert lot.unwanted(()) == [], "its end may be on the way"
    lot.note_known(1)
    assert lot.unwanted({1}) == []
    assert lot.unwanted({2}) == [1]
    assert (lot.jobs, lot.bytes_) == ([], 0)


def test_the_oldest_go_when_memory_runs_short() -> None:
    lot = ParkingLot(100)
    for job in (1, 2, 3):
        assert lot.add(job, 30) == []
    lot.expect(9)  # it still holds its GPU, and nothing can be had from it
    assert lot.add(4, 50) == [1, 2]
    assert lot.jobs == [3, 9, 4]
    assert lot.oldest == 3
    assert lot.add(3, 30) == [], "it has come back, and is the newest"
    assert lot.oldest == 4


def test_a_job_larger_than_the_budget_is_not_kept() -> None:
    lot = ParkingLot(100)
    assert lot.add(1, 30) == []
    assert lot.add(2, 101) == [1, 2]
    assert lot.oldest is None


def test_a_job_whose_workers_have_died_is_parked_no_more() -> None:
    lot = ParkingLot(100)
    lot.expect(1)
    lot.add(2, 10)
    lot.add(3, 10)
    assert lot.lose({3}) == [2], "and the first has not parked yet"
    assert lot.remove(3)
    assert not lot.remove(3)
    assert lot.jobs == [1]
