"""What streaming and map-and-add rest on: files read ahead, ranges of rows, sums in a fixed tree."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from globular.data.open import as_source
from globular.data.sources import ChosenRows, RowRange
from globular.errors import DataError
from globular.model.nested import Batch, NestedSearch
from globular.passes.many import StreamShard, TreeSum
from globular.seam.passes import Assign, AssignBatch, ScatterLabels
from makers import blobs
from split import tree_total


def test_files_are_read_by_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is in memory when it is handed out, so that disk and work overlap."""
    rows = blobs(n=300)
    np.save(tmp_path / "rows.npy", rows)
    source = as_source(tmp_path / "rows.npy")
    read, readers = source.blocks, []

    def noted(max_rows: int) -> Iterator[Any]:
        for block in read(max_rows):
            readers.append(threading.get_ident())
            yield block

    monkeypatch.setattr(source, "blocks", noted)
    parts = list(StreamShard(source, rows_per_part=70).parts())
    np.testing.assert_array_equal(np.concatenate([part.rows.array for part in parts]), rows)
    assert len(readers) == 5 and threading.get_ident() not in readers


def test_changes_in_a_mapping_that_can_be_written_stay(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", blobs(n=300))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="c")
    mapped[5] = 7.0  # in memory only
    shard = StreamShard(as_source(mapped), rows_per_part=70)
    for _ in range(2):
        assert (next(iter(list(shard.parts()))).rows.array[5] == 7.0).all()


def test_a_range_of_rows_is_a_source(tmp_path: Path) -> None:
    rows = blobs(n=100)
    np.save(tmp_path / "rows.npy", rows)
    part = RowRange(as_source(tmp_path / "rows.npy"), 20, 75)
    np.testing.assert_array_equal(part.whole(), rows[20:75])
    np.testing.assert_array_equal(part.take(np.array([54, 0, 3])), rows[[74, 20, 23]])
    blocks = list(part.blocks(20, 10))
    assert [(block.start, block.stop) for block in blocks] == [(10, 30), (30, 50), (50, 55)]
    np.testing.assert_array_equal(np.concatenate([block.rows for block in blocks]), rows[30:75])
    with pytest.raises(IndexError):
        part.take(np.array([55]))


def test_a_value_that_is_not_finite_is_named_by_its_row_in_the_file(tmp_path: Path) -> None:
    rows = blobs(n=100)
    rows[71, 1] = np.nan
    np.save(tmp_path / "rows.npy", rows)
    part = RowRange(as_source(tmp_path / "rows.npy"), 50, 100)
    for source in (part, ChosenRows(part, np.array([3, 20, 21, 40]))):
        with pytest.raises(DataError, match="in row 71;"):
            StreamShard(source, rows_per_part=2).run(Assign(rows[:2]))
        search, batch = NestedSearch(None, restart=True), Batch(0, source.n_rows, source.n_rows)
        with pytest.raises(DataError, match="in row 71;"):  # also where batches read their rows by number
            StreamShard(source, rows_per_part=2).run(AssignBatch(rows[:2], np.zeros(rows.shape[1]), batch, search))


def test_random_choices_do_not_depend_on_the_first_row_of_a_stream() -> None:
    rows = blobs(n=300)
    whole = StreamShard(as_source(rows), rows_per_part=64)
    tail = StreamShard(as_source(rows[100:]), rows_per_part=64, first_row=100)
    for shard in (whole, tail):
        shard.run(ScatterLabels(11, 3))
    np.testing.assert_array_equal(tail.labels, whole.labels[100:])


@given(st.integers(1, 40), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_change_the_tree(n_parts: int, random: Any) -> None:
    """Merging writes down its own order, so that a different tree would show."""
    leaves = [str(number) for number in range(n_parts)]

    def merge(one: str, other: str) -> str:
        return f"({one} {other})"

    expected = tree_total(n_parts, merge, leaves)
    tree = TreeSum[str](n_parts, merge)
    shuffled = list(enumerate(leaves))
    random.shuffle(shuffled)
    for number, leaf in shuffled:
        tree.insert(0, number, leaf)
    assert list(tree.nodes.values()) == [expected]
    assert [int(word) for word in expected.replace("(", "").replace(")", "").split()] == list(range(n_parts))
