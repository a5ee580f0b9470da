"""The page of commands, from typer's tree."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import typer

from coddl.cli.main import app
from docs.generator.markdown import table

Parameter = Any  # an option or argument of typer, whose classes differ between its versions


def cli_page() -> str:
    """Every command, with its arguments, options and examples."""
    root = typer.main.get_command(app)
    parts = [
        "# Command line",
        "`coddl COMMAND --help` shows the same in the terminal. Options of `coddl run` and "
        "`coddl submit` stand before the script; what follows the script is passed to it.",
    ]
    panel = ""
    for name, command in vars(root)["commands"].items():
        if command.rich_help_panel != panel:
            panel = command.rich_help_panel
            parts.append(f"## {panel}")
        for words, each in _leaves(f"coddl {name}", command):
            parts.append(_command_section(words, each))
    return "\n\n".join(parts)


def _leaves(words: str, command: Parameter) -> Iterator[tuple[str, Parameter]]:
    """Give a command, or the commands below it, with the words that call each."""
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from _leaves(f"{words} {name}", each)
    else:
        yield words, command


def _command_section(words: str, command: Parameter) -> str:
    given = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in given if not each.opts[0].startswith("-")]
    options = [each for each in given if each.opts[0].startswith("-")]
    usage = " ".join([words, *(["[OPTIONS]"] if options else []), *map(_shown, arguments)])
    parts = [f"### {words}", _plain(inspect.cleandoc(command.help or "")), _fenced(usage)]
    if arguments:
        rows = [[f"`{_shown(each)}`", _meaning(each)] for each in arguments]
        parts.append(table(["argument", "meaning"], rows))
    if options:
        rows = [[_spelled(each), _default(each), _meaning(each)] for each in options]
        parts.append(table(["option", "default", "meaning"], rows))
    if examples := _examples(command.epilog or ""):
        parts.append(_fenced(examples))
    return "\n\n".join(parts)


def _shown(argument: Parameter) -> str:
    name = argument.metavar or argument.name.upper()
    if argument.nargs == -1 and "..." not in name:
        name += "..."
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _spelled(option: Parameter) -> str:
    names = sorted(option.opts, key=lambda name: not name.startswith("--")) + option.secondary_opts
    value = "" if option.is_flag else f" {_value(option)}"
    return ", ".join(f"`{name}{value if at == 0 else ''}`" for at, name in enumerate(names))


def _value(option: Parameter) -> str:
    """Name the value of an option as its help does: by metavar, choices or type."""
    kind = option.type_descriptor.annotation
    if option.metavar:
        return str(option.metavar)
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return {int: "N", float: "X"}.get(kind, "TEXT")


def _default(option: Parameter) -> str:
    if option.is_flag:
        return f"`{option.opts[0]}`" if option.default and option.secondary_opts else ""
    return f"`{option.default}`" if option.default not in (None, "", (), []) else ""


def _meaning(parameter: Parameter) -> str:
    text = _plain(parameter.help or "")
    return f"{text} Environment: `{parameter.envvar}`." if parameter.envvar else text


def _plain(text: str) -> str:
    """Drop rich's markup, such as `[cyan]…[/]`."""
    return re.sub(r"\[/?[a-z ]*\]", "", text)


def _examples(epilog: str) -> str:
    lines = _plain(inspect.cleandoc(epilog)).removeprefix("Examples:").strip("\n").splitlines()
    split = [part for line in lines for part in re.split(r" {3}(?=coddl )", line)]
    return textwrap.dedent("\n".join(line for line in split if line.strip())).strip()


def _fenced(text: str) -> str:
    return f"```text\n{text}\n```"
