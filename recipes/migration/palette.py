"""An image in a few colours."""

import numpy as np

from globular import KMeans  # was: from sklearn.cluster import KMeans


def main(image: np.ndarray, n_colors: int = 16) -> tuple[float, np.ndarray]:
    pixels = image.reshape(-1, 3)
    kmeans = KMeans(n_clusters=n_colors, n_init=10, random_state=42)
    labels = kmeans.fit_predict(pixels)
    palette = np.clip(kmeans.cluster_centers_, 0, 255).astype("uint8")
    quantized = palette[labels].reshape(image.shape)
    return float(np.square(image.astype(float) - quantized).mean()), quantized
