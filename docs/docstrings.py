"""Docstrings for the API pages: what scikit-learn's conventions write in reStructuredText, as Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

from globular.estimators.parameters import filled

ROLE = re.compile(r":(?:class|func|meth|mod|attr):`~?([\w.]+)`")
DOUBLE = re.compile(r"(?<!`)``([^`\n]+)``(?!`)")
CHOICES = re.compile(r"^([\w, ]+ : .*?)\{([^{}\n]+)\}", re.MULTILINE)
EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
RULE = re.compile(r"={3,}(?: +={3,})+")
TABLE = re.compile(rf"^{RULE.pattern}$(?:\n[^\n]+)*\n{RULE.pattern}$", re.MULTILINE)


class MarkdownDocstrings(griffe.Extension):
    """Rewrites every docstring of the package before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each module, class and function that it has read."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring with shared parameters filled in; code, tables and choices as Markdown has them."""
    text = TABLE.sub(lambda match: table(match[0]), filled(text))
    text = EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", text)
    # The first of {"a", "b"} would be taken for the default.
    text = CHOICES.sub(lambda match: match[1] + " or ".join(match[2].split(", ")), text)
    return DOUBLE.sub(r"`\1`", ROLE.sub(r"`\1`", text))


def table(text: str) -> str:
    """A simple table; one without a headline gets an empty one."""
    lines = text.splitlines()
    cuts = [match.start() for match in re.finditer("=+", lines[0])]
    rows = [[line[a:b].strip() for a, b in zip(cuts, [*cuts[1:], None], strict=True)] for line in lines]
    inner = [i for i, line in enumerate(lines[1:-1], 1) if RULE.fullmatch(line)]
    head = rows[1] if inner else [""] * len(cuts)
    body = rows[inner[0] + 1 : -1] if inner else rows[1:-1]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(cuts), *body])
