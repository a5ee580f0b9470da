"""`name:parameter=value,…`, as users name policies and placements: read, checked, shown."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from coddl.core.errors import UserError

P = TypeVar("P")
Part: TypeAlias = Annotated[float, "0 to 1"]  # of one; the other form is "above 0"


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a policy, for help and documentation."""

    name: str
    kind: str
    default: str


def parameters_of(cls: type) -> list[Parameter]:
    """The parameters a class takes."""
    fields = [
        Parameter(key, _kind(kind), _shown(getattr(cls, key))) for key, kind in _fields(cls).items()
    ]
    presets = getattr(cls, "presets", {})
    return fields + [Parameter("preset", " | ".join(presets), "")] * bool(presets)


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


def build(cls: type[P], parameters: str, spec: str, noun: str = "policy") -> P:
    """Build a class from `parameter=value,…`; `spec` is what the user wrote."""
    what, name = f'{noun} "{spec}" cannot be used', spec.partition(":")[0]
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


def _fields(cls: type) -> dict[str, Any]:  # Any: type hints
    """The parameters of a class and their types."""
    if not dataclasses.is_dataclass(cls):
        return {}
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


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
