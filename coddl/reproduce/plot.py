"""A plot as an SVG picture: lines, or bars in groups. It needs no library and fetches nothing.

The ground is white and the ink dark whatever the page around it, so a picture reads the same in
light and dark. Lines carry their name where they end, bars their value. Thin strokes across the
ends of bars and the points of lines are 95 % intervals over the seeds.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from coddl.reproduce.experiment import Plot
from coddl.traces.atomic_write import write_atomically

# Okabe and Ito's colours, distinct for colour-blind readers too, in an order of falling contrast.
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555")
DASHES: Final = ("", "7 4", "2 3")  # for lines beyond the last colour
INK, FAINT, GRID, GROUND = "#1a1a1a", "#5a5a5a", "#e2e2e2", "#ffffff"
WIDTH, HEIGHT, EDGE = 760.0, 380.0, 16.0
TOP, BOTTOM, LEFT = 44.0, 52.0, 76.0  # what title, lower axis and left axis need
LETTER: Final = 7.4  # mean width of a letter at FONT
FONT, LINE = 13, 18.0
BAR, GAP = 15.0, 9.0  # thickness of a bar; space between two groups
INTERVALS: Final = "strokes: 95 % intervals over seeds"
MARKED: Final = 24  # lines of up to this many points show each of them


def write_plot(path: Path, plot: Plot) -> None:
    """Write the picture; at `path` there is all of it or what was there before."""
    write_atomically(path, drawn(plot).encode(), "plot")


def drawn(plot: Plot) -> str:
    """The picture of a plot, as SVG. What is no number (NaN, infinite) is left out."""
    return _lines(plot) if plot.lines else _bars(plot)


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to pixels, with the round values to write along the axis."""

    ticks: tuple[float, ...]
    from_px: float
    to_px: float

    def at(self, value: float) -> float:
        """Where a value lies."""
        low, high = self.ticks[0], self.ticks[-1]
        return self.from_px + (value - low) / (high - low) * (self.to_px - self.from_px)


def ticks(low: float, high: float) -> tuple[float, ...]:
    """Four to eight round values, 0 among them, that enclose `low` to `high`."""
    low, high = min(low, 0.0), max(high, 0.0)
    if high <= low:
        return (0.0, 1.0)
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    # Rounded to the step's own digits: 3 * 0.1 is to read 0.3.
    digits = max(0, 1 - math.floor(math.log10(step)))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(round(step * i, digits) for i in range(first, last + 1))


def written(value: float) -> str:
    """A number as a reader likes it: three digits, thousands apart."""
    if value == 0 or not 0.001 <= abs(value) < 1e7:
        return f"{value:.3g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _lines(plot: Plot) -> str:
    finite = {
        name: [
            (x, y, half)
            for (x, y), half in zip(line, _errors(plot, name, len(line)), strict=True)
            if _is_number(x, y)
        ]
        for name, line in plot.lines.items()
    }
    named = max((_length(name) for name in finite), default=0.0) + 30.0
    points = [point for line in finite.values() for point in line]
    xs = [x for x, _, _ in points] or [0.0]
    ys = [end for _, y, half in points for end in (y - half, y + half)] or [0.0]
    across = Scale(ticks(min(xs), max(xs)), LEFT, WIDTH - EDGE - named)
    up = Scale(ticks(min(ys), max(ys)), HEIGHT - BOTTOM, TOP + 8.0)
    parts = [*_frame(plot, HEIGHT), *_lower_axis(across, HEIGHT, plot.x)]
    for tick in up.ticks:
        parts.append(_rule(across.from_px, up.at(tick), across.to_px, up.at(tick)))
        parts.append(_text(LEFT - 8, up.at(tick) + 4, written(tick), "end", FAINT))
    parts.append(_upright(18, (up.from_px + up.to_px) / 2, plot.y))
    ends = _apart([up.at(line[-1][1]) if line else up.from_px for line in finite.values()], up)
    for i, (name, line) in enumerate(finite.items()):
        parts.extend(_line(line, across, up, i))
        for x, y, text in plot.marks.get(name, ()):
            parts.append(_point(across.at(x), up.at(y), 4.5, i))
            parts.append(_text(across.at(x) + 8, up.at(y) + 14, text, "start", _colour(i)))
        parts.append(_swatch(across.to_px + 8, ends[i] - 2, i))
        parts.append(_text(across.to_px + 26, ends[i] + 4, name, "start"))
    return "".join([*parts, "</svg>\n"])


