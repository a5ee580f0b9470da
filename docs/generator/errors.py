"""The page of exit codes, HTTP statuses and waiting codes, from the error classes."""

import ast
import importlib
import re
from typing import Final, get_args

from coddl.cli import waiting
from coddl.core.errors import CoddlError, UserError
from coddl.core.waiting import WaitingCode
from coddl.server.problems import INVALID, STATUS
from docs.generator.markdown import ROOT, page, table

# Why a job waits, for people; the code itself is in JSON, in metrics and in `coddl ls`.
CODES: Final[dict[str, str]] = {
    "Resources": "Too few GPUs are free for it.",
    "Priority": "Jobs of a higher priority come first.",
    "QueueQuota": "Its queue has used what it is entitled to.",
    "UserLimit": "Not given by any policy here; for policies of your own.",
    "Topology": "Enough GPUs are free, but not where its placement wants them.",
    "Held": "A user suspended it; `coddl resume` releases it.",
    "Infeasible": "No state of this pool could give it what it needs.",
    "CoolDown": "It, or the GPUs it needs, changed a moment ago.",
    "NodeDown": "Nodes that it needs are down, silent or drained.",
    "PolicyFailed": "The pool's policy or placement, a plug-in's, failed to decide.",
}


def errors_page() -> str:
    """Exit codes, HTTP statuses and waiting codes."""
    waits = [[f"`{code}`", CODES[code]] for code in get_args(WaitingCode)]
    return page(
        "# Error codes",
        "A command that fails prints what is wrong, because of what, and what to try, to standard "
        "error, and ends with an exit code. With `-o json` it prints "
        '`{"error": {"what": …, "because": …, "try": …}, "exit_code": N}`.',
        "## Exit codes of waiting commands",
        "Of `coddl wait`, `coddl submit --wait` and `coddl logs -f`.",
        table(["exit code", "the job"], _wait_codes()),
        "## Errors",
        "`code` is the field of the same name in REST's [Problem](rest.md#problem). A dash under "
        "HTTP: the server does not answer with it.",
        table(["code", "exit code", "HTTP", "meaning"], _error_rows()),
        "## Why a job waits",
        "`coddl ls`, `coddl explain` and REST give one of these codes and a sentence with numbers.",
        table(["code", "meaning"], waits),
    )


def _wait_codes() -> list[list[str]]:
    rows = {code: state for state, code in waiting.OVER.items()}
    rows[waiting.NOT_FINISHED] = "has not finished"
    rows[waiting.LEFT_EARLY] = "SUCCEEDED, but its script left its loop before the last step"
    rows[waiting.TooLate.exit_code] = "had not come so far when `--timeout` had passed"
    rows[130] = "goes on: the command was ended by Ctrl-C"
    return [[str(code), text] for code, text in sorted(rows.items())]


def _error_rows() -> list[list[str]]:
    """Give a row per error class, with the status that the server answers it with."""
    rows = []
    for kind in _error_classes():
        about = (kind.__doc__ or "").splitlines()[0]
        code = "Invalid" if kind is UserError else kind.__name__
        rows.append([f"`{code}`", str(kind.exit_code), _status(kind), about])
    return sorted(rows)


def _error_classes() -> list[type[CoddlError]]:
    """Find the error classes in the source: the page must not depend on what is imported."""
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "coddl").rglob("*.py")
    }
    found = {CoddlError.__name__: CoddlError}
    while True:
        new = {
            node.name: path
            for path, tree in trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            and node.name not in found
            and any(isinstance(base, ast.Name) and base.id in found for base in node.bases)
        }
        if not new:
            return [kind for kind in found.values() if kind is not CoddlError]
        for name, path in new.items():
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name] = getattr(importlib.import_module(module), name)


def _status(kind: type[CoddlError]) -> str:
    """Give the HTTP status: of the server's table, or of the tree in its module's docstring."""
    if kind is UserError:
        return str(INVALID)
    if issubclass(kind, UserError) and kind in STATUS:
        return str(STATUS[kind])
    tree = importlib.import_module(kind.__module__).__doc__ or ""
    told = re.search(rf"── {kind.__name__} +(?:.*HTTP )?(\d{{3}})\b", tree)
    return told[1] if told else "-"
