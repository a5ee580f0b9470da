"""The page of environment variables; a test compares it with the variables the code names."""

import ast
import re
from typing import Final, Literal

from docs.generator.markdown import ROOT, page, table

# Who sets each variable, you or the pool for a job, and what it means.
VARIABLES: Final[dict[str, tuple[Literal["you", "job"], str]]] = {
    "CODDL_SERVER": ("you", "Address of the pool's server; `--server` wins over it."),
    "CODDL_TOKEN": ("you", "The pool's token. Default: the file `token` of the state folder."),
    "CODDL_HOST_MEMORY": (
        "you",
        "Host memory for jobs without their GPU, such as `64GiB`; `--host-memory` wins over it.",
    ),
    "CODDL_GPU_MEMORY": (
        "you",
        "Memory of a GPU for all jobs that take turns on it; `--gpu-memory` wins over it.",
    ),
    "CODDL_TOKEN_FILE": ("you", "File with the token, of mode 600; `--token-file` wins over it."),
    "CODDL_TLS_CA": ("you", "File with the CA of the server's certificate, as `--tls-ca`."),
    "CODDL_STATE_DIR": ("you", "State folder of this machine's pool; `--state-dir` wins over it."),
    "CODDL_JOURNAL": ("you", "Journal that `coddl whatif` reads; `--journal` wins over it."),
    "CODDL_INSPECT_CODE": ("you", "What nodes of `coddl inspect` know each other by, as `--code`."),
    "CODDL_DATA": ("you", "Measured data for `coddl reproduce`; `--data` wins over it."),
    "CODDL_INSPECT": (
        "you",
        "For workers: `0` has none measure its first passes; then jobs have no profile.",
    ),
    "CODDL_NCCL_ON_ONE_GPU": ("you", "For tests: NCCL between workers that share a GPU."),
    "XDG_STATE_HOME": ("you", "State folders and checkpoints are in `$XDG_STATE_HOME/coddl`."),
    "XDG_RUNTIME_DIR": ("you", "Where `coddl run` and agents put their sockets."),
    "XDG_CACHE_HOME": ("you", "Compiled kernels are in `$XDG_CACHE_HOME/coddl`."),
    "CODDL_JOB_ID": ("job", "Number of the job."),
    "CODDL_ATTEMPT": ("job", "1, and one more each time the job is started again."),
    "CODDL_RESTART_REASON": ("job", "Why it was started again; empty at the first start."),
    "CODDL_CHECKPOINT_DIR": ("job", "Folder that stays when the job moves, for its own files."),
    "CODDL_CHECKPOINT_URI": (
        "job",
        "With `--checkpoints`: where it may keep files of its own; removed when it has succeeded.",
    ),
    "CODDL_MIN_GPUS": ("job", "The least number of GPUs it may hold."),
    "CODDL_MAX_GPUS": ("job", "The greatest number of GPUs it may hold."),
    "CODDL_NODES": ("job", "Number of nodes it holds GPUs on now."),
    "CODDL_GPUS_PER_NODE": (
        "job",
        "GPUs on each of them: one number if all are equal, else a list.",
    ),
    "CODDL_NOTICE": (
        "job",
        "Of a command: a file that appears when the job must leave; it says why.",
    ),
}
# How CoDDL's processes tell each other things. Scripts must not rely on them: they may change.
INTERNAL: Final = frozenset(
    f"CODDL_{name}"
    for name in (
        *("SLOT", "AGENT", "CPUS", "EPOCH", "HOST", "JOB", "MAIN", "REHEARSE", "SIZE", "SOCKET"),
        *("STASH", "TRACE", "WORKER"),
    )
)
VARIABLE: Final = re.compile(r"(?:CODDL|XDG)_[A-Z_]+")


def variables_in_code() -> set[str]:
    """Give the names of CoDDL's and XDG's variables among the strings of the package."""
    found = set()
    for path in (ROOT / "coddl").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {node.value} if VARIABLE.fullmatch(node.value) else set()
    return found


def environment_page() -> str:
    """Every variable that CoDDL reads, or sets for jobs."""
    rows = {
        who: [[f"`{name}`", text] for name, (by, text) in VARIABLES.items() if by == who]
        for who in ("you", "job")
    }
    return page(
        "# Environment variables",
        "## Read by commands, servers and agents",
        table(["variable", "meaning"], rows["you"]),
        "## Set for jobs of a pool",
        "A script that does not call `coddl.prepare`, and a command, find torchrun's variables too "
        "([which](../pool.md#submit-a-job)). `WANDB_RUN_ID` and `WANDB_RESUME` make a tracker see "
        "one run per job. Other variables that begin with `CODDL_` are internal and may change.",
        table(["variable", "meaning"], rows["job"]),
    )
