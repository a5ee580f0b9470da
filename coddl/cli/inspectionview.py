"""What an inspection looks like: tables, and a plot of time against bytes."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from rich.text import Text

from coddl.cli.poolview import table
from coddl.core.speed.inspection import (
    Inspection,
    LinkClass,
    LinkSpeed,
    fitted_send,
    median_error,
)

WIDTH, HEIGHT = 60, 16  # of a plot, in characters
FITTED: Final = "·"
STYLES: Final = ("cyan", "green", "yellow", "magenta", "blue", "red")  # by the number of workers
DIGITS: Final = 36
LINKS: Final[dict[LinkClass, str]] = {
    "gpu": "workers that share a GPU",
    "node": "workers of one node",
    "cluster": "across nodes",
}
PARTS: Final = {
    "gpu": "Adam on the GPU",
    "cpu": "Adam on the host",
    "to_host": "copy GPU to host",
    "from_host": "copy host to GPU",
}


def inspection_lines(inspection: Inspection) -> list[Text]:
    """Write the tables: links, then what a worker does by itself."""
    lines = [Text(inspection.hardware, style="bold"), Text()]
    rows = [
        {
            "LINK": name,
            "": LINKS[name],
            "BACKEND": link.backend,
            "WORKERS": ",".join(map(str, link.workers)),
            "GB/S": _digits(link.gb_s),
            "LATENCY": seconds(link.latency_us * 1e-6),
            "CALL": seconds(link.call_us * 1e-6),
            "ERROR": f"{median_error(link):.0%}" if link.measured else "",
            "MESSAGES": _messages(link),
        }
        for name, link in inspection.links.items()
    ]
    lines += table(rows) if rows else [Text("no link was measured")]
    rates = {**inspection.update_gb_s, **inspection.copy_gb_s}
    lines.append(Text())
    lines += [Text(f"{PARTS[name]:18}{_digits(rate):>8} GB/s") for name, rate in rates.items()]
    if inspection.suspend_s is not None:
        lines.append(Text(f"{'1 GB out and in':18}{seconds(inspection.suspend_s):>8}"))
    return lines


def _digits(value: float) -> str:
    """Write a number in three digits, or as many as it has before its point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _messages(link: LinkSpeed) -> str:
    if not link.sent:
        return ""
    gb_s, latency_us = fitted_send(link.sent)
    return f"{_digits(gb_s)} GB/s, {seconds(latency_us * 1e-6)}"


def plot_lines(name: LinkClass, link: LinkSpeed) -> list[Text]:
    """Plot the time of all-reduces against their bytes, both on a logarithmic scale."""
    if not link.measured:
        return []
    sizes = [each.bytes_ for each in link.measured]
    shown = [each.seconds for each in link.measured]
    shown += [link.all_reduce_s(n, x) for n in link.workers for x in (min(sizes), max(sizes))]
    across = _axis(min(sizes), max(sizes), WIDTH)
    up = _axis(min(shown), max(shown), HEIGHT)
    cells: dict[tuple[int, int], tuple[str, str]] = {}
    style = {n: STYLES[at % len(STYLES)] for at, n in enumerate(link.workers)}
    for n in link.workers:
        for column in range(WIDTH):
            part = column / (WIDTH - 1)
            bytes_ = min(sizes) * (max(sizes) / min(sizes)) ** part
            cells[column, up(link.all_reduce_s(n, bytes_))] = FITTED, style[n]
    for each in link.measured:  # over the lines
        cells[across(each.bytes_), up(each.seconds)] = _digit(each.workers), style[each.workers]
    return _framed(f"{name}: all-reduce, {link.backend}", cells, sizes, shown)


def _axis(low: float, high: float, cells: int) -> Callable[[float], int]:
    """Return the way from a value to its cell, on a logarithmic scale."""
    width = math.log(high / low) or 1.0

    def cell(value: float) -> int:
        return min(max(round(math.log(value / low) / width * (cells - 1)), 0), cells - 1)

    return cell


def _digit(workers: int) -> str:
    return f"{workers}" if workers < 10 else chr(ord("a") + min(workers, DIGITS - 1) - 10)


def _framed(
    title: str,
    cells: dict[tuple[int, int], tuple[str, str]],
    sizes: Sequence[int],
    shown: Sequence[float],
) -> list[Text]:
    """Put the axes around what is plotted."""
    low, high = min(shown), max(shown)
    ticks = {
        round(part * (HEIGHT - 1)): seconds(low * (high / low) ** part)
        for part in (0, 1 / 3, 2 / 3, 1)
    }
    lines = [Text(title, style="bold")]
    for row in reversed(range(HEIGHT)):
        line = Text(f"{ticks.get(row, ''):>8} {'┤' if row in ticks else '│'}")
        for column in range(WIDTH):
            line.append(*cells.get((column, row), (" ", "")))
        lines.append(line)
    lines.append(Text(f"{'':9}└{'─' * WIDTH}"))
    ends = [size_words(min(sizes)), size_words(math.sqrt(min(sizes) * max(sizes)))]
    below = f"{ends[0]:{WIDTH // 2}}{ends[1]:{WIDTH // 2}}"
    last = size_words(max(sizes))
    lines.append(Text(f"{'':10}{below[: WIDTH - len(last)]}{last}"))
    lines.append(Text(f"{'':10}digits: measured, by number of workers; {FITTED}: fitted"))
    return lines


def size_words(bytes_: float) -> str:
    """Write a number of bytes in two or three digits."""
    for unit in ("B", "KB", "MB"):
        if bytes_ < 1000:
            return f"{_digits(bytes_)} {unit}"
        bytes_ /= 1024
    return f"{_digits(bytes_)} GB"


def seconds(value: float) -> str:
    """Write a short time in two or three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 1.0:
            return f"{_digits(value * factor)} {unit}"
    return f"{_digits(value * 1e6)} µs"
