"""Mixtures of directions, counts, and zeros and ones on real rows: python benchmarks/families.py [words|news|digits …]

`words`: directions of word vectors, a tenth of them held out.
`news`: counts of words in newsgroups, sparse; how far components are groups. `digits`: digits made binary.
Each line has the seconds of the fit, its iterations, and what it found. Real sets are read from the folder
named by GLOBULAR_DATA; those that are not found are said and left out.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from globular import BernoulliMixture, PoissonMixture, VonMisesFisherMixture
from globular.errors import DataError
from harness.data import real_array, real_file


def timed(model: Any, X: Any) -> tuple[Any, str]:
    """A fitted model, and how long it took."""
    begin = time.perf_counter()
    model.fit(X)
    return model, f"{time.perf_counter() - begin:6.1f} s"


def words() -> Iterator[str]:
    """200,000 word vectors of 50 columns: a tenth is held out."""
    X = real_array("glove50/glove50_200k.npz")
    order = np.random.default_rng(0).permutation(len(X))
    test, train = order[:20_000], order[20_000:]
    for C in (20, 100):
        model, seconds = timed(VonMisesFisherMixture(C, random_state=0), X[train])
        kappa = np.sort(model.concentrations_)
        yield (
            f"words, von Mises-Fisher, C={C}: {seconds}, {model.n_iter_} iterations, held out "
            f"{model.score(X[test]):.3f} nats a row, concentrations {kappa[0]:.1f} to {kappa[-1]:.1f}"
        )


def counts(smallest_frequency: int, largest: int) -> tuple[Any, Any]:
    """How often words occur in messages, `largest` at most, from weights by tf-idf: (1 + log count) · idf, scaled by
    rows; of words in so many messages, and which words these are."""
    X = sparse.csr_array(sparse.load_npz(real_file("newsgroups20/newsgroups20_tfidf.npz"))).astype(np.float64)
    documents = np.bincount(X.indices, minlength=X.shape[1])
    idf = np.log((1 + X.shape[0]) / (1 + documents)) + 1
    X.data /= idf[X.indices]
    filled = np.flatnonzero(np.diff(X.indptr))
    smallest = np.ones(X.shape[0])
    smallest[filled] = np.minimum.reduceat(X.data, X.indptr[filled])  # that of words which occur once
    X.data = np.minimum(np.round(np.exp(X.data / np.repeat(smallest, np.diff(X.indptr)) - 1)), largest)
    kept = np.flatnonzero(documents >= smallest_frequency)
    return sparse.csr_array(X[:, kept]), kept


def news() -> Iterator[str]:
    """18,846 messages, the 9,188 words that occur in 20 or more of them."""
    X, kept = counts(20, 5)
    with np.load(real_file("newsgroups20/labels.npz"), allow_pickle=True) as arrays:
        y, vocabulary = arrays["y"], arrays["vocab"][kept]
    for smoothing in (1e-3, 1e-1):
        model, seconds = timed(PoissonMixture(20, smoothing=smoothing, random_state=0), X)
        mutual = normalized_mutual_info_score(y, model.labels_)
        yield (
            f"news, Poisson, C=20, smoothing={smoothing}: {seconds}, {model.n_iter_} iterations, mutual information "
            f"with the groups {mutual:.3f}, ARI {adjusted_rand_score(y, model.labels_):.3f}"
        )
    lift = model.means_ / (model.weights_ @ model.means_)
    frequent = np.asarray(X.sum(axis=0)).ravel() > 400
    for c in np.argsort(-model.weights_)[:6]:
        best = np.argsort(-np.where(frequent, lift[c], 0.0))[:7]
        yield f"  {model.weights_[c]:.2f}: {' '.join(map(str, vocabulary[best]))}"


def digits() -> Iterator[str]:
    """60,000 digits of 784 pixels, a pixel above one half being one; 10,000 more are held out."""
    X, y = real_array("mnist/mnist.npz") > 127, real_array("mnist/mnist.npz", "y")
    train, test = slice(0, 60_000), slice(60_000, None)
    for C in (10, 100):
        model, seconds = timed(BernoulliMixture(C, random_state=0), X[train])
        digit = np.array([np.bincount(y[train][model.labels_ == c], minlength=10).argmax() for c in range(C)])
        right = np.mean(digit[model.predict(X[test])] == y[test])
        yield (
            f"digits, Bernoulli, C={C}: {seconds}, {model.n_iter_} iterations, held out "
            f"{model.score(X[test]):.2f} nats a row, {right:.1%} of these are of the digit of their component"
        )


BY_NAME: dict[str, Callable[[], Iterator[str]]] = {"words": words, "news": news, "digits": digits}


def main() -> None:
    """Run those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BY_NAME, []])
    warnings.simplefilter("ignore", ConvergenceWarning)
    for name in parser.parse_args().names or BY_NAME:
        try:
            for line in BY_NAME[name]():
                print(line, flush=True)
        except DataError as error:
            print(f"{name}: {error}")


if __name__ == "__main__":
    main()
