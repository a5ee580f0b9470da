"""The class of the commands: help without a type beside flags."""

from typing import Any

import typer
from typer.core import TyperCommand, TyperOption


class PlainCommand(TyperCommand):
    """A command whose help shows `--json`, not `--json <bool>`."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Options and arguments; Any: classes of the click that typer brings along."""
        params = super().get_params(ctx)
        for param in params:
            if isinstance(param, TyperOption) and param.is_flag and param.metavar is None:
                param.metavar = ""
        return params
