"""Writes `coddl/sim/dispatch.py` from the registry: python -m tests.sim.dispatch"""

from pathlib import Path
from typing import Any

from coddl.core.policies.policy import RulePolicy
from coddl.core.registry import POLICIES

FILE = Path("coddl/sim/dispatch.py")
HEAD = '''"""Which rule a number stands for, in the compiled loop. Written by tests/sim/dispatch.py.

numba can't keep, from one run to the next, a loop that is given its rule as an argument; one that
chooses by a number it can. As parts, without what makes them callable from Python, the rules
compile a good second faster.
"""

from typing import Final

from coddl.core.columns import FloatColumn, FloatMatrix, IntColumn
from coddl.core.compiling import as_part, part
'''
CHOICE = '''

@part
def decide(
    code: int, snapshot: KernelSnapshot, params: FloatColumn, memory: FloatMatrix, shares: IntColumn
) -> float:
    """Apply the rule with this number."""
'''


def source() -> str:
    """The module as it should be."""
    rules: dict[str, list[str]] = {}
    for cls in POLICIES.values():
        if issubclass(cls, RulePolicy):
            rule: Any = cls.rule  # Any: a kernel, which has the names of its function
            names = rules.setdefault(rule.__module__, [])
            names += [rule.__name__] * (rule.__name__ not in names)
    names = sorted(name for each in rules.values() for name in each)
    imports = {module: sorted(each) for module, each in rules.items()}
    imports |= {"coddl.core.policies.policy": ["Rule"], "coddl.core.snapshot": ["KernelSnapshot"]}
    lines = [f"from {module} import {', '.join(imports[module])}" for module in sorted(imports)]
    lines += ["", "RULES: Final[tuple[Rule, ...]] = (", *(f"    {name}," for name in names), ")"]
    lines += [f"{name}_part = as_part({name})" for name in names]
    text = HEAD + "\n".join(lines) + "\n" + CHOICE
    for code, name in enumerate(names[:-1]):
        text += f"    if code == {code}:\n"
        text += f"        return {name}_part(snapshot, params, memory, shares)\n"
    return text + f"    return {names[-1]}_part(snapshot, params, memory, shares)\n"


if __name__ == "__main__":
    FILE.write_text(source())
