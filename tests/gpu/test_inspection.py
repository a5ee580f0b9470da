"""`coddl inspect` on NVIDIA GPUs: `make test-gpu`."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from coddl.agent.inspection.hardware import look_at_hardware  # noqa: E402
from coddl.agent.inspection.inspecting import InspectionOptions, inspected  # noqa: E402
from coddl.agent.inspection.sweeps import QUICK  # noqa: E402
from coddl.runtime.supervisor.environment import ON_ONE_GPU  # noqa: E402


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_workers_that_share_a_gpu_are_measured_with_its_updates_and_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    if backend == "nccl":
        monkeypatch.setenv(ON_ONE_GPU, "1")
    node, said = look_at_hardware(None), list[str]()
    found = inspected(node, InspectionOptions(state_dir=tmp_path, extent=QUICK), said.append)
    assert found.links["gpu"].backend == backend, said
    assert found.links["gpu"].workers == (2, 3, 4)
    assert bool(found.links["gpu"].sent) == (backend == "nccl")
    assert set(found.update_gb_s) == {"gpu", "cpu"}
    assert found.update_gb_s["gpu"] > found.update_gb_s["cpu"]
    assert set(found.copy_gb_s) == {"to_host", "from_host"}
    assert found.suspend_s is not None
    assert 0.0 < found.suspend_s < 60.0
    assert torch.cuda.get_device_name() in found.hardware
    if torch.cuda.device_count() > 1:
        assert found.links["node"].backend == "nccl", said
