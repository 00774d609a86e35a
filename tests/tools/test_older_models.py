"""Models that older versions saved load, and say what they said; `tests/models/make.py` writes those of a version."""

from pathlib import Path

import numpy as np
import pytest

import globular
from globular.persistence import read_info
from models.make import FOLDER, MODELS, rows

SAVED = sorted(path.parent for path in FOLDER.glob("*/*/labels.npy"))


def test_every_estimator_is_there() -> None:
    classes = {type(model).__name__ for model in MODELS.values()}
    assert classes == {name for name in globular.__all__ if name.endswith(("KMeans", "Mixture"))}
    newest = max(path.parent for path in SAVED)
    assert {path.name for path in SAVED if path.parent == newest} == set(MODELS)


@pytest.mark.parametrize("folder", SAVED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_older_models_say_what_they_said(folder: Path, tmp_path: Path) -> None:
    model = globular.load(folder)
    labels = np.load(folder / "labels.npy")
    np.testing.assert_array_equal(model.predict(rows()), labels)
    assert read_info(folder).class_name == type(model).__name__
    globular.save(model, tmp_path / "again")
    again = globular.load(tmp_path / "again")
    np.testing.assert_array_equal(again.predict(rows()), labels)
