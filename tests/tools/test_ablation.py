"""The ablation's switches: each name is there, changes something, and comes back."""

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ablation
from ablation_parts import PARTS, Part, switched_off
from globular import KMeans

NAMES = [(part, name) for part in PARTS for name in part.without]


def values_of(name: str) -> dict[str, Any]:
    """What a name stands for in every module of the library that has it, and in its class."""
    attribute = name.rpartition(".")[2]
    modules = {key: module for key, module in sys.modules.items() if key.startswith("globular.")}
    found = {key: vars(module)[attribute] for key, module in modules.items() if attribute in vars(module)}
    owners = [
        vars(vars(module)[kind])
        for module in modules.values()
        for kind in [name.split(".")[-2]]
        if kind in vars(module)
    ]
    return found | {f"class {k}": owner[attribute] for k, owner in enumerate(owners) if attribute in owner}


@pytest.mark.parametrize(("part", "name"), NAMES, ids=[f"{part.name}-{name}" for part, name in NAMES])
def test_a_switch_changes_a_name_and_brings_it_back(part: Part, name: str) -> None:
    with switched_off(part):
        pass  # imports what it needs
    before = values_of(name)
    with switched_off(part):
        assert values_of(name) != before
    after = values_of(name)
    assert after.keys() == before.keys() and all(after[key] is before[key] for key in before)


def test_fits_after_a_switch_are_those_before() -> None:
    X = np.random.default_rng(0).normal(size=(3000, 6)).astype(np.float32)
    first = KMeans(600, random_state=0).fit(X)
    for part in PARTS:
        if "KMeans" in part.estimators:
            with switched_off(part):
                KMeans(600, random_state=0).fit(X)
    again = KMeans(600, random_state=0).fit(X)
    np.testing.assert_array_equal(again.cluster_centers_, first.cluster_centers_)


def test_the_panel_is_as_wide_as_it_says() -> None:
    panel = ablation.PANEL
    assert len(panel) >= 16 and len({problem.name for problem in panel}) == len(panel)
    assert min(p.k for p in panel if p.k) == 2 and max(p.k for p in panel) == 20_000
    assert all(ablation.parts_of(problem) for problem in panel if problem.estimator == "KMeans")


def test_one_problem_from_fits_to_the_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    problem = ablation.PANEL[0]._replace(make=lambda: ablation.groups(300, 4, 3))
    parts = [part for part in PARTS if part.name in ("momentum", "several starts")]
    ablation.measure(problem, parts, 2, 1, np.inf)
    lines = list(csv.reader(capfd.readouterr().out.splitlines()))
    assert [line[1:3] for line in lines].count(["momentum", "0"]) == 1 and len(lines) == 4
    file = tmp_path / "ablation.csv"
    file.write_text("\n".join([",".join(ablation.COLUMNS), *(",".join([f'"{line[0]}"', *line[1:]]) for line in lines)]))
    found = ablation.ratios(file)
    assert found["momentum", problem.name].n == 2 and "| *momentum*" in ablation.table(found)
    ablation.draw(found, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_the_page_of_the_method_has_the_table_of_the_csv() -> None:
    page = (Path(ablation.FOLDER).parents[1] / "docs" / "method.md").read_text()
    assert ablation.table(ablation.ratios(ablation.FOLDER / "ablation.csv")) in page
