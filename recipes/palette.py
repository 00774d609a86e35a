"""The colour palette of a photograph: k-means on its distinct colours, weighted by how often each occurs.

    python -m recipes.palette [-k 64] [-o palette.png] [--small]

Weights make the result that of all pixels, at the price of the distinct colours only.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_sample_image

from globular import KMeans

Image = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours, and the picture painted with them."""

    colors: Image
    image: Image
    psnr: float
    """Peak signal-to-noise ratio, in decibels."""
    n_distinct: int


def main(arguments: Sequence[str] | None = None) -> Palette:
    parser = argparse.ArgumentParser(description="reduce a photograph to a palette")
    parser.add_argument("-k", "--colors", type=int, default=64)
    parser.add_argument("-o", "--output", help="write both pictures and the palette (.png; needs matplotlib)")
    parser.add_argument("--small", action="store_true", help="a quarter of the picture")
    options = parser.parse_args(arguments)
    image = load_sample_image("flower.jpg")
    image = image[::4, ::4] if options.small else image
    palette = reduce_colors(image, options.colors)
    print(
        f"{image.shape[0]} × {image.shape[1]} pixels, {palette.n_distinct:,} colours; "
        f"{options.colors} keep {palette.psnr:.1f} dB"
    )
    if options.output:
        draw(image, palette, options.output)
    return palette


def reduce_colors(image: Image, n_colors: int) -> Palette:
    """K-means on the distinct colours; every pixel gets the colour of its cluster."""
    colors, place, counts = np.unique(image.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    model = KMeans(min(n_colors, len(colors)), random_state=0).fit(colors, sample_weight=counts)
    order = np.argsort(model.cluster_centers_ @ [0.299, 0.587, 0.114])  # dark to light
    found = np.rint(model.cluster_centers_).astype(np.uint8)
    painted = found[model.labels_[place.ravel()]].reshape(image.shape)
    error = float(np.square(image.astype(float) - painted).mean())
    return Palette(
        found[order], painted, float(10 * np.log10(255.0**2 / error)) if error else float("inf"), len(colors)
    )


def draw(image: Image, palette: Palette, path: str) -> None:
    """The photograph, the same with few colours, and the colours."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.9), layout="constrained")
    panels = figure.subplot_mosaic([["before", "after"], ["colors", "colors"]], height_ratios=[6, 1])
    for name, picture, title in (
        ("before", image, f"{palette.n_distinct:,} colours"),
        ("after", palette.image, f"{len(palette.colors)} colours, {palette.psnr:.1f} dB"),
        ("colors", palette.colors[None], ""),
    ):
        panels[name].imshow(picture, aspect="auto" if name == "colors" else "equal", interpolation="nearest")
        panels[name].set_title(title)
        panels[name].set_axis_off()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
