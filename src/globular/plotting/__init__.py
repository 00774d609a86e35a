"""Pictures of a clustering. Needs matplotlib.

Each function draws into an Axes `ax`, by default of a new figure, and returns it. Blue is the model, grey is for
comparison. Clusters in a map take turns with a handful of hues, since thousands cannot have a colour each.
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
