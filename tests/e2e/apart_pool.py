"""A pool whose nodes see nothing of one another's files, with an S3 server at its head."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from tests.e2e.netns import Visit
from tests.e2e.pool import NODES, Pool
from tests.s3 import BUCKET, S3Server

T = TypeVar("T")
PORT: Final = 9000


class ApartPool(Pool):
    """Each node has the pool's state folder at the same path, and other files in it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server_words = ["--checkpoints", f"s3://{BUCKET}/team"]
        self._s3: S3Server | None = None

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self.wait("the bucket to be tidy", lambda: not self.objects())
                # An agent that was started again needs the store to join.
                self.wait("all agents", lambda: self.nodes_in("UP") == list(NODES))
        except BaseException as error:
            kind = type(error)
            raise
        finally:
            self.stop_s3()
            super().__exit__(kind, *rest)

    def start_server(self) -> None:
        """Start the server, and where it keeps checkpoints."""
        if self._s3 is None:
            self.start_s3()
        super().start_server()

    def start_s3(self) -> None:
        """Start an S3 server, with an empty bucket."""
        head = self.cluster.head
        self._s3 = S3Server(head.address, PORT, head.command())
        self.env = self._s3.env
        self._at_head(self._s3.make_bucket)

    def stop_s3(self) -> None:
        """Lose the S3 server and all that it has."""
        if self._s3 is not None:
            self._s3.kill()
            self._s3 = None

    def objects(self) -> list[str]:
        """Name what lies in the bucket."""
        assert self._s3 is not None
        return self._at_head(self._s3.objects)

    def on_node(self, node: str) -> list[str]:
        """Give what is put before a command to run it on a node, with a disk of its own."""
        disk = self.disk(node)
        disk.mkdir(parents=True, exist_ok=True)
        # The token is all that was copied to it.
        shutil.copy(self.state / "token", disk)
        return self.cluster.nodes[node].with_disk(disk, self.state)

    def disk(self, node: str) -> Path:
        """Name the folder that a node has at the place of the pool's state folder."""
        return self.folder / "disks" / node

    def _at_head(self, work: Callable[[], T]) -> T:
        visit = Visit(self.cluster.head)
        try:
            return visit.do(work)
        finally:
            visit.close()
