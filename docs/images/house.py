"""Draw the house of the architecture page: its rooms, who imports whom, and the way of one `KMeans.fit` through it.

    python docs/images/house.py            # writes docs/images/house.png, a few seconds

Rooms stand where `ROOMS` puts them. Sizes and arrows are read from the code: a room's file and line counts, and its
imports, without those that follow from others (a imports b, b imports c). An import that does not go down is an error.
"""

from __future__ import annotations

import ast
from collections import Counter
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch
from PIL import Image

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PACKAGE = Path(__file__).parents[2] / "src" / "globular"
ROOMS = {
    "cli": (0.3, 12, 8.4, "the command"),
    "selection": (0.3, 11, 2.7, "how many clusters"),
    "regrouping": (3.3, 11, 2.6, "trees, balance"),
    "datasets": (6.2, 11, 2.5, "known answers"),
    "plotting": (0.3, 10, 5.6, ""),
    "coresets": (0.3, 9, 1.8, ""),
    "seeding": (2.4, 9, 1.8, ""),
    "report": (4.5, 9, 1.8, ""),
    "export": (6.6, 9, 2.1, ""),
    "estimators": (0.3, 8, 8.4, "the scikit-learn interface"),
    "callbacks": (3.3, 7, 2.6, "watch a fit"),
    "persistence": (3.3, 6, 2.6, "models on disk"),
    "algorithms": (0.3, 5, 4.1, "loops over passes"),
    "passes": (4.7, 5, 4.0, "run passes"),
    "seam": (0.3, 4, 8.4, "what a pass is"),
    "model": (0.3, 3, 5.0, "parameters, statistics"),
    "io": (5.6, 3, 3.1, "files, tables"),
    "data": (5.6, 2, 3.1, "reads blocks"),
    "jit": (0.3, 2, 5.0, "compiled kernels"),
    "threads": (0.3, 1, 5.0, "Python's and BLAS's"),
    "machine": (0.3, 0, 4.1, "cores, memory"),
    "lazy": (4.7, 0, 4.0, "attributes made once"),
    "errors": (0.3, -1, 8.4, "what goes wrong"),
}
"""Left edge, floor, width and a word on what is inside."""
WAY = [
    ("estimators", 8.3, "fit checks the parameters"),
    ("data", 8.3, "X is opened: array, file or source"),
    ("passes", 8.3, "the registry lays a shard over checked rows"),
    ("algorithms", 3.9, "kmeans starts: a generator of steps"),
    ("seam", 4.5, "it makes a pass, Assign(centers)"),
    ("passes", 6.9, "shard.run finds the handler of the pass"),
    ("jit", 4.9, "a kernel labels rows and adds them up"),
    ("threads", 4.9, "threads take blocks of rows from a queue"),
    ("model", 4.0, "the sums return as HardStatistics"),
    ("algorithms", 3.1, "centres move: yield a Step; again from 5"),
    ("callbacks", 5.55, "callbacks hear of the step, and may stop"),
    ("estimators", 6.6, "centres and labels become attributes"),
]
"""Rooms that a fit visits, where in them, and what happens there."""
AGAIN = (10, 5)
"""The stop after which the next iteration begins, and where."""
INK, PALE, RED = "#27304a", "#8f99b3", "#c8452f"
FLOORS = {"#e9eef8": range(6, 13), "#fdf1d8": range(4, 6), "#e4f2e6": range(-1, 4)}
"""Colours of the rooms: what users meet, algorithms and passes, what all stand on."""
STOREY, HEIGHT = 0.84, 0.56
"""From one floor to the next, and of that a room."""


