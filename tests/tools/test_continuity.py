"""Every k alike: steps and bumps are found, and nothing else is taken for one."""

import json
from itertools import pairwise

import numpy as np
import pytest

from benchmarks import continuity
from benchmarks.continuity import Point, jumps, largest, numbers_of_clusters, turns

K = numbers_of_clusters()


def _points(seconds, errors) -> list[Point]:
    return [Point("set", *figures) for figures in zip(K, seconds, errors, strict=True)]


def _jumps(seconds, errors) -> list[str]:
    return jumps(_points(seconds, errors), K)


def _smooth() -> tuple[np.ndarray, np.ndarray]:
    """Seconds that begin flat and end linear in k; errors that fall faster and faster."""
    k = np.array(K)
    return 0.1 + 0.002 * k, 1.0 / np.sqrt(1.0 + k / 300.0)


def test_numbers_of_clusters():
    assert K[0] == 2 and K[-1] == 2_000 and 22 <= len(K) <= 24
    assert max(b / a for a, b in pairwise(K)) <= 1.5


def test_a_smooth_curve_has_no_jumps():
    assert _jumps(*_smooth()) == []


def test_noise_of_a_tenth_is_no_jump_in_time():
    seconds, errors = _smooth()
    for seed in range(20):
        noise = np.random.default_rng(seed).uniform(0.95, 1.05, size=len(K))
        assert _jumps(seconds * noise, errors) == []


STEP = K[16]


@pytest.mark.parametrize("factor", [1.7, 1 / 1.7])
def test_a_step_in_time_is_found_where_it_is(factor):
    seconds, errors = _smooth()
    found = _jumps(np.where(np.array(K) >= STEP, factor, 1.0) * seconds, errors)
    assert any(f"set, from k = {K[15]} to {STEP}: seconds" in line for line in found)


def test_a_step_and_a_bump_of_two_percent_in_the_error_are_found():
    seconds, errors = _smooth()
    found = _jumps(seconds, np.where(np.array(K) >= STEP, 1.02, 1.0) * errors)
    assert any(f"from k = {K[15]} to {STEP}: error × 1.02" in line for line in found)
    index = 10
    errors[index] *= 1.02
    assert any(f"at k = {K[index]}: error × 1.02" in line for line in _jumps(seconds, errors))


def test_neighbors_are_compared_beside_the_grid():
    points = sorted(
        [*_points(*_smooth()), Point("set", 64, 1.0, 1.0), Point("set", 65, 1.6, 1.02)], key=lambda p: p.n_clusters
    )
    found = jumps(points, K)
    assert "set, from k = 64 to 65: seconds × 1.600" in found and "set, from k = 64 to 65: error × 1.020" in found
    assert any("seconds: × 1.600 from k = 64 to 65" in line for line in largest(points))


def test_turns_are_where_another_path_begins():
    found = turns(100_000, 2)
    assert {64, 499, 1000} <= set(found)  # greedy seeds and the compiled search end, probing begins, looks are narrower
    assert 50_000 // 192 in turns(50_000, 2)  # parts of 64 rows a cluster would be more than a third of all
    assert turns(100, 2, last=50) == [32]


def test_a_lower_error_is_no_jump_upward():
    seconds, errors = _smooth()
    errors[-1] *= 0.5
    assert not any(f"at k = {K[-1]}" in line or f"to {K[-1]}" in line for line in _jumps(seconds, errors))


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
