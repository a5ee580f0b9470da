"""Profiles of trainings: kept with the job, told once, and known to later jobs that are alike."""

from dataclasses import replace

import msgspec
import pytest

from coddl.core.errors import UserError
from coddl.core.pool import records as r
from coddl.core.pool.explain import sentence_of
from coddl.core.pool.known_profiles import PROFILES_MAX, SIZES_MAX, merged, with_profile
from coddl.core.pool.state import Pool
from coddl.core.speed.profile import SliceMemory, SliceTime, TrainingProfile
from tests.core.pool.profiles import PROFILE
from tests.core.pool.story import Story

HALF = replace(PROFILE, slices=(SliceTime(32, 0.006, 0.011),), memory=())


def prepared(story: Story, training: str = "abc") -> int:
    """Start a job whose script says what it trains."""
    job = story.submit(1, 1)
    told = (None, 100, 64, 0, 0, 8)
    story.happen(r.RunPrepared(job, story.job(job).attempt, *told, training=training))
    return job


def tell(story: Story, job: int, profile: TrainingProfile) -> tuple[r.Record, ...]:
    return story.happen(r.RunProfiled(job, story.job(job).attempt, profile)).records


def test_a_profile_is_kept_with_the_job_and_decides_nothing() -> None:
    story = Story(2)
    job = prepared(story)
    assert story.job(job).profile is None
    (record,) = tell(story, job, PROFILE)
    assert story.job(job).profile == PROFILE
    assert sentence_of(record) == (
        "job 1 measured its passes: forward 10 ms, backward 20 ms, 64 samples on NVIDIA H200"
    )


def test_what_is_known_is_no_news() -> None:
    story = Story(2)
    job = prepared(story)
    assert tell(story, job, PROFILE)
    assert not tell(story, job, PROFILE)  # a repeat
    assert not tell(story, job, replace(PROFILE, update_s=0.003)), "less than a tenth"
    assert tell(story, job, replace(PROFILE, update_s=0.010))
    with_updates = replace(PROFILE, update_s=0.010, update_memory=(SliceMemory(64, 1 << 29),))
    assert tell(story, job, with_updates)
    assert not tell(story, job, with_updates)
    assert not tell(story, job, replace(with_updates, update_memory=()))
    assert tell(story, job, replace(PROFILE, device="NVIDIA A100"))


def test_sizes_of_the_same_training_on_the_same_device_are_put_together() -> None:
    story = Story(2)
    job = prepared(story)
    tell(story, job, PROFILE)
    assert tell(story, job, HALF)
    found = story.job(job).profile
    assert found is not None
    assert [each.samples for each in found.slices] == [32, 64]
    assert sentence_of(r.RunProfiled(1, 1, found)).endswith(
        "64 samples on NVIDIA H200; slices of 32, too"
    )
    assert found.memory == PROFILE.memory
    assert not tell(story, job, HALF)
    other = replace(HALF, device="NVIDIA A100")
    assert merged(PROFILE, other) == other
    many = replace(PROFILE, slices=tuple(SliceTime(n, 1.0, 1.0) for n in range(1, SIZES_MAX + 1)))
    assert len(merged(many, PROFILE).slices) == SIZES_MAX


def test_the_next_job_that_trains_the_same_starts_informed() -> None:
    story = Story(3)
    tell(story, prepared(story), PROFILE)
    assert story.job(prepared(story)).profile == PROFILE
    assert story.job(prepared(story, training="another")).profile is None


def test_the_oldest_are_forgotten_and_one_without_a_signature_is_not_remembered() -> None:
    known: dict[str, TrainingProfile] = {}
    for number in range(PROFILES_MAX + 1):
        known = with_profile(known, replace(PROFILE, signature=str(number)))
    known = with_profile(known, replace(PROFILE, signature="1"))
    assert len(known) == PROFILES_MAX
    assert "0" not in known
    assert list(known)[-1] == "1"
    assert with_profile(known, replace(PROFILE, signature="")) == known


def test_a_pool_with_profiles_is_stored_and_read_back() -> None:
    story = Story(2)
    tell(story, prepared(story), PROFILE)
    again = msgspec.json.decode(msgspec.json.encode(story.pool), type=Pool)
    assert again.profiles == {"abc": PROFILE}
    assert again.jobs[1].profile == PROFILE


def test_a_profile_is_read_from_json_as_it_was_written() -> None:
    data = msgspec.json.decode(msgspec.json.encode(PROFILE.as_data()))
    assert TrainingProfile.from_data(data) == PROFILE


BAD = {
    "a list": [],
    "another version": PROFILE.as_data() | {"version": 2},
    "no slices": PROFILE.as_data() | {"slices": []},
    "no batch": PROFILE.as_data() | {"batch": None},
    "a time below zero": PROFILE.as_data() | {"update_s": -1.0},
    "a bucket after backward": PROFILE.as_data() | {"buckets": [{"bytes": 1, "ready": 1.5}]},
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_what_is_no_profile_is_refused(data: object) -> None:
    with pytest.raises(UserError, match="no profile"):
        TrainingProfile.from_data(data)
