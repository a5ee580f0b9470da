"""A training as one worker might have measured it."""

from coddl.core.speed.profile import GradientBucket, SliceMemory, SliceTime, TrainingProfile

PROFILE = TrainingProfile(
    device="NVIDIA H200",
    batch=64,
    slices=(SliceTime(64, 0.010, 0.020),),
    update_s=0.002,
    other_s=0.001,
    data_s=0.0,
    buckets=(GradientBucket(1 << 20, 0.25), GradientBucket(25 << 20, 1.0)),
    memory=(SliceMemory(64, 1 << 30),),
    state_bytes=1 << 28,
    signature="abc",
)
