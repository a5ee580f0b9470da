"""Nodes that share no jobs folder: no job spans them, none leaves its files behind."""

from coddl.core.pool import records as r
from tests.core.pool.story import Story


def apart(*devices: int) -> Story:
    """A pool of nodes a, b, c, each with a jobs folder of its own."""
    story = Story()
    for node, count in zip("abc", devices, strict=False):
        story.join(node, count, folder=f"of-{node}")
    return story


def nodes_of(story: Story, job: int) -> set[str]:
    return set(story.pool.nodes_of(story.job(job).granted))


def test_a_job_grows_within_the_nodes_that_share_its_folder() -> None:
    story = apart(2, 2)
    job = story.submit(1, 4)
    story.train(job)
    assert story.shares() == {job: 2}
    (node,) = nodes_of(story, job)
    story.join("c", 2, folder=f"of-{node}")
    story.train(job)
    assert story.shares() == {job: 4}
    assert "c" in nodes_of(story, job)


def test_jobs_are_spread_over_folders_by_what_room_is_left() -> None:
    story = apart(2, 2)
    jobs = [story.submit(2, 2, tier="restartable") for _ in range(2)]
    assert [nodes_of(story, job) for job in jobs] in ([{"a"}, {"b"}], [{"b"}, {"a"}])
    assert story.shares() == {job: 2 for job in jobs}


def test_a_job_waits_for_its_files_and_goes_on_when_they_are_back() -> None:
    story = apart(2, 2)
    job = story.submit(1, 2)
    story.train(job)
    (node,) = nodes_of(story, job)
    story.happen(r.NodeLost(node, "1", "a cable"))
    assert story.shares() == {job: 0}
    waiting = story.job(job).waiting
    assert waiting is not None
    assert waiting.code == "NodeDown"
    assert "can read the jobs folder" in waiting.sentence
    story.join(node, 2, boot="2", folder=f"of-{node}")
    assert nodes_of(story, job) == {node}


def test_nodes_of_a_journal_that_names_no_folders_share_one() -> None:
    story = Story(2, 2)
    job = story.submit(1, 4)
    story.train(job)
    assert nodes_of(story, job) == {"a", "b"}
    for node in "ab":
        story.join(node, 2, boot="2", folder="shared")
    assert story.job(job).granted, "a job of that journal may run wherever its files are found"


def test_each_folders_jobs_are_decided_on_with_all_that_is_new() -> None:
    story = apart(1, 1)
    jobs = [story.submit(1, 1) for _ in range(4)]
    assert sorted(story.shares().values()) == [0, 0, 1, 1]
    waits = [story.job(job).waiting for job in jobs if not story.job(job).granted]
    assert all(each is not None and each.code == "Resources" for each in waits)
