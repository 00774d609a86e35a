"""Draw the decision picture of the page on choosing: which estimator, by questions asked from top to bottom.

    python docs/images/choosing.py         # writes docs/images/choosing.svg

Boxes are opaque and lines are grey, so the picture reads on light and dark pages alike.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, COLUMN, GAP, MARGIN = 500, 236, 16, 6
LINE, PADDING, ARROW = 21, 9, 24
COLUMNS = (
    (
        "One cluster for each row",
        (
            (("A short code for each row?",), ("ResidualKMeans", "ProductKMeans")),
            (("Thousands of small sets?",), ("fit_many",)),
            (("A tree of clusters?",), ("HierarchicalKMeans",)),
            (("Rows arrive in batches,", "or a result early?"), ("NestedMiniBatchKMeans",)),
            (("A graph of clusters?",), ("VariationalKMeans",)),
        ),
        "KMeans",
    ),
    (
        "Probabilities, or a density",
        (
            (
                ("Directions? Counts?", "Zeros and ones?"),
                ("VonMisesFisherMixture", "PoissonMixture", "BernoulliMixture"),
            ),
            (("Number of components", "unknown?"), ("InfiniteGaussianMixture",)),
            (("Many columns, correlated?",), ("LowRankGaussianMixture",)),
            (("Hundreds of components?",), ("VariationalGaussianMixture",)),
        ),
        "GaussianMixture",
    ),
)


def text(x: float, y: float, words: str, style: str) -> str:
    return f'<text x="{x}" y="{y}" class="{style}">{escape(words)}</text>'


def box(x: float, y: float, height: float, style: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{COLUMN}" height="{height}" rx="8" class="{style}"/>'


def column(
    x: float, title: str, questions: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...], last: str
) -> tuple[list[str], float]:
    """The parts of one column, and where it ends."""
    parts, y, middle = (
        [box(x, MARGIN, 40, "head"), text(x + COLUMN / 2, MARGIN + 26, title, "title")],
        MARGIN + 40.0,
        x + 20,
    )
    for question, answers in (*questions, ((), (last,))):
        parts.append(f'<path d="M{middle} {y}v{ARROW - 2}m-5 -6l5 6l5 -6" class="arrow"/>')
        if question and y > MARGIN + 40:
            parts.append(text(middle + 10, y + 17, "no", "no"))
        if not question:
            parts.append(text(middle + 10, y + 17, "otherwise", "no"))
        y += ARROW
        height = 2 * PADDING + LINE * (len(question) + len(answers)) - 2
        parts.append(box(x, y, height, "box" if question else "box last"))
        for i, words in enumerate((*question, *answers)):
            style = "question" if i < len(question) else "answer"
            parts.append(text(x + 12, y + PADDING + LINE * i + 15, words, style))
        y += height
    return parts, y


def picture() -> str:
    drawn = [column(MARGIN + i * (COLUMN + GAP), *parts) for i, parts in enumerate(COLUMNS)]
    height = max(end for _, end in drawn) + MARGIN
    style = (
        "text{font:15px system-ui,sans-serif;fill:#1b1f24}.title{fill:#fff;font-weight:600;text-anchor:middle}"
        ".answer{font:600 14px ui-monospace,monospace;fill:#1f5fa8}.no{fill:#8a939c;font-size:14px}"
        ".head{fill:#1f5fa8}.box{fill:#fff;stroke:#8a939c}.last{stroke:#1f5fa8;stroke-width:2}"
        ".arrow{fill:none;stroke:#8a939c;stroke-width:2}"
    )
    lines = "\n".join(part for parts, _ in drawn for part in parts)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}">'
    )
    return f"{head}\n<style>{style}</style>\n{lines}\n</svg>\n"


if __name__ == "__main__":
    path = Path(__file__).with_suffix(".svg")
    path.write_text(picture(), encoding="utf-8")
    print(path)
