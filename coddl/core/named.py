"""`name:parameter=value,…`, as users name policies and placements: read, checked, shown."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from coddl.core.errors import UserError

P = TypeVar("P")


@dataclasses.dataclass(frozen=True, slots=True)
class Meaning:
    """What a parameter means, in one line; written into its declaration's `Annotated`."""

    text: str


Part: TypeAlias = Annotated[float, "0 to 1"]  # of one; the other form is "above 0"
Plugged: TypeAlias = Callable[..., object]  # of a plug-in: a function, or a class with parameters


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a policy, for help and documentation."""

    name: str
    kind: str
    default: str
    meaning: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """A policy or a placement, for help and documentation."""

    name: str
    summary: str
    rules: str
    parameters: list[Parameter]


def described(name: str, found: Plugged) -> Described:
    """Describe a policy or a placement by its docstring and its parameters."""
    summary, _, rules = (found.__doc__ or "").partition("\n\n")
    parameters = parameters_of(found) if isinstance(found, type) else []
    return Described(name, " ".join(summary.split()), " ".join(rules.split()), parameters)


def parameters_of(cls: type) -> list[Parameter]:
    """The parameters a class takes."""
    meanings = _meanings(cls)
    fields = [
        Parameter(key, _kind(kind), _shown(getattr(cls, key)), meanings[key])
        for key, kind in _fields(cls).items()
    ]
    presets = getattr(cls, "presets", {})
    preset = Parameter("preset", " | ".join(presets), "", "named values of several parameters")
    return fields + [preset] * bool(presets)


def from_spec(known: Mapping[str, type[P]], spec: str, noun: str, also: str = "") -> P:
    """Build what `name:parameter=value,…` describes, of those known by name."""
    name, _, rest = spec.partition(":")
    if name not in known:
        raise UserError(
            f'{noun} "{spec}" cannot be used',
            f'there is no {noun} named "{name}"',
            f"one of {', '.join(known)}{also}",
        )
    return build(known[name], rest, spec, noun)


def is_plugin(spec: str) -> bool:
    """Return whether a user names something of a plug-in: `file.py:name:parameter=value,…`."""
    return ".py:" in spec or spec.endswith(".py")


def plugin_parts(spec: str) -> tuple[str, str, str]:
    """Part the name of something of a plug-in into file, name and parameters."""
    before, _, rest = spec.partition(".py:") if ".py:" in spec else (spec[:-3], "", "")
    name, _, parameters = rest.partition(":")
    return f"{before}.py", name, parameters


def from_plugin(found: Plugged, spec: str, noun: str) -> object:
    """Build what a user names, of the class of a plug-in; a function is used as it is."""
    file, name, parameters = plugin_parts(spec)
    if isinstance(found, type):
        return build(found, parameters, spec, noun)
    if parameters:
        raise UserError(
            f'{noun} "{spec}" cannot be used',
            f"{name} is a function and takes no parameters",
            f"{file}:{name}",
        )
    return found


def build(cls: type[P], parameters: str, spec: str, noun: str = "policy") -> P:
    """Build a class from `parameter=value,…`; `spec` is what the user wrote."""
    what = f'{noun} "{spec}" cannot be used'
    name = ":".join(plugin_parts(spec)[:2]) if is_plugin(spec) else spec.partition(":")[0]
    known = _fields(cls)
    presets: Mapping[str, Mapping[str, object]] = getattr(cls, "presets", {})
    if presets:
        known["preset"] = Literal[tuple(presets)]
    given: dict[str, object] = {}
    for part in parameters.split(",") if parameters else []:
        key, equals, text = part.partition("=")
        if key not in known or not equals:
            takes = ", ".join(known) or "no parameters"
            missing = f'{name} has no parameter "{key}"'
            raise UserError(
                what,
                missing if equals else f'"{part}" is not parameter=value',
                f"{name} takes {takes}",
            )
        if key in given:
            raise UserError(what, f"{key} is given twice", "each parameter once")
        given[key] = _value(known[key], text, what, key)
    preset = presets[str(given.pop("preset"))] if "preset" in given else {}
    try:
        return cls(**{**preset, **given})
    except TypeError as error:  # a plug-in's class wants more than it was given
        raise UserError(what, str(error), f"{name}:parameter=value for each") from None


@cache  # a policy is built for every decision, and reading its types takes longer than that
def _declared(cls: type) -> Mapping[str, Any]:  # Any: type hints
    """The parameters of a class and their types, as they are declared."""
    if not dataclasses.is_dataclass(cls):
        return {}
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _fields(cls: type) -> dict[str, Any]:  # Any: type hints
    """The parameters of a class and their types, without what they mean."""
    return {key: _without_meaning(kind) for key, kind in _declared(cls).items()}


def _without_meaning(kind: Any) -> Any:  # Any: type hints
    if get_origin(kind) is not Annotated:
        return kind
    bare, *notes = get_args(kind)
    limits = tuple(note for note in notes if not isinstance(note, Meaning))
    return Annotated[(bare, *limits)] if limits else bare


def _meanings(cls: type) -> dict[str, str]:
    """What the parameters of a class mean; empty where that is not declared."""
    return {
        key: "; ".join(note.text for note in get_args(kind)[1:] if isinstance(note, Meaning))
        if get_origin(kind) is Annotated
        else ""
        for key, kind in _declared(cls).items()
    }


def _value(kind: Any, text: str, what: str, key: str) -> object:  # Any: a type hint
    """Read one value as its parameter's type asks."""
    try:
        if get_origin(kind) is tuple:
            values = tuple(float(part) for part in text.split("/") if text != "none")
            if all(a < b for a, b in zip((0.0, *values), values, strict=False)):
                return values
        elif kind is bool:
            return {"true": True, "false": False}[text.lower()]
        elif kind is int:
            if int(text) >= 0:
                return int(text)
        elif kind is str:
            return text
        elif get_origin(kind) is Literal:
            return get_args(kind)[get_args(kind).index(text)]
        elif kind == Part:
            if 0.0 <= float(text) <= 1.0:
                return float(text)
        elif get_origin(kind) is Annotated:
            if 0.0 < float(text) < float("inf"):
                return float(text)
        elif 0.0 <= float(text) < float("inf"):
            return float(text)
    except (ValueError, KeyError):
        pass
    raise UserError(what, f'{key}="{text}" is not {_kind(kind)}', f"{key}={_example(kind)}")


def _kind(kind: Any) -> str:  # Any: a type hint
    """Name a parameter's type for people."""
    if get_origin(kind) is tuple:
        return "rising positive numbers separated by /, or none"
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    if get_origin(kind) is Annotated:
        return "a number from 0 to 1" if kind == Part else "a number above 0"
    known = {
        bool: "true | false",
        int: "a whole number, 0 or more",
        float: "a number, 0 or more",
        str: "text",
    }
    return known.get(kind, "a number")


def _example(kind: Any) -> str:  # Any: a type hint
    if get_origin(kind) is tuple:
        return "1/10"
    if get_origin(kind) is Literal:
        return str(get_args(kind)[0])
    return "true" if kind is bool else "0.5" if kind == Part else "2"


def _shown(value: object) -> str:
    """Write a default the way a user would give it."""
    if isinstance(value, tuple):
        return "/".join(f"{part:g}" for part in value) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
