"""The fork server: a process with torch imported and CUDA untouched; workers are its forks.

    python -P -m coddl.runtime.supervisor.fork_server FD

FD is one end of a SOCK_SEQPACKET pair; the supervisor has the other end (`fork_server_client`). A
packet is one message, and carries the descriptors that belong to it.

| request | descriptors | answer |
|---|---|---|
| fork worker, argv, cwd, env, cpus | stdout, stderr, control | forked worker, pid · exited |
| rendezvous host, port | control | on the control descriptor: rendezvous port, or error |
| kill worker, signal | | |
| zygote env, cwd | stderr, requests | on the requests descriptor: warm, then as here |

The last one is how an agent starts a job in milliseconds: a fork of its warm interpreter becomes
the fork server of that job, in the job's own environment and folder.

A native library may have threads here (OpenBLAS does); the one thing that matters is that they
are at rest, or gone, when we fork, and that nothing of ours ever starts one.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

from coddl.runtime.wire import Message, encoded

PACKET_BYTES = 1 << 20
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
NAME_BYTES = 15  # that the kernel keeps
PR_SET_CHILD_SUBREAPER = 36
END_WITHIN_S = 5.0  # that all we have forked may take to be gone when we end
FORK_FAILED = -signal.SIGKILL  # not the script's fault: told as if the system had killed it

# Whatever a training script will need at its start or first step, and nothing that touches CUDA.
# torch.optim needs torch._dynamo at its first use: a second, in every worker.
WANTED = ("torch", "torch.distributed", "torch.utils.data", "torch._dynamo")
OURS = "coddl.runtime.worker.prepare"


def main() -> None:
    """Import torch, say so, and fork until the supervisor is gone."""
    die_with_parent()
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # This end lives in a number a child will not expect; it must not reach what a child runs.
    requests = socket.socket(fileno=int(sys.argv[1]))
    requests.set_inheritable(False)
    for name in WANTED:
        importlib.import_module(name)
    with contextlib.suppress(ImportError):  # a script that needs it will say what is wrong
        importlib.import_module(OURS)
    gc.collect()
    gc.freeze()  # a collection in a fork would touch, and so copy, every page of torch's objects
    _serve(requests, _about_torch())


def _serve(requests: socket.socket, about: Message) -> NoReturn:
    """Say that it is warm, and fork until the process that asks is gone."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        requests.send(encoded({"is": "warm", **about}))
    ForkServer(requests, about).serve()
    os._exit(0)  # nothing is left to tidy up, and torch would take its time over it


def _about_torch() -> Message:
    """Tell the version and the number of GPUs, through NVML alone.

    Asking the CUDA driver here would make CUDA unusable in every fork.
    """
    import torch

    gpus = torch.cuda._device_count_nvml() if torch.version.cuda is not None else 0
    return {"torch": torch.__version__, "gpus": max(0, gpus)}


class ForkServer:
    """Forks workers on request and reports their exits."""

    def __init__(self, requests: socket.socket, about: Message) -> None:
        self._requests = requests
        self._about = about
        self._pids: dict[int, int] = {}  # worker -> pid
        self._others: set[int] = set()  # stores, and fork servers of jobs
        self._parting: dict[int, tuple[int, int]] = {}  # worker -> pid it had, exit code
        # What a worker has started and left alone becomes our child: so we see its end, too.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        signal.set_wakeup_fd(self._wake_in, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Do what the supervisor asks until it hangs up; then take every worker along."""
        poll = select.poll()
        poll.register(self._requests, select.POLLIN)
        poll.register(self._wake_out, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._wake_out in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_out, 4096)
                self._reap()
            if self._requests.fileno() in ready and not self._answer():
                break
        self._end_all()

    def _end_all(self) -> None:
        """Stop all descendants, however deep."""
        for pid in self._pids.values():
            _kill_group(pid)
        until_s = time.monotonic() + END_WITHIN_S
        while (pids := _children()) and time.monotonic() < until_s:
            for pid in pids:
                _kill(pid)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.002)

    def _answer(self) -> bool:
        """Do one request; tell whether there may be more."""
        try:
            packet, descriptors, _flags, _address = socket.recv_fds(
                self._requests, PACKET_BYTES, 3, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:  # it hung up on words of ours
            return False
        if not packet:
            return False
        request: Message = json.loads(packet)
        match request["do"]:
            case "fork":
                self._fork(request, descriptors)
            case "rendezvous":
                address = request["host"], request["port"]
                self._fork_other(lambda: _host_store(address, *descriptors))
            case "zygote":
                about = self._about
                self._fork_other(lambda: _become_fork_server(request, about, *descriptors))
            case "kill":
                with contextlib.suppress(KeyError, ProcessLookupError):
                    os.kill(self._pids[request["worker"]], request["signal"])
            case unknown:
                raise AssertionError(unknown)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _fork(self, request: Message, descriptors: list[int]) -> None:
        worker = request["worker"]
        try:
            pid = self._forked(lambda: _be_worker(request, *descriptors))
        except OSError as error:
            self._tell(
                {"is": "exited", "worker": worker, "code": FORK_FAILED, "because": f"{error}"}
            )
            return
        self._pids[worker] = pid
        self._tell({"is": "forked", "worker": worker, "pid": pid})

    def _fork_other(self, become: Callable[[], NoReturn]) -> None:
        """Fork what is no worker; if that fails, it is seen by its descriptor, which closes."""
        with contextlib.suppress(OSError):
            self._others.add(self._forked(become))

    def _forked(self, become: Callable[[], NoReturn]) -> int:
        """Fork a child that becomes something else; give its number. Raises OSError."""
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            with _never_returning():
                self._leave_fork_server(parent)
                become()
        return pid

    def _leave_fork_server(self, parent: int) -> None:
        """Drop, in a child, what belongs to the fork server."""
        os.setsid()
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._requests.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _reap(self) -> None:
        """Report every worker that has exited, once all it has started is gone with it."""
        workers = {pid: worker for worker, pid in self._pids.items()}
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, options)) is not None:
                # Still a zombie, so the number of its group can't be another's.
                _kill_group(ended.si_pid)
                _, status = os.waitpid(ended.si_pid, 0)
                self._others.discard(ended.si_pid)
                if (worker := workers.get(ended.si_pid)) is not None:
                    del self._pids[worker]
                    self._parting[worker] = ended.si_pid, os.waitstatus_to_exitcode(status)
        self._part()

    def _part(self) -> None:
        """Kill what parting workers have left; tell of those that have nothing left.

        What can't be told from others' may stay until the last worker goes. The end of each that
        is killed comes to us as a signal, and we look again. If a job's fork server is killed, its
        processes become children of the warm interpreter.
        """
        if self._pids and not self._parting:
            return
        leaders = {pid: worker for worker, (pid, _) in self._parting.items()}
        waited_for: set[int] = set()
        for pid in _children() - self._others - set(self._pids.values()):
            worker = leaders.get(_session_of(pid), _worker_of(pid))
            if worker in self._parting or not self._pids:
                waited_for |= {worker} if worker in self._parting else set(self._parting)
                _kill(pid)
        for worker in [each for each in self._parting if each not in waited_for]:
            _, code = self._parting.pop(worker)
            self._tell({"is": "exited", "worker": worker, "code": code})

    def _tell(self, message: Message) -> None:
        # The end of the supervisor is seen by serve().
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._requests.send(encoded(message))


