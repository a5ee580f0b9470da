"""When the garbage collector runs: a pass over a large pool stops all threads for 0.2 s."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_busy: list[int] = []  # threads that are not to be disturbed


@contextmanager
def undisturbed() -> Iterator[None]:
    """Collect no garbage meanwhile: for work that makes many objects and no cycles.

    The collector would visit the pool again and again.
    """
    with _lock:
        _busy.append(threading.get_ident())
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _busy.remove(threading.get_ident())
            if not _busy:
                gc.enable()


def keep_from_collector() -> None:
    """Exclude all present objects (modules, the restored pool) from garbage collection.

    They stay in memory anyway, and each pass over them stops all threads: 0.1 s in an empty pool.
    """
    gc.collect()
    gc.freeze()
