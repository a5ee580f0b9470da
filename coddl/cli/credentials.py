"""`--token-file` and `--tls-ca`, which every command that asks a server has."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from coddl.cli.addresses import TlsCa, TokenFile
from coddl.cli.connect import Server, given_credentials

Command = Callable[..., None]


def with_credentials(command: Command) -> Command:
    """Add the two options to a command that has `--server`; others stay as they are."""
    signature = inspect.signature(command)
    server = signature.parameters.get("server")
    if server is None or server.annotation != Server:
        return command
    kinds: dict[str, Any] = {"token_file": TokenFile, "tls_ca": TlsCa}  # Any: annotations

    @functools.wraps(command)
    def run(*, token_file: str, tls_ca: str, **words: object) -> None:
        from coddl.api.client import Credentials

        given_credentials.set(Credentials(token_file, tls_ca))
        command(**words)

    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default="", annotation=kind)
        for name, kind in kinds.items()
    ]
    own = list(signature.parameters.values())
    run.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, **kinds}
    return run
