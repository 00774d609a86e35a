"""Where to put k depots: places of the world, weighted by their inhabitants, clustered on the sphere.

    python -m recipes.city_map [-k 200] [-o map.png] [--small]

Degrees are no distances: near the poles a degree of longitude is short, and 179° east is next to 179° west. So the rows
are points on the unit sphere, and the centres are projected back to it. Uses the geonames500 set in the folder
GLOBULAR_DATA where there is one, and generated places otherwise.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from globular import KMeans

Floats = NDArray[np.float64]
EARTH_RADIUS_KM = 6371.0


@dataclass(frozen=True, slots=True)
class Depots:
    """Where they are, whom they serve, and how far people have to go."""

    degrees: Floats
    """Longitude and latitude, (k, 2)."""
    people: Floats
    mean_km: float


def main(arguments: Sequence[str] | None = None) -> Depots:
    parser = argparse.ArgumentParser(description="weighted k-means on the sphere")
    parser.add_argument("-k", "--depots", type=int, default=200)
    parser.add_argument("-o", "--output", help="draw a map (.png; needs matplotlib)")
    parser.add_argument("--small", action="store_true", help="generated places only")
    options = parser.parse_args(arguments)
    degrees, people = generated() if options.small else places()
    depots = find_depots(degrees, people, options.depots)
    print(f"{len(degrees):,} places, {people.sum() / 1e6:,.0f} million people, {options.depots} depots")
    print(f"mean distance of a person to the depot: {depots.mean_km:,.0f} km")
    if options.output:
        draw(degrees, depots, options.output)
    return depots


def places() -> tuple[Floats, Floats]:
    """Longitude, latitude and inhabitants of real places, if they are to be had."""
    path = Path(os.environ.get("GLOBULAR_DATA", "")) / "geonames500" / "geonames500.npz"
    if not path.is_file():
        print("no geonames500 in GLOBULAR_DATA: places are generated")
        return generated()
    with np.load(path) as arrays:
        return arrays["X"].astype(np.float64), arrays["population"].astype(np.float64)


def generated(n: int = 5_000) -> tuple[Floats, Floats]:
    """Places around a few random capitals, with many villages and few cities."""
    random = np.random.default_rng(0)
    capitals = np.column_stack([random.uniform(-180, 180, 40), np.degrees(np.arcsin(random.uniform(-0.8, 0.8, 40)))])
    degrees = capitals[random.integers(40, size=n)] + random.normal(scale=6.0, size=(n, 2))
    degrees[:, 0] = (degrees[:, 0] + 180) % 360 - 180
    return np.clip(degrees, [-180, -85], [180, 85]), 500 * (random.pareto(1.1, size=n) + 1)


def on_sphere(degrees: Floats) -> Floats:
    """Unit vectors."""
    longitude, latitude = np.radians(degrees).T
    return np.column_stack(
        [np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)]
    )


def find_depots(degrees: Floats, people: Floats, k: int) -> Depots:
    """Spherical k-means: unit rows, unit centres."""
    X = on_sphere(degrees)
    model = KMeans(k, metric="cosine", random_state=0).fit(X, sample_weight=people)
    centers = model.cluster_centers_.astype(np.float64)
    cosines = np.clip(np.einsum("nd,nd->n", X, centers[model.labels_]), -1.0, 1.0)
    km = EARTH_RADIUS_KM * np.arccos(cosines)
    found = np.degrees(
        np.column_stack([np.arctan2(centers[:, 1], centers[:, 0]), np.arcsin(np.clip(centers[:, 2], -1, 1))])
    )
    return Depots(found, np.bincount(model.labels_, people, minlength=k), float(np.average(km, weights=people)))


def draw(degrees: Floats, depots: Depots, path: str) -> None:
    """Places as dots, depots as circles whose area is the number of people."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6), layout="constrained")
    ax = figure.subplots()
    ax.scatter(*degrees.T, s=0.3, color="#9aa3ad", alpha=0.5, linewidths=0, rasterized=True)
    area = 3000 * depots.people / depots.people.sum() * len(depots.people) ** 0.25
    ax.scatter(*depots.degrees.T, s=area, color="#2563a8", alpha=0.75, edgecolors="white", linewidths=0.6)
    ax.set(xlim=(-180, 180), ylim=(-60, 80), aspect="equal", xlabel="longitude", ylabel="latitude")
    ax.set_title(f"{len(depots.people)} depots, {depots.mean_km:,.0f} km on average")
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
