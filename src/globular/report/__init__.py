"""One page about a fitted model: how it converged, how large its clusters are, where they lie, what is in them.

The page is one HTML file that needs no network and no server; it is made for 10 and for 100,000 clusters alike.
"""

from globular.report.page import write_report

__all__ = ["write_report"]
