"""The commands of a pool, against a server that says what it was told to."""

import _thread
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coddl.cli.main import app
from tests.cli.conftest import Coddl
from tests.cli.recorded import (
    DECISION,
    ENDED,
    EVENT,
    EXPLAINED,
    FAILED,
    JOB,
    LINE,
    NODE,
    NOW_S,
    PREVIEW,
    PROFILED,
    WAITING,
)
from tests.cli.stub_pool import HANG_UP, NOT_FOUND, Reply, StubPool, problem

pytestmark = pytest.mark.usefixtures("work_folder")

CANCELLED = ENDED | {"state": "CANCELLED"}


def handed_in(pool: StubPool) -> dict[str, Any]:
    found: dict[str, Any] = pool.saw("POST", "/jobs")[-1].json()
    return found


@pytest.fixture
def takes(pool: StubPool) -> StubPool:
    """Have the server take jobs and archives."""
    pool.will("POST", "/jobs", Reply(201, WAITING))
    real = pool.handle

    def handle(request: Any) -> None:
        if request.command == "PUT":
            name = request.path.rpartition("/")[2]
            pool.will("HEAD", f"/code/{name}", None)
            pool.will("PUT", f"/code/{name}", None)
        real(request)

    pool.handle = handle  # type: ignore[method-assign]
    return pool


def test_a_script_is_handed_in_with_its_folder_and_words(coddl: Coddl, takes: StubPool) -> None:
    done = coddl("submit", "--gpus", "1..8", "--name", "vit", "train.py", "--epochs", "3", "--json")
    assert (done.code, done.out) == (0, "submitted vit (job 13)\n")
    assert done.err == (
        "note: --json comes after the script and is passed to it; put options of coddl submit "
        "before the script\n"
    )
    job = handed_in(takes)
    (upload,) = [asked for asked in takes.asked if asked.method == "PUT"]
    assert upload.path == f"/api/v1/code/{job.pop('code')}"
    assert job.pop("user")
    assert job == {
        "name": "vit",
        "script": "train.py",
        "args": ["--epochs", "3", "--json"],
        "command": [],
        "gpus": {"min": 1, "max": 8},
    }


@pytest.mark.usefixtures("takes")
def test_a_script_without_coddl_is_noted(coddl: Coddl) -> None:
    Path("plain.py").write_text("print('hello')\n")
    assert "plain.py does not use coddl" in coddl("submit", "plain.py").err
    assert coddl("submit", "--tier", "opaque", "plain.py").err == ""
    assert coddl("submit", "--", "python3", "plain.py").err == ""


def test_the_same_folder_is_sent_once(coddl: Coddl, takes: StubPool) -> None:
    first, again = (coddl("submit", "--parsable", "train.py") for _ in range(2))
    assert (first.out, again.out) == ("13\n", "13\n")
    assert len([asked for asked in takes.asked if asked.method == "PUT"]) == 1
    Path("train.py").write_text("print('other')\n")
    coddl("submit", "train.py")
    assert len([asked for asked in takes.asked if asked.method == "PUT"]) == 2


def test_what_follows_two_dashes_is_a_command(coddl: Coddl, takes: StubPool) -> None:
    words = ("--gpus", 2, "--env", "A=1", "--env", "B=x=y", "--precheck", "nvidia-smi -L")
    assert coddl("submit", *words, "--", "torchrun", "train.py", "--", "-x").code == 0
    job = handed_in(takes)
    assert job["command"] == ["torchrun", "train.py", "--", "-x"]
    assert job["gpus"] == {"min": 2, "max": 2}
    assert job["env"] == {"A": "1", "B": "x=y"}
    assert job["precheck"] == ["nvidia-smi", "-L"]


