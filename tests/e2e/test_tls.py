"""A pool over TLS, with agents that an engine has started: a job trains to its end."""

import json
from pathlib import Path

from coddl.server.addresses import endpoint_of
from tests.certificates import make_ca
from tests.e2e.netns import Cluster, Visit
from tests.e2e.up_pool import UpPool


def test_a_machine_without_a_way_out_is_advertised_by_the_address_that_it_has() -> None:
    cluster = Cluster(["n1"])
    try:
        cluster.open()
        visit = Visit(cluster.head)
        found = visit.do(lambda: endpoint_of("0.0.0.0", 80, "", None))
        visit.close()
    finally:
        cluster.close()
    assert found.advertised == f"http://{cluster.head.address}:80"
    assert found.url == "http://127.0.0.1:80"
    assert not found.is_local


def test_a_job_trains_in_a_pool_over_tls(tmp_path: Path) -> None:
    pool = UpPool(tmp_path)
    ca = make_ca(tmp_path / "tls")
    leaf = ca.sign("head")
    tls = ("--tls-cert", leaf.cert, "--tls-key", leaf.key, "--tls-ca", ca.file)
    pool.coddl("up", "--port", 0, "--nodes", "0..2", "--slots", 1, *tls)
    try:
        about = json.loads((tmp_path / "state" / "server.json").read_text())
        assert about["url"].startswith("https://127.0.0.1:")
        spots = ("--env", f"E2E_SPOTS={pool.spots}")
        pool.coddl(
            *("submit", "--wait", "--name", "bert", "--gpus", "1..2", *spots),
            *("train.py", "--steps", 30),
        )
        assert pool.job("bert")["state"] == "SUCCEEDED"
        pool.kill_server()  # it comes back with its certificate, and agents find it again
    finally:
        pool.coddl("down")
    assert "Traceback" not in (tmp_path / "state" / "output" / "server.log").read_text()
