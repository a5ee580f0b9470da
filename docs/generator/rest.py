"""The page of requests and shapes, from the server's OpenAPI description."""

import inspect
import re
from typing import Final

from coddl.api import rest, rest_engine, rest_history, rest_whatif
from docs.generator.markdown import Json, table
from docs.generator.openapi import openapi

SHAPES: Final = (rest, rest_engine, rest_history, rest_whatif)  # where answers are described


def rest_page() -> str:
    """Every path and every shape of the server's OpenAPI description."""
    api = openapi()
    shapes = api["components"]["schemas"]
    parts = [
        "# REST",
        "The server describes itself at `/openapi.json`, and for reading at `/docs`. Every request "
        "but those to `/healthz`, `/readyz` and `/version` carries `Authorization: Bearer TOKEN` "
        "([security](../security.md)). An error is a [Problem](#problem) with the media type "
        "`application/problem+json`; its `code` is one of the [error codes](errors.md). Times "
        "whose names end in `_s` are in seconds; points in time are seconds since 1970.",
        "## Requests",
    ]
    rows = [
        [f"`{method.upper()} {path}`", _inputs(about), _summary(about), _answers(about)]
        for path, methods in api["paths"].items()
        for method, about in methods.items()
    ]
    parts.append(table(["request", "parameters", "does", "answers"], rows))
    parts.append("## Shapes")
    for name, shape in sorted(shapes.items()):
        parts.append(_shape_section(name, shape))
    return "\n\n".join(parts)


def _inputs(about: Json) -> str:
    own = [each for each in about.get("parameters", ()) if each["in"] != "path"]
    given = [f"`{each['name']}`" + (" (header)" if each["in"] == "header" else "") for each in own]
    content = about.get("requestBody", {}).get("content", {})
    return ", ".join(
        [*given, *(f"body: {_kind(each.get('schema', {}))}" for each in content.values())]
    )


def _summary(about: Json) -> str:
    return str(about.get("description") or about.get("summary", ""))


def _answers(about: Json) -> str:
    found = []
    for status, answer in about["responses"].items():
        if status not in ("default", "422"):
            kinds = [_kind(each.get("schema", {})) for each in answer.get("content", {}).values()]
            found.append(" ".join([status, *filter(None, kinds)]))
    return ", ".join(found)


def _shape_section(name: str, shape: Json) -> str:
    required, comments = shape.get("required", ()), _comments(name)
    rows = [
        [
            f"`{field}`",
            _kind(about),
            "yes" if field in required else "",
            _limits(about) or comments.get(field, ""),
        ]
        for field, about in shape.get("properties", {}).items()
    ]
    parts = [f"### {name}", str(shape.get("description", "")).strip()]
    head = ["field", "type", "required", "meaning"]
    return "\n\n".join([*filter(None, parts), table(head, rows)])


def _comments(shape: str) -> dict[str, str]:
    """Give what the source says beside the fields of a shape: `gpus: int  # GPUs it holds now`."""
    model = next((getattr(each, shape) for each in SHAPES if hasattr(each, shape)), None)
    lines = inspect.getsource(model).splitlines() if model is not None else []
    found = (re.match(r" {4}(\w+): .*?  # (.+)$", line) for line in lines)
    return {each[1].removesuffix("_"): each[2] for each in found if each}


def _kind(schema: Json) -> str:
    """Give a type in words, with links to shapes."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(filter(None, map(_kind, schema["anyOf"]))))
    if "enum" in schema:
        return " ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {})) or 'values'}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_kind(schema['additionalProperties']) or 'values'}"
    return str(schema.get("type", ""))


def _limits(about: Json) -> str:
    text = str(about.get("description", ""))
    value = about.get("default")
    return f"{text} Default: `{value}`." if text and value not in (None, "", [], {}) else text
