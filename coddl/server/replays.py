"""Replays of the pool's journal: `coddl whatif`, run in a process of its own, one at a time.

It reads the journal by itself, and its simulations take nothing from the control loop: its process
has a low priority, a limit on its time, and ends with the server.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from coddl.api.rest import TroubleView
from coddl.api.rest_whatif import WhatIfRequest, WhatIfResultView, WhatIfView
from coddl.core.errors import UserError
from coddl.core.pool.errors import Conflict, NotFound

WITHIN_S: Final = 1_800.0
KEPT_MAX: Final = 8  # replays whose results can be asked for
TOLD_MAX: Final = 20  # lines of the process's last words that are kept
LINE_BYTES_MAX: Final = 1 << 20
NICENESS: Final = 10
MORE: Final = "coddl whatif on the server's machine, which shows more"


class Replay:
    """One replay, as it stands."""

    def __init__(self) -> None:
        self.state: Literal["running", "done", "failed"] = "running"
        self.progress: float | None = None
        self.trouble: UserError | None = None
        self.result: WhatIfResultView | None = None

    def view(self) -> WhatIfView:
        """Show it."""
        trouble = TroubleView.model_validate(self.trouble.parts()) if self.trouble else None
        return WhatIfView(
            state=self.state, progress=self.progress, trouble=trouble, result=self.result
        )

    def end(self, outcome: WhatIfResultView | UserError) -> None:
        """Be over."""
        if isinstance(outcome, UserError):
            self.state, self.trouble = "failed", outcome
        else:
            self.state, self.result, self.progress = "done", outcome, 1.0


class Replays:
    """Starts replays, and keeps what came of the newest ones. For one event loop."""

    def __init__(self, command: Sequence[str], folder: Path, within_s: float = WITHIN_S) -> None:
        """`command` is `coddl whatif` with the journal; none: it has no file to be read from."""
        self._command, self._folder, self._within_s = tuple(command), folder, within_s
        self._replays: dict[str, Replay] = {}  # oldest first
        self._task: asyncio.Task[None] | None = None

    def start(self, request: WhatIfRequest) -> str:
        """Start a replay and give its id; raises Conflict while another one runs."""
        what = "the replay cannot be started"
        if not self._command:
            raise UserError(what, "the journal is in memory", "a server with a state directory")
        if self._task is not None and not self._task.done():
            running = next(reversed(self._replays))
            raise Conflict(what, f"replay {running} is running", "again when it is over")
        replay, name = Replay(), secrets.token_hex(6)
        self._replays[name] = replay
        while len(self._replays) > KEPT_MAX:
            del self._replays[next(iter(self._replays))]
        self._task = asyncio.create_task(self._run(replay, [*self._command, *_words(request)]))
        return name

    def find(self, name: str) -> Replay:
        """Return a replay by its id; raises NotFound."""
        if name not in self._replays:
            raise NotFound(
                f'replay "{name}" cannot be found',
                f"the server keeps the last {KEPT_MAX} since its start",
                "POST /whatif for a new one",
            )
        return self._replays[name]

    async def close(self) -> None:
        """End what runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, replay: Replay, command: Sequence[str]) -> None:
        try:
            async with asyncio.timeout(self._within_s):
                replay.end(await self._outcome(replay, command))
        except TimeoutError:
            because = f"it took longer than {self._within_s:g} s"
            replay.end(
                UserError("the replay was ended", because, "fewer policies, or a later --since")
            )
        except OSError as error:
            replay.end(UserError("the replay cannot be started", str(error), MORE))

    async def _outcome(
        self, replay: Replay, command: Sequence[str]
    ) -> WhatIfResultView | UserError:
        """Run the command to its end; end it, if that is not waited for."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self._folder,
            limit=LINE_BYTES_MAX,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
            printed, told = await asyncio.gather(
                process.stdout.read(), _follow(process.stderr, replay)
            )
            return _result(printed) if await process.wait() == 0 else _trouble(told)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def _words(request: WhatIfRequest) -> list[str]:
    words = [f"--policy={policy}" for policy in request.policies]
    words += [f"--gpus={gpus}" for gpus in request.gpus]
    words += [f"--since={request.since_s!r}"] if request.since_s is not None else []
    return [*words, "-o", "json"]


async def _follow(lines: asyncio.StreamReader, replay: Replay) -> list[str]:
    """Take in how far the process is, and give the last of what else it says."""
    told: deque[str] = deque(maxlen=TOLD_MAX)
    async for line in lines:
        text = line.decode(errors="replace").strip()
        found = _json(text)
        if isinstance(found, dict) and isinstance(found.get("progress"), int | float):
            replay.progress = min(1.0, max(0.0, float(found["progress"])))
        elif text:
            told.append(text)
    return list(told)


def _result(printed: bytes) -> WhatIfResultView | UserError:
    try:
        return WhatIfResultView.model_validate_json(printed)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return UserError("the replay's result cannot be read", f"{where}: {first['msg']}", MORE)


def _trouble(told: Sequence[str]) -> UserError:
    """Return the error that the command has written, or its last output if it crashed."""
    for text in reversed(told):
        found = _json(text)
        error = found.get("error") if isinstance(found, dict) else None
        if isinstance(error, dict) and {"what", "because", "try"} <= error.keys():
            return UserError(*(str(error[part]) for part in ("what", "because", "try")))
    return UserError("the replay failed", told[-1] if told else "it printed nothing", MORE)


def _json(text: str) -> object:
    try:
        found: object = json.loads(text)
    except ValueError:
        return None
    return found
