"""Files at a URI: a folder, and a real S3 server on this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coddl.agent.object_store import ObjectFiles, ObjectStore
from coddl.api.checkpoint_uri import check_uri
from coddl.core.errors import UserError
from coddl.testing.remote_files import FakeRemoteFiles, RemoteFilesContract
from tests.ports import free_port
from tests.s3 import BUCKET, KEYS, S3Server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    server = S3Server("127.0.0.1", free_port())
    try:
        server.make_bucket()
        yield server
    finally:
        server.kill()


class TestFake(RemoteFilesContract):
    @pytest.fixture
    def files(self) -> FakeRemoteFiles:
        return FakeRemoteFiles()


class TestFolder(RemoteFilesContract):
    @pytest.fixture
    def files(self, tmp_path: Path) -> ObjectFiles:
        return ObjectStore(f"file://{tmp_path}/a folder").files("pool", "1-abc")


class TestS3(RemoteFilesContract):
    @pytest.fixture
    def files(
        self, server: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
    ) -> ObjectFiles:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        return ObjectStore(f"s3://{BUCKET}/team").files("pool", request.node.name)

    def test_nothing_is_left_of_a_job_that_is_forgotten(
        self, files: ObjectFiles, server: S3Server
    ) -> None:
        for name in ("a", "b"):
            files.write(name, [b"1"])
        assert len([each for each in server.objects() if "forgotten" in each]) == 2
        files.remove_all()
        assert not [each for each in server.objects() if "forgotten" in each]

    @pytest.mark.usefixtures("files")
    def test_a_store_that_can_be_used_passes_the_check_and_keeps_nothing_of_it(
        self, server: S3Server
    ) -> None:
        before = server.objects()
        ObjectStore(f"s3://{BUCKET}/team").check()
        assert server.objects() == before

    @pytest.mark.usefixtures("files")
    def test_a_bucket_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(UserError) as refused:
            ObjectStore("s3://not-there/team").check()
        assert "s3://not-there/team" in refused.value.what
        assert "bucket does not exist" in refused.value.because


def test_a_store_that_does_not_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as refused:
        ObjectStore("s3://jobs/elsewhere").check()
    assert "Could not connect" in refused.value.because


@pytest.mark.parametrize(
    ("uri", "because"),
    [
        ("jobs", "not a URI"),
        ("/shared/jobs", "not a URI"),
        ("s3://", "not a URI"),
        ("memory://jobs", "memory of its own"),
        ("file://folder/jobs", "begins with a slash"),
        ("ftp://me:secret@host/jobs", "credentials"),
    ],
)
def test_a_uri_that_can_not_be_used_is_refused_and_no_password_repeated(
    uri: str, because: str
) -> None:
    with pytest.raises(UserError) as refused:
        check_uri(uri)
    assert because in refused.value.because
    assert "secret" not in str(refused.value)


def test_a_uri_is_compared_without_its_last_slash() -> None:
    assert check_uri("s3://bucket/team/") == "s3://bucket/team"


def test_a_store_whose_package_is_missing_says_so() -> None:
    with pytest.raises(UserError, match="nosuch"):
        ObjectStore("nosuch://bucket/team")