def imports() -> tuple[Counter[str], set[tuple[str, str]]]:
    """Lines of every room, and which room imports which."""
    lines: Counter[str] = Counter()
    found = set()
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room.startswith("_"):
            continue
        text = file.read_text(encoding="utf-8")
        lines[room] += text.count("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (path := (node.module or "").split("."))[0] == "globular":
                names = path[1:2] or [each.name for each in node.names]
                found |= {(room, name) for name in names if name != room and not name.startswith("_")}
    return lines, found


def without_detours(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The arrows that do not follow from others."""

    def leads(start: str, end: str) -> bool:
        return (start, end) in arrows or any(leads(to, end) for origin, to in arrows if origin == start)

    return {
        (start, end) for start, end in arrows if not any(a == start and b != end and leads(b, end) for a, b in arrows)
    }


def draw_rooms(axes: Axes, lines: Counter[str]) -> None:
    """A box for each room with its name, what is inside, and its lines."""
    for room, (left, floor, width, inside) in ROOMS.items():
        colour = next(each for each, floors in FLOORS.items() if floor in floors)
        axes.add_patch(
            FancyBboxPatch(
                (left, floor * STOREY), width, HEIGHT, boxstyle="round,pad=0,rounding_size=0.08", facecolor=colour,
                edgecolor=PALE, linewidth=0.8, zorder=2,
            )
        )  # fmt: skip
        axes.text(left + 0.12, floor * STOREY + 0.38, room, color=INK, fontsize=10.5, weight="bold", va="center")
        size = f"{round(lines[room], -2 if lines[room] > 1000 else -1):,} lines"
        words = f"{inside}, {size}" if inside and width > 2.6 else inside or size
        axes.text(left + 0.12, floor * STOREY + 0.15, words, color="#5c6680", fontsize=7.5, va="center")


def draw_arrows(axes: Axes, arrows: set[tuple[str, str]]) -> None:
    """From the floor of one room to the ceiling of another; where rooms overlap, straight down."""
    for start, end in sorted(arrows):
        (a, above, width, _), (b, below, other, _) = ROOMS[start], ROOMS[end]
        if above <= below:
            raise ValueError(f"{start} imports {end}, which does not stand below it")
        left, right = max(a, b), min(a + width, b + other)
        x = ((left + right) / 2,) * 2 if right - left > 0.3 else (a + width / 2, b + other / 2)
        axes.annotate(
            "", (x[1], below * STOREY + HEIGHT), (x[0], above * STOREY), zorder=1,
            arrowprops={"arrowstyle": "-|>", "color": PALE, "linewidth": 1.0, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip


def draw_way(axes: Axes) -> None:
    """The numbered stops of a fit, joined, and beside the house what happens at each."""
    places = [(x, ROOMS[room][1] * STOREY + HEIGHT / 2) for room, x, _ in WAY]
    ways = [*pairwise(places), (places[AGAIN[0] - 1], places[AGAIN[1] - 1])]
    for one, other in ways:
        axes.annotate(
            "", other, one, zorder=3,
            arrowprops={
                "arrowstyle": "-|>", "color": RED, "linewidth": 1.4, "alpha": 0.75, "shrinkA": 9, "shrinkB": 9,
                "connectionstyle": "arc3,rad=0.12",
            },
        )  # fmt: skip
    axes.text(9.5, 10.4, "KMeans(8).fit(X)", color=RED, fontsize=14, weight="bold", va="center")
    for number, ((room, _, happens), place) in enumerate(zip(WAY, places, strict=True), 1):
        height = 10.4 - 0.85 * number
        for at in (place, (9.7, height)):
            axes.add_patch(Circle(at, 0.2, facecolor=RED, edgecolor="white", linewidth=1, zorder=5))
            axes.text(*at, str(number), color="white", fontsize=8.5, weight="bold", ha="center", va="center", zorder=6)
        axes.text(10.05, height + 0.16, room, color=INK, fontsize=9.5, weight="bold", va="center")
        axes.text(10.05, height - 0.14, happens, color="#3d465e", fontsize=9.5, va="center")


def main() -> None:
    """Read the code, check that imports go down, draw."""
    lines, found = imports()
    if unknown := lines.keys() ^ ROOMS.keys():
        raise ValueError(f"no room, or nothing in it: {', '.join(sorted(unknown))}")
    figure = Figure(figsize=(12, 9.6), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, 14.9), ylim=(-1.5, 10.85), aspect="equal")
    axes.axis("off")
    draw_rooms(axes, lines)
    draw_arrows(axes, without_detours(found))
    draw_way(axes)
    words = "grey: imports, without those that follow from others; red: one fit"
    axes.text(0.3, -1.2, words, color="#5c6680", fontsize=8.5, va="center")
    target, drawn = Path(__file__).with_name("house.png"), BytesIO()
    figure.savefig(drawn, dpi=110)
    with Image.open(drawn) as picture:
        picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"{len(ROOMS)} rooms, {len(found)} imports: {target}")


if __name__ == "__main__":
    main()
