"""What is public, to the letter: `public_api.txt` holds every name and signature that users may rely on.

A difference is a change that users see: say it in CHANGELOG.md, and write the file anew with
`python tests/contract/test_public_api.py`. docs/api/stability.md says what may change when.
"""

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import globular

KEPT = Path(__file__).with_name("public_api.txt")


def signature(function: Any) -> str:
    """Names and defaults of the parameters; their types are mypy's business."""
    nothing, lines = inspect.Parameter.empty, []
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        if default is not nothing:
            default = getattr(default, "__name__", default)  # a class or a function by its name
        lines.append(parameter.replace(annotation=nothing, default=default))
    return str(inspect.Signature(lines))


def lines_of(name: str, thing: Any) -> list[str]:
    """A class with the public methods that are ours, a function, a module by its `__all__`; else the name."""
    if isinstance(thing, ModuleType):
        return [line for inner in sorted(thing.__all__) for line in lines_of(f"{name}.{inner}", getattr(thing, inner))]
    lines = [f"{name}{signature(thing)}" if callable(thing) else name]
    for member in sorted(dir(thing)) if inspect.isclass(thing) else ():
        value = inspect.getattr_static(thing, member)
        if member.startswith("_"):
            continue
        if isinstance(value, classmethod):
            value = getattr(thing, member)
        if isinstance(value, property):
            lines.append(f"{name}.{member}")
        elif callable(value) and value.__module__.startswith("globular"):
            lines.append(f"{name}.{member}{signature(value)}")
    return lines


def public_api() -> str:
    """All of it, a line each."""
    lines = [line for name in sorted(globular.__all__) for line in lines_of(name, getattr(globular, name))]
    return "\n".join([*lines, ""])


def test_nothing_public_changes_unseen() -> None:
    assert public_api() == KEPT.read_text(encoding="utf-8"), __doc__


if __name__ == "__main__":
    KEPT.write_text(public_api(), encoding="utf-8")
