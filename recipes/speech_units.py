"""Speech units: cluster the frames of a speech encoder, keep the model with joblib, write utterances as units.

    python -m recipes.speech_units features/ -k 500 -o km.joblib [--small]

What the HuBERT and textless-speech scripts do with scikit-learn's MiniBatchKMeans. Their keywords work with
`NestedMiniBatchKMeans` too; `KMeans` ends lower and takes less time. The file that joblib writes has the
`cluster_centers_` and the `predict` which the scripts after it ask for. Features are .npy files of frames × columns,
one for each utterance; without a folder they are generated.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import joblib
import numpy as np
from numpy.typing import NDArray

from globular import KMeans
from globular.io import open_source

Labels = NDArray[np.int64]
N_PHONES, N_COLUMNS = 40, 48


@dataclass(frozen=True, slots=True)
class Result:
    """What was learned, and what became of the utterances."""

    units: list[Labels]
    """One sequence per utterance, repetitions taken out."""
    n_frames: int
    inertia_per_frame: float
    seconds: float


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description="cluster speech features into units")
    parser.add_argument("features", nargs="?", type=Path, help="folder of .npy files, one per utterance")
    parser.add_argument("-k", "--units", type=int, default=500)
    parser.add_argument("-o", "--output", type=Path, help="where joblib puts the model")
    parser.add_argument("--small", action="store_true", help="a few seconds")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.features or generated(Path(scratch), 60 if options.small else 2000)
        path = options.output or Path(scratch) / "km.joblib"
        begun = time.perf_counter()
        model = learn(folder, options.units)
        seconds = time.perf_counter() - begun
        joblib.dump(model, path)
        utterances = [np.load(file) for file in sorted(folder.glob("*.npy"))]
        units = write_units(path, utterances)
    frames = np.concatenate(utterances)
    inertia = -model.score(frames) / len(frames)
    n_units = sum(map(len, units))
    print(f"{len(frames):,} frames of {len(units):,} utterances, {options.units} units in {seconds:.1f} s")
    print(f"inertia per frame {inertia:.4g}; {len(frames) / n_units:.1f} frames to a unit once repetitions are out")
    return Result(units, len(frames), inertia, seconds)


def learn(folder: Path, n_units: int) -> KMeans:
    """The folder is given as it is, and may be larger than memory."""
    return KMeans(n_units, random_state=0).fit(open_source(folder))


def write_units(path: Path, utterances: Sequence[NDArray[np.floating]]) -> list[Labels]:
    """What the next script does: load the model, and put every utterance into units."""
    model = joblib.load(path)
    return [without_repetitions(model.predict(frames)) for frames in utterances]


def without_repetitions(labels: NDArray[np.integer]) -> Labels:
    """A unit that lasts for several frames is written once."""
    first = np.ones(len(labels), dtype=bool)
    first[1:] = labels[1:] != labels[:-1]
    return labels[first].astype(np.int64)


def generated(folder: Path, n_utterances: int) -> Path:
    """Utterances of phones that last 3 to 12 frames; a phone sounds a little different for every speaker."""
    random = np.random.default_rng(0)
    phones = random.normal(scale=2.0, size=(N_PHONES, N_COLUMNS))
    for i in range(n_utterances):
        spoken = np.repeat(random.integers(N_PHONES, size=30), random.integers(3, 13, size=30))
        speaker = random.normal(scale=0.3, size=N_COLUMNS)
        frames = phones[spoken] + speaker + random.normal(size=(len(spoken), N_COLUMNS))
        np.save(folder / f"{i:05d}.npy", frames.astype(np.float32))
    return folder


if __name__ == "__main__":
    main()
