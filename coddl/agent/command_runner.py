"""Runs one job that is any command: a process group on this node, which holds all of its slots.

A guard process (`command_guard`) runs in between: when it has ended, the slots are free, and not
before. A command is told to leave by a file, which says why, and by SIGTERM.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Final

import structlog

from coddl.agent import carried_folder, command_guard, orphans
from coddl.agent.job_directories import newest_attempt, note_attempt
from coddl.agent.job_runner import JobRun, RunListener, defect_of
from coddl.agent.reconcile import Addresses
from coddl.agent.run_reporter import Asked
from coddl.core.pool.orders import AssignedSlot
from coddl.core.pool.records import Outcome, RunChanged, RunEnded, RunStepped, RunUnsaved, Trouble
from coddl.runtime.supervisor.job_errors import failure, last_line
from coddl.runtime.supervisor.job_status import RETIRED
from coddl.runtime.supervisor.loop import Channel, LogPipe, Loop
from coddl.runtime.supervisor.slots import uri_for
from coddl.runtime.supervisor.worker_record import signal_name
from coddl.runtime.wire import Message

NOTICE: Final = "CODDL_NOTICE"
REQUEUE: Final = RETIRED  # the command's own wish to be run again: EX_TEMPFAIL
STORE_AGAIN_S: Final = 10.0
CANCEL_S: Final = 10.0  # between SIGTERM and SIGKILL for a command that was cancelled

log = structlog.get_logger()


class CommandRunner:
    """Runs a command, or a job's precheck."""

    def __init__(self, run: JobRun, listener: RunListener) -> None:
        self.run = run
        self._listener = listener
        self._loop = Loop()
        self._thread = threading.Thread(target=self._work, name=f"lead-{run.job}", daemon=True)
        self._slots: tuple[int, ...] = ()
        self._assigned: tuple[AssignedSlot, ...] = ()
        self._guard: subprocess.Popen[bytes] | None = None
        self._asked: Asked = ""
        self._ours: Trouble | None = None  # why we ended it ourselves
        self._is_dropped = False
        self._is_unsaved = False  # its files can't be stored
        self._is_cancelled = False
        self._gives_up = threading.Event()  # of storing them
        self._refused = ""  # why it could not be started
        self._last_lines: dict[str, str] = {}  # by stream
        self._pid: int | None = None
        self._code: int | None = None
        self._notice = run.environment.folder.parent / f"notice-{run.attempt}"

    # What may be asked of it, in any thread.

    def start(self, assigned: Sequence[AssignedSlot], addresses: Addresses) -> None:  # noqa: ARG002 - all is here
        self._assigned = tuple(assigned)
        self._slots = tuple(each.slot for each in assigned)
        self._thread.start()

    def resize(self, assigned: Sequence[AssignedSlot], addresses: Addresses) -> None:
        """Do nothing: a command keeps the slots it started with."""

    def mark_lost(self, nodes: Sequence[str]) -> None:
        """Do nothing: all of it is here."""

    def suspend(self, reason: str, *, park: bool = False) -> None:  # noqa: ARG002 - it can't
        self._loop.post(lambda: self._leave("retire", reason, self.run.spec.launch.grace_s))

    def end_turn(self, *, resident: bool) -> None:
        """Do nothing: commands take no turns."""

    def begin_turn(self, *, crowded: bool) -> None:
        """Do nothing: commands take no turns."""

    def cancel(self) -> None:
        self._is_cancelled = True
        self._gives_up.set()
        self._loop.post(lambda: self._leave("cancel", "the job was cancelled", CANCEL_S))

    def fail(self, trouble: Trouble) -> None:
        self._loop.post(lambda: self._fail(trouble))

    def force(self, *, at_all_costs: bool) -> bool:
        if self._is_unsaved and not at_all_costs:
            return False
        if at_all_costs:
            self._gives_up.set()
        self._loop.post(lambda: self._signal(signal.SIGKILL))
        return True

    @property
    def is_unsaved(self) -> bool:
        return self._is_unsaved

    def release(self) -> None:
        self._is_dropped = True
        self._gives_up.set()
        self._loop.post(lambda: self._signal(signal.SIGKILL))

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # Its thread.

    def _work(self) -> None:
        end: RunEnded | None = None
        try:
            self._bring_files()
            self._run()
            end = self._ended()
            self._listener.on_slots(self.run, (), None)
            end = self._stored(end)
        except OSError as error:
            because = f"the operating system refused: {error.strerror or error}"
            trouble = Trouble(f"{self._argv[0]} can't be started", because, "try again later")
            end = self._end("lost", trouble=trouble)
        except Exception as error:  # a defect of ours must not take other jobs along
            end = self._end("lost", trouble=defect_of(error))
            log.exception("agent_defect", job=self.run.job)
        finally:
            self._notice.unlink(missing_ok=True)
            self._loop.close()
            self._listener.on_slots(self.run, (), None)
            if end is not None and not self._is_dropped:
                self._listener.on_fact(self.run, end)
            self._listener.on_over(self.run)

    def _bring_files(self) -> None:
        """Have the command find what it has saved on another node."""
        environment = self.run.environment
        if environment.remote is not None and self.run.spec.tier == "restartable":
            carried_folder.bring(
                environment.remote, environment.folder, newest_attempt(environment)
            )

    def _stored(self, end: RunEnded) -> RunEnded:
        """Store what the command has saved where other nodes find it; try until it is there."""
        environment, run = self.run.environment, self.run
        is_needed = run.spec.tier == "restartable" and end.outcome not in ("succeeded", "cancelled")
        while environment.remote is not None and is_needed and not self._gives_up.is_set():
            try:
                carried_folder.store(environment.remote, environment.folder, run.attempt)
                break
            except OSError as error:
                what = "the files of the job can't be stored"
                trouble = Trouble(what, f"{error}", f"check {environment.remote.uri}")
                self._listener.on_fact(run, RunUnsaved(run.job, run.attempt, 0, trouble))
                self._is_unsaved = True
                self._gives_up.wait(STORE_AGAIN_S)
        was_cancelled = self._is_unsaved and self._is_cancelled
        self._is_unsaved = False
        return self._end("cancelled") if was_cancelled else end

    @property
    def _argv(self) -> tuple[str, ...]:
        launch = self.run.spec.launch
        return launch.precheck if self.run.precheck else launch.argv

    def _run(self) -> None:
        note_attempt(self.run.environment, self.run.attempt)
        started_s = time.monotonic()
        is_over: list[bool] = []
        with contextlib.ExitStack() as stack:
            ours, theirs = socket.socketpair()
            stack.callback(ours.close)
            out, their_out = self._pipe(stack, "stdout")
            err, their_err = self._pipe(stack, "stderr")
            with theirs, their_out, their_err:
                self._guard = subprocess.Popen(
                    [sys.executable, "-I", command_guard.__file__, str(theirs.fileno())],
                    stdin=subprocess.PIPE,
                    bufsize=0,  # what could not be written to one that is gone is not kept
                    stdout=their_out,
                    stderr=their_err,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # a Ctrl-C in the terminal is the agent's to handle
                )
            stack.enter_context(self._guard)
            hear = lambda message: self._on(message, started_s)  # noqa: E731
            Channel(self._loop, ours, hear, lambda: is_over.append(True))
            self._send(json.dumps(self._request()))
            while not is_over:
                self._loop.turn()
            self._guard.wait()
            self._end_rest()
            out.finish()
            err.finish()

    def _pipe(self, stack: contextlib.ExitStack, stream: str) -> tuple[LogPipe, IO[bytes]]:
        """Make a way for what the command prints; give our end and its own."""
        ours, theirs = os.pipe()
        pipe = LogPipe(self._loop, ours, lambda line: self._on_line(stream, line))
        stack.callback(pipe.finish)
        return pipe, os.fdopen(theirs, "wb")

    def _on_line(self, stream: str, line: str) -> None:
        if line.strip():
            self._last_lines[stream] = line
        self._listener.on_line(self.run, stream, line)

    def _request(self) -> Message:
        environment = self.run.environment
        cpus = sorted({cpu for slot in self._slots for cpu in environment.cpus.get(slot, ())})
        env = {**environment.env, **command_env(self.run, self._assigned, _free_port())}
        env[NOTICE] = str(self._notice)
        self._notice.parent.mkdir(parents=True, exist_ok=True)
        environment.folder.mkdir(parents=True, exist_ok=True)
        return {"argv": self._argv, "cwd": str(environment.cwd), "env": env, "cpus": cpus}

    def _send(self, line: str) -> None:
        assert self._guard is not None
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end is seen by the status channel
            self._guard.stdin.write(line.encode() + b"\n")

    def _signal(self, number: int) -> None:
        if self._guard is not None:
            self._send(str(int(number)))

    def _fail(self, trouble: Trouble) -> None:
        if self._code is None:
            self._ours = trouble
            self._signal(signal.SIGKILL)

    def _leave(self, asked: Asked, reason: str, grace_s: float) -> None:
        if self._asked == "cancel" or self._code is not None:  # what has ended has ended by itself
            return
        self._asked = asked
        self._listener.on_line(self.run, "coddl", f"stopping: {reason}")
        with contextlib.suppress(OSError):
            temporary = self._notice.with_suffix(".tmp")
            temporary.write_text(f"{reason}\n")
            temporary.replace(self._notice)
        self._signal(signal.SIGTERM)
        at_s = time.monotonic() + grace_s
        self._loop.alarm("grace", at_s, lambda: self._signal(signal.SIGKILL))

    def _on(self, message: Message, started_s: float) -> None:
        match message["is"]:
            case "started":
                self._pid = message["pid"]
                self._listener.on_slots(self.run, self._slots, self._pid)
                if not self.run.precheck:
                    self._tell_start(time.monotonic() - started_s)
            case "refused":
                self._refused = message["because"]
            case "exited":
                self._code = message["code"]

    def _tell_start(self, serving_s: float) -> None:
        """Tell that it runs. Its steps are its own business: the first counts as made."""
        job, attempt = self.run.job, self.run.attempt
        changed = RunChanged(job, attempt, 1, "started", 0, self._slots, 0, 0.0, serving_s)
        self._listener.on_fact(self.run, changed)
        self._listener.on_fact(self.run, RunStepped(job, attempt, 0))

    def _end_rest(self) -> None:
        """Kill what a guard that was killed itself has left."""
        told, mark = (
            command_env(self.run, self._assigned, 0),
            self.run.environment.env[orphans.MARK],
        )
        ours = {name: told[name] for name in ("CODDL_JOB_ID", "CODDL_ATTEMPT")}
        ours[orphans.MARK] = mark  # another agent may have a job of that number
        while self._pid is not None and self._code is None:
            left = [each for each in orphans.processes() if each.session == self._pid]
            left += orphans.started_with(ours)
            if not left:
                return
            for each in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(each.pid, signal.SIGKILL)
            time.sleep(orphans.LOOK_EVERY_S)

    def _ended(self) -> RunEnded:
        command, code = self._argv[0], self._code
        what = "the precheck failed" if self.run.precheck else f"{command} failed"
        if self._ours is not None:
            return self._end("failed", trouble=self._ours)
        if self._asked == "cancel":
            return self._end("cancelled")
        if self._refused:
            trouble = Trouble(
                f"{command} can't be started",
                self._refused,
                "check the command and that it is installed on the node",
            )
            return self._end("failed", command_guard.REFUSED, trouble)
        if self._asked == "retire":
            return self._end("retired" if self.run.spec.tier == "restartable" else "lost")
        if code is None:
            trouble = Trouble(what, "the process that supervised it was killed", self._logs)
            return self._end("lost", trouble=trouble)
        if code == 0:
            return self._end("prechecked" if self.run.precheck else "succeeded", 0)
        if code == REQUEUE and not self.run.precheck:
            return self._end("requeue", code)
        because = failure(code, last_line(self._last_lines), "it")
        if code < 0:
            because, code = f"it was killed by {signal_name(-code)}", 128 - code
        return self._end("failed", code, Trouble(what, because, self._logs))

    @property
    def _logs(self) -> str:
        return f"coddl logs {self.run.job}"

    def _end(
        self, outcome: Outcome, exit_code: int | None = None, trouble: Trouble | None = None
    ) -> RunEnded:
        about = {"exit_code": exit_code, "trouble": trouble}
        return RunEnded(self.run.job, self.run.attempt, outcome, **about)  # type: ignore[arg-type]


