"""Run a server as `coddl server` does: a state folder, a port, how many bytes a file may have,
and plug-ins.
"""

import resource
import sys
from pathlib import Path

from coddl.core.errors import UserError
from coddl.server.main import ServeOptions, serve


def main(folder: str, port: str = "0", file_bytes_max: str = "", *plugins: str) -> int:
    """Serve; errors of users are shown as the command line shows them."""
    if file_bytes_max:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_bytes_max), hard))
    try:
        return serve(
            ServeOptions(state_dir=Path(folder), port=int(port), plugins=plugins, log_format="json")
        )
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
