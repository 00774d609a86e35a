"""Palettes for the weights of a network: every row of every matrix keeps 16 values of its own, the best there are.

    python -m recipes.weight_palette [weights.safetensors] [-k 16] [-o palettes.png] [--small]

A weight is then a number of four bits. Rows are thousands of k-means problems with one column, and `globular.fit_many`
solves each of them exactly. The yardstick are values at even distances between the least and the largest weight of a
row. Without a file weights are generated, with the long tails of trained ones.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from globular import fit_many

Weights = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Result:
    """What palettes keep of the weights."""

    palettes: list[Weights]
    """For every matrix (n_rows, n_values), ascending."""
    codes: list[NDArray[np.uint8]]
    """For every matrix, one number for each weight."""
    decibels: float
    """Signal-to-noise ratio of all weights."""
    decibels_of_even_steps: float
    seconds: float


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description="palettes for the rows of weight matrices")
    parser.add_argument("weights", nargs="?", type=Path, help="a .safetensors file; by default weights are generated")
    parser.add_argument("-k", "--values", type=int, default=16, help="values of a palette, at most 256")
    parser.add_argument("-o", "--output", help="a picture of one row and its palette (.png; needs matplotlib)")
    parser.add_argument("--small", action="store_true", help="a second or two")
    options = parser.parse_args(arguments)
    layers = matrices(options.weights) if options.weights else generated(64 if options.small else 1024)
    result = find_palettes(layers, options.values)
    n_rows = sum(map(len, layers))
    print(
        f"{len(layers)} matrices, {n_rows:,} rows, {sum(layer.size for layer in layers):,} weights: palettes of "
        f"{options.values} in {result.seconds:.1f} s\n{result.decibels:.2f} dB; "
        f"even steps {result.decibels_of_even_steps:.2f} dB"
    )
    if options.output:
        draw(layers[0][0], result.palettes[0][0], options.output)
    return result


def matrices(path: Path) -> list[Weights]:
    """The matrices of a file whose rows are long enough for a palette."""
    found = [value.astype(np.float32) for value in load_file(path).values() if value.ndim == 2]
    return [value for value in found if value.shape[1] >= 64]


def generated(width: int) -> list[Weights]:
    """Two matrices of a feed-forward layer."""
    random = np.random.default_rng(0)
    shapes = (2 * width, width), (width, 2 * width)
    scales = [random.lognormal(-3.0, 0.5, size=(n, 1)) for n, _ in shapes]
    return [
        (scale * random.standard_t(5, size=shape)).astype(np.float32)
        for scale, shape in zip(scales, shapes, strict=True)
    ]


def find_palettes(layers: list[Weights], n_values: int) -> Result:
    """The best palette of every row, and how close the weights come."""
    begun = time.perf_counter()
    found = [fit_many(layer[:, :, None], n_values) for layer in layers]
    seconds = time.perf_counter() - begun
    noise = float(sum(np.sum(each.inertia) for each in found))
    even = float(sum(np.square(layer - even_steps(layer, n_values)).sum(dtype=np.float64) for layer in layers))
    signal = float(sum(np.square(layer).sum(dtype=np.float64) for layer in layers))
    return Result(
        [np.asarray(each.cluster_centers)[:, :, 0] for each in found],
        [np.asarray(each.labels).astype(np.uint8) for each in found],
        10 * np.log10(signal / noise),
        10 * np.log10(signal / even),
        seconds,
    )


def even_steps(layer: Weights, n_values: int) -> Weights:
    """Weights rounded to values at even distances between the least and the largest one of their row."""
    low, high = layer.min(axis=1, keepdims=True), layer.max(axis=1, keepdims=True)
    step = (high - low) / (n_values - 1)
    return low + step * np.rint((layer - low) / step)


def draw(row: Weights, palette: Weights, path: str) -> None:
    """A row's weights, its palette, and even steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.hist(row, bins=120, color="0.75")
    top = axes.get_ylim()[1]
    for values, place, color, name in (
        (palette, 1.06, "#1565c0", "palette"),
        (np.linspace(row.min(), row.max(), len(palette)), 1.16, "#c62828", "even steps"),
    ):
        axes.plot(values, np.full(len(values), place * top), "|", color=color, markersize=14, label=name)
    axes.set(xlabel="weight", ylabel="weights of a row", ylim=(0, 1.25 * top))
    axes.legend(loc="center left", frameon=False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