def test_a_file_holds_a_job_and_flags_win(coddl: Coddl, takes: StubPool) -> None:
    Path("job.yaml").write_text(
        "name: bert\nscript: train.py\ngpus: 2..4\npriority: 1\nenv: {A: 1, B: 2}\n"
    )
    words = ("--priority", 7, "--group", "search", "--weight", 2, "--env", "B=3")
    assert coddl("submit", "-f", "job.yaml", *words).code == 0
    job = handed_in(takes)
    assert (job["group"], job["weight"]) == ("search", 2.0)
    assert (job["name"], job["priority"], job["gpus"]) == ("bert", 7, {"min": 2, "max": 4})
    assert job["env"] == {"A": "1", "B": "3"}
    assert coddl("submit", "-f", "job.yaml", "--", "sleep", "1").code == 2  # a range for a command
    assert coddl("submit", "-f", "job.yaml", "--gpus", "1", "--", "sleep", "1").code == 0
    assert handed_in(takes)["command"] == ["sleep", "1"]


def test_a_script_elsewhere_is_refused_as_its_folder_may_hold_anything(
    coddl: Coddl, takes: StubPool, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "other.py").write_text("")
    Path("link.py").symlink_to(tmp_path / "there" / "other.py")
    for script in ("../there/other.py", f"{tmp_path}/there/other.py", "link.py"):
        done = coddl("submit", script)
        assert done.code == 2
        assert f"error: {script} can't be submitted\n  because it is in" in done.err
        assert f"cd {(tmp_path / 'there').resolve()} && coddl submit other.py" in done.err
    assert not takes.saw("POST", "/jobs")


def test_a_script_in_a_folder_below_is_run_from_here(coddl: Coddl, takes: StubPool) -> None:
    Path("sub").mkdir()
    Path("sub/x.py").write_text("")
    assert coddl("submit", "sub/x.py").code == 0
    assert handed_in(takes)["script"] == "sub/x.py"


def test_a_dry_run_shows_what_would_happen_and_sends_no_code(coddl: Coddl, pool: StubPool) -> None:
    pool.will("POST", "/jobs", PREVIEW)
    done = coddl("submit", "--dry-run", "train.py")
    assert done.out.splitlines()[-1] == "12   bert  4 → 3  vit needs one"
    assert [(asked.method, asked.parameters) for asked in pool.asked] == [
        ("POST", {"dry_run": "true"})
    ]
    assert json.loads(coddl("submit", "--dry-run", "--json", "train.py").out) == PREVIEW


LEFT_EARLY = ENDED | {"left_early": True, "reason": "the script left its loop at step 30 of 256"}
ENDS = {
    "succeeded": (ENDED, 0),
    "left its loop early": (LEFT_EARLY, 104),
    "failed": (FAILED, 100),
    "cancelled": (CANCELLED, 103),
}


@pytest.mark.parametrize(("job", "code"), ENDS.values(), ids=ENDS.keys())
def test_waiting_tells_by_its_exit_code_how_a_job_ended(
    coddl: Coddl, takes: StubPool, job: dict[str, Any], code: int
) -> None:
    takes.will("GET", "/jobs/13", WAITING, JOB | {"id": 13}, job | {"id": 13})
    done = coddl("submit", "--wait", "train.py")
    assert done.code == code
    assert done.out.splitlines()[-1].startswith(f"bert (job 13) {job['state']} after 2m10s")
    assert "vit (job 13) PENDING" in done.err
    assert ("error: train.py failed\n  because ValueError: no" in done.err) == (code == 100)
    takes.will("GET", "/jobs/x", job)
    assert coddl("wait", "x").code == code
    takes.will("GET", "/jobs/x/logs", Reply(200, "event: end\ndata: {}\n\n"))
    assert coddl("logs", "-f", "x").code == code


def test_a_job_is_waited_for_while_the_server_is_away(coddl: Coddl, pool: StubPool) -> None:
    pool.will("GET", "/jobs/x", JOB)
    pool.will("GET", "/jobs/12", HANG_UP, HANG_UP, ENDED)
    done = coddl("wait", "x")
    assert (done.code, done.err) == (0, "note: the server does not answer; waiting for it\n")


