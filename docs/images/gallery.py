"""Draw the pictures of the gallery and write its page: eight short programs on real data.

    python docs/images/gallery.py [--data FOLDER]     # a minute; the data are in ../shared/data, where sources are told

Each function is what the page shows, to the letter; `read` finds a set by its name, as arrays.
"""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from scipy import sparse
from sklearn.datasets import load_sample_image

import globular
from globular.plotting import plot_clusters, plot_graph, plot_mixture

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "gallery.md"
COLOURS, MOST_BYTES = 200, 150_000
data = HERE.parents[1].parent / "shared" / "data"


def read(name: str) -> Any:
    """The arrays of a set, or a sparse matrix."""
    path = next(data.glob(f"*/{name}.npz"))
    arrays = np.load(path, allow_pickle=False)
    return sparse.load_npz(path) if "indptr" in arrays else arrays


def places() -> None:
    """Depots for the world: 234,908 places, weighted by their inhabitants, in 300 clusters on the sphere."""
    cities = read("geonames500")
    model = globular.KMeans(300, metric="cosine", random_state=0).fit(cities["xyz"], sample_weight=cities["population"])
    x, y, z = model.cluster_centers_.T
    centers = np.degrees(np.column_stack([np.arctan2(y, x), np.arctan2(z, np.hypot(x, y))]))
    ax = plot_clusters(cities["X"], model.labels_, centers, plt.figure(figsize=(9, 4.4)).gca())
    ax.set(title="Places of the world, weighted by their inhabitants: 300 depots")
    ax.set(xlabel="longitude", ylabel="latitude")


def pickups() -> None:
    """A city by its pick-ups: where 100,000 of them in New York are close together, clusters are small."""
    taxi = read("uber_nyc")
    model = globular.KMeans(400, random_state=0).fit(taxi["X"], sample_weight=taxi["w"])
    ax = plot_clusters(taxi["X"], model.labels_, model.cluster_centers_, plt.figure(figsize=(7, 6)).gca())
    ax.set(xlim=(-74.05, -73.85), ylim=(40.65, 40.82), title="Pick-ups in New York, 400 clusters: a part of them")


def neighbours() -> None:
    """The cluster graph: which of 1,500 clusters of Europe's places lie side by side, as a variational fit knows it."""
    places = read("geonames500")["X"]
    europe = places[(np.abs(places - [12, 50]) < [25, 15]).all(axis=1)]
    model = globular.VariationalKMeans(1500, n_neighbors=6, random_state=0).fit(europe)
    ax = plot_graph(model, plt.figure(figsize=(7, 5.6)).gca())
    ax.set(title=f"{len(europe):,} places of Europe: 1,500 clusters and their neighbours")
    ax.set(xlabel="longitude", ylabel="latitude")


def digits() -> None:
    """Handwritten digits: the 100 centres of 70,000 images, most common first."""
    X = read("mnist")["X"]
    model = globular.KMeans(100, random_state=0).fit(X)
    order = np.argsort(-model.cluster_sizes_)
    tiles = model.cluster_centers_[order].reshape(5, 20, 28, 28)
    ax = plt.figure(figsize=(10, 2.8)).gca()
    ax.imshow(255 - tiles.transpose(0, 2, 1, 3).reshape(5 * 28, 20 * 28), cmap="gray")
    ax.set(title="MNIST: 100 centres of 70,000 digits", xticks=[], yticks=[])


def palette() -> None:
    """The colours of a photograph: 273,280 pixels and the 5 and 40 colours that stand for them."""
    photo = load_sample_image("china.jpg")
    panels = plt.figure(figsize=(10, 2.7), layout="constrained").subplots(1, 3)
    for ax, n in zip(panels, (5, 40, None), strict=True):
        model = globular.KMeans(n, random_state=0).fit(photo.reshape(-1, 3)) if n else None
        drawn = photo if model is None else model.cluster_centers_[model.labels_].reshape(photo.shape).astype(np.uint8)
        ax.imshow(drawn[::2, ::2])
        ax.set(title=f"{n} colours" if n else "all colours", xticks=[], yticks=[])


