"""Models that older versions saved load, and say what they said; `tests/models/make.py` writes those of a version."""

from pathlib import Path

import numpy as np
import pytest

import globular
from globular.persistence import read_info, renewed
from models.make import FOLDER, MODELS, rows, rows_for

SAVED = sorted(path.parent for path in FOLDER.glob("*/*/labels.npy"))


def test_every_estimator_is_there() -> None:
    classes = {type(model).__name__ for model in MODELS.values()}
    assert classes == {name for name in globular.__all__ if name.endswith(("KMeans", "Mixture"))}
    newest = max(path.parent for path in SAVED)
    assert {path.name for path in SAVED if path.parent == newest} == set(MODELS)


@pytest.mark.parametrize("folder", SAVED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_older_models_say_what_they_said(folder: Path, tmp_path: Path) -> None:
    model, rows = globular.load(folder), rows_for(folder.name)
    labels = np.load(folder / "labels.npy")
    np.testing.assert_array_equal(model.predict(rows), labels)
    assert read_info(folder).class_name == type(model).__name__
    globular.save(model, tmp_path / "again")
    again = globular.load(tmp_path / "again")
    np.testing.assert_array_equal(again.predict(rows), labels)


@pytest.mark.parametrize(
    ("class_name", "was", "now"),
    [
        ("GaussianMixture", {"weights": "equal", "tol": 0.1}, {"weights_init": "equal", "tol": 0.1}),
        ("GaussianMixture", {"weights": "learned"}, {}),
        ("VariationalGaussianMixture", {"neighborhoods": "estimated"}, {"search": "neighbors"}),
        ("VariationalGaussianMixture", {"neighborhoods": "exhaustive"}, {"search": "exhaustive neighbors"}),
        ("VariationalGaussianMixture", {"neighborhoods": "anything else"}, {}),
        ("VariationalKMeans", {"patience": 3, "n_clusters": 5}, {"n_clusters": 5}),
        ("VariationalKMeans", {"neighborhoods": "estimated"}, {"neighborhoods": "estimated"}),
    ],
)
def test_parameters_that_are_gone_have_the_values_of_today(class_name, was, now):
    assert renewed(class_name, was) == now
    known = set(getattr(globular, class_name)(5).get_params())
    assert set(now) <= known and not (set(was) - set(now)) & known


def test_values_of_today_can_be_fitted() -> None:
    equal = globular.GaussianMixture(5, **renewed("GaussianMixture", {"weights": "equal"})).fit(rows())
    np.testing.assert_allclose(equal.weights_, 0.2, rtol=1e-6)
    for said in ("estimated", "exhaustive"):
        parameters = renewed("VariationalGaussianMixture", {"neighborhoods": said})
        assert globular.VariationalGaussianMixture(5, **parameters).fit(rows()).means_.shape[0] == 5
