"""Callbacks on a small estimator that calls them as the contract says."""

import copy
import errno
import io
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from rich.console import Console
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning

import globular
from globular import threads
from globular.callbacks import Callback, Checkpoint, EarlyStopping, Progress, TimeBudget, as_callbacks
from globular.callbacks.progress import Forecast, format_seconds
from globular.errors import CheckpointWarning, DataError, FitInterruptedWarning
from globular.jit import new_queue, share_kernel
from globular.model.history import History, Record
from globular.persistence import load, read_info
from makers import raising


class Counting(BaseEstimator):
    """Runs through given objectives, half a second each by its own clock."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, objectives: Any = (8.0, 4.0, 2.0), tol: float = 0.0, callbacks: Any = None, verbose: int = 0):
        self.objectives = objectives
        self.tol = tol
        self.callbacks = callbacks
        self.verbose = verbose

    def _check_state(self) -> None:
        """Anything goes."""

    def fit(self, X: Any = None) -> "Counting":
        callbacks = as_callbacks(self.callbacks, self.verbose)
        self.history_ = History()
        for callback in callbacks:
            callback.on_fit_start(self, 100, len(self.objectives), None)
        reason = "max_iter"
        for i, objective in enumerate(self.objectives, start=1):
            record = Record(i, 0.5 * i, objective, 10 * i, n_changed=100 // i)
            self.history_.append(record)
            self.cluster_centers_ = np.full((2, 1), float(i))
            asked = [callback.on_iteration(self, record) for callback in callbacks]  # everyone hears of it
            if any(asked):
                reason = "callback"
                break
        for callback in callbacks:
            callback.on_fit_end(self, reason)
        return self


@pytest.fixture(autouse=True)
def _known_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(globular, "Counting", Counting, raising=False)


def n_iterations(*callbacks: Any, objectives: Any = tuple(range(50, 0, -1))) -> int:
    return len(Counting(objectives, callbacks=list(callbacks)).fit().history_)


# --- as_callbacks
def test_none_one_and_many() -> None:
    budget = TimeBudget(1.0)
    assert as_callbacks(None, 0) == []
    assert as_callbacks(budget, 0) == [budget]
    assert as_callbacks((budget, budget), 0) == [budget, budget]


def test_verbose_adds_one_progress_and_never_a_second() -> None:
    assert [type(item) for item in as_callbacks(None, 1)] == [Progress]
    own = Progress()
    assert as_callbacks([own], 2) == [own]


def test_a_function_is_called_with_each_record_and_true_stops() -> None:
    seen = []

    def third(estimator: Counting, record: Record) -> bool:
        seen.append((record.iteration, estimator.cluster_centers_[0, 0]))
        return record.iteration == 3

    assert n_iterations(third) == 3
    assert seen == [(1, 1.0), (2, 2.0), (3, 3.0)]  # the fitted attributes are current


def test_only_a_truth_value_stops() -> None:
    X = np.random.default_rng(0).normal(size=(300, 2))

    def n_of(*callbacks: Any) -> int:
        return len(
            globular.KMeans(8, algorithm="lloyd", random_state=0, callbacks=list(callbacks)).fit(X).history_.iterations
        )

    assert n_of(lambda estimator, record: np.float64(record.iteration) >= 2) == 2
    assert n_of(lambda estimator, record: "a remark") == n_of() > 2


def test_any_object_with_some_of_the_methods_will_do() -> None:
    class EndOnly:
        reason = ""

        def on_fit_end(self, estimator: Any, reason: str) -> None:
            self.reason = reason

    watcher = EndOnly()
    assert n_iterations(watcher) == 50
    assert watcher.reason == "max_iter"

    class CalledAndEnded(EndOnly):
        def __call__(self, estimator: Any, record: Record) -> bool:
            return record.iteration == 2

    assert n_iterations(CalledAndEnded()) == 2


def test_the_base_class_changes_nothing() -> None:
    assert n_iterations(Callback()) == 50


@pytest.mark.parametrize("wrong", [3, "progress", [TimeBudget(1), None], object()])
def test_what_is_no_callback_is_named(wrong: object) -> None:
    with pytest.raises(TypeError, match="callbacks must be objects"):
        as_callbacks(wrong, 0)


def test_a_class_instead_of_an_object_gets_the_remedy() -> None:
    with pytest.raises(TypeError, match=r"write Progress\(\.\.\.\)"):
        as_callbacks(Progress, 0)


# --- stopping
def test_time_budget_ends_after_the_first_iteration_past_it() -> None:
    assert n_iterations(TimeBudget(1.2)) == 3  # iterations end at 0.5, 1.0, 1.5 s


def test_early_stopping_waits_for_its_patience() -> None:
    flat = [100.0, 50.0, 50.0, 50.0, 50.0, 50.0]
    assert n_iterations(EarlyStopping(1e-3, patience=2), objectives=flat) == 4
    assert n_iterations(EarlyStopping(1e-3, patience=3), objectives=flat) == 5


def test_early_stopping_starts_anew_after_an_improvement_and_in_every_fit() -> None:
    stopper = EarlyStopping(1e-3, patience=2)
    steps = [100.0, 100.0, 50.0, 50.0, 25.0, 25.0, 25.0, 25.0]
    assert n_iterations(stopper, objectives=steps) == 7
    assert n_iterations(stopper, objectives=steps) == 7


def test_early_stopping_counts_a_worse_objective_as_no_improvement() -> None:
    assert n_iterations(EarlyStopping(0.0, patience=1), objectives=[10.0, 11.0, 12.0]) == 2


def test_early_stopping_knows_that_a_likelihood_rises() -> None:
    rising = [-10.0, -8.0, -6.0, -4.0, -4.0, -4.0]
    assert n_iterations(EarlyStopping(1e-3, patience=1, direction="max"), objectives=rising) == 5
    mixture = Counting(rising, callbacks=EarlyStopping(1e-3, patience=1))
    mixture.lower_bound_ = 0.0
    assert len(mixture.fit().history_) == 5


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: TimeBudget(0), "seconds"), (lambda: EarlyStopping(-1.0), "min_relative_improvement"),
        (lambda: EarlyStopping(patience=0), "patience"), (lambda: EarlyStopping(direction="down"), "direction"),
        (lambda: Checkpoint("x", every_iterations=0), "every_iterations"),
        (lambda: Checkpoint("x", every_seconds=-1), "every_seconds"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(make: Any, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        make()


# --- checkpoint
def test_checkpoint_saves_on_the_way_and_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    saved = []

    def look(estimator: Counting, record: Record) -> None:
        saved.append(len(read_info(folder).history) if folder.exists() else 0)

    Counting([5.0] * 5, callbacks=[Checkpoint(folder, every_iterations=2), look]).fit()
    assert saved == [0, 2, 2, 4, 4]
    assert load(folder).cluster_centers_[0, 0] == 5.0


def test_checkpoint_by_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(0.0, 1000.0, 4.0))
    monkeypatch.setattr("globular.callbacks.time.perf_counter", lambda: next(clock))
    written = []
    monkeypatch.setattr(
        "globular.callbacks.save", lambda estimator, path, include_labels: written.append(len(estimator.history_))
    )
    # looks at 4, 8, 12 s: due at 12; the save is noted at 16, so it is due again three looks later
    Counting([1.0] * 7, callbacks=Checkpoint(tmp_path / "run", every_seconds=10)).fit()
    assert written == [3, 6, 7]


def test_checkpoint_refuses_a_foreign_folder_before_the_fit(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match="other than a globular model"):
        Counting(callbacks=Checkpoint(tmp_path)).fit()
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_checkpoint_of_a_fit_without_iterations_leaves_nothing(tmp_path: Path) -> None:
    Counting([], callbacks=Checkpoint(tmp_path / "run")).fit()
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_cannot_be_written_warns_and_the_fit_goes_on(tmp_path, monkeypatch):
    disk_is_full = iter([True, True])

    def fsync(handle: int) -> None:
        if next(disk_is_full, False):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fsync)
    model = Counting([5.0, 4.0, 3.0, 2.0], callbacks=Checkpoint(tmp_path / "run", every_iterations=1))
    with pytest.warns(CheckpointWarning, match="run could not be written.*No space left") as caught:
        model.fit()
    assert len(caught) == 1  # for two checkpoints in a row that failed
    assert len(model.history_) == 4 and len(load(tmp_path / "run").history_) == 4


# --- progress
def terminal(width: int = 120) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, legacy_windows=False)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_outside_a_terminal_it_prints_few_plain_lines() -> None:
    console = Console(file=io.StringIO(), width=80)
    Counting(tuple(range(500, 0, -1)), callbacks=Progress(console)).fit()
    text = written(console)
    assert text.count("\n") == 2  # the first iteration (the others follow within ten seconds) and the end
    assert "\x1b" not in text and "\r" not in text
    assert "Counting 500/500" in text and "objective 1" in text and "max_iter" in text


@pytest.mark.parametrize("width", [60, 80, 160])
def test_in_a_terminal_the_cursor_comes_back(width: int) -> None:
    console = terminal(width)
    Counting(callbacks=Progress(console)).fit()
    text = written(console)
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") > -1
    assert "objective 2" in text and "moved 33.0%" in text


def test_the_terminal_comes_back_when_the_fit_dies_and_another_begins() -> None:
    console = terminal()
    progress = Progress(console)

    with pytest.raises(KeyboardInterrupt):
        Counting(callbacks=[progress, raising(KeyboardInterrupt)]).fit()
    Counting(callbacks=progress).fit()
    text = written(console)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 2


def test_progress_can_be_cloned_copied_and_pickled_also_while_it_runs() -> None:
    def duplicate(estimator: Counting, record: Record) -> None:
        assert isinstance(clone(estimator).callbacks[0], Progress)
        copy.deepcopy(estimator)
        pickle.loads(pickle.dumps(estimator.callbacks[0]))

    Counting(callbacks=[Progress(terminal()), duplicate]).fit()


# --- the forecast
def test_the_forecast_follows_max_iter_at_the_pace_of_all_but_the_first_iteration() -> None:
    forecast = Forecast(max_iter=10)
    for i in range(1, 6):
        forecast.update(Record(i, 100.0 + 2.0 * i, 1000.0 - i, 0))
    assert forecast.iterations_left == 5
    assert forecast.seconds_left == pytest.approx(10.0)


def test_the_forecast_foresees_convergence_from_the_trend() -> None:
    forecast = Forecast(max_iter=1000, tol=1e-6)
    for i in range(1, 12):
        forecast.update(Record(i, float(i), 1.0 + 0.5**i, 0))  # the change halves each time
    assert forecast.relative_change is not None
    halvings = np.log2(forecast.relative_change / 1e-6)
    assert forecast.iterations_left == pytest.approx(halvings, abs=1.0)
    assert forecast.seconds_left == pytest.approx(halvings, abs=1.0)  # a second each


def test_the_forecast_does_not_trust_a_tolerance_that_has_not_stopped_the_fit() -> None:
    forecast = Forecast(max_iter=100, tol=0.5)
    for i in range(1, 12):
        forecast.update(Record(i, float(i), 1.0 + 0.5**i, 0))
    assert forecast.iterations_left == 89


def test_the_forecast_never_goes_beyond_max_time_and_admits_ignorance() -> None:
    forecast = Forecast(max_iter=1000, max_time=30.0)
    for i in range(1, 4):
        forecast.update(Record(i, 10.0 * i, 1.0, 0))
    assert forecast.seconds_left == 0.0
    unknown = Forecast()
    unknown.update(Record(1, 1.0, 5.0, 0))
    assert unknown.seconds_left is None and unknown.share_done == 0.0


def test_a_new_start_forgets_the_old_trend() -> None:
    forecast = Forecast(max_iter=5)
    for i in (1, 2, 3, 4, 5, 1):
        forecast.update(Record(i, 1.0, 1.0, 0))
    assert forecast.iterations_left == 4 and forecast.relative_change is None


STAGES = [
    Record(0, 0.1, 90.0, 0, stage="seeds"), Record(0, 0.2, 70.0, 5, 40, stage="part"),
    Record(0, 0.3, 60.0, 5, 30, stage="part"), Record(1, 1.0, 65.0, 50, 100, stage="swaps"),
    Record(2, 2.0, 60.0, 50, 50), Record(3, 3.5, 59.0, 50, 20),
]  # fmt: skip


def test_the_forecast_begins_anew_with_every_stage() -> None:
    forecast, changes, left = Forecast(max_iter=10), [], []
    for record in STAGES:
        forecast.update(record)
        changes.append(forecast.relative_change)
        left.append((forecast.iterations_left, forecast.seconds_left))
    assert changes == [None, None, pytest.approx(1 / 7), None, None, pytest.approx(1 / 60)]
    assert left == [(None, None)] * 3 + [(9, None), (8, None), (7, pytest.approx(7 * 1.5))]


def test_the_display_names_the_stage() -> None:
    console = Console(file=io.StringIO(), width=200)
    forecast, display = Forecast(max_iter=10), Progress(console)
    display.on_fit_start(globular.KMeans(), 100, 10, None)
    lines = []
    for record in STAGES:
        forecast.update(record)
        lines.append(display._line(record, forecast))
    assert lines[0] == "KMeans seeds  objective 90"
    assert lines[2] == "KMeans part  objective 60  change 1e-01"  # the rows that moved are those of the part
    assert lines[3] == "KMeans swaps 1/10  objective 65  moved 100.0%"
    assert lines[5] == "KMeans 3/10  objective 59  change 2e-02  moved 20.0%"


def test_early_stopping_compares_iterations_of_one_stage() -> None:
    stopping = EarlyStopping(0.5, patience=1)
    stopping.on_fit_start(None, 100, None, None)
    estimator = object()
    assert [stopping.on_iteration(estimator, record) for record in STAGES] == [False] * 5 + [True]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4 s"), (9.99, "10 s"), (59.7, "1 min 00 s"), (185, "3 min 05 s"), (7650, "2 h 07 min"), (None, "?")],
)
def test_durations_read_naturally(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize("call", ["fit", "fit_predict", "fit_transform"])
def test_a_warning_points_at_the_users_line(call: str) -> None:
    with pytest.warns(ConvergenceWarning, match="distinct clusters") as caught:
        getattr(globular.KMeans(3), call)(np.ones((9, 2)))
    pressed = globular.KMeans(3, callbacks=raising(KeyboardInterrupt))
    with pytest.warns(FitInterruptedWarning) as interrupted:
        getattr(pressed, call)(np.random.default_rng(0).normal(size=(50, 2)))
    assert {warning.filename for warning in (*caught, *interrupted)} == {__file__}


# --- Ctrl-C

X_CTRL_C = np.random.default_rng(1).normal(size=(600, 3))
CENTROIDS = [
    globular.KMeans(9, tol=0, random_state=0), globular.KMeans(9, algorithm="lloyd", n_init=2, random_state=0),
    globular.KMeans(40, algorithm="probing", random_state=0), globular.VariationalKMeans(9, random_state=0),
    globular.VariationalKMeans(9, n_candidates=1, random_state=0),
    globular.NestedMiniBatchKMeans(9, batch_size=100, random_state=0),
    globular.NestedMiniBatchKMeans(9, batch_size=100, search="cells", random_state=0),
]  # fmt: skip
MIXTURES = [
    globular.GaussianMixture(3, tol=0, random_state=0),
    globular.GaussianMixture(3, algorithm="chunky", random_state=0),
    globular.VariationalGaussianMixture(30, random_state=0),
    globular.ChunkyGaussianMixture(3, random_state=0),
    globular.InfiniteGaussianMixture(random_state=0),
]


class Interrupted:
    """Calls a function, and presses Ctrl-C before or after some of the calls."""

    def __init__(self, function: Any, presses: int, *, after: bool) -> None:
        self.function, self.presses, self.after = function, presses, after

    def __call__(self, *args: Any) -> Any:
        self.presses -= 1
        result = self.function(*args) if self.after or self.presses < 0 else None
        if self.presses >= 0:
            raise KeyboardInterrupt
        return result


@pytest.mark.parametrize("presses", [1, 2])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("model", CENTROIDS, ids=repr)
def test_ctrl_c_while_labels_are_found_keeps_the_fit(model, after, presses, monkeypatch):
    model = clone(model)
    monkeypatch.setattr(model, "_finish", Interrupted(model._finish, presses, after=after))
    with pytest.warns(FitInterruptedWarning):
        model.fit(X_CTRL_C)
    assert_whole(model)


@pytest.mark.parametrize("presses", [1, 2])  # two within a second are one
@pytest.mark.parametrize("model", [*CENTROIDS, *MIXTURES], ids=repr)
def test_ctrl_c_while_a_finished_iteration_is_taken_over_keeps_it(model, presses, monkeypatch):
    model = clone(model)
    monkeypatch.setattr(model, "_publish", Interrupted(model._publish, presses, after=False))
    with pytest.warns(FitInterruptedWarning):
        model.fit(X_CTRL_C)
    assert_whole(model)


@pytest.mark.parametrize("model", CENTROIDS, ids=repr)
def test_the_second_ctrl_c_does_not_wait_for_labels(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("globular.estimators.running.SAME_PRESS_SECONDS", -1.0)
    model = clone(model)
    monkeypatch.setattr(model, "_finish", Interrupted(model._finish, 2, after=False))
    with pytest.warns(FitInterruptedWarning), pytest.raises(KeyboardInterrupt):
        model.fit(X_CTRL_C)
    assert model.stopped_ == "interrupted" and len(model.history_) > 0
    assert not hasattr(model, "labels_")  # there are none that belong to the centres
    assert model.predict(X_CTRL_C).max() < len(model.cluster_centers_)


@pytest.mark.parametrize("at", [("seeding", 2), ("iteration", 2), ("labels", 2)], ids=str)
def test_ctrl_c_in_a_later_run_keeps_the_best_run_and_says_so(at, monkeypatch):
    heard: list[str] = []

    class Ends(Callback):
        def on_fit_end(self, estimator: Any, reason: str) -> None:
            heard.append(reason)

    n_runs = 0

    def press(moment: str) -> None:
        if (moment, n_runs) == at and not heard:
            heard.append("pressed")
            raise KeyboardInterrupt

    def start(X: Any, n_clusters: int, random_state: Any) -> Any:
        nonlocal n_runs
        n_runs += 1
        press("seeding")
        return X[:n_clusters] if n_runs == 1 else X[n_clusters : 2 * n_clusters]

    def at_iteration(estimator: Any, record: Record) -> None:
        press("iteration")

    model = globular.KMeans(9, init=start, n_init=3, random_state=0, callbacks=[at_iteration, Ends()])
    finish = model._finish
    monkeypatch.setattr(model, "_finish", lambda *args: (press("labels"), finish(*args))[1])
    with pytest.warns(FitInterruptedWarning):
        model.fit(X_CTRL_C)
    assert n_runs == 2 and heard == ["pressed", "interrupted"]
    assert model.inertia_ <= globular.KMeans(9, init=X_CTRL_C[:9]).fit(X_CTRL_C).inertia_
    assert_whole(model)


def test_ctrl_c_between_two_records_keeps_the_last_one() -> None:
    model = globular.KMeans(9, algorithm="lloyd", tol=0, random_state=0)
    records = model.fit_iter(X_CTRL_C)
    assert next(record for record in records if record.iteration == 1) is model.history_[-1]
    assert next(records).iteration == 2
    with pytest.warns(FitInterruptedWarning), pytest.raises(StopIteration):
        records.throw(KeyboardInterrupt)  # type: ignore[attr-defined]  # as a signal that comes as it goes on
    assert model.n_iter_ == 2
    assert_whole(model)


@pytest.mark.parametrize("moment", range(1, 40, 3))
def test_an_interrupted_batch_leaves_centres_sums_and_counts_that_belong_together(moment, monkeypatch):
    left = moment

    def interrupted(work: Any, shape: Any, n_threads: int) -> None:
        nonlocal left
        left -= 1
        work(slice(0, shape[0]))
        if left == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr("globular.algorithms.kmeans.votes.by_parts", interrupted)
    model = globular.NestedMiniBatchKMeans(9, batch_size=100, init=X_CTRL_C[36:45], random_state=0)
    try:
        with pytest.warns(FitInterruptedWarning):
            model.fit(X_CTRL_C)
    except KeyboardInterrupt:
        assert moment == 1
        return
    voted = model.counts_ > 0
    np.testing.assert_allclose(
        model.cluster_centers_[voted], model.sums_[voted] / model.counts_[voted, None], rtol=1e-12
    )
    sums, counts, n_steps = model.sums_.copy(), model.counts_.copy(), model.n_steps_
    left = 1
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X_CTRL_C)
    assert (model.sums_ == sums).all() and (model.counts_ == counts).all() and model.n_steps_ == n_steps


@pytest.mark.parametrize("model", [*CENTROIDS, *MIXTURES], ids=repr)
def test_ctrl_c_in_the_middle_of_any_pass_leaves_a_whole_model(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    n_passes = 0
    press_at: set[int] = set()

    def counting(function: Any) -> Any:
        def work(*args: Any, **kwargs: Any) -> Any:
            nonlocal n_passes
            n_passes += 1
            number = n_passes
            result = function(*args, **kwargs)
            if number in press_at:
                raise KeyboardInterrupt
            return result

        return work

    for function in (threads.run_all, threads.on_all_threads, share_kernel, new_queue):
        for name, module in list(sys.modules.items()):
            if name.startswith("globular.passes") and getattr(module, function.__name__, None) is function:
                monkeypatch.setattr(module, function.__name__, counting(function))
    for moment in (*range(0, 60, 7), 100, 200):
        n_passes, press_at = 0, {moment, moment + 1 + moment % 5}
        interrupted = clone(model).set_params(n_threads=1, max_iter=6)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                interrupted.fit(X_CTRL_C)
            except KeyboardInterrupt:
                assert len(getattr(interrupted, "history_", ())) == 0
            press_at.clear()
        if n_passes < moment:
            break
        if hasattr(interrupted, "stopped_"):
            assert_whole(interrupted)
    assert moment > 7


def assert_whole(model: Any) -> None:
    """A fit that Ctrl-C has ended: its attributes belong together."""
    assert model.stopped_ == "interrupted" and len(model.history_) > 0
    iterations = model.history_.iterations
    assert [record.iteration for record in iterations] == list(range(1, len(iterations) + 1))
    if hasattr(model, "means_"):
        assert model.lower_bounds_ == [record.objective / len(X_CTRL_C) for record in iterations]
        assert np.isfinite(model.score(X_CTRL_C))
        return
    squared = np.square(X_CTRL_C - model.cluster_centers_[model.labels_]).sum()
    np.testing.assert_allclose(model.inertia_, squared, rtol=1e-9)