WAITS = {
    "the state it is in": ("RUNNING", JOB, 0),
    "a state, in any letters": ("running", JOB, 0),
    "a state that has passed": ("RUNNING", ENDED, 0),
    "the end it has": ("FAILED", FAILED, 0),
    "another end": ("SUCCEEDED", FAILED, 100),
    "a state that will not come": ("SUSPENDED", ENDED, 1),
}


@pytest.mark.parametrize(("state", "job", "code"), WAITS.values(), ids=WAITS.keys())
def test_a_state_is_waited_for(
    coddl: Coddl, pool: StubPool, state: str, job: dict[str, Any], code: int
) -> None:
    pool.will("GET", "/jobs/12", job)
    assert coddl("wait", "12", "--for", state).code == code


def test_ls_lists_jobs_page_by_page_in_order(coddl: Coddl, pool: StubPool) -> None:
    pages = [{"items": [WAITING], "next": "13"}, {"items": [JOB], "next": None}]
    pool.will("GET", "/jobs", *pages)
    out = coddl("ls").out.splitlines()
    assert [line.split()[0] for line in out] == ["ID", "12", "13"]
    assert [asked.parameters.get("cursor") for asked in pool.asked] == [None, "13"]
    assert pool.asked[0].parameters["active"] == "true"
    pool.will("GET", "/jobs", *pages)
    assert json.loads(coddl("ls", "--all", "-o", "json").out) == [JOB, WAITING]
    assert "active" not in pool.asked[-1].parameters


LOOKS = {
    "describe": (("describe", "bert"), "/jobs/bert", JOB),
    "explain": (("explain", "bert"), "/jobs/bert/explain", EXPLAINED),
    "profile": (("profile", "bert"), "/jobs/bert/profile", PROFILED),
    "policy": (
        ("policy",),
        "/policy",
        {"policy": "afs-p", "placement": "spread", "since_s": NOW_S, "by": "ann"},
    ),
}


@pytest.mark.parametrize(("words", "path", "answer"), LOOKS.values(), ids=LOOKS.keys())
def test_a_program_gets_the_servers_answer(
    coddl: Coddl, pool: StubPool, words: tuple[str, ...], path: str, answer: dict[str, Any]
) -> None:
    pool.will("GET", path, answer)
    pool.will("GET", "/jobs/12/events", {"items": [EVENT], "next": 7})
    assert json.loads(coddl(*words, "--json").out) == answer
    assert coddl(*words).code == 0


@pytest.mark.parametrize("look", ["describe", "explain", "policy"])
def test_times_have_their_dates_by_the_pools_clock(coddl: Coddl, pool: StubPool, look: str) -> None:
    words, path, answer = LOOKS[look]
    pool.will("GET", path, answer)
    pool.will("GET", "/jobs/12/events", {"items": [EVENT], "next": 7})
    for ahead_s in (0.0, 3 * 86_400.0):  # of what happened, as in an emulated pool
        pool.will("GET", "/pool", {"now_s": NOW_S + ahead_s})
        assert ("2023-11-14 " in coddl(*words).out) == bool(ahead_s)


def test_events_have_their_dates_by_the_pools_clock(coddl: Coddl, pool: StubPool) -> None:
    pool.will("GET", "/events", {"items": [EVENT], "next": 7})
    for ahead_s in (0.0, 86_400.0):
        pool.will("GET", "/pool", {"now_s": NOW_S + ahead_s})
        assert ("2023-11-14 " in coddl("events").out) == bool(ahead_s)


def test_jobs_are_cancelled_one_by_one_and_what_fails_is_told(coddl: Coddl, pool: StubPool) -> None:
    pool.will("POST", "/jobs/x:cancel", NOT_FOUND)
    pool.will("POST", "/jobs/12:cancel", Reply(202, JOB | {"state": "STOPPING"}))
    done = coddl("cancel", "x", "12")
    assert (done.code, done.out) == (102, "bert (job 12): STOPPING\n")
    assert done.err.startswith('error: job "x" cannot be found\n')


