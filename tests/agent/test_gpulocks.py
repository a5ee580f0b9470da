"""Of the agents of a machine, one has a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coddl.agent.gpulocks import lock_gpus
from coddl.core.errors import UserError

HOLDS = """
import sys
from pathlib import Path
from coddl.agent.gpulocks import lock_gpus
lock_gpus(["GPU-1"], Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_gpu_that_another_agent_has_is_refused_until_that_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        os.close(lock_gpus(["GPU-2"], tmp_path)[0])
        with pytest.raises(UserError, match="GPU-1 can't be used") as refused:
            lock_gpus(["GPU-1"], tmp_path, wait_s=0.0)
        assert f"(process {other.pid})" in refused.value.because
        other.kill()
    os.close(lock_gpus(["GPU-1"], tmp_path)[0])


def test_a_lock_lasts_as_long_as_a_process_that_was_given_it(tmp_path: Path) -> None:
    locks = lock_gpus(["GPU-1", "GPU-1"], tmp_path)
    assert len(locks) == 1
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        pass_fds=locks,
    ) as fence:
        os.close(locks[0])
        with pytest.raises(UserError):
            lock_gpus(["GPU-1"], tmp_path, wait_s=0.0)
        assert fence.stdin is not None
        fence.stdin.close()
        os.close(lock_gpus(["GPU-1"], tmp_path)[0])  # it is waited for


def test_a_folder_that_can_not_be_written_to_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="GPU-1 can't be locked") as refused:
        lock_gpus(["GPU-1"], tmp_path / "a file" / "below")
    assert str(tmp_path) in refused.value.because


def test_cpu_slots_are_locked_nowhere(tmp_path: Path) -> None:
    assert lock_gpus([], tmp_path / "nowhere") == []
