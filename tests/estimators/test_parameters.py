"""Parameters of the estimators: few, each with a constraint and a description, written once where they are shared."""

import inspect
import re
from numbers import Integral
from typing import ClassVar

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

import globular
from globular.estimators.base import Estimator
from globular.estimators.parameters import DESCRIPTIONS, Constraints, filled

PUBLIC = [getattr(globular, name) for name in globular.__all__]
ESTIMATORS = [value for value in PUBLIC if inspect.isclass(value) and issubclass(value, Estimator)]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_parameter_has_a_constraint_and_a_description(estimator: type[BaseEstimator]) -> None:
    parameters = list(inspect.signature(estimator).parameters)
    assert set(estimator._parameter_constraints) == set(parameters)
    text = inspect.getdoc(estimator)
    assert text is not None
    section = text.split("\nParameters\n")[1].split("\nAttributes\n")[0]
    described = [name for line in re.findall(r"^(\w[\w, ]*)(?: :|$)", section, re.M) for name in line.split(", ")]
    assert sorted(described) == sorted(parameters)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_constructors_have_at_most_22_parameters(estimator: type[BaseEstimator]) -> None:
    # scikit-learn's own and the papers' own: what only tunes speed stays inside
    assert len(inspect.signature(estimator).parameters) <= 22


def test_a_subclass_has_parameters_and_constraints_of_its_own() -> None:
    class Few(globular.KMeans):
        _parameter_constraints: ClassVar[Constraints] = {
            **globular.KMeans._parameter_constraints,
            "n_clusters": [Interval(Integral, 1, 3, closed="both")],
        }

        def __init__(self, n_clusters: int = 3) -> None:
            super().__init__(n_clusters)

    X = [[0.0], [1.0], [2.0], [3.0]]
    globular.KMeans(4).fit(X)
    Few(3).fit(X)
    assert Few().get_params() == {"n_clusters": 3}
    with pytest.raises(ValueError, match=r"'n_clusters' parameter of Few must be .* \[1, 3\]. Got 4"):
        Few(4).fit(X)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_boolean_is_no_number(estimator: type[BaseEstimator]) -> None:
    constraints = estimator._parameter_constraints
    numbers = [name for name, allowed in constraints.items() if any(isinstance(each, Interval) for each in allowed)]
    assert "max_iter" in numbers and ("tol" in numbers or estimator is globular.ProductKMeans)
    for name in numbers:
        with pytest.raises(ValueError, match=f"'{name}' parameter of {estimator.__name__} must be .*Got True"):
            estimator(**{name: True}).fit([[0.0], [1.0], [2.0]])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_what_is_no_value_at_all_is_named(estimator: type[BaseEstimator]) -> None:
    few = {globular.ResidualKMeans: {"n_clusters": 8}, globular.ProductKMeans: {"n_clusters": 8, "n_subspaces": 4}}
    for name in inspect.signature(estimator).parameters:
        for value in (object(), "nonsense", -7):
            if value != -7 or name not in ("verbose", "n_threads", "random_state", "init", "init_params"):
                with pytest.raises((ValueError, TypeError), match=name):
                    estimator(**{**few.get(estimator, {}), name: value}).fit(np.eye(12))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_messages_name_words_in_one_order(estimator: type[BaseEstimator]) -> None:
    for allowed in estimator._parameter_constraints.values():
        for each in allowed:
            assert not (isinstance(each, StrOptions) and isinstance(each.options, set) and len(each.options) > 1)


def test_a_number_that_is_not_whole_is_told_that() -> None:
    with pytest.raises(
        ValueError, match=r"'n_clusters' parameter of KMeans must be an int in the range \[1, inf\)\. Got 2\.5"
    ):
        globular.KMeans(2.5).fit([[0.0], [1.0], [2.0]])  # type: ignore[arg-type]


def test_names_in_braces_are_filled_in_with_their_indentation() -> None:
    text = filled("Head.\n\n    Parameters\n    ----------\n    {max_time, verbose}\n    mode : {not a name}\n")
    lines = DESCRIPTIONS["max_time"].split("\n") + DESCRIPTIONS["verbose"].split("\n")
    assert text.split("\n")[4:-2] == ["    " + line for line in lines]
    assert "    mode : {not a name}\n" in text


def test_a_class_without_a_docstring_or_with_other_braces_is_left_alone() -> None:
    class Plain(Estimator):
        pass

    class Other(Estimator):
        """Has
        {a_name}
        of its own."""

    assert Plain.__doc__ is None
    assert Other.__doc__ is not None and "{a_name}" in Other.__doc__
