"""The migration tables name keywords that exist, on both sides."""

import inspect
import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import sklearn.cluster
import sklearn.mixture

import globular

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")
KEYWORD = re.compile(r"`(\w+)=`")
SECTIONS = {
    "sklearn.cluster.KMeans": (sklearn.cluster.KMeans, globular.KMeans),
    "sklearn.cluster.MiniBatchKMeans": (sklearn.cluster.MiniBatchKMeans, globular.NestedMiniBatchKMeans),
    "sklearn.mixture.GaussianMixture": (sklearn.mixture.GaussianMixture, globular.GaussianMixture),
    "sklearn.mixture.BayesianGaussianMixture": (
        sklearn.mixture.BayesianGaussianMixture,
        globular.InfiniteGaussianMixture,
    ),
    "faiss.Kmeans": (None, globular.KMeans),
    "cuml.KMeans": (None, globular.KMeans),
}


def section(title: str) -> str:
    """The text under a heading of the page."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of the first table of a section, without its head."""
    lines = section(title).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    table = list(takewhile(lambda line: line.startswith("|"), lines[first:]))
    return [re.split(r"(?<!\\)\|", line.strip("|"))[:3] for line in table[2:]]


@pytest.mark.parametrize("title", SECTIONS)
def test_every_keyword_exists(title: str) -> None:
    theirs, ours = SECTIONS[title]
    table = rows(title)
    assert len(table) >= 6
    for left, right, *note in table:
        known = inspect.signature(ours).parameters
        for name in KEYWORD.findall(right) + KEYWORD.findall("".join(note)):
            assert name in known, f"{ours.__name__} has no {name}"
        if theirs is not None:
            for name in KEYWORD.findall(left):
                assert name in inspect.signature(theirs).parameters, f"{theirs.__name__} has no {name}"


def test_no_keyword_of_the_peers_is_forgotten() -> None:
    for title in ("sklearn.cluster.KMeans", *(title for title in SECTIONS if title.startswith("sklearn.mixture"))):
        peer: Any = SECTIONS[title][0]
        named = set(KEYWORD.findall(section(title)))
        ours = set(inspect.signature(SECTIONS[title][1]).parameters)
        assert set(inspect.signature(peer).parameters) <= named | ours


def test_values_of_keywords_exist() -> None:
    for values, keyword in ((("exact", "lloyd", "probing"), "algorithm"), (("afk-mc2", "k-means||"), "init")):
        for value in values:
            globular.KMeans(2, **{keyword: value}, random_state=0).fit([[0.0], [1.0], [5.0], [6.0]])


def test_faiss_keywords_exist() -> None:
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    known = dir(faiss.ClusteringParameters())
    if "init_method" not in known:
        pytest.skip("the table has keywords of a newer faiss")
    for left, *_ in rows("faiss.Kmeans"):
        for name in KEYWORD.findall(left):
            assert name in known, name