def test_the_end_of_cancelled_jobs_is_waited_for(coddl: Coddl, pool: StubPool) -> None:
    pool.will("POST", "/jobs/12:cancel", Reply(202, JOB | {"state": "STOPPING"}))
    pool.will("GET", "/jobs/12", JOB | {"state": "STOPPING"}, CANCELLED | {"id": 12})
    done = coddl("cancel", "--wait", "12")
    assert (done.code, done.out) == (0, f"{CANCELLED['name']} (job 12): CANCELLED\n")
    assert len(pool.saw("GET", "/jobs/12")) == 2


def test_a_job_of_the_pool_is_suspended_resumed_and_bounded(coddl: Coddl, pool: StubPool) -> None:
    pool.will("POST", "/jobs/bert:suspend", JOB | {"state": "STOPPING"})
    pool.will("GET", "/jobs/12", JOB | {"state": "STOPPING"}, JOB | {"state": "SUSPENDED"})
    assert (
        coddl("suspend", "bert").out == "bert (job 12): SUSPENDED at step 420; its state is saved\n"
    )
    assert coddl("suspend", "bert", "--no-wait").out == "bert (job 12): STOPPING\n"
    pool.will("POST", "/jobs/bert:resume", JOB | {"state": "PENDING", "reason": "it waits"})
    assert coddl("resume", "bert").out == "bert (job 12): PENDING, it waits\n"
    pool.will("GET", "/jobs/bert", JOB)
    pool.will("PATCH", "/jobs/12", JOB | {"gpus_min": 2, "gpus_max": 4})
    assert coddl("resize", "bert", "2..4").out == (
        "bert (job 12): bounds 1..8 → 2..4; it has 3 now\n"
    )
    assert pool.saw("PATCH", "/jobs/12")[0].json() == {"gpus_min": 2, "gpus_max": 4}
    pool.will("PATCH", "/jobs/12", JOB | {"priority": 7})
    told = f"bert (job 12): priority {JOB['priority']} → 7\n"
    assert coddl("priority", "bert", "7").out == told


def test_a_job_that_can_not_be_saved_is_not_suspended(coddl: Coddl, pool: StubPool) -> None:
    pool.will("POST", "/jobs/bert:suspend", JOB | {"state": "STOPPING"})
    unsaved = {"what": "no checkpoint", "because": "the disk is full", "try": "free space"}
    pool.will("GET", "/jobs/12", JOB | {"state": "STOPPING", "unsaved": unsaved})
    done = coddl("suspend", "bert")
    assert (done.code, done.out) == (1, "")
    assert "bert (job 12) is not suspended and keeps training" in done.err
    assert "no checkpoint: the disk is full" in done.err


def test_a_suspension_that_takes_long_says_what_it_waits_for(coddl: Coddl, pool: StubPool) -> None:
    waits = JOB | {"state": "STOPPING", "reason": "waits for its turn; job 2 has the turn"}
    pool.will("POST", "/jobs/bert:suspend", waits)
    # There are 2.8 s between the first of seven looks and the sixth.
    looks = [*[waits] * 6, JOB | {"state": "SUSPENDED"}]
    pool.will("GET", "/jobs/12", *looks)
    done = coddl("suspend", "bert")
    assert done.out == "bert (job 12): SUSPENDED at step 420; its state is saved\n"
    want = "note: bert (job 12) STOPPING, GPUS 3/1..8: waits for its turn; job 2 has the turn\n"
    assert done.err == want
    pool.will("GET", "/jobs/12", *looks)
    assert coddl("suspend", "bert", "-o", "json").err == ""


def test_logs_are_filtered_by_the_server(coddl: Coddl, pool: StubPool) -> None:
    pool.will("GET", "/jobs/bert/logs", {"items": [LINE, LINE | {"text": "two"}]})
    done = coddl("logs", "--tail", 2, "--rank", 0, "--since", "10m", "bert")
    assert done.out == "[0] loss 0.1\n[0] two\n"
    asked = pool.asked[0].parameters
    assert (asked["tail"], asked["rank"]) == ("2", "0")
    assert float(asked["since_s"]) > NOW_S
    first, _ = coddl("logs", "bert", "--json").out.splitlines()
    assert json.loads(first) == LINE


