"""Models on disk: everything comes back, damage is named, and a model is never half there."""

import errno
import fcntl
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans as OtherKMeans

import globular
from globular._version import __version__
from globular.errors import DataError
from globular.model.history import History, Record
from globular.persistence import check_destination, is_model, load, read_info, save
from globular.persistence import folder as folders
from makers import raising


class Toy(BaseEstimator):
    """Has one parameter and one attribute of every kind that there is."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(
        self, n_clusters: int = 8, init: Any = "auto", tol: float = 1e-4, callbacks: Any = None, verbose: int = 0
    ):
        self.n_clusters = n_clusters
        self.init = init
        self.tol = tol
        self.callbacks = callbacks
        self.verbose = verbose

    def fit(self, X: Any = None) -> "Toy":
        rng = np.random.default_rng(0)
        self.n_features_in_ = 3
        self.feature_names_in_ = np.array(["länge", "b", "c"], dtype=object)
        self.cluster_centers_ = np.asfortranarray(rng.normal(size=(4, 3)).astype(np.float32))
        self.labels_ = rng.integers(0, 4, 50).astype(np.int32)
        self.converged_ = np.bool_(True)
        self.inertia_ = np.float64(0.1)
        self.n_iter_ = 7
        self.algorithm_ = "lloyd"
        self.lower_bound_ = -np.inf
        self.mask_ = np.array([[True, False]])
        self.zero_dimensional_ = np.array(2.5)
        self.no_rows_ = np.zeros((0, 3), np.uint8)
        self.strided_ = np.arange(10, dtype=np.int64)[::2]
        self.swapped_ = np.arange(3, dtype=">f8")
        self.nothing_ = None
        self.nested_ = {"pair": (1, np.arange(2)), "list": [1.5, None]}
        self.history_ = History([Record(1, 0.1, 9.0, 40, 3), Record(2, 0.2, float("nan"), 80)])
        self._scratch = object()
        return self

    def _check_state(self) -> None:
        """Anything goes."""


@pytest.fixture(autouse=True)
def _known_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(globular, "Toy", Toy, raising=False)


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    return save(Toy(n_clusters=4).fit(), tmp_path / "model")


def description(folder: Path) -> dict[str, Any]:
    """What model.json says, without its own digest, as before there was one."""
    document: dict[str, Any] = json.loads((folder / "model.json").read_text())
    document.pop("sha256", None)
    return document


def rewrite(folder: Path, change: Any) -> None:
    document = description(folder)
    change(document)
    (folder / "model.json").write_text(json.dumps(document))


def arrays_of(folder: Path) -> Path:
    return folder / "model.safetensors"


def rewrite_arrays(folder: Path, change: Any) -> None:
    """Change arrays as somebody would who knows how models are stored: shapes, dtypes and digest fit afterwards."""
    path = arrays_of(folder)
    arrays = load_file(path)
    change(arrays)
    save_file(arrays, path)
    document = description(folder)
    document["arrays"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    text = json.dumps(document)
    for name, array in arrays.items():
        form = {"$array": name, "shape": list(array.shape), "dtype": array.dtype.name}
        text = re.sub(r'\{"\$array": "' + re.escape(name) + r'"[^}]*\}', json.dumps(form), text)
    (folder / "model.json").write_text(text)


def as_first_version(folder: Path) -> None:
    """Make the folder what format version 1 wrote."""
    rewrite(folder, lambda document: (document.pop("arrays"), document.update(format_version=1)))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# --- there and back
def test_every_attribute_comes_back_with_its_type_and_values(tmp_path: Path) -> None:
    model = Toy(n_clusters=4).fit()
    restored = load(save(model, tmp_path / "model"))
    fitted = {name for name in vars(model) if name.endswith("_")}
    assert {name for name in vars(restored) if name.endswith("_")} == fitted
    for name in fitted - {"history_", "nested_", "swapped_"}:
        old, new = getattr(model, name), getattr(restored, name)
        np.testing.assert_array_equal(new, old, err_msg=name)
        if isinstance(old, np.ndarray):
            assert new.dtype == old.dtype and new.shape == old.shape and new.flags.writeable, name
    np.testing.assert_array_equal(restored.swapped_, model.swapped_)
    assert restored.nested_["pair"][0] == 1 and restored.nested_["list"] == [1.5, None]
    np.testing.assert_array_equal(restored.nested_["pair"][1], [0, 1])
    assert restored.history_[0] == model.history_[0] and np.isnan(restored.history_[1].objective)
    assert restored.converged_ is True and type(restored.n_iter_) is int


def test_saving_changes_nothing_in_the_model(tmp_path: Path) -> None:
    model = Toy(init=np.eye(3)).fit()
    before = {name: id(value) for name, value in vars(model).items()}
    save(model, tmp_path / "model")
    assert {name: id(value) for name, value in vars(model).items()} == before


@pytest.mark.parametrize("init", ["random", np.arange(6.0).reshape(2, 3), None, [1, 2]])
def test_parameters_come_back(tmp_path: Path, init: Any) -> None:
    restored = load(save(Toy(n_clusters=3, init=init, tol=float("inf")).fit(), tmp_path / "model"))
    assert restored.n_clusters == 3 and restored.tol == float("inf")
    assert type(restored.init) is type(init)
    np.testing.assert_array_equal(restored.init, init)


def test_callbacks_and_verbose_are_not_stored(tmp_path: Path) -> None:
    restored = load(save(Toy(callbacks=[print], verbose=3).fit(), tmp_path / "model"))
    assert restored.callbacks is None and restored.verbose == 0


def my_start(X: Any, k: int) -> Any:
    return X[:k]


@pytest.mark.parametrize(
    ("init", "name"), [(my_start, "my_start"), (np.random.default_rng(0), "Generator"), (object(), "object")]
)
def test_a_parameter_that_is_not_data_is_noted_and_its_default_comes_back(tmp_path: Path, init: Any, name: str) -> None:
    folder = save(Toy(init=init).fit(), tmp_path / "model")
    assert read_info(folder).omitted == {"init": name}
    with pytest.warns(UserWarning, match=f"init={name}"):
        restored = load(folder)
    assert restored.init == "auto"


def test_labels_can_be_left_out(tmp_path: Path) -> None:
    restored = load(save(Toy().fit(), tmp_path / "model", include_labels=False))
    assert not hasattr(restored, "labels_") and hasattr(restored, "cluster_centers_")


def test_the_folder_holds_two_files_that_others_may_read(model_folder: Path) -> None:
    assert set(model_folder.iterdir()) == {model_folder / "model.json", arrays_of(model_folder)}
    modes = {entry.stat().st_mode for entry in model_folder.iterdir()}
    assert len(modes) == 1
    json.loads((model_folder / "model.json").read_text(), parse_constant=pytest.fail)  # no NaN: strict JSON


def test_info_tells_without_the_arrays(model_folder: Path) -> None:
    arrays_of(model_folder).unlink()
    info = read_info(model_folder)
    assert (info.class_name, info.library_version) == ("Toy", __version__)
    assert (info.n_clusters, info.n_features) == (4, 3)
    assert info.parameters["n_clusters"] == 4 and "callbacks" not in info.parameters
    assert str(info.attributes["cluster_centers_"]) == "array 4 × 3 float32"
    assert (len(info.history), info.history[0].objective) == (2, 9.0)


# --- what cannot be saved
def test_only_fitted_estimators_of_the_library_are_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not fitted"):
        save(Toy(), tmp_path / "model")
    with pytest.raises(TypeError, match=r"sklearn.*KMeans is not one"):
        save(OtherKMeans(2, n_init=1).fit([[0.0], [1.0]]), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [object(), np.array([object()]), np.array([1j]), {1: 2}])
def test_an_attribute_without_a_data_form_is_named_and_nothing_is_written(tmp_path: Path, value: Any) -> None:
    model = Toy().fit()
    model.odd_ = value
    with pytest.raises(TypeError, match="odd_"):
        save(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


# --- whole or not at all
def test_an_existing_model_is_replaced_and_other_files_stay(model_folder: Path) -> None:
    (model_folder / "notes.txt").write_text("mine")
    save(Toy(n_clusters=99).fit(), model_folder)
    assert load(model_folder).n_clusters == 99
    assert (model_folder / "notes.txt").read_text() == "mine"
    assert [entry.name for entry in model_folder.parent.iterdir()] == ["model"]


def test_overwrite_false_refuses(model_folder: Path) -> None:
    before = contents(model_folder)
    with pytest.raises(DataError, match="already holds a model"):
        save(Toy().fit(), model_folder, overwrite=False)
    assert contents(model_folder) == before


def test_what_is_not_a_model_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    before = contents(tmp_path)
    with pytest.raises(DataError, match="other than a globular model"):
        save(Toy().fit(), tmp_path / "photos")
    with pytest.raises(DataError, match="is a file"):
        save(Toy().fit(), tmp_path / "file")
    assert contents(tmp_path) == before
    assert is_model(save(Toy().fit(), tmp_path / "empty"))


@pytest.mark.parametrize("new", [False, True])
def test_a_failed_write_leaves_the_old_model_and_no_litter(model_folder, monkeypatch, new):
    before = contents(model_folder)
    monkeypatch.setattr("os.fsync", raising(OSError(errno.ENOSPC, "disk full")))
    with pytest.raises(DataError, match=r"could not be written \(disk full\)"):
        save(Toy(n_clusters=99).fit(), model_folder.with_name("other") if new else model_folder)
    assert contents(model_folder) == before
    assert [entry.name for entry in model_folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("done", [False, True])
def test_ctrl_c_at_the_rename_leaves_one_whole_model(model_folder, monkeypatch, done):
    replace = Path.replace

    def interrupted(self: Path, target: Path) -> Path:
        if done:
            replace(self, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(Toy(n_clusters=99).fit(), model_folder)
    assert load(model_folder).n_clusters == (99 if done else 4)
    assert set(model_folder.iterdir()) == {model_folder / "model.json", arrays_of(model_folder)}


class Killed(BaseException):
    """Stands for SIGKILL: nothing of what the process would still have done is done."""


SYSTEM_CALLS = ("open", "mkdir", "rename", "replace", "unlink", "rmdir", "fsync", "stat", "listdir", "scandir", "close")


def save_killed_at(n: int, model: Toy, folder: Path) -> bool:
    """Save, but do nothing on disk from the n-th call of the file system on; says whether it was killed."""
    n_calls = 0
    with pytest.MonkeyPatch.context() as patch:

        def guard(owner: Any, name: str) -> None:
            call = getattr(owner, name)

            def counted(*arguments: Any, **options: Any) -> Any:
                nonlocal n_calls
                n_calls += 1
                of_the_kernel = name == "close" or (name == "flock" and arguments[1] == fcntl.LOCK_UN)
                if n_calls > n and not of_the_kernel:  # which closes and unlocks the files of a killed process
                    raise Killed
                return call(*arguments, **options)

            patch.setattr(owner, name, counted)

        for name in SYSTEM_CALLS:
            guard(os, name)
        guard(io, "open")
        guard(fcntl, "flock")
        try:
            save(model, folder)
        except Killed:
            return True
    return False


def killed_saves(folder: Path, prepare: Any) -> Iterator[int]:
    """Kill a save at every call of the file system in turn; yields after each."""
    for n in itertools.count():
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.parent.mkdir()
        prepare()
        if not save_killed_at(n, Toy(n_clusters=99).fit(), folder):
            assert n > 10
            return
        yield n


@pytest.mark.parametrize("before", ["nothing", "model", "killed"])
def test_a_kill_at_any_call_of_the_file_system_loses_nothing(tmp_path, monkeypatch, before):
    monkeypatch.setattr("os.fsync", lambda handle: None)  # takes most of the time
    folder = tmp_path / "place" / "model"

    def prepare() -> None:
        if before == "nothing":
            return
        save(Toy(n_clusters=4).fit(), folder)
        if before == "killed":
            assert save_killed_at(24, Toy(n_clusters=5).fit(), folder)
        (folder / "notes.txt").write_text("mine")

    for n in killed_saves(folder, prepare):
        if before != "nothing":
            assert is_model(folder), n
        if is_model(folder):
            assert load(folder).n_clusters in (4, 99), n
            np.testing.assert_array_equal(load(folder).cluster_centers_, Toy().fit().cluster_centers_)
        check_destination(folder)
        save(Toy(n_clusters=7).fit(), folder)
        assert load(folder).n_clusters == 7
        left = {path.name for path in folder.parent.rglob("*")}
        expected = {"model", "model.json", arrays_of(folder).name} | ({"notes.txt"} if before != "nothing" else set())
        assert left == expected, n
        if before != "nothing":
            assert (folder / "notes.txt").read_text() == "mine"


def test_saves_to_one_folder_wait_for_each_other(model_folder: Path) -> None:
    half_written = model_folder / ".model.0123456789abcdef.safetensors"
    half_written.write_bytes(b"so far")
    handle = os.open(model_folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # as a save does that is under way
    second = threading.Thread(target=save, args=(Toy(n_clusters=5).fit(), model_folder))
    second.start()
    second.join(0.2)
    assert second.is_alive() and half_written.exists() and load(model_folder).n_clusters == 4
    os.close(handle)
    second.join(20)
    assert not half_written.exists() and load(model_folder).n_clusters == 5


def test_arrays_that_are_replaced_while_they_are_read_are_read_anew(model_folder, monkeypatch):
    read_arrays = folders._read_arrays
    saves = iter([lambda: save(Toy(n_clusters=5).fit(), model_folder)])

    def late(path: Path, document: dict[str, Any]) -> Any:
        next(saves, lambda: None)()
        return read_arrays(path, document)

    monkeypatch.setattr(folders, "_read_arrays", late)
    assert load(model_folder).n_clusters == 5


def test_arrays_that_get_their_name_while_they_are_read_are_read_anew(model_folder, monkeypatch):
    read_arrays = folders._read_arrays
    name = json.loads((model_folder / "model.json").read_text())["arrays"]["written_as"]
    arrays_of(model_folder).rename(model_folder / name)  # as after the rename of model.json

    def late(path: Path, document: dict[str, Any]) -> Any:
        if path.name == name and path.exists():
            path.rename(arrays_of(model_folder))
        return read_arrays(path, document)

    monkeypatch.setattr(folders, "_read_arrays", late)
    assert load(model_folder).n_clusters == 4


def test_files_of_the_user_are_never_taken_for_ours(model_folder: Path) -> None:
    for name in ("model-backup.safetensors", ".model.json", ".model.0123456789abcdef.txt"):
        (model_folder / name).write_text("mine")
    before = contents(model_folder)
    save(Toy(n_clusters=5).fit(), model_folder)
    ours = {"model.json", arrays_of(model_folder).name}
    after = contents(model_folder)
    assert {name for name in after if name not in ours} == {name for name in before if before[name] == b"mine"}


def test_models_of_the_first_format_version_are_read_and_replaced(model_folder: Path) -> None:
    as_first_version(model_folder)
    assert load(model_folder).n_clusters == 4
    save(Toy(n_clusters=5).fit(), model_folder)
    assert load(model_folder).n_clusters == 5


def test_a_link_stays_a_link(tmp_path: Path, model_folder: Path) -> None:
    link = tmp_path / "latest"
    link.symlink_to(model_folder, target_is_directory=True)
    save(Toy(n_clusters=6).fit(), link)
    assert link.is_symlink() and load(model_folder).n_clusters == 6


def test_the_destination_can_be_checked_beforehand(tmp_path: Path) -> None:
    assert check_destination(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert list(tmp_path.iterdir()) == []


# --- damage
def edited(change: Any) -> Any:
    return lambda folder: rewrite(folder, change)


def document(folder: Path) -> Path:
    return folder / "model.json"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: document(folder).unlink(), "not a globular model: it has no model.json"),
        (lambda folder: arrays_of(folder).unlink(), "safetensors is missing"),
        (lambda folder: os.truncate(arrays_of(folder), arrays_of(folder).stat().st_size - 20), "damaged or truncated"),
        (lambda folder: arrays_of(folder).write_bytes(b""), "damaged or truncated"),
        (lambda folder: os.truncate(document(folder), 200), "damaged or truncated"),
        (lambda folder: document(folder).write_text('{"layers": 12}'), "not written by globular"),
        (lambda folder: document(folder).write_bytes(b"\xff\xfe\x00"), "damaged or truncated"),
        (edited(lambda said: said.update(format_version=folders.FORMAT_VERSION + 1)), "upgrade"),
        (edited(lambda said: said.update({"class": "DataError"})), "no estimator 'DataError'"),
        (edited(lambda said: said.pop("attributes")), "section is missing"),
        (edited(lambda said: said["parameters"].update(colour="red")), "colour"),
        (edited(lambda said: said["attributes"].update(fit=1)), "'fit' is not the name"),
        (edited(lambda said: said["attributes"]["labels_"].update({"$array": "gone"})), "gone is missing"),
        (edited(lambda said: said["attributes"]["labels_"].update(shape=[3])), "has shape"),
        (edited(lambda said: said["attributes"].update(labels_={"$pickle": "…"})), r"\$pickle"),
    ],
)
def test_damage_is_one_error_that_names_the_folder(model_folder: Path, damage: Any, message: str) -> None:
    damage(model_folder)
    with pytest.raises(DataError, match=message) as caught:
        load(model_folder)
    assert str(model_folder) in str(caught.value)


def test_a_missing_folder_and_a_file_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="no such model folder"):
        load(tmp_path / "missing")
    with pytest.raises(DataError, match="is a file"):
        load(tmp_path / "file")


def test_a_half_copied_folder_is_refused(model_folder: Path, tmp_path: Path) -> None:
    other = save(Toy(n_clusters=4).fit(), tmp_path / "other")
    changed = load_file(arrays_of(other))
    changed["cluster_centers_"][0, 0] += 1
    save_file(changed, arrays_of(model_folder))  # of the same names, shapes and dtypes
    with pytest.raises(DataError, match="digest differs"):
        load(model_folder)


@pytest.mark.parametrize("bit", range(8))
def test_a_description_with_one_bit_changed_is_refused_or_says_the_same(model_folder: Path, bit: int) -> None:
    path = model_folder / "model.json"
    whole = path.read_bytes()
    said = description(model_folder)
    for at in range(bit, len(whole), 8):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
        try:
            load(model_folder)
        except DataError as error:
            assert str(model_folder) in str(error)  # noqa: PT017  both ends are right
        else:
            changed = json.loads(path.read_text())
            assert {name: changed[name] for name in said} == said


@pytest.mark.parametrize("value", ["1e999", '"\\ud800"'])
def test_what_can_be_read_but_not_be_written_is_refused(model_folder: Path, value: str) -> None:
    path = model_folder / "model.json"
    path.write_text(path.read_text().replace('"n_clusters": 4', f'"n_clusters": {value}'))
    with pytest.raises(DataError, match="digest differs"):
        load(model_folder)


@pytest.mark.parametrize("version", [-1, 0, True, 1.5, "2", None, [], {}])
def test_a_format_version_is_a_whole_number_from_one_on(model_folder: Path, version: Any) -> None:
    rewrite(model_folder, lambda document: document.update(format_version=version))
    with pytest.raises(DataError, match="format version"):
        load(model_folder)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "]" * 100_000, "[" * 900 + "]" * 900, "9" * 5000, "NaN", "-Infinity", '{"$text": [1, 2]}',
        '{"$text": "abc"}', '{"$history": [{"iteration": "1", "seconds": 0, "objective": 0, "n_distances": 0}]}',
        '{"$history": [{"iteration": 1, "seconds": null, "objective": 0, "n_distances": 0}]}',
        '{"$history": [{"iteration": 1, "seconds": 0, "objective": 0, "n_distances": 1000000000000000000000}]}',
        '{"$history": [{"iteration": 1, "seconds": 0, "objective": 0, "n_distances": 0, "stage": "<b>"}]}',
        '{"$array": "labels_", "shape": [50], "dtype": "float64"}',
    ],
)  # fmt: skip
def test_hostile_values_are_one_error(model_folder: Path, text: str) -> None:
    path = model_folder / "model.json"
    path.write_text(path.read_text().replace('"attributes": {', f'"attributes": {{"odd_": {text},', 1))
    for read in (load, read_info):
        if read is load or "$array" not in text:  # whose dtype is seen only where the arrays are
            with pytest.raises(DataError, match="damaged"):
                read(model_folder)
    assert is_model(model_folder) in (True, False)


def test_texts_take_what_they_need_whatever_their_dtype_is_said_to_be(model_folder: Path) -> None:
    bomb = {"$text": ["a", "b", "c"], "dtype": "<U2000000000"}
    rewrite(model_folder, lambda document: document["attributes"].update(feature_names_in_=bomb))
    assert load(model_folder).feature_names_in_.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["../.model.0123456789abcdef.safetensors", "/etc/passwd", "model.json", "", None, 3])
def test_arrays_lie_in_the_folder_of_the_model(model_folder: Path, name: Any) -> None:
    (model_folder.parent / ".model.0123456789abcdef.safetensors").write_bytes(b"not ours")
    rewrite(model_folder, lambda document: document["arrays"].update(written_as=name))
    assert load(model_folder).n_clusters == 4


def test_a_pipe_is_not_waited_for(model_folder: Path) -> None:
    for path in (arrays_of(model_folder), model_folder / "model.json"):
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(DataError, match="not a file"):
            load(model_folder)


def test_arrays_of_a_type_that_numpy_lacks_are_refused(model_folder: Path) -> None:
    header = b'{"labels_":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
    content = len(header).to_bytes(8, "little") + header + bytes(4)
    arrays_of(model_folder).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    rewrite(model_folder, lambda document: document["arrays"].update(sha256=digest))
    with pytest.raises(DataError, match="damaged"):
        load(model_folder)


# --- models that do not hold together

ROWS = np.random.default_rng(0).normal(size=(60, 3))
MODELS: dict[str, Any] = {
    "kmeans": lambda: globular.KMeans(4, random_state=0),
    "nested": lambda: globular.NestedMiniBatchKMeans(4, random_state=0),
    "variational": lambda: globular.VariationalKMeans(4, random_state=0),
    "full": lambda: globular.GaussianMixture(2, random_state=0),
    "tied": lambda: globular.GaussianMixture(2, covariance_type="tied", random_state=0),
    "diag": lambda: globular.GaussianMixture(2, covariance_type="diag", random_state=0),
    "soft": lambda: globular.VariationalGaussianMixture(4, random_state=0),
    "infinite": lambda: globular.InfiniteGaussianMixture(random_state=0),
    "counts": lambda: globular.InfiniteMultinomialMixture(random_state=0),
    "directions": lambda: globular.VonMisesFisherMixture(2, random_state=0),
    "poisson": lambda: globular.PoissonMixture(2, random_state=0),
}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("fitted")
    return {name: save(make().fit(np.round(np.abs(4 * ROWS))), folder / name) for name, make in MODELS.items()}


@pytest.fixture
def copied(fitted: dict[str, Path], tmp_path: Path) -> Any:
    return lambda name: Path(shutil.copytree(fitted[name], tmp_path / name))


def put(name: str, change: Any) -> Any:
    return lambda arrays: arrays.update({name: np.ascontiguousarray(change(arrays[name]))})


def one(value: float) -> Any:
    def change(array: Any) -> Any:
        array.ravel()[-1] = value
        return array

    return change


@pytest.mark.parametrize(
    ("model", "array", "change"),
    [
        ("kmeans", "cluster_centers_", lambda a: a[:, :2]),  # was a heap corruption
        ("kmeans", "cluster_centers_", lambda a: np.zeros((4, 40))),
        ("kmeans", "cluster_centers_", lambda a: a[:3]),
        ("kmeans", "cluster_centers_", lambda a: a[:0]),
        ("kmeans", "cluster_centers_", lambda a: a.ravel()),
        ("kmeans", "cluster_centers_", lambda a: a > 0),
        ("kmeans", "cluster_centers_", one(np.nan)),
        ("kmeans", "cluster_centers_", one(np.inf)),
        ("kmeans", "labels_", one(4)),
        ("kmeans", "labels_", one(-1)),
        ("kmeans", "labels_", lambda a: a.astype(float)),
        ("nested", "sums_", lambda a: a[:, :2]),
        ("nested", "counts_", lambda a: a[:3]),
        ("nested", "counts_", one(-1)),
        ("variational", "neighbors_", one(10**8)),
        ("variational", "neighbors_", one(-1)),
        ("variational", "neighbors_", lambda a: a[:2]),
        ("full", "means_", lambda a: a[:, :2]),
        ("full", "weights_", lambda a: a[:1]),
        ("full", "weights_", lambda a: -a),
        ("full", "weights_", lambda a: 2 * a),
        ("full", "covariances_", lambda a: -a),
        ("full", "covariances_", one(np.nan)),
        ("full", "covariances_", lambda a: a + np.triu(np.ones((3, 3)), 1)),
        ("tied", "covariances_", lambda a: 0 * a),
        ("diag", "covariances_", one(-1e-9)),
        ("diag", "covariances_", one(0)),
        ("soft", "neighbors_", one(4)),
        ("infinite", "posterior_.sticks", lambda a: a[:, :1]),
        ("infinite", "posterior_.means", lambda a: a[:, :2]),
        ("infinite", "posterior_.degrees_of_freedom", lambda a: 0 * a + 1),
        ("infinite", "posterior_.mean_precision", lambda a: -a),
        ("infinite", "posterior_.scale", lambda a: -a),
        ("infinite", "prior_.scale", lambda a: a[:2, :2]),
        ("infinite", "prior_.means", lambda a: a[:2]),
        ("infinite", "weights_", lambda a: a / 2),
        ("infinite", "covariances_", lambda a: a[:, :2, :2]),
        ("counts", "posterior_.counts", lambda a: a[:, :2]),
        ("counts", "posterior_.counts", one(0)),
        ("counts", "prior_.counts", lambda a: a[:2]),
        ("counts", "prior_.sticks", lambda a: np.append(a, 1)),
        ("directions", "concentrations_", lambda a: -a),
        ("directions", "concentrations_", lambda a: a[:1]),
        ("directions", "weights_", lambda a: 2 * a),
        ("poisson", "means_", one(0)),
        ("poisson", "means_", one(-1)),
        ("poisson", "means_", lambda a: a[:, :2]),
    ],
)
def test_arrays_that_do_not_go_together_are_refused(copied: Any, model: str, array: str, change: Any) -> None:
    folder = copied(model)
    load(folder)
    rewrite_arrays(folder, put(array, change))
    with pytest.raises(DataError, match=array.split(".")[0].rstrip("_")) as caught:
        load(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("model", "section", "name", "value"),
    [
        ("kmeans", "parameters", "metric", "manhattan"), ("kmeans", "parameters", "n_clusters", -5),
        ("kmeans", "parameters", "n_clusters", 5), ("kmeans", "parameters", "n_threads", 0),
        ("kmeans", "parameters", "device", "auuo"), ("kmeans", "attributes", "n_features_in_", 2),
        ("kmeans", "attributes", "n_features_in_", "3"), ("kmeans", "attributes", "inertia_", "x"),
        ("kmeans", "attributes", "history_", [1]), ("kmeans", "attributes", "feature_names_in_", {"$text": ["a", "b"]}),
        ("kmeans", "attributes", "cluster_centers_", [[1, 2, 3], [4, 5, 6]]),
        ("kmeans", "attributes", "cluster_centers_", None), ("full", "parameters", "covariance_type", "nonsense"),
        ("full", "parameters", "covariance_type", "diag"), ("full", "parameters", "n_components", 7),
        ("full", "attributes", "lower_bound_", None), ("infinite", "parameters", "truncation", "fixed"),
        ("infinite", "attributes", "posterior_", {"$dict": {}}), ("infinite", "attributes", "posterior_", 3),
        ("infinite", "attributes", "n_components_", 99), ("counts", "attributes", "prior_", None),
    ],
)  # fmt: skip
def test_values_that_do_not_go_together_are_refused(copied, model, section, name, value):
    folder = copied(model)
    rewrite(folder, lambda document: document[section].update({name: value}))
    with pytest.raises(DataError, match="damaged or does not fit"):
        load(folder)


@pytest.mark.parametrize("model", MODELS)
def test_an_attribute_that_predict_needs_is_missed_by_load(copied: Any, model: str) -> None:
    folder = copied(model)
    for name in ("cluster_centers_", "means_", "weights_", "covariances_", "posterior_", "prior_", "n_features_in_"):
        document = description(folder)
        if name in document["attributes"] and (name != "prior_" or "posterior_" in document["attributes"]):
            gone = {key: value for key, value in document["attributes"].items() if key != name}
            (folder / "model.json").write_text(json.dumps({**document, "attributes": gone}))
            with pytest.raises(DataError, match=name):
                load(folder)
            (folder / "model.json").write_text(json.dumps(document))


def test_save_refuses_what_load_would_refuse(fitted: dict[str, Path], tmp_path: Path) -> None:
    model = load(fitted["kmeans"]).set_params(n_clusters=9)
    with pytest.raises(ValueError, match="cluster_centers_ holds 4 centres, n_clusters=9"):
        save(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "attribute"),
    [(name, "cluster_centers_") for name in ("kmeans", "nested", "variational")]
    + [(name, "means_") for name in ("full", "tied", "diag", "soft")],
)
def test_centers_set_by_hand_are_checked_before_they_reach_a_kernel(fitted, model, attribute):
    found = load(fitted[model])
    good = getattr(found, attribute)
    for bad in (good[:, :2], np.hstack([good, good]), good[0], good[:0], np.full_like(good, np.nan), good.astype(str)):
        setattr(found, attribute, bad)
        for method in ("predict", "score", "transform", "predict_proba", "score_samples", "partial_fit"):
            if hasattr(found, method):
                with pytest.raises(ValueError, match=attribute):
                    getattr(found, method)(ROWS)


@pytest.mark.parametrize("part", ["sticks", "means", "scale", "degrees_of_freedom", "mean_precision"])
def test_a_posterior_set_by_hand_is_checked_before_it_reaches_a_kernel(fitted: dict[str, Path], part: str) -> None:
    model = load(fitted["infinite"])
    good = model.posterior_[part]
    for bad in (good[..., :0], np.concatenate([good, good], axis=-1), np.full_like(good, np.nan), good[None]):
        model.posterior_[part] = bad
        for method in (model.predict, model.score, model.predict_proba, model.score_samples):
            with pytest.raises(ValueError, match="posterior_"):
                method(ROWS)
