"""Whatever a file holds: a trace, or one user error."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from coddl.core.errors import UserError
from coddl.traces.files import read_speeds, read_trace

TRACE = (
    b"submitted_s,model,iterations,gpus_requested,gpus_min,vc\n0,vgg16,9,2,1,a\n5,dcgan,7,1,,b\n"
)
SPEEDS = b"model,global_batch,gpus,step_s\na,8,1,2.5\na,8,4,1\n"
LOG = Path(__file__).with_name("philly_sample.json").read_bytes()
PIECES = [
    b"",
    b",",
    b"\n",
    b'"',
    b"\r",
    b"\0",
    b"nan",
    b"1e999",
    b"-",
    b"9" * 20,
    b" ",
    b"\xff",
    b"[",
    b"}",
]
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.sampled_from(PIECES)), max_size=4)


@settings(deadline=None)
@given(st.sampled_from([TRACE, SPEEDS, LOG]), EDITS)
def test_a_damaged_file_is_read_or_refused(
    data: bytes, edits: list[tuple[float, int, bytes]]
) -> None:
    for where, cut, piece in edits:
        at = int(where * len(data))
        data = data[:at] + piece + data[at + cut :]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "file.csv"
        path.write_bytes(data)
        for read in (read_trace, read_speeds):
            with suppress(UserError):
                read(path)
