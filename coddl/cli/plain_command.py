"""The classes of the commands: help without types next to flags, and with ranges like 1..8."""

from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption


def _plain(params: list[Any]) -> list[Any]:
    """Show `--json`, not `--json <bool>`."""
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag and param.metavar is None:
            param.metavar = ""
    return params


def _range(low: Any, high: Any) -> str:
    return f"{low or 0:g}..{'' if high is None else format(high, 'g')}"


class PlainCommand(TyperCommand):
    """A command whose help shows `JOB`, not `{JOB} <str>`, and `N [1..8]`, not `N [1<=x<=8]`."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Options and arguments; Any: classes of the click that typer brings along."""
        return _plain(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Name the arguments once; those that can be left out are in brackets."""
        arguments = [each for each in self.get_params(ctx) if isinstance(each, TyperArgument)]
        names = [(each.metavar or str(each.name).upper(), each.required) for each in arguments]
        return ["[OPTIONS]", *(name if required else f"[{name}]" for name, required in names)]

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the help; nothing is parsed after that, so ranges can go into the metavars."""
        for param in self.get_params(ctx):
            if isinstance(param, TyperArgument):
                param.display_type_rich = lambda ctx: None  # type: ignore[method-assign] # noqa: ARG005
            elif (param.min, param.max) != (None, None):
                param.metavar = f"{param.metavar} [{_range(param.min, param.max)}]"
                param.min = param.max = None
        super().format_help(ctx, formatter)


class PlainGroup(TyperGroup):
    """A group of commands with such a help."""

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Options; Any: classes of the click that typer brings along."""
        return _plain(super().get_params(ctx))
