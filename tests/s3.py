"""An S3 server on this machine, in a process of its own."""

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

BUCKET: Final = "jobs"
PATIENCE_S: Final = 60.0
KEYS: Final = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class S3Server:
    """Keeps objects in memory: what is there is gone when it ends."""

    def __init__(self, host: str, port: int, within: Sequence[str] = ()) -> None:
        """`within` is put before the command, as to run it in a network of its own."""
        self.url = f"http://{host}:{port}"
        words = [sys.executable, "-m", "moto.server", "-H", host, "-p", str(port)]
        self._process = subprocess.Popen(
            [*within, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    @property
    def env(self) -> dict[str, str]:
        """Give what a client must find in its environment."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.url}

    def make_bucket(self) -> None:
        """Wait until it answers, and make the bucket; to be called where it can be reached."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            assert self._process.poll() is None, "the S3 server has ended"
            try:
                urlopen(f"{self.url}/moto-api/", timeout=PATIENCE_S).close()
                break
            except URLError:
                assert time.monotonic() < until_s, "the S3 server does not answer"
                time.sleep(0.05)
        self._client.create_bucket(Bucket=BUCKET)

    def objects(self) -> list[str]:
        """Name all objects of the bucket."""
        found = self._client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        return sorted(each["Key"] for each in found)

    @property
    def _client(self) -> Any:  # Any: boto3 has no types
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            region_name=KEYS["AWS_DEFAULT_REGION"],
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
