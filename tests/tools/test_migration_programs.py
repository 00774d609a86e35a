"""The programs of migration: at most two lines are changed, and they do as well as before."""

import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from globular.datasets import many_blobs

FOLDER = Path(__file__).parents[2] / "recipes" / "migration"
PAGE = (FOLDER.parents[1] / "docs" / "migration.md").read_text(encoding="utf-8")
NAMES = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))
DATA = many_blobs(3000, 40, 12, random_state=0)
ROWS = np.ascontiguousarray(DATA.X, dtype=np.float32)
FRAMES = np.random.default_rng(0).normal(size=(3000, 12)).cumsum(axis=1).astype(np.float32)
WORDS = ("sea", "wood", "iron", "bread", "snow")


class Topics:
    """As BERTopic treats its clusterer: fit with y, ask for `labels_`, and predict what comes later."""

    def __init__(self, hdbscan_model: Any) -> None:
        self.hdbscan_model = hdbscan_model

    def fit_transform(self, documents: list[str], embeddings: Any, y: Any = None) -> tuple[list[int], Any]:
        assert len(documents) == len(embeddings)
        try:
            self.hdbscan_model.fit(embeddings, y=y)
        except TypeError:
            self.hdbscan_model.fit(embeddings)
        # topics are numbered by their size, and −1 stays
        order = [label for label, _ in Counter(self.hdbscan_model.labels_.tolist()).most_common() if label >= 0]
        self.numbers = {-1: -1, **{label: number for number, label in enumerate(order)}}
        return [self.numbers[label] for label in self.hdbscan_model.labels_.tolist()], None

    def transform(self, documents: list[str], embeddings: Any) -> tuple[list[int], Any]:
        return [self.numbers[label] for label in np.asarray(self.hdbscan_model.predict(embeddings)).tolist()], None


def arguments(name: str, folder: Path) -> tuple[Any, ...]:
    """What the program is called with, small."""
    rng = np.random.default_rng(0)
    words = rng.integers(5, size=300)
    return {
        "hubert_units": (FRAMES, folder / "km.joblib", 50),
        "rvc_index": (FRAMES, 60),
        "palette": (rng.integers(0, 256, size=(5, 5, 3)).repeat(8, 0).repeat(8, 1).astype(np.uint8), 8),
        "gmm_ubm": (ROWS, ROWS[:200] + 0.5, 12),
        "faiss_distances": (ROWS, 40),
        "bertopic_clusters": ([WORDS[i] for i in words], np.eye(5)[words] + 0.01 * rng.normal(size=(300, 5)), 5),
    }[name]


def run(source: str, name: str, folder: Path) -> tuple[float, Any]:
    """The program's two results, the first of which is better if it is lower."""
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(source, f"{name}.py", "exec"), namespace)
    return namespace["main"](*arguments(name, folder))


def before(source: str) -> str:
    """The program as it was."""
    return "\n".join(line.split("# was: ")[1] if "# was: " in line else line for line in source.split("\n"))


def test_there_are_six_and_the_page_has_them() -> None:
    assert len(NAMES) == 6
    for name in NAMES:
        assert f"recipes/migration/{name}.py" in PAGE


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_one_or_two_lines_change_and_the_result_is_as_good(name, tmp_path, monkeypatch):
    stand_in = ModuleType("bertopic")
    stand_in.BERTopic = Topics  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bertopic", stand_in)
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert 1 <= source.count("# was: ") <= 2 and "globular" not in before(source)
    if "faiss" in before(source):
        pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    theirs, _ = run(before(source), name, tmp_path)
    ours, found = run(source, name, tmp_path)
    assert ours <= theirs + 0.02 * abs(theirs)
    if name == "bertopic_clusters":
        words = [WORDS.index(document) for document in arguments(name, tmp_path)[0]]
        assert len(set(zip(words, found.tolist(), strict=True))) == 5  # a topic for every word


def test_rows_far_from_every_topic_are_outliers() -> None:
    from globular import KMeans

    class WithOutliers(KMeans):
        def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
            super().fit(X, y, sample_weight)
            self.limit_ = np.quantile(super().predict(X, return_distance=True)[1], 0.95)
            self.labels_ = self.predict(X)
            return self

        def predict(self, X: Any) -> Any:  # type: ignore[override]
            return super().predict(X, max_distance=self.limit_)

    model = Topics(WithOutliers(5, random_state=0))
    topics, _ = model.fit_transform(["document"] * 3000, ROWS)
    assert 0.04 < np.mean(np.array(topics) == -1) < 0.06
    assert model.transform(["document"] * 3000, ROWS)[0] == topics
