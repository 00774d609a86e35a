"""Topics of documents, clustered by k-means."""

import numpy as np
from bertopic import BERTopic

from globular import KMeans  # was: from sklearn.cluster import KMeans


def main(docs: list[str], embeddings: np.ndarray, nr_topics: int = 5) -> tuple[float, np.ndarray]:
    cluster_model = KMeans(n_clusters=nr_topics, random_state=0)
    topic_model = BERTopic(hdbscan_model=cluster_model)
    topics, _ = topic_model.fit_transform(docs, embeddings)
    again, _ = topic_model.transform(docs, embeddings)
    assert list(topics) == list(again)
    return float(cluster_model.inertia_), np.asarray(topics)
