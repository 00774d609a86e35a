"""Pictures of a clustering. Needs matplotlib.

Each function draws into an Axes `ax`, by default that of a new figure, and returns it.
Colours keep one meaning throughout: blue is the model, grey what it is compared with. Clusters in a map are
told apart by a handful of hues in turn: with thousands of clusters no colour can be a name.
"""

from globular.plotting.history import plot_curves, plot_history, plot_selection, plot_time_quality
from globular.plotting.models import plot_clusters, plot_graph, plot_mixture, plot_sizes, plot_tree
from globular.plotting.trees import plot_icicle

__all__ = [
    "plot_clusters",
    "plot_curves",
    "plot_graph",
    "plot_history",
    "plot_icicle",
    "plot_mixture",
    "plot_selection",
    "plot_sizes",
    "plot_time_quality",
    "plot_tree",
]
