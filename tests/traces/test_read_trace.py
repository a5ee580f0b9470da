"""Our trace format: what is read, what is put in for what is not said, and what is refused."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coddl.core.errors import UserError
from coddl.core.speed.table import interpolated
from coddl.traces.files import packaged_speeds, read_trace
from coddl.traces.trace import Trace

HEADER = "submitted_s,model,iterations,gpus_requested"
LINE = "0,vgg16,100,2"
GOOD = f"{HEADER}\n{LINE}\n"
PACKED = gzip.compress(GOOD.encode() * 50, mtime=0)


def read(folder: Path, content: str | bytes, name: str = "jobs.csv") -> Trace:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_trace(path)


def lines(*rows: str, header: str = HEADER) -> str:
    return "\n".join([header, *rows, ""])


TIDY = {
    "plain": GOOD,
    "no newline at the end": GOOD.rstrip(),
    "blank lines": f"\n{HEADER}\n\n{LINE}\n \n\n",
    "CRLF": GOOD.replace("\n", "\r\n"),
    "CRLF and blank lines": f"{GOOD}\n\n".replace("\n", "\r\n"),
    "a byte order mark": "\ufeff" + GOOD,
    "spaces around values": GOOD.replace(",", " , "),
    "quotes": '"submitted_s",model,iterations,gpus_requested\n"0","vgg16",100,2\n',
    "columns in another order": "model,gpus_requested,iterations,submitted_s\nvgg16,2,100,0\n",
    "GPUs written as 2.0": lines("0,vgg16,1e2,2.0"),
    "gzip, though not named .gz": gzip.compress(GOOD.encode()),
    "optional cells left empty": lines(LINE + ",,", header=f"{HEADER},gpus_min,gpus_max"),
}


@pytest.mark.parametrize("content", TIDY.values(), ids=TIDY.keys())
def test_one_job_in_many_spellings(content: str | bytes, tmp_path: Path) -> None:
    trace = read(tmp_path, content)
    assert (trace.size, trace.name, trace.queues, trace.users) == (1, "jobs.csv", ("",), ("",))
    assert trace.speeds.names[trace.curve[0]] == "vgg16"
    assert (trace.submitted_s[0], trace.iterations[0], trace.gpus_requested[0]) == (0, 100, 2)
    assert (trace.gpus_min[0], trace.gpus_max[0]) == (1, 8)


def test_jobs_are_sorted_by_time_and_stay_in_line_order_at_one_time(tmp_path: Path) -> None:
    rows = ("5,vgg16,1,1", "0,vgg16,2,1", "5,vgg16,3,1", "0,vgg16,4,1")
    assert read(tmp_path, lines(*rows)).iterations.tolist() == [2, 4, 1, 3]


@pytest.mark.parametrize("column", ["queue", "vc"])
def test_queues_and_users_are_numbered_by_name(column: str, tmp_path: Path) -> None:
    header = f"user,{HEADER},{column}"
    trace = read(tmp_path, lines(f"zoe,{LINE},b", f"ann,{LINE},a", f"zoe,{LINE},a", header=header))
    assert (trace.queues, trace.queue.tolist()) == (("a", "b"), [1, 0, 0])
    assert (trace.users, trace.user.tolist()) == (("ann", "zoe"), [1, 0, 1])
    assert trace.of_queue("a").size == 2


def test_a_weight_is_one_unless_the_file_says_more(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD).weight is None
    trace = read(tmp_path, lines(f"{LINE},2.5", f"{LINE},", header=f"{HEADER},weight"))
    assert trace.weight is not None
    assert trace.weight.tolist() == [2.5, 1.0]
    with pytest.raises(UserError, match="job 1: weight is not a number above 0"):
        replace(trace, weight=np.array([1.0, 0.0]))


def test_gpus_max_is_no_more_than_the_model_gains_from(tmp_path: Path) -> None:
    header = f"{HEADER},gpus_min,gpus_max"
    trace = read(tmp_path, lines(f"{LINE},2,4", f"{LINE},,1000", header=header))
    assert (trace.gpus_min.tolist(), trace.gpus_max.tolist()) == ([2, 1], [4, 8])


def test_gpus_min_is_no_less_than_the_model_runs_on(tmp_path: Path) -> None:
    (tmp_path / "speeds.csv").write_text(
        "model,global_batch,gpus,step_s\nvgg16,8,2,1\nvgg16,8,4,.5"
    )
    trace = read(tmp_path, lines(f"{LINE},1", f"{LINE},", header=f"{HEADER},gpus_min"))
    assert (trace.gpus_min.tolist(), trace.gpus_max.tolist()) == ([2, 2], [4, 4])
    with pytest.raises(UserError, match='line 2: gpus_requested is "1" and must be at least 2'):
        read(tmp_path, lines("0,vgg16,1,1"))


def test_speeds_are_those_given_else_those_beside_else_the_packaged(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD).speeds is packaged_speeds()
    (tmp_path / "speeds.csv").write_text("model,global_batch,gpus,step_s\nvgg16,8,1,7\n")
    assert read(tmp_path, GOOD).speeds.step_s[0, 1] == 7
    (tmp_path / "step_times.csv").write_text("model,global_batch,gpus,step_s\nvgg16,8,1,5\n")
    assert read(tmp_path, GOOD).speeds.step_s[0, 1] == 5
    given = interpolated({"vgg16": [(1, 3.0)]})
    assert read_trace(tmp_path / "jobs.csv", given).speeds is given


MINMAX = f"{HEADER},gpus_min,gpus_max"
BAD: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "an empty file": ("", ("empty",)),
    "only blanks": (" \n\n", ("empty",)),
    "an empty quote": ('""', ("no column submitted_s",)),
    "a header only": (HEADER, ("no data",)),
    "a missing column": ("submitted_s,model,gpus_requested\n0,vgg16,1", ("line 1", "iterations")),
    "semicolons": (GOOD.replace(",", ";"), ("line 1", '"submitted_s;model', "no column")),
    "an unknown column": (f"{HEADER},colour\n{LINE},red", ("line 1", '"colour"', "unknown")),
    "a column twice": (f"{HEADER},model\n{LINE},vgg16", ("line 1", '"model"', "twice")),
    "queue and vc": (f"{HEADER},queue,vc\n{LINE},a,b", ("queue", "vc")),
    "a short line": (lines(LINE, "1,vgg16,3"), ("line 3", '"1,vgg16,3"', "3 values for 4")),
    "a long line": (lines(LINE + ",9"), ("line 2", '"0,vgg16,100,2,9"', "5 values for 4")),
    "short, after blank lines": (lines("", LINE, "", "7"), ("line 5", '"7"', "1 value for 4")),
    "an open quote": (lines('0,"vgg16,1,1'), ("line 2", "not comma-separated")),
    "an endless value": (lines(f"0,{'x' * 200_000},1,1"), ("line 2", "not comma-separated")),
    "a negative time": (lines(LINE, "-1,vgg16,1,1"), ("line 3", 'submitted_s is "-1"')),
    "no time": (lines("nan,vgg16,1,1"), ("line 2", 'submitted_s is "nan"')),
    "time in words": (lines("noon,vgg16,1,1"), ("line 2", 'submitted_s is "noon"')),
    "an endless time": (lines("inf,vgg16,1,1"), ("line 2", 'submitted_s is "inf"')),
    "no iterations": (lines("0,vgg16,0,1"), ("line 2", 'iterations is "0"')),
    "negative iterations": (lines("0,vgg16,-5,1"), ("line 2", 'iterations is "-5"')),
    "iterations not a number": (lines("0,vgg16,NaN,1"), ("line 2", 'iterations is "NaN"')),
    "iterations past any float": (lines("0,vgg16,1e400,1"), ("line 2", 'iterations is "1e400"')),
    "iterations left empty": (lines("0,vgg16,,1"), ("line 2", 'iterations is ""')),
    "half a GPU": (lines("0,vgg16,1,0.5"), ("line 2", 'gpus_requested is "0.5"')),
    "no GPU": (lines("0,vgg16,1,0"), ("line 2", 'gpus_requested is "0"')),
    "two billion GPUs": (lines("0,vgg16,1,2147483648"), ("line 2", '"2147483648"')),
    "GPUs in words": (lines("0,vgg16,1,two"), ("line 2", 'gpus_requested is "two"')),
    "an empty request": (lines("0,vgg16,1,"), ("line 2", 'gpus_requested is ""')),
    "no weight": (lines(LINE + ",0", header=f"{HEADER},weight"), ("line 2", 'weight is "0"')),
    "a bad minimum": (lines(LINE + ",-1,4", header=MINMAX), ("line 2", 'gpus_min is "-1"')),
    "min over max": (lines(LINE + ",2,1", header=MINMAX), ("line 2", "gpus_min is 2", "max is 1")),
    "min over the model's max": (
        lines("0,chatbot,1,8,8,", header=MINMAX),
        ("line 2", '"chatbot", gpus_min is 8 and gpus_max is 4 (the most GPUs it uses)'),
    ),
    "a request below min": (
        lines("0,vgg16,1,1,2,4", header=MINMAX),
        ("line 2", 'gpus_requested is "1"', "at least 2"),
    ),
    "an unknown model": (lines(LINE, "0,vgg17,1,1"), ("line 3", '"vgg17"', "vgg16, googlenet")),
    "a value with a bell": (lines("0,\a,1,1"), ("line 2", r'model is "\x07"')),
    "a value of a page": (lines(f"0,{'x' * 999},1,1"), ("line 2", f'"{"x" * 60}…"')),
    "a binary file": (b"\x89PNG\r\n\x1a\n\0\0", ("line 1", "0x89", "not UTF-8")),
    "NUL bytes": (lines(LINE, "0,\0,1,1"), ("line 3", "0x00")),
    "UTF-16": (GOOD.encode("utf-16"), ("line 1", "0xff")),
    "gzip cut off": (PACKED[:-9], ("cut off", f"{len(PACKED) - 9} bytes")),
    "gzip cut in its header": (PACKED[:5], ("cut off", "5 bytes")),
    "gzip damaged": (PACKED[:20] + b"\xff\xff\xff" + PACKED[23:], ("damaged",)),
    "gzip of nothing": (gzip.compress(b""), ("empty",)),
    "gzip with more behind": (PACKED + b"more", ("damaged",)),
}


@pytest.mark.parametrize(("content", "said"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_named(content: str | bytes, said: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, content)
    error = caught.value
    assert error.what == f"trace {tmp_path / 'jobs.csv'} cannot be read"
    assert error.try_
    missing = [part for part in said if part not in f"{error.because} | {error.try_}"]
    assert not missing, str(error)
    assert len(str(error).splitlines()) == 3


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "plain.csv.gz").write_text(GOOD)
    (tmp_path / "empty.csv.gz").touch()
    for path, said in {
        tmp_path / "none.csv": "there is no such file",
        tmp_path / "none" / "none.csv": "there is no such file",
        tmp_path: "it is a folder",
        tmp_path / "plain.csv.gz" / "x": "Not a directory",
        tmp_path / "plain.csv.gz": "is not gzip",
        tmp_path / "empty.csv.gz": "the file is empty",
        Path("a\0b"): "null byte",
    }.items():
        with pytest.raises(UserError) as caught:
            read_trace(path)
        assert str(path) in caught.value.what
        assert said in caught.value.because


def test_a_bad_table_beside_a_trace_is_named(tmp_path: Path) -> None:
    (tmp_path / "step_times.csv").write_text("model,gpus\n")
    with pytest.raises(UserError, match=r"step_times\.csv cannot be read"):
        read(tmp_path, GOOD)


def test_a_trace_is_cut_to_the_cluster(tmp_path: Path) -> None:
    trace = read(tmp_path, lines("0,vgg16,1,2", "0,resnet50,1,16", "0,dcgan,1,8"))
    with pytest.raises(UserError, match="line 3 requests 16 GPUs, and 1 more jobs"):
        trace.fitted_to(4, "error")
    assert trace.fitted_to(4, "skip").gpus_requested.tolist() == [2]
    clamped = trace.fitted_to(4, "clamp")
    assert (clamped.gpus_requested.tolist(), clamped.gpus_max.tolist()) == ([2, 4, 4], [4, 4, 4])
    with pytest.raises(UserError, match=r"try +--gpus 16$"):
        trace.fitted_to(1, "skip")
    assert np.array_equal(trace.fitted_to(64, "error").gpus_max, trace.gpus_max)


def test_a_load_speeds_arrivals_up(tmp_path: Path) -> None:
    trace = read(tmp_path, lines("0,vgg16,1,2", "8,vgg16,1,2"))
    assert trace.at_load(4).submitted_s.tolist() == [0, 2]
    for load in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match=f"at load {load:g}"):
            trace.at_load(load)
