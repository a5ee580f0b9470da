"""A line plot as an SVG file: enough for the pictures of the documentation, and no more."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # Okabe and Ito's
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 360, 64, 16, 40, 48

Line = Sequence[tuple[float, float]]


def line_plot(path: Path, title: str, x: str, y: str, lines: Mapping[str, Line]) -> None:
    """Draw lines from 0 on, with a legend, on a white ground that reads in light and dark pages."""
    points = [point for line in lines.values() for point in line]
    x_ticks, y_ticks = (_ticks(max(point[axis] for point in points)) for axis in (0, 1))

    def at(point: tuple[float, float]) -> str:
        across = LEFT + point[0] / x_ticks[-1] * (WIDTH - LEFT - RIGHT)
        up = HEIGHT - BOTTOM - point[1] / y_ticks[-1] * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f},{up:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"',
        f' aria-label="{escape(title)}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-weight="bold">{escape(title)}</text>',
        _text(WIDTH // 2, HEIGHT - 10, x, "middle"),
        f'<text transform="translate(16,{HEIGHT // 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y)}</text>",
    ]
    for tick in x_ticks:
        across = at((tick, 0)).split(",")[0]
        parts.append(_text(float(across), HEIGHT - BOTTOM + 18, f"{tick:g}", "middle"))
    for tick in y_ticks:
        (from_, to), up = (
            (at((edge, tick)) for edge in (0, x_ticks[-1])),
            at((0, tick)).split(",")[1],
        )
        parts.append(f'<polyline points="{from_} {to}" stroke="#ddd" fill="none"/>')
        parts.append(_text(LEFT - 8, float(up) + 4, f"{tick:g}", "end"))
    for i, (name, line) in enumerate(lines.items()):
        drawn = " ".join(map(at, line))
        parts.append(
            f'<polyline points="{drawn}" fill="none" stroke="{COLOURS[i]}" stroke-width="2"/>'
        )
        parts.append(f'<rect x="{LEFT + 12}" y="{TOP + 8 + 18 * i}" width="18" height="4" ')
        parts.append(f'fill="{COLOURS[i]}"/>')
        parts.append(_text(LEFT + 36, TOP + 15 + 18 * i, name, "start"))
    path.write_text("".join(parts) + "</svg>\n", encoding="utf-8")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _ticks(most: float) -> list[float]:
    """About five round values from 0 to `most` or a little beyond."""
    step = 10.0 ** len(str(int(most))) / 100 if most >= 1 else 0.1
    for factor in (1, 2, 5, 10, 20, 50, 100):
        if most / (step * factor) <= 6:
            step *= factor
            break
    count = int(-(-most // step))
    return [step * i for i in range(count + 1)]
