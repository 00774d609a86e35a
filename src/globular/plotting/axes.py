"""What all pictures share: where they are drawn, and how they look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from globular.errors import import_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE = "#2563a8"
GREY = "#9aa3ad"
INK = "#2b2f33"
HUES = ("#4c9bd6", "#e8a33d", "#5bb18a", "#c96b8d", "#8f7fc9", "#b5893f", "#6fb3b8", "#d97b5c")


def pyplot() -> Any:
    """matplotlib's pyplot, or an error that names the extra."""
    return import_extra("matplotlib.pyplot", "matplotlib", "plot", "drawing")


def new_axes(ax: Axes | None) -> Axes:
    """The Axes to draw into: the given one, or that of a new figure."""
    return pyplot().subplots(layout="constrained")[1] if ax is None else ax


def tidy(axes: Axes) -> Axes:
    """Light grid, no box."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#e5e7ea", linewidth=0.6)
    axes.set_axisbelow(True)
    return axes
