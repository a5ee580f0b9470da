"""The page of policies and placements, from their declarations."""

from collections.abc import Mapping

from coddl.core.named import Described, described
from coddl.core.registry import PLACEMENTS, POLICIES
from docs.generator.markdown import page, table


def policies_page() -> str:
    """Every policy and placement, with its parameters."""
    return page(
        "# Policies and placements",
        "Parameters follow a colon: `tiresias-l:threshold_gpu_h=50,promote=8`. "
        "`coddl policies NAME` and `coddl placements NAME` show the same. "
        "[Choose a policy](../choose-a-policy.md) helps to decide; "
        "[write one](../write-a-policy.md) if none fits.",
        "## Policies",
        *_sections(POLICIES),
        "## Placements",
        *_sections(PLACEMENTS, "placement "),
    )


def _sections(known: Mapping[str, type], prefix: str = "") -> list[str]:
    return [_section(described(name, found), prefix) for name, found in known.items()]


def _section(each: Described, prefix: str) -> str:
    rows = [
        [f"`{parameter.name}`", parameter.default, parameter.kind, parameter.meaning]
        for parameter in each.parameters
    ]
    parts = [f"### {prefix}{each.name}", each.summary, each.rules]
    if rows:
        parts.append(table(["parameter", "default", "values", "meaning"], rows))
    return page(*filter(None, parts))
