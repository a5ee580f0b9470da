"""`coddl inspect` below its command: what is planned, measured, kept, and said between nodes."""

import json
import math
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coddl.agent.inspection import cluster_inspection, inspecting
from coddl.agent.inspection.cluster_inspection import listening
from coddl.agent.inspection.hardware import NodeHardware, in_words, look_at_hardware
from coddl.agent.inspection.inspecting import InspectionOptions, NodeMeeting, inspected
from coddl.agent.inspection.store import (
    path_of,
    store_inspection,
    stored_inspection,
    write_inspection,
)
from coddl.agent.inspection.sweeps import (
    BUCKET_BYTES,
    WHOLE,
    LinkSweep,
    SweepExtent,
    cluster_backend,
    counts_up_to,
    planned,
)
from coddl.core.errors import UserError
from coddl.core.pool.records import Device
from coddl.core.speed.inspection import Inspection, LinkSpeed
from coddl.runtime.worker import gradients
from tests.agent.pool import wait_until
from tests.ports import free_port

TINY = SweepExtent((1 << 10, 1 << 14, 1 << 18), (1 << 10, 1 << 14, 1 << 18), 1 << 16, 1 << 16, 0.01)
LINK = LinkSpeed(1.0, 10.0, 20.0, "gloo")
KNOWN = Inspection("a machine", {"node": LINK}, {"cpu": 1.0}, {})
PATIENCE_S = 120.0


def node_of(*devices: Device, cores: int = 4, may_share_gpu: bool = True) -> NodeHardware:
    return NodeHardware("a machine", devices, tuple(range(cores)), may_share_gpu)


def cpus(count: int) -> tuple[Device, ...]:
    return tuple(Device(index, "cpu") for index in range(count))


def gpus(count: int) -> tuple[Device, ...]:
    return tuple(Device(index, "NVIDIA H200", f"GPU-{index}", 1 << 37) for index in range(count))


# Plans.


def test_cpu_slots_exchange_within_their_node_each_on_cores_of_its_own() -> None:
    slots, sweeps = planned(node_of(*cpus(2)))
    assert [each.cores for each in slots] == [(0, 1), (2, 3)]
    assert sweeps == (LinkSweep("node", (0, 1), "gloo", "cpu"),)


def test_a_single_slot_has_no_link() -> None:
    slots, sweeps = planned(node_of(*cpus(1)))
    assert (len(slots), sweeps) == (1, ())


def test_one_gpu_is_shared_by_workers_that_use_gloo() -> None:
    slots, sweeps = planned(node_of(*gpus(1)))
    assert [each.gpu for each in slots] == ["GPU-0"] * 4
    assert sweeps == (LinkSweep("gpu", (0, 1, 2, 3), "gloo", "gpu"),)
    _, sweeps = planned(node_of(*gpus(1)), nccl_on_one_gpu=True)
    assert sweeps[0].backend == "nccl"


def test_several_gpus_are_measured_apart_and_one_of_them_shared() -> None:
    slots, sweeps = planned(node_of(*gpus(2)))
    assert [each.gpu for each in slots] == ["GPU-0", "GPU-1", *["GPU-0"] * 3]
    assert sweeps == (
        LinkSweep("gpu", (0, 2, 3, 4), "gloo", "gpu"),
        LinkSweep("node", (0, 1), "nccl", "gpu"),
    )


def test_a_gpu_that_admits_one_process_is_not_shared() -> None:
    slots, sweeps = planned(node_of(*gpus(2), may_share_gpu=False))
    assert len(slots) == 2
    assert sweeps == (LinkSweep("node", (0, 1), "nccl", "gpu"),)


@pytest.mark.parametrize(
    ("members", "counts"), [(1, ()), (2, (2,)), (5, (2, 3, 4, 5)), (8, (2, 3, 4, 8))]
)
def test_a_sweep_has_several_numbers_of_workers(members: int, counts: tuple[int, ...]) -> None:
    assert counts_up_to(members) == counts


def test_nodes_exchange_as_a_training_on_them_would() -> None:
    assert cluster_backend([True, True]) == ("nccl", "gpu")
    assert cluster_backend([True, False]) == ("gloo", "cpu")


def test_the_sizes_include_a_bucket_of_gradients() -> None:
    assert BUCKET_BYTES == gradients.BUCKET_BYTES
    assert BUCKET_BYTES in WHOLE.sizes
    assert BUCKET_BYTES in WHOLE.gpu_sizes


