"""Export models and centres to other programs, and take centres from them.

>>> import numpy as np
>>> import globular
>>> from globular.export import centers_from
>>> from sklearn.cluster import MiniBatchKMeans
>>> X = np.random.default_rng(0).normal(size=(500, 4))
>>> found = MiniBatchKMeans(20, n_init=1, random_state=0).fit(X)
>>> model = globular.KMeans(20, init=centers_from(found)).fit(X)  # goes on from there
>>> bool(model.inertia_ < found.inertia_)
True
"""

from globular.export.faiss import Kmeans, to_faiss_ivf, to_faiss_pq, to_faiss_residual, write_faiss
from globular.export.onnx import to_onnx
from globular.export.tables import centers_from, to_npy, to_tree_table

__all__ = [
    "Kmeans", "centers_from", "to_faiss_ivf", "to_faiss_pq", "to_faiss_residual", "to_npy", "to_onnx", "to_tree_table",
    "write_faiss",
]  # fmt: skip
