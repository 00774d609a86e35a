"""Several constants of `thresholds` at once, on any rows: what the paths that begin there do to each other."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attack.cases import Case, cases
from attack.counting import attack
from attack.test_fits import DENSE, fit
from attack.test_thresholds import FITS, SMALL, change, check
from attack.thresholds import THRESHOLDS

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
MIXED = ("mixtures", "correlated", "trees")


@pytest.mark.parametrize("family", [family for family in FITS if family != "families"])  # those refuse rows of zeros
@attack
@given(data=st.data())
def test_several_at_once(family: str, data: Any) -> None:
    mixed = family in MIXED
    case: Case = data.draw(cases(DENSE, max_rows=200, max_clusters=8) if mixed else cases())
    estimator, _, options = data.draw(st.sampled_from(FITS[family]))
    sides = {name: st.sampled_from(values) for name, (among, values) in THRESHOLDS.items() if among == family}
    names = data.draw(st.lists(st.sampled_from(list(sides)), min_size=1, max_size=5, unique=True))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SMALL.get(family, {}), **{name: data.draw(sides[name]) for name in names}}.items():
            change(patch, name, value)
        check(fit(estimator, case, options), family, case)