# Hardware.


def test_hardware_is_named_by_what_makes_a_difference() -> None:
    assert in_words(cpus(4), 2, "EPYC", "") == "EPYC, 2 cores"
    assert in_words(cpus(2), 2, "EPYC", "580") == "EPYC, 2 cores", "its GPUs are not used"
    assert in_words(gpus(2), 1, "EPYC", "580") == "2 x NVIDIA H200, driver 580, EPYC, 1 core"


def test_this_machine_can_be_named() -> None:
    found = look_at_hardware(2)
    assert len(found.devices) == 2
    assert not found.has_gpus
    assert found.hardware == look_at_hardware(2).hardware


# The store.


def test_what_is_stored_is_found_by_its_hardware_alone(tmp_path: Path) -> None:
    assert stored_inspection(tmp_path, "a machine") is None
    store_inspection(tmp_path, KNOWN)
    assert stored_inspection(tmp_path, "a machine") == KNOWN
    assert stored_inspection(tmp_path, "another") is None
    other = replace(KNOWN, hardware="another")
    store_inspection(tmp_path, other)
    assert stored_inspection(tmp_path, "a machine") == KNOWN
    assert not [*tmp_path.rglob(".*")], "no part of a file is left"


def test_a_file_that_is_no_inspection_counts_as_none(tmp_path: Path) -> None:
    path = store_inspection(tmp_path, KNOWN)
    path.write_text(path.read_text()[:100])
    assert stored_inspection(tmp_path, "a machine") is None


def test_a_file_that_cannot_be_written_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="can't be written"):
        write_inspection(tmp_path / "file" / "inspection.json", KNOWN)


# Measurements, by real workers.


def options_of(folder: Path, **more: Any) -> InspectionOptions:
    return InspectionOptions(state_dir=folder, extent=TINY, **more)


def silent(_text: str) -> None: ...


def check_link(link: LinkSpeed, workers: tuple[int, ...]) -> None:
    assert (link.backend, link.workers) == ("gloo", workers)
    assert [(each.workers, each.bytes_) for each in link.measured] == [
        (n, x) for n in workers for x in TINY.sizes
    ]
    times = [each.seconds for each in link.measured] + [each.seconds for each in link.sent]
    assert all(0.0 < each < PATIENCE_S for each in times)
    assert [each.bytes_ for each in link.sent] == list(TINY.sizes)
    assert 0.0 < link.gb_s < math.inf


def test_a_node_is_measured_once_until_its_hardware_changes(tmp_path: Path) -> None:
    node, said = look_at_hardware(2), list[str]()
    found = inspected(node, options_of(tmp_path), said.append)
    check_link(found.links["node"], (2,))
    assert found.update_gb_s["cpu"] > 0.0
    assert found.copy_gb_s == {}
    assert any("node link: 2 workers, 3 sizes, gloo" in line for line in said)
    assert json.loads(path_of(tmp_path, node.hardware).read_text()) == found.as_data()

    assert inspected(node, options_of(tmp_path, slots=2), said.append) == found
    assert "measured before" in said[-1]
    # A link between nodes is kept when the node itself is measured again.
    store_inspection(tmp_path, inspecting.with_cluster(found, LINK))
    again = inspected(node, options_of(tmp_path, again=True), silent)
    assert again.links["cluster"] == LINK
    assert again.links["node"] != found.links["node"]
    changed = replace(node, hardware="another machine")
    assert "cluster" not in inspected(changed, options_of(tmp_path), silent).links


def test_other_slots_than_those_measured_are_measured(tmp_path: Path) -> None:
    node = look_at_hardware(3)
    two = replace(LINK, measured=((2, 1024, 1e-3),))  # type: ignore[arg-type] # plain will do
    store_inspection(tmp_path, replace(KNOWN, hardware=node.hardware, links={"node": two}))
    assert inspected(node, options_of(tmp_path), silent).links["node"].workers == (2,)
    found = inspected(node, options_of(tmp_path, slots=3), silent)
    check_link(found.links["node"], (2, 3))


def test_a_worker_that_cannot_start_is_told_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "worker.py"
    broken.write_text("raise SystemExit('no such luck')")
    monkeypatch.setattr("coddl.agent.inspection.workers.SCRIPT", broken)
    with pytest.raises(UserError) as refused:
        inspected(look_at_hardware(2), options_of(tmp_path), silent)
    assert refused.value.because == "a worker has ended: no such luck"


