"""Kept results of the papers: what is complete follows from their records, and one number of each still comes out."""

from dataclasses import replace

import pytest

from experiments import overview, records
from globular.errors import DataError

SECTIONS = {section.key: section for section in records.SECTIONS}


@pytest.mark.parametrize("key", SECTIONS)
def test_a_kept_number_comes_out_or_is_marked_as_stale(key: str) -> None:
    section = SECTIONS[key]
    if records.read_record(section).stale:
        return
    try:
        assert not section.differs()
    except DataError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("key", SECTIONS)
def test_records_say_what_the_results_say(key: str) -> None:
    found = records.read_record(SECTIONS[key])
    assert found == SECTIONS[key].record(found.stale)
    assert found.algorithm and found.commits and found.machines


def test_complete_follows_from_runs_parts_and_marks() -> None:
    whole = records.Record({"a": 5, "b": 7}, {"a": 5, "b": 5}, (), "KMeans()", (), (), "a / 0")
    assert whole.complete and not whole.lacks
    for changes, why in (
        ({"runs": {"a": 5, "b": 4}}, "4 of 5 runs"), ({"missing": ("sofia",)}, "sofia"),
        ({"stale": "a was 1 and is 2 now"}, "stale numbers"), ({"runs": {}}, ""),
    ):  # fmt: skip
        assert not (changed := replace(whole, **changes)).complete and why == changed.lacks
    assert replace(whole, paper_runs=records.UNKNOWN, runs={"a": 1}).complete


def test_a_stale_mark_takes_an_item_off_the_complete_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    (item,) = (one for one in overview.ITEMS if (one.paper, one.name) == ("forster2018", "Fig. 2"))
    assert overview.complete(item)
    (record,) = overview.own_records(item)
    monkeypatch.setattr(overview, "read_record", lambda section: replace(record, stale="older"))
    assert not overview.complete(item) and "stale numbers" in overview.page()


def test_marks_come_and_go(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "HERE", tmp_path)
    (tmp_path / "a" / "report").mkdir(parents=True)
    records.write_results(
        tmp_path / "a" / "report" / "b.json",
        {"x": [2.0], "when": "2026-01-01, cpu, os, 1 threads, globular at commit 0123456"},
    )
    section = records.Section(
        "a", "b", "b", "KMeans()", lambda kept: {"x": len(kept["x"])}, lambda _: 1, ("x", 0), lambda: 3.0
    )
    records.write_records([section], again=True)
    assert records.read_record(section).stale == "x / 0 was 2 and is 3 now"
    records.write_records([section], again=False)
    assert records.read_record(section).stale and records.read_record(section).commits == ("0123456",)
    records.write_records([replace(section, again=lambda: 2.0)], again=True)
    assert records.read_record(section).complete