def command_env(run: JobRun, assigned: Sequence[AssignedSlot], port: int) -> Mapping[str, str]:
    """Tell a command what it was given, in the words that launchers of training know."""
    job, attempt, gpus = str(run.job), str(run.attempt), str(len(assigned))
    here = "127.0.0.1"
    devices = [each.gpu for each in assigned if each.gpu is not None]
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
        "MASTER_ADDR": here,
        "MASTER_PORT": str(port),
        "PET_NNODES": "1",
        "PET_NPROC_PER_NODE": gpus,
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": here,
        "PET_MASTER_PORT": str(port),
        "PET_RDZV_ENDPOINT": f"{here}:{port}",
        "PET_RDZV_ID": job,
        "TORCHELASTIC_RESTART_COUNT": str(run.attempt - 1),
        "TORCHELASTIC_RUN_ID": job,
        "CUDA_VISIBLE_DEVICES": ",".join(devices),
        "CODDL_JOB_ID": job,
        "CODDL_ATTEMPT": attempt,
        "CODDL_RESTART_REASON": run.reason if run.attempt > 1 else "",
        "CODDL_MIN_GPUS": str(run.spec.gpus_min),
        "CODDL_MAX_GPUS": str(run.spec.gpus_max),
        "CODDL_CHECKPOINT_DIR": str(run.environment.folder),
        "CODDL_CHECKPOINT_URI": uri_for(run.environment.remote),
        "CODDL_SLOT": ",".join(str(each.slot) for each in assigned),
        "CODDL_NODES": "1",
        "CODDL_GPUS_PER_NODE": gpus,
    }


def _free_port() -> int:
    """Find a port that is free now, for a command that wants to meet its own processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
