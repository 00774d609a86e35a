"""Every k alike: steps and bumps are found, and nothing else is taken for one."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from benchmarks import continuity
from benchmarks.continuity import Point, jumps, numbers_of_clusters

K = numbers_of_clusters()


def _points(seconds, errors) -> list[Point]:
    return [Point("set", *figures) for figures in zip(K, seconds, errors, strict=True)]


def _smooth() -> tuple[np.ndarray, np.ndarray]:
    """Seconds that begin flat and end linear in k; errors that fall faster and faster."""
    k = np.array(K)
    return 0.1 + 0.002 * k, 1.0 / np.sqrt(1.0 + k / 300.0)


def test_numbers_of_clusters():
    assert K[0] == 2 and K[-1] == 2_000 and {490, 499, 500, 501, 510} <= set(K) and 24 <= len(K) <= 29
    assert max(b / a for a, b in pairwise(K)) <= 1.5


def test_a_smooth_curve_has_no_jumps():
    assert jumps(_points(*_smooth())) == []


def test_noise_of_a_tenth_is_no_jump_in_time():
    seconds, errors = _smooth()
    for seed in range(20):
        noise = np.random.default_rng(seed).uniform(0.95, 1.05, size=len(K))
        assert jumps(_points(seconds * noise, errors)) == []


@pytest.mark.parametrize("factor", [1.7, 1 / 1.7])
def test_a_step_in_time_is_found_where_it_is(factor):
    seconds, errors = _smooth()
    found = jumps(_points(np.where(np.array(K) >= 500, factor, 1.0) * seconds, errors))
    assert f"set, from k = 499 to 500: seconds × {factor:.3f}" in "\n".join(found)


def test_a_step_and_a_bump_of_two_percent_in_the_error_are_found():
    seconds, errors = _smooth()
    found = jumps(_points(seconds, np.where(np.array(K) >= 500, 1.02, 1.0) * errors))
    assert any("from k = 499 to 500: error × 1.02" in line for line in found)
    index = 10
    errors[index] *= 1.02
    assert any(f"at k = {K[index]}: error × 1.02" in line for line in jumps(_points(seconds, errors)))


def test_a_lower_error_is_no_jump_upward():
    seconds, errors = _smooth()
    errors[-1] *= 0.5
    assert not any(f"at k = {K[-1]}" in line or f"to {K[-1]}" in line for line in jumps(_points(seconds, errors)))


def test_a_small_measurement_writes_figures_and_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GLOBULAR_DATA", str(tmp_path))
    figures, picture = tmp_path / "new" / "figures.json", tmp_path / "picture.png"
    command = ["--sets", "covtype", "groups-separate", "--max-rows", "300", "--k", "5", "3", "9", "--rounds", "1"]
    continuity.main([*command, "--output", str(figures), "--picture", str(picture)])
    assert "covtype/covtype.npz not found" in capsys.readouterr().out
    points = json.loads(figures.read_text())["points"]
    assert [point["n_clusters"] for point in points] == [3, 5, 9]
    assert points[0]["error"] > points[1]["error"] > points[2]["error"] > 0.0
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="none"):
        continuity.main(["--sets", "covtype"])
