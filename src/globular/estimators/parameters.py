"""Parameters that several estimators have: what values they take, and one description for all docstrings.

A line of names in braces in the docstring of an estimator or of one of its methods, `{max_time, n_threads}`, stands for
the descriptions of these parameters. They are filled in when the class is made, so `help` shows them, and by
docs/docstrings.py for the site. Where a parameter has two descriptions one of them has a name of its own, before "=".
"""

from __future__ import annotations

import re
from ast import literal_eval
from numbers import Integral, Real
from textwrap import indent
from typing import Any

from sklearn.utils._param_validation import Interval, StrOptions

Constraints = dict[str, Any]


class Number(Interval):
    """Numbers in an interval, of which True and False are none."""

    def is_satisfied_by(self, val: Any) -> bool:
        return not isinstance(val, bool) and bool(super().is_satisfied_by(val))


def one_of(*words: str) -> StrOptions:
    """Some words, which messages name in this order; a set has another order in every process."""
    return StrOptions(dict.fromkeys(words).keys())


def words_of(kind: str) -> StrOptions:
    """The words of a type written as ``Literal["this", "that"]``."""
    return one_of(*literal_eval(f"({kind.removeprefix('Literal[')[:-1]},)"))


_CARD = r"cuda(:\d+)?|torch-cpu"


class DeviceName(StrOptions):
    """Where to compute; "torch-cpu", which is for tests, is not told."""

    def is_satisfied_by(self, val: Any) -> bool:
        if isinstance(val, list | tuple):
            return len(val) > 0 and all(isinstance(each, str) and re.fullmatch(_CARD, each) for each in val)
        return isinstance(val, str) and re.fullmatch(rf"auto|cpu|cuda:all|{_CARD}", val) is not None

    def __str__(self) -> str:
        return '"auto", "cpu", "cuda", "cuda:N", "cuda:all" or a list of cards'


FROM_ZERO = Number(Integral, 0, None, closed="left")
FROM_ONE = Number(Integral, 1, None, closed="left")
NOT_NEGATIVE = Number(Real, 0, None, closed="left")
POSITIVE = Number(Real, 0, None, closed="neither")
DECAY = Number(Real, 0, 1, closed="left")
SEED = Number(Integral, 0, 2**32 - 1, closed="both")
AUTO = one_of("auto")
DEVICE = DeviceName({"auto"})

BY_TYPE: Constraints = {"bool": ["boolean"], "int": [FROM_ONE], "int | None": [None, FROM_ONE]}
"""What a parameter of this type must be, where its class says nothing else."""
BY_NAME: Constraints = {"weights": [one_of("learned", "equal")], "device": [DEVICE], "decay": [DECAY]}

_PARAMETER_TEXT = """
init : {"auto", "k-means++", "plain k-means++", "afk-mc2", "k-means||", "hierarchical", "random"}, array or \
callable, default="auto"
    Starting centres: the name of a seeding (see :mod:`globular.seeding`), an array with a row for each of them, or a
    function ``(X, n, random_state) -> array``. "k-means++" is scikit-learn's, the best
    of a few draws for each seed; "plain k-means++" draws one. "auto" takes the first for up to 64 clusters or few rows,
    the second for up to 2,000 and hierarchical seeds for more; before swaps (probing k-means) those from 500 on.
n_init : int or "auto", default="auto"
    Number of runs from different starts, of which the best is kept; "auto" is 1.
max_time : float or None, default=None
    Seconds that the fit shall take at most, with the best centres or parameters so far: steps that would end too late,
    the last labels included, are left out.
metric : {"euclidean", "cosine"}, default="euclidean"
    "cosine" clusters the rows' directions (spherical k-means); centres have unit length.
exact_labels : bool, default=False
    From 500 clusters on, `labels_`, and so `fit_predict`, hold the closest of the centres that a row has looked at,
    now and then not the closest of all, which `predict` finds; `label_recall_` says how often they agree. True ends
    the fit with what `predict` finds, at N·k distances more.
warm_start : bool, default=False
    Begin where the last fit ended instead of at a new start; one that was ended among its seeds starts anew.
random_state : int, RandomState or None, default=None
    Seed of everything random.
verbose : int, default=0
    1 shows a progress bar with the objective and the time left.
decay : float, default=0.0
    What every call of `partial_fit` forgets: what was learned before counts for 1 − `decay` of what it did, and so for
    half of it after log 2 / `decay` calls, about: 7 for 0.1, 69 for 0.01. By default no call is forgotten.
callbacks : callback, callable or list of them, default=None
    See :mod:`globular.callbacks`.
n_threads : int or None, default=None
    Threads; None is GLOBULAR_NUM_THREADS, OMP_NUM_THREADS or all cores. The result does not depend on it.
device : {"auto", "cpu", "cuda", "cuda:N", "cuda:all"} or list of cards, default="auto"
    Where to compute. "auto" is the card that X lies on (a tensor of torch or CuPy), else the CPU; "cuda" copies X to
    the card, "cuda:all" or a list such as ``["cuda:0", "cuda:1"]`` divides its rows among several. With X on Dask the
    cards are those of the workers. Needs ``pip install "globular[gpu]"``. What methods return for every row lies where
    X does.
n_runs = n_init : int, default=1
    Number of runs from different starts, of which the best is kept.
weights : {"learned", "equal"}, default="learned"
    Whether components have mixing weights of their own.
n_candidates : int, default=5
    C′, the components that each row keeps.
tol_of_bound = tol : float, default=1e-3
    Stop when the mean lower bound of a row has changed by less than this in three iterations running.
reg_covar : float or "auto", default="auto"
    Added to the variances; see :class:`GaussianMixture`.
lower_bounds_ : list of float
    The same for every iteration of the best run.
history_ : :class:`globular.model.history.History`
    One record per iteration of the best run; objectives are those bounds, of all rows.
X : array, data frame, source or path
y : ignored
sample_weight : array of shape (n_samples,), optional
exact : bool, default=True
    False looks only at the components of a few of about √C cells of means: far fewer densities, and now and then the
    second most likely component. Cells are drawn with a fixed seed, whatever `random_state`: the same rows get the
    same answer.
bounded = exact : bool, default=True
    False gives a lower bound (Eq. 10) from the `n_candidates` components that are found by way of cells.
min_log_density : float, optional
    Rows whose log-density (`score_samples`) is below are noise, and get −1.
missing : bool, default=False
    Whether NaN is a value that is not known: such rows, in memory, are judged by the columns that are known of them,
    with the log-density of these, and by all components. Otherwise NaN is an error.
"""
DESCRIPTIONS = {
    entry.split()[0]: re.sub(r"^\w+ = ", "", entry) for entry in re.split(r"\n(?=\w)", _PARAMETER_TEXT.strip())
}
"""The description of a parameter by its name, for estimators that have it with this type and default."""
_NAMES_IN_BRACES = re.compile(r"^( *)\{(\w+(?:, \w+)*)\}$", re.MULTILINE)


def filled(docstring: str) -> str:
    """The docstring with the descriptions of parameters whose names stand in braces."""

    def described(names: re.Match[str]) -> str:
        if not all(name in DESCRIPTIONS for name in names[2].split(", ")):
            return names[0]
        return indent("\n".join(DESCRIPTIONS[name] for name in names[2].split(", ")), names[1])

    return _NAMES_IN_BRACES.sub(described, docstring)