def test_logs_that_begin_in_the_middle_say_so(coddl: Coddl, pool: StubPool) -> None:
    later = LINE | {"number": 12_001}
    pool.will("GET", "/jobs/bert/logs", {"items": [later, later | {"number": 12_002}]})
    cut = "note: 12,000 earlier lines were removed: the pool keeps only a job's last lines\n"
    assert coddl("logs", "bert").err == cut
    assert coddl("logs", "--tail", 2, "bert").err == ""
    text = f"id: 1\ndata: {json.dumps(later)}\n\nevent: end\ndata: {{}}\n\n"
    pool.will("GET", "/jobs/bert/logs", Reply(200, text))
    pool.will("GET", "/jobs/bert", JOB)
    assert coddl("logs", "-f", "bert").err == cut


def test_a_priority_may_be_below_zero(coddl: Coddl, pool: StubPool) -> None:
    pool.will("GET", "/jobs/bert", JOB)
    pool.will("PATCH", "/jobs/12", JOB | {"priority": -1})
    assert coddl("priority", "bert", "-1").code == 0
    assert pool.saw("PATCH", "/jobs/12")[0].json() == {"priority": -1}


def test_errors_are_json_where_the_output_is(coddl: Coddl, pool: StubPool) -> None:
    pool.will("GET", "/jobs/x", problem(404, "no x", "there is none", "coddl ls"))
    for words in (("describe", "x", "-o", "json"), ("describe", "x", "--json")):
        done = coddl(*words)
        assert (done.code, done.out) == (102, "")
        assert json.loads(done.err) == {
            "error": {"what": "no x", "because": "there is none", "try": "coddl ls"},
            "exit_code": 102,
        }
    done = coddl("describe", "--json", "--nonsense", "x")
    assert json.loads(done.err)["error"]["try"].endswith("coddl describe --help")


def test_logs_are_followed_to_the_end(coddl: Coddl, pool: StubPool) -> None:
    text = f"id: 1\ndata: {json.dumps(LINE)}\n\nevent: end\ndata: {{}}\n\n"
    pool.will("GET", "/jobs/bert/logs", Reply(200, text))
    pool.will("GET", "/jobs/bert", JOB)  # it is not over: the stream's end was another
    done = coddl("logs", "-f", "bert")
    assert (done.code, done.out) == (101, "[0] loss 0.1\n")


def test_events_are_those_of_all_or_of_one_job(coddl: Coddl, pool: StubPool) -> None:
    pool.will("GET", "/events", {"items": [EVENT, DECISION], "next": 8})
    assert len(coddl("events").out.splitlines()) == 2
    assert json.loads(coddl("events", "--tail", 1, "--json").out) == DECISION
    pool.will("GET", "/jobs/bert", JOB)
    pool.will("GET", "/jobs/12/events", {"items": [EVENT], "next": 7})
    others = DECISION | {"number": 9, "detail": {"targets": {"13": {}}, "waiting": {}}}
    text = "".join(f"data: {json.dumps(each)}\n\n" for each in (DECISION, others))
    pool.will("GET", "/events", Reply(200, text), problem(500, "enough"))
    done = coddl("events", "bert", "-w", "--json")
    assert [json.loads(line)["number"] for line in done.out.splitlines()] == [7, 8]
    assert pool.saw("GET", "/events")[-1].parameters == {"after": "7", "watch": "true"}


def test_the_policy_is_switched(coddl: Coddl, pool: StubPool) -> None:
    answer = {"policy": "afs-l", "placement": "spread", "since_s": 0.0, "by": "ann"}
    pool.will("PUT", "/policy", answer)
    assert coddl("policy", "afs-l").out == "policy afs-l, placement spread, set by ann\n"
    assert pool.saw("PUT", "/policy")[0].json() == {"policy": "afs-l", "placement": ""}
    done = coddl("policy", "--placement", "nosuch")
    assert (done.code, done.out) == (2, "")
    assert 'there is no placement named "nosuch"' in done.err
    done = coddl("policy", "nosuch")
    assert done.code == 2
    assert 'there is no policy named "nosuch"' in done.err
    assert len(pool.saw("PUT", "/policy")) == 1


