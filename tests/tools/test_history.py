"""The history of a fit: a sequence that gives columns, tables and JSON without losing a value."""

import copy
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import globular
from globular.model.history import STAGES, History, Record

finite = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**62)
records = st.builds(
    Record, iteration=st.integers(0, 10**6), seconds=finite, objective=finite, n_distances=counts,
    n_changed=st.none() | counts, quantization_error=st.none() | finite, stage=st.sampled_from(STAGES),
    compile_seconds=finite,
)  # fmt: skip


def falling(n: int) -> History:
    return History(Record(i, 0.5 * i, 100.0 / i, 10 * i, n_changed=n - i) for i in range(1, n + 1))


@given(st.lists(records, max_size=5))
def test_json_rows_give_the_same_history_back(rows: list[Record]) -> None:
    history = History(rows)
    through_text = json.loads(json.dumps(history.to_json_rows()))
    assert History.from_json_rows(through_text) == history


def test_json_rows_hold_plain_values_only() -> None:
    record = Record(np.int64(1), np.float64(0.5), np.float32(2.0), np.int64(7), np.int32(3))
    (row,) = History([record]).to_json_rows()
    assert {type(value) for value in row.values()} == {int, float, str, type(None)}


def test_it_is_a_sequence() -> None:
    history = falling(4)
    assert len(history) == 4
    assert history[-1].iteration == 4
    assert isinstance(history[1:3], History) and [r.iteration for r in history[1:3]] == [2, 3]
    assert history[0] in history
    with pytest.raises(IndexError):
        history[4]


def test_columns_have_the_type_of_their_values() -> None:
    history = falling(3)
    np.testing.assert_array_equal(history.column("n_distances"), [10, 20, 30])
    assert history.column("n_distances").dtype == np.int64
    assert history.column("objective").dtype == np.float64
    assert history[:0].column("n_changed").shape == (0,)
    assert history.column("stage").tolist() == ["iterations"] * 3


def test_an_unknown_value_is_nan_in_its_column() -> None:
    history = History([Record(1, 0.1, 3.0, 5), Record(2, 0.2, 2.0, 9, n_changed=4)])
    np.testing.assert_array_equal(history.column("n_changed"), [np.nan, 4.0])


def test_stages_are_told_apart() -> None:
    history = History(
        [
            Record(0, 0.5, 9.0, 1, stage="seeds"),
            Record(0, 0.75, 8.0, 1, stage="part"),
            Record(0, 1.0, 7.0, 1, stage="part"),
            Record(1, 3.0, 6.0, 1, stage="swaps"),
            Record(2, 4.0, 5.0, 1),
        ]
    )
    assert [record.iteration for record in history.iterations] == [1, 2]
    assert history.stage_seconds == {"seeds": 0.5, "part": 0.5, "swaps": 2.0, "iterations": 1.0}
    assert History().stage_seconds == {} and len(History().iterations) == 0


def test_a_history_that_was_saved_without_stages_has_iterations() -> None:
    row = {"iteration": 1, "seconds": 0.5, "objective": 2.0, "n_distances": 3}
    assert History.from_json_rows([row])[0].stage == "iterations"
    for stage in (3, None, ["seeds"], "", "Seeds", "<b>"):
        with pytest.raises(ValueError, match="stage must be one of seeds, k-means, part, swaps, iterations; got"):
            History.from_json_rows([{**row, "stage": stage}])  # type: ignore[dict-item]


def test_stages_are_named_in_one_place() -> None:
    """What steps and records say of their stage is one of STAGES, so that every history can be read again."""
    assert Record(1, 0.1, 2.0, 3).stage in STAGES
    for path in Path(globular.__file__).parent.rglob("*.py"):
        assert not re.search(r"\bstage\s*(=|==|!=)\s*[\"']\w", path.read_text(encoding="utf-8")), path


def test_a_wrong_column_name_lists_the_right_ones() -> None:
    with pytest.raises(ValueError, match=r"objective.*got 'inertia'"):
        falling(1).column("inertia")


def test_only_records_can_be_appended() -> None:
    with pytest.raises(TypeError, match="record must be"):
        History().append((1, 2.0))  # type: ignore[arg-type]


def test_to_pandas_has_one_row_per_iteration() -> None:
    frame = falling(3).to_pandas()
    assert frame["iteration"].tolist() == [1, 2, 3]
    assert set(frame.columns) == {
        "iteration", "seconds", "objective", "n_distances", "n_changed", "quantization_error", "stage",
        "compile_seconds",
    }  # fmt: skip


def test_repr_shows_both_ends_of_a_long_history_and_the_length() -> None:
    text = repr(falling(50))
    assert "50 records" in text and "…" in text
    shown = [int(found) for found in re.findall(r"^iterations *(\d+) ", text, flags=re.M)]
    assert shown == [1, 2, 3, 48, 49, 50]
    assert "…" not in repr(falling(7))
    assert "no records" in repr(History())


def test_a_copy_and_a_pickle_are_equal_and_independent() -> None:
    history = falling(3)
    for other in (copy.deepcopy(history), pickle.loads(pickle.dumps(history))):
        assert other == history
        other.append(history[0])
        assert other != history
