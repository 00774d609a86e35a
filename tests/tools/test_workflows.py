"""The public CI: actions are pinned by commit, and no job has more rights than it uses."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
PINNED = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")


@pytest.mark.skipif(not WORKFLOWS, reason="a source archive has no workflows")
def test_actions_are_pinned_and_rights_are_least() -> None:
    for workflow in WORKFLOWS:
        text = workflow.read_text(encoding="utf-8")
        used = [line for line in text.splitlines() if "uses:" in line]
        assert used and all(PINNED.search(line) for line in used), workflow.name
        assert "\npermissions: { contents: read }\n" in text, workflow.name
        assert text.count("write") == (workflow.stem == "release"), workflow.name