def test_the_schema_of_a_job_is_published(coddl: Coddl) -> None:
    published = json.loads(coddl("submit", "--schema").out)
    assert {"script", "gpus", "env"} <= set(published["properties"])


def test_another_server_can_be_named(coddl: Coddl, pool: StubPool) -> None:
    pool.will("GET", "/nodes", {"items": []})
    with StubPool() as other:
        other.will("GET", "/nodes", {"items": [NODE]})
        assert "n1" in coddl("nodes", "--server", other.url).out
    assert pool.asked == []


def test_jobs_and_policies_are_completed(pool: StubPool, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    def completed(words: str) -> list[str]:
        env = {"_CODDL_COMPLETE": "complete_bash", "COMP_WORDS": f"coddl {words}"}
        env["COMP_CWORD"] = str(len(words.split()) + words.endswith(" "))
        return CliRunner().invoke(app, [], env=env, prog_name="coddl").output.split()

    pool.will("GET", "/jobs", {"items": [JOB, WAITING], "next": None})
    assert completed("logs ") == ["bert", "vit"]
    assert completed("logs b") == ["bert"]
    assert completed("logs 1") == ["12", "13"]
    assert completed("policy srt") == ["srtf"]
    assert completed("policy --placement cons") == ["consolidate"]
    monkeypatch.setenv("CODDL_SERVER", "http://127.0.0.1:9")
    assert completed("logs ") == []


def test_ctrl_c_leaves_the_job_alone(coddl: Coddl, pool: StubPool) -> None:
    pool.will("GET", "/jobs/12", JOB)
    real = pool.handle

    def handle(request: Any) -> None:
        if len(pool.asked) == 1:
            _thread.interrupt_main()
        real(request)

    pool.handle = handle  # type: ignore[method-assign]
    done = coddl("wait", "12")
    assert (done.code, done.out) == (130, "")
    assert (
        done.err == "note: 12 keeps running; stop it: coddl cancel 12, wait for it: coddl wait 12\n"
    )
    assert {asked.method for asked in pool.asked} == {"GET"}


@contextlib.contextmanager
def runs_here(name: str, sockets: Path) -> Iterator[None]:
    """Be a job of `coddl run` that agrees to everything."""
    path = sockets / f"{name}.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    with peer:
                        if peer.recv(4096):  # else: somebody looks whether we are there
                            peer.sendall(b'{"ok": true, "target": 4}\n')

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    path.unlink()


def test_a_name_of_here_is_a_job_of_here_and_a_number_the_pools(
    coddl: Coddl, pool: StubPool, sockets: Path
) -> None:
    pool.will("GET", "/jobs/bert", JOB)
    pool.will("GET", "/jobs/12", JOB)
    pool.will("PATCH", "/jobs/12", JOB)
    with runs_here("bert", sockets), runs_here("12", sockets), runs_here("lone", sockets):
        done = coddl("resize", "bert", 4)
        assert done.out == "bert: asked for 4 workers\n"
        assert (
            done.err
            == "note: using bert of coddl run on this machine; in the pool, bert is job 12\n"
        )
        done = coddl("resize", "12", 4)
        assert done.out.startswith("bert (job 12): bounds")
        assert done.err == (
            "note: using job 12 of the pool; a job of coddl run here is also named 12\n"
        )
        assert coddl("resize", "lone", 4) == (0, "lone: asked for 4 workers\n", "")
        done = coddl("resize", "lone", "2..4")
        assert done.code == 2
        assert "has a number of workers, not bounds" in done.err
        named = coddl("resize", "bert", 4, "--server", pool.url)
        assert named.out.startswith("bert (job 12): bounds")
