"""Facts that a machine of a Ray cluster reports, by a task of Ray there.

Sent by value and read there without this package, which may not be installed: it uses the standard
library alone, and what it gives is plain JSON.
"""


def probe(server: str, jobs_dir: str) -> dict[str, object]:
    """Look at the machine that this runs on; empty: there is nothing to try."""
    import os
    import platform

    return {
        "python": platform.python_version(),
        "coddl": _version_of("coddl"),
        "torch": _version_of("torch"),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "gpus": _gpus(),
        "worker_ports": _worker_ports(),
        "head": _head(),
        "server_trouble": server_trouble(server) if server else "",
        "jobs_dir_trouble": folder_trouble(jobs_dir) if jobs_dir else "",
    }


def _version_of(name: str) -> str:
    """Return the version of a package that can be found; empty: it can't."""
    import importlib
    import importlib.metadata
    import importlib.util

    if importlib.util.find_spec(name) is None:
        return ""
    if name == "coddl":
        return str(importlib.import_module(name).__version__)  # as it will be imported
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "?"


def _gpus() -> list[dict[str, object]]:
    """Describe the machine's GPUs, whatever Ray lets this task see."""
    try:
        import pynvml  # type: ignore[import-untyped,unused-ignore]

        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(each) for each in range(pynvml.nvmlDeviceGetCount())
        ]
        return [
            {
                "kind": str(pynvml.nvmlDeviceGetName(handle)),
                "bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            }
            for handle in handles
        ]
    except Exception:  # no driver, no GPU, no pynvml: all the same here
        return []


def _words_of(pid: int) -> list[str]:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().decode(errors="replace").split("\0")


def _option(words: list[str], name: str) -> str:
    found = [word.partition("=")[2] for word in words if word.startswith(f"--{name}=")]
    return found[0] if found else ""


def _worker_ports() -> list[int]:
    """Return from which ports Ray's workers here take theirs: least and most, or 0 and 0: any."""
    import os

    words = _words_of(os.getppid())  # the raylet
    ports = [_option(words, f"{which}_worker_port") for which in ("min", "max")]
    return [int(port) for port in ports] if all(port.isdecimal() for port in ports) else []


def _head() -> dict[str, object]:
    """Return how the process was started that answers for the cluster, if it is here."""
    import base64
    import json
    import os

    session = _option(_words_of(os.getppid()), "session-name")
    for name in os.listdir("/proc"):
        try:
            words = _words_of(int(name)) if name.isdecimal() else [""]
            is_head = os.path.basename(words[0]) == "gcs_server"
            if not is_head or _option(words, "session-name") != session:
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                pairs = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has ended, or is another user's
        env = dict(pair.split("=", 1) for pair in pairs if pair.startswith("RAY_") and "=" in pair)
        config = json.loads(base64.b64decode(_option(words, "config_list") or "e30="))
        settings = {key.removeprefix("RAY_"): value for key, value in env.items()} | config
        wanted = ("health_check_", "gcs_storage")
        return {
            "redis": _option(words, "redis_address"),
            "settings": {k: str(v) for k, v in settings.items() if k.startswith(wanted)},
        }
    return {}


def server_trouble(server: str) -> str:
    """Return why a server can't be reached from here; empty: it can."""
    import socket
    from urllib.parse import urlsplit

    parts = urlsplit(server)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((str(parts.hostname), port), 5.0).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def folder_trouble(folder: str) -> str:
    """Return why a folder can't be written to from here; empty: it can."""
    import os
    import tempfile

    place = folder
    while not os.path.exists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    try:
        tempfile.NamedTemporaryFile(dir=place, prefix=".coddl-doctor-").close()
    except OSError as error:
        missing = "" if place == folder else f"{folder} does not exist, and it can't be made in "
        return f"{missing}{place}: {error.strerror}"
    return ""
