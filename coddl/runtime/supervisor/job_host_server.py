"""A node's side of the jobs that run on it: one thread that runs job hosts and serves their leads.

agent ── JobHostServer (thread, loop, TCP listener)
           ├─ WarmInterpreters  forked once per job
           └─ JobHosts          whom leads say hello to
               └─ JobHost per job   its WorkerHost (fork server, workers, images), its lead
"""

import contextlib
import socket
import threading
from collections.abc import Mapping
from typing import Final

from coddl.runtime.supervisor import jobdir
from coddl.runtime.supervisor.hosted_workers import process_workers
from coddl.runtime.supervisor.job_hosts import ORPHAN_S, JobHosts
from coddl.runtime.supervisor.loop import Channel, Loop
from coddl.runtime.supervisor.remote_worker_host import keep_alive
from coddl.runtime.supervisor.slots import HostingAgent
from coddl.runtime.supervisor.warm_interpreters import WarmInterpreters

GONE_WAIT_S: Final = 5.0  # how long `close` waits for killed workers


class JobHostServer:
    """Runs the job hosts of a node. Listens from the start; serves from `start` to `close`."""

    def __init__(
        self,
        name: str,
        token: str,
        agent: HostingAgent,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        orphan_s: float = ORPHAN_S,
    ) -> None:
        """`name` is this agent's own on this machine: it names its jobs' images in memory, and
        those that an earlier process of that name has left there are removed.

        `host` is an address of this node: leads, workers and stores of other nodes connect to it.
        Raises OSError if it can't be listened on.
        """
        self._name, self._host = name, host
        self._loop = Loop()
        self._warm_interpreters = WarmInterpreters(self._loop, agent.on_warm)
        self._job_hosts = JobHosts(
            self._loop,
            token,
            agent,
            process_workers(self._loop, name, host, self._warm_interpreters),
            on_holding=agent.on_holding,
            orphan_s=orphan_s,
        )
        self._is_closing = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family)
        self._listener.setblocking(False)
        self._port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="job-hosts", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Where leads connect to: host and port."""
        return self._host, self._port

    @property
    def is_alive(self) -> bool:
        """Tell whether the thread serves."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Serve in a thread of its own."""
        self._thread.start()

    def warm(self, python: str, env: Mapping[str, str]) -> None:
        """Have an interpreter ready before a job asks for it; `on_warm` follows."""
        self._loop.post(lambda: self._warm_interpreters.warm(python, env))

    def look_again(self) -> None:
        """Check again what waits for its job or its slot; then report the processes on slots."""
        self._job_hosts.look_again()

    def kill(self, job: str) -> None:
        """Kill all workers of a job here and hang up on its lead. From any thread."""
        self._job_hosts.kill(job)

    def kill_slot(self, slot: int) -> None:
        """Kill whatever lives on a slot. From any thread."""
        self._job_hosts.kill_slot(slot)

    def close(self) -> None:
        """Kill every worker, end the thread; returns when nothing of it runs any more."""
        self._loop.post(self._begin_closing)
        if self._thread.ident is None:
            self._listener.close()
            self._loop.close()
        else:
            self._thread.join()

    # The thread.

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._loop.close)
            stack.callback(self._listener.close)
            stack.callback(self._warm_interpreters.close)
            stack.callback(self._job_hosts.close)
            jobdir.drop_stashes(self._name)
            stack.callback(jobdir.drop_stashes, self._name)
            self._loop.watch(self._listener, self._accept)
            while not (self._is_closing and self._job_hosts.is_gone):
                self._loop.turn()

    def _begin_closing(self) -> None:
        self._is_closing = True
        self._loop.forget(self._listener)
        self._job_hosts.end()
        at_s = self._loop.now_s() + GONE_WAIT_S
        self._loop.alarm("closing", at_s, self._job_hosts.close)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            peer, _ = self._listener.accept()
            keep_alive(peer)
            self._job_hosts.accept(Channel(self._loop, peer))