def stars() -> None:
    """Stars by colour and brightness: a mixture of 12 Gaussians finds the main sequence, the giants and the dwarfs."""
    parallax, magnitude, color = read("hipparcos")["X"][:, [2, 5, 6]].T
    near = (parallax > 3) & (color != 0)  # in milliarcseconds: within a thousand light years; 0 is an unknown colour
    absolute = magnitude[near] + 5 * np.log10(parallax[near] / 100)
    X = np.column_stack([color[near], absolute])
    model = globular.GaussianMixture(12, random_state=0).fit(X)
    ax = plot_mixture(model, X, plt.figure(figsize=(6.5, 5.6)).gca())
    ax.set(xlim=(-0.4, 2.2), ylim=(13, -5), aspect="auto", title=f"Hipparcos: {len(X):,} stars, 12 components")
    ax.set(xlabel="colour B − V", ylabel="absolute magnitude")


def cells() -> None:
    """Kinds of cells: an infinite mixture finds how many there are, here by two markers."""
    blood = read("flowsom_ff")
    X = blood["X"][:, [list(blood["columns"]).index(name) for name in ("PE-Cy5-A", "Pacific Blue-A")]]
    model = globular.InfiniteGaussianMixture(random_state=0).fit(X)
    ax = plot_mixture(model, X, plt.figure(figsize=(6.5, 5.2)).gca())
    ax.set(xlabel="PE-Cy5", ylabel="Pacific Blue", title=f"19,225 cells: {len(model.means_)} components found")


def topics() -> None:
    """Topics of text: 18,846 messages as sparse rows of 34,742 words, and how well the clusters match 20 newsgroups."""
    X, arrays = read("newsgroups20_tfidf"), read("labels")
    model = globular.KMeans(40, metric="cosine", random_state=0).fit(X)
    table = np.zeros((20, 40))
    np.add.at(table, (arrays["y"], model.labels_), 1)
    order = np.argsort(table.argmax(axis=0), kind="stable")
    ax = plt.figure(figsize=(8.5, 4.6), layout="constrained").gca()
    ax.imshow((table / table.sum(axis=0))[:, order], cmap="Blues", aspect="auto")
    ax.set_yticks(range(20), arrays["names"])
    ax.set(title="20 newsgroups in 40 clusters: share of the messages", xlabel="cluster")


PROGRAMS: tuple[Callable[[], None], ...] = (places, pickups, neighbours, digits, palette, stars, cells, topics)


def page() -> str:
    """The gallery as Markdown: every picture with the program that drew it."""
    parts = [
        "# Gallery\n\nEight pictures of real data, each with the program that drew it (`docs/images/gallery.py`). All "
        "programs begin with\n\n"
        "```py\nimport globular\nimport matplotlib.pyplot as plt\nimport numpy as np\n"
        "from globular.plotting import plot_clusters, plot_graph, plot_mixture\n"
        "from sklearn.datasets import load_sample_image\n```\n\n"
        "`read(name)` loads a data set, as arrays or as a sparse matrix.\n"
    ]
    for program in PROGRAMS:
        words = inspect.getdoc(program) or ""
        title, _, rest = words.partition(": ")
        source = inspect.getsource(program)
        body = textwrap.dedent(source[source.index('"""', source.index('"""') + 3) + 4 :]).rstrip()
        parts.append(
            f"## {title}\n\n{rest[:1].upper()}{rest[1:]}\n\n![{title}](images/gallery/{program.__name__}.png)\n\n"
            f"```py\n{body}\n```\n"
        )
    return "\n".join(parts)


def save(program: Callable[[], None]) -> Path:
    """Run a program and keep its picture, in few colours."""
    plt.close("all")
    program()
    drawn = BytesIO()
    plt.gcf().savefig(drawn, dpi=100, bbox_inches="tight")
    target = HERE / "gallery" / f"{program.__name__}.png"
    target.parent.mkdir(exist_ok=True)
    with Image.open(drawn) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)
    assert target.stat().st_size < MOST_BYTES, f"{target} has {target.stat().st_size:,} bytes"
    return target


def main() -> None:
    global data
    parser = argparse.ArgumentParser(description="draw the pictures of the gallery")
    parser.add_argument("--data", type=Path, default=data)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    data = options.data
    for program in PROGRAMS:
        if not options.names or program.__name__ in options.names:
            print(save(program))
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