def _errors(plot: Plot, name: str, count: int) -> list[float]:
    """The errors of a series' values, 0 where there is none."""
    halves = plot.errors.get(name, [0.0] * count)
    return [half if _is_number(half) else 0.0 for half in halves]


def _line(
    line: Sequence[tuple[float, float, float]], across: Scale, up: Scale, i: int
) -> Iterator[str]:
    """One line; one of few points shows them."""
    drawn = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y, _ in line)
    dash = DASHES[i // len(COLOURS) % len(DASHES)]
    yield (
        f'<polyline points="{drawn}" fill="none" stroke="{_colour(i)}" stroke-width="2" '
        f'stroke-linejoin="round"' + (f' stroke-dasharray="{dash}"' if dash else "") + "/>"
    )
    for x, y, half in line if len(line) <= MARKED else ():
        if half > 0.0:
            yield _error(across.at(x), (up.at(y - half), up.at(y + half)), _colour(i), upright=True)
        yield _point(across.at(x), up.at(y), 3.0, i)


def _point(x: float, y: float, radius: float, i: int) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{_colour(i)}"/>'


def _apart(wanted: Sequence[float], up: Scale) -> list[float]:
    """Heights near those wanted for lines of text that do not overlap."""
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], i))
    heights = list(wanted)
    lowest = up.from_px  # the axis
    for before, i in zip([None, *order], order, strict=False):
        if before is not None:
            heights[i] = max(heights[i], heights[before] + LINE)
    for after, i in zip([None, *order[::-1]], order[::-1], strict=False):
        heights[i] = min(heights[i], lowest if after is None else heights[after] - LINE)
    return heights


def _bars(plot: Plot) -> str:
    series, categories = plot.bars, plot.categories
    halves = {name: _errors(plot, name, len(line)) for name, line in series.items()}
    ends = [end for name, line in series.items()
            for value, half in zip(line, halves[name], strict=True)
            for end in _interval(value, half)]  # fmt: skip
    values = [value for value in ends if _is_number(value)] or [0.0]
    left = min(max((_length(name) for name in categories), default=0.0) + 24.0, WIDTH / 2)
    group = len(series) * BAR + GAP
    legend, rows = _legend(list(series), left) if len(series) > 1 else ([], 0)
    top = TOP + (LINE * (rows + 0.4) if rows else 4.0)
    height = top + group * len(categories) + BOTTOM
    longest = max(_length(written(value)) for value in values) + 6.0
    across = Scale(ticks(min(values), max(values)), left, WIDTH - EDGE - longest)
    parts = [*_frame(plot, height), *legend, *_lower_axis(across, height, plot.y, top)]
    for at, category in enumerate(categories):
        middle = top + group * at + group / 2
        parts.append(_text(left - 8, middle + 4, _fitted(category, left - 20), "end"))
        for i, (name, line) in enumerate(series.items()):
            y = top + group * at + GAP / 2 + BAR * i
            parts.extend(_bar(line[at], halves[name][at], across, y, i))
    parts.append(_text(EDGE, height - 12, plot.x, "start", FAINT))  # what the categories are
    zero = across.at(0.0)
    parts.append(_rule(zero, top, zero, height - BOTTOM, FAINT))
    return "".join([*parts, "</svg>\n"])


def _bar(value: float, half: float, across: Scale, y: float, i: int) -> Iterator[str]:
    """A bar from zero on with its value at the end, or a dash where there is none."""
    zero = across.at(0.0)
    if not _is_number(value):
        yield _text(zero + 5, y + BAR - 4, "—", "start", FAINT)
        return
    end = across.at(value)
    yield (
        f'<rect x="{min(zero, end):.1f}" y="{y + 1:.1f}" width="{abs(end - zero):.1f}" '
        f'height="{BAR - 2:g}" fill="{_colour(i)}"/>'
    )
    outer = max(zero, end)
    if half > 0.0:
        low, high = (across.at(each) for each in _interval(value, half))
        outer = max(zero, high)
        yield _error(y + BAR / 2, (low, high), INK, upright=False)
    yield _text(outer + 5, y + BAR - 3, written(value), "start", size=FONT - 2)


