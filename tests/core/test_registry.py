"""Policies as users write them."""

import pytest

from coddl.core.errors import UserError
from coddl.core.named import parameters_of
from coddl.core.policies.afs import AfsP
from coddl.core.policies.philly import Philly
from coddl.core.policies.tiresias import TiresiasL
from coddl.core.registry import POLICIES, policy_from

GOOD = {
    "afs-p:lease_h=2,tie=keep": AfsP(lease_h=2.0, tie="keep"),
    "tiresias-l:threshold_gpu_h=50,promote=8": TiresiasL((50.0,), 8.0),
    "tiresias-l:threshold_gpu_h=0.5/2": TiresiasL((0.5, 2.0), 0.0),
    "tiresias-l:threshold_gpu_h=none": TiresiasL((), 0.0),
    "tiresias-l:preset=afs": TiresiasL((50.0,), 0.0, "since-start"),
    "philly:reclaim_at=0": Philly(0.0),
    "philly:reclaim_at=1": Philly(1.0),
    "tiresias-l:promote=4,preset=afs": TiresiasL((50.0,), 4.0, "since-start"),
}
BAD = {
    "nosuch": 'no policy named "nosuch"',
    "": 'no policy named ""',
    "afs-l:speed=9": 'afs-l has no parameter "speed"',
    "srtf:x=1": "srtf takes no parameters",
    "afs-p:lease_h": '"lease_h" is not parameter=value',
    "afs-p:lease_h=abc": 'lease_h="abc" is not a number',
    "afs-p:lease_h=-1": 'lease_h="-1" is not a number above 0',
    "afs-p:lease_h=0": 'lease_h="0" is not a number above 0',
    "afs-p:lease_h=1,lease_h=2": "lease_h is given twice",
    "afs-p:lease_h=nan": 'lease_h="nan"',
    "afs-p:lease_h=inf": 'lease_h="inf"',
    "afs-p:tie=heads": 'tie="heads" is not coin | keep',
    "fifo:backfill=maybe": 'backfill="maybe" is not true | false',
    "tiresias-l:threshold_gpu_h=5/1": "rising",
    "tiresias-l:threshold_gpu_h=0": "rising positive",
    "gandiva:moves=-1": 'moves="-1" is not a whole number, 0 or more',
    "gandiva:moves=1.5": 'moves="1.5" is not a whole number',
    "tiresias-l:preset=nsdi": 'preset="nsdi" is not afs',
    "philly:reclaim_at=5": 'reclaim_at="5" is not a number from 0 to 1 reclaim_at=0.5',
    "gandiva:idle=7": 'idle="7" is not a number from 0 to 1',
    "gandiva:pack_below=3": 'pack_below="3" is not a number from 0 to 1',
    "gandiva:pack_below=nan": 'pack_below="nan" is not a number from 0 to 1',
    "themis:filter=-0.1": 'filter="-0.1" is not a number from 0 to 1',
    "optimus-ps:young=1.1": 'young="1.1" is not a number from 0 to 1',
}


@pytest.mark.parametrize("spec", GOOD)
def test_a_spec_becomes_a_policy(spec: str) -> None:
    assert policy_from(spec) == GOOD[spec]


@pytest.mark.parametrize("spec", BAD)
def test_a_bad_spec_says_what_because_try(spec: str) -> None:
    with pytest.raises(UserError) as raised:
        policy_from(spec)
    error = raised.value
    assert f'policy "{spec}"' in error.what
    assert BAD[spec] in f"{error.because} {error.try_}"
    assert error.try_


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_states_the_rules_that_decide_results(name: str) -> None:
    rules = POLICIES[name].__doc__ or ""
    assert "Rigid request" in rules or "Partial share" in rules
    assert "backfill" in rules or "overload" in rules
    assert "cap" in rules
    assert all(p.default or p.name == "preset" for p in parameters_of(POLICIES[name]))
