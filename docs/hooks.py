"""What mkdocs does not do by itself: files of the repository beside docs/ become part of the site.

The pages of docs/ link to recipes, benchmarks and the README by relative paths, so that they work where the repository
is read. In the site those files live under project/, by the same paths; sources are shown as code. Links are rewritten
from the one layout to the other. A link to a file that is not taken up fails the strict build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "project"
TAKEN = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE",
    "benchmarks/README.md", "benchmarks/results/*.csv", "recipes/[!_]*.py", "recipes/migration/[!_]*.py",
    "experiments/*/report/*.md", "experiments/*/report/*.png",
)  # fmt: skip
LINK = re.compile(r"""(\]\(|<img[^>]*\ssrc=")(?![a-z]+:|#|/)([^)\s"#]+)""")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the reports of the experiments to the papers of the navigation."""
    reports = sorted(ROOT.glob("experiments/*/report/*.md"))
    assert config.nav is not None
    papers = next(entry["Papers"] for entry in config.nav if "Papers" in entry)
    papers.append({"Experiments": [site_path(path.relative_to(ROOT).as_posix()) for path in reports]})
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files from outside docs/, and the logo of the report page: white, and blue for the tab of a browser."""
    logo = (ROOT / "src/globular/report/assets/logo.svg").read_text(encoding="utf-8")
    for name, color in (("logo", "#ffffff"), ("favicon", "#1f5fa8")):
        drawn = logo.replace("currentColor", color)
        files.append(File.generated(config, f"images/{name}.svg", content=drawn))
    for pattern in TAKEN:
        for path in sorted(ROOT.glob(pattern)):
            relative = path.relative_to(ROOT).as_posix()
            if path.suffix == ".py":
                code = f"# {relative}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
                files.append(File.generated(config, site_path(relative), content=code))
            else:
                files.append(File.generated(config, site_path(relative), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite relative links; code stays as it is."""
    here = page.file.src_uri
    parts = FENCE.split(markdown)
    fences = FENCE.findall(markdown)
    linked = [LINK.sub(lambda match: match[1] + rewritten(match[2], here), part) for part in parts]
    return "".join(text + code for text, code in zip(linked, [*fences, ""], strict=True))


def rewritten(target: str, here: str) -> str:
    """A link of the repository as one of the site."""
    folder = posixpath.dirname(repository_path(here))
    there = site_path(posixpath.normpath(posixpath.join(folder, target)))
    return posixpath.relpath(there, posixpath.dirname(here) or ".")


def repository_path(uri: str) -> str:
    """Where a page of the site lies in the repository."""
    if not uri.startswith(f"{FOLDER}/"):
        return f"docs/{uri}"
    return uri.removeprefix(f"{FOLDER}/").replace("overview.md", "README.md")


def site_path(path: str) -> str:
    """Where a file of the repository lies in the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith(".py"):
        path = f"{path.removesuffix('.py')}.md"
    return f"{FOLDER}/{path.replace('README.md', 'overview.md')}"  # a README would be the first page of its section