def _interval(value: float, half: float) -> tuple[float, float]:
    """The interval of a bar's value; it ends at zero, as bars are of what has one sign."""
    low, high = value - half, value + half
    return (max(0.0, low), high) if value >= 0.0 else (low, min(0.0, high))


def _error(at: float, ends: tuple[float, float], colour: str, *, upright: bool) -> str:
    """A stroke from end to end with a short one across each."""
    low, high = ends
    strokes = f"M{at:.1f} {low:.1f}V{high:.1f}" if upright else f"M{low:.1f} {at:.1f}H{high:.1f}"
    for end in ends:
        strokes += f"M{at:.1f} {end:.1f}m-3 0h6" if upright else f"M{end:.1f} {at:.1f}m0 -3v6"
    return f'<path d="{strokes}" stroke="{colour}" fill="none"/>'


def _legend(names: Sequence[str], left: float) -> tuple[list[str], int]:
    """Names of the series above the bars, and in how many rows."""
    parts, x, rows = [], left, 1
    for i, name in enumerate(names):
        width = _length(name) + 34.0
        if x > left and x + width > WIDTH - EDGE:
            x, rows = left, rows + 1
        y = TOP + 4.0 + LINE * (rows - 1)
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="11" height="11" fill="{_colour(i)}"/>')
        parts.append(_text(x + 16, y + 10, name, "start"))
        x += width
    return parts, rows


def _frame(plot: Plot, height: float) -> Iterator[str]:
    """What every picture begins with."""
    drawn = any(_is_number(half) and half > 0.0 for line in plot.errors.values() for half in line)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" role="img" '
        f'aria-label="{escape(plot.title)}" font-family="system-ui, sans-serif" '
        f'font-size="{FONT}"><title>{escape(plot.title)}</title>'
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1:g}" height="{height - 1:g}" rx="6" '
        f'fill="{GROUND}" stroke="{GRID}"/>'
        f'<text x="{EDGE:g}" y="26" font-size="15" font-weight="600" fill="{INK}">'
        f"{escape(plot.title)}</text>"
    )
    if drawn:
        yield _text(WIDTH - EDGE, 26, INTERVALS, "end", FAINT, size=FONT - 2)


def _lower_axis(across: Scale, height: float, name: str, top: float = 0.0) -> Iterator[str]:
    """Values and name below; rules up to `top` if that is given."""
    base = height - BOTTOM
    for tick in across.ticks:
        x = across.at(tick)
        yield _rule(x, top or base, x, base + (0 if top else 5))
        yield _text(x, base + 19, written(tick), "middle", FAINT)
    yield _text((across.from_px + across.to_px) / 2, height - 12, name, "middle")


def _upright(x: float, y: float, text: str) -> str:
    return (
        f'<text transform="translate({x:.1f},{y:.1f}) rotate(-90)" text-anchor="middle" '
        f'fill="{INK}">{escape(text)}</text>'
    )


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str = GRID) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}"/>'


def _swatch(x: float, y: float, i: int) -> str:
    dash = DASHES[i // len(COLOURS) % len(DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="M{x:.1f} {y + 2:.1f}h14" stroke="{_colour(i)}" stroke-width="4"{dashed}/>'


def _text(
    x: float, y: float, text: str, anchor: str, colour: str = INK, *, size: int = FONT
) -> str:
    sized = "" if size == FONT else f' font-size="{size}"'
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{sized}>'
        f"{escape(text)}</text>"
    )


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _length(text: str) -> float:
    """About how wide a text is."""
    return LETTER * len(text)


def _fitted(text: str, width: float) -> str:
    """A text cut down to a width."""
    most = int(width / LETTER)
    return text if len(text) <= most else text[: most - 1] + "…"


def _is_number(*values: float) -> bool:
    return all(math.isfinite(value) for value in values)
