"""Take the picture of the report page: deformed digits in a thousand clusters, one of them opened.

    python docs/images/report.py          # writes docs/images/report.png; needs Chromium and Pillow

The digits are scikit-learn's, enlarged to 16 × 16 and deformed at random.
"""

from __future__ import annotations

import sys
import tempfile
import time
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from globular import VariationalKMeans
from globular.datasets import deform_digits
from globular.report import write_report

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.browser import Browser, find_browser  # noqa: E402

SIZE = (1180, 950)
CLUSTER = 17
COLOURS = 128


def main() -> None:
    executable = find_browser()
    if executable is None:
        sys.exit("no browser: install Chromium, or set GLOBULAR_BROWSER to one")
    digits = np.kron(load_digits().images, np.ones((2, 2)))
    X = deform_digits(digits, 20_000, max_shift=1.0, random_state=0).X
    model = VariationalKMeans(n_clusters=1000, random_state=0).fit(X)
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(model, Path(folder) / "report.html", data=X, title="1,000 clusters of handwritten digits")
        picture = photograph(executable, page, Path(folder) / "profile")
    palette = picture.quantize(COLOURS, dither=Image.Dither.NONE)
    palette.save(HERE / "report.png", optimize=True)
    print(HERE / "report.png", (HERE / "report.png").stat().st_size // 1000, "kB")


def photograph(executable: str, page: Path, profile: Path) -> Image.Image:
    """The upper part of the page, with a cluster chosen as a reader would choose it."""
    browser = Browser(executable, profile, width=SIZE[0], height=SIZE[1])
    try:
        browser.open(page)
        browser.evaluate("document.getElementById('search').focus()")
        browser.type(f"{CLUSTER}\n")
        browser.wait_for(f"globularReport.data.complete === true && globularReport.map.selected === {CLUSTER}")
        browser.evaluate("scrollTo(0, 0)")
        time.sleep(1.0)  # the map glides to the cluster
        if browser.problems:
            sys.exit(f"the page complains: {browser.problems}")
        answer = browser._send("Page.captureScreenshot", {"format": "png"})
    finally:
        browser.close()
    return Image.open(BytesIO(b64decode(answer["data"]))).convert("RGB")


if __name__ == "__main__":
    main()
