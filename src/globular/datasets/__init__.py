"""Data with a known answer: Gaussian grids, separated mixtures, huge blobs, image patches, deformed digits.

Every function takes `random_state` (an integer, a NumPy generator or `None`) and gives the same rows for the
same seed. Rows come in random order, so the first n of them are a fair sample: to get a training and a test
set of one mixture, draw both at once and cut.

References: the grid is the BIRCH-like set of Forster & Lücke (2018), the two separations are Eq. 15 of
Verbeek, Vlassis & Nunnink (2003) and footnote 4 of Kurihara, Welling & Vlassis (2006); patches and deformed
digits stand in for the STL10P and INFMNIST sets of Newling & Fleuret (2016).
"""

from globular.datasets.gaussian import birch_grid, many_blobs, separated_mixture
from globular.datasets.images import deform_digits, image_patches
from globular.datasets.record import Dataset

__all__ = ["Dataset", "birch_grid", "deform_digits", "image_patches", "many_blobs", "separated_mixture"]