# Between nodes: here two of them are threads, which know each other by TCP alone.


class Meeting:
    """A free port, two nodes, and what became of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.results: dict[str, Inspection | UserError] = {}
        self.said: dict[str, list[str]] = {}
        self._threads: list[threading.Thread] = []

    def start(self, name: str, code: str = "open", nodes: int | None = None) -> None:
        node = replace(look_at_hardware(1), hardware=name)
        store_inspection(self.folder, replace(KNOWN, hardware=name))
        at = NodeMeeting(("127.0.0.1", self.port), code, nodes)
        self.said[name] = []

        def run() -> None:
            try:
                options = options_of(self.folder, meeting=at)
                self.results[name] = inspected(node, options, self.said[name].append)
            except UserError as error:
                self.results[name] = error

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def wait_for(self, name: str) -> Inspection | UserError:
        wait_until(lambda: name in self.results, f"what becomes of {name}")
        return self.results[name]

    def finish(self) -> dict[str, Inspection | UserError]:
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads)
        return self.results


@pytest.fixture
def meeting(tmp_path: Path) -> Meeting:
    return Meeting(tmp_path)


def test_nodes_that_meet_both_learn_of_the_link(meeting: Meeting) -> None:
    meeting.start("joining")  # before there is one that listens
    meeting.start("listening", nodes=2)
    found = meeting.finish()
    for name in ("joining", "listening"):
        inspection = found[name]
        assert isinstance(inspection, Inspection), inspection
        check_link(inspection.links["cluster"], (2,))
        assert inspection.links["node"] == LINK, "what was known stays"
        assert stored_inspection(meeting.folder, name) == inspection
    command = f"coddl inspect --join 127.0.0.1:{meeting.port} --code open"
    assert f"on the other node: {command}" in meeting.said["listening"]
    assert any("has joined: 2 of 2 nodes" in line for line in meeting.said["listening"])


def test_a_node_with_another_code_is_refused_and_disturbs_nobody(meeting: Meeting) -> None:
    meeting.start("listening", nodes=2)
    meeting.start("stranger", code="guess")
    refusal = meeting.wait_for("stranger")
    assert isinstance(refusal, UserError)
    assert "its --code is not the one" in refusal.because
    meeting.start("joining")
    found = meeting.finish()
    assert isinstance(found["listening"], Inspection)
    assert isinstance(found["joining"], Inspection)
    assert stored_inspection(meeting.folder, "stranger") == replace(KNOWN, hardware="stranger")


def greeted(port: int, *lines: bytes) -> socket.socket:
    """Reach the listening node, once it listens, and say something."""
    peer = cluster_inspection._connected(("127.0.0.1", port))
    for line in lines:
        peer.sendall(line + b"\n")
    return peer


JOIN = b'{"do": "join", "code": "open", "node": "odd"}'
ODD: dict[str, tuple[Callable[[socket.socket], object], str]] = {
    "a node that leaves": (lambda peer: peer.close(), "odd has left"),
    "a node that talks nonsense": (
        lambda peer: peer.sendall(b'{"is": "exchange", "times": ["soon"]}\n'),
        "odd: its answer is no list of times",
    ),
    "a node that can't": (
        lambda peer: peer.sendall(b'{"is": "failed", "because": "no route to host"}\n'),
        "odd: no route to host",
    ),
}


@pytest.mark.parametrize(("act", "because"), ODD.values(), ids=ODD.keys())
def test_a_node_that_fails_is_named(
    meeting: Meeting,
    act: Callable[[socket.socket], object],
    because: str,
) -> None:
    meeting.start("listening", nodes=2)
    with greeted(meeting.port, JOIN) as peer:
        assert json.loads(peer.makefile().readline())["do"] == "exchange"
        act(peer)
        refusal = meeting.finish()["listening"]
    assert isinstance(refusal, UserError)
    assert refusal.because == because


def test_strangers_who_speak_no_json_are_ignored(meeting: Meeting) -> None:
    meeting.start("listening", nodes=2)
    with greeted(meeting.port, b"GET / HTTP/1.1", b"[]", b'{"do": "join"}'):
        meeting.start("joining")
        assert all(isinstance(each, Inspection) for each in meeting.finish().values())


def test_an_address_of_another_machine_cannot_be_listened_at() -> None:
    with pytest.raises(UserError, match="can't be used"):
        listening("192.0.2.1", 1)
