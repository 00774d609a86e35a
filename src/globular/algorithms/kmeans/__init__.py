"""K-means: one file per algorithm, and the pipeline that `KMeans` runs."""