@contextlib.contextmanager
def _never_returning() -> Iterator[None]:
    """Keep a child from running on as a second fork server if anything above its script fails."""
    try:
        yield
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(70)


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends, however it ends."""
    parent = os.getppid() if parent is None else parent
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def _show_number(worker: int) -> None:
    """Have `ps` and `top` show which worker this process is."""
    name = "coddl worker "[: NAME_BYTES - len(f"{worker}")] + f"{worker}"
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _children() -> set[int]:
    """Name our children; none where the kernel does not tell."""
    with contextlib.suppress(OSError):
        pid = os.getpid()
        return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return set()


def _session_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return -1


def _worker_of(pid: int) -> int:
    """Tell by its environment which worker has started a program; -1 if that does not say."""
    with contextlib.suppress(OSError, ValueError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"CODDL_WORKER="):
                return int(entry.partition(b"=")[2])
    return -1


def _become_fork_server(request: Message, about: Message, stderr: int, requests: int) -> NoReturn:
    """Become the fork server of one job: nothing of our own environment reaches it."""
    os.dup2(stderr, 2)
    os.close(stderr)
    os.environ.clear()
    os.environ |= request["env"] | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    time.tzset()
    os.chdir(request["cwd"])
    _serve(socket.socket(fileno=requests), about)


def _host_store(address: tuple[str, int], control_descriptor: int) -> NoReturn:
    from torch._C._distributed_c10d import TCPStore

    control = socket.socket(fileno=control_descriptor)
    # Bound by us and not by torch, which would listen to the whole network.
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        control.send(encoded({"is": "rendezvous", "error": error.strerror or f"{error}"}))
        os._exit(1)
    listener.listen(1024)
    host, port = address[0], listener.getsockname()[1]
    store = TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    control.send(encoded({"is": "rendezvous", "port": store.port}))
    control.recv(1)  # ends when this store is no longer wanted
    os._exit(0)


def _be_worker(request: Message, stdout: int, stderr: int, control: int) -> NoReturn:
    """Become `python script.py args`, as far as the script can tell."""
    for source, target in ((stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    os.set_inheritable(control, True)
    os.environ |= request["env"] | {"CODDL_SOCKET": str(control)}
    os.chdir(request["cwd"])
    _show_number(request["worker"])
    if request.get("cpus"):
        with contextlib.suppress(OSError):  # not ours to use: the system shares what there is
            os.sched_setaffinity(0, request["cpus"])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr] # of a plain start: yes
    code = _run_script(request["argv"])
    _exit_like_python(code)


def _run_script(argv: list[str]) -> int:
    """Run the script as the main program; give the code it exits with."""
    path = os.path.abspath(argv[0])
    sys.argv = list(argv)
    sys.path.insert(0, str(Path(path).resolve().parent))
    module = ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = SourceFileLoader("__main__", path)
    sys.modules["__main__"] = module
    try:
        try:
            exec(_compiled(path), module.__dict__)
        except SystemExit as ended:
            if code := _code_of(ended):
                return code
        if (ours := sys.modules.get(OURS)) is not None:
            ours.finish()
    except SystemExit as ended:
        return _code_of(ended)
    except KeyboardInterrupt as error:
        _show(error, error.__traceback__)
        return 128 + signal.SIGINT
    except BaseException as error:
        ours = sys.modules.get(OURS)
        if ours is not None and type(error).__name__ == "OutOfMemoryError":
            ours.out_of_memory()
        _show(error, error.__traceback__)
        return 1
    return 0


def _compiled(path: str) -> CodeType:
    return compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)


def _show(error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback that begins in the user's script, as Python would."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _code_of(ended: SystemExit) -> int:
    if ended.code is None:
        return 0
    if isinstance(ended.code, int):
        return ended.code & 0xFF
    print(ended.code, file=sys.stderr)  # noqa: T201 - what Python does with sys.exit("words")
    return 1


def _exit_like_python(code: int) -> NoReturn:
    """Do what an interpreter does at its end, and leave before native libraries tear down.

    Their destructors meet threads of process groups that still run, and crash.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined] # waits for the user's threads
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
