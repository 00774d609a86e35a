"""Dask workers for a command: workers of a running cluster, or processes started for the occasion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from globular.errors import import_extra

if TYPE_CHECKING:
    from globular.data.blocks import Source

SchedulerOption = Annotated[
    str | None,
    typer.Option("--scheduler", metavar="ADDRESS", help="Work on the Dask cluster there; its workers read DATA."),
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, help="Start N Dask worker processes and work on them.")
]


@contextmanager
def dask_workers(scheduler: str | None, n_workers: int | None) -> Iterator[bool]:
    """Make a client the current one if either option was given; says whether there is one."""
    if scheduler is None and n_workers is None:
        yield False
        return
    if scheduler is not None and n_workers is not None:
        raise ValueError("--scheduler and --workers exclude each other; leave one of them out")
    Client = import_extra("distributed", "distributed", "dask", "working on Dask workers").Client
    with ExitStack() as stack:
        target = stack.enter_context(_local_cluster(n_workers)) if scheduler is None else scheduler
        try:
            client = stack.enter_context(Client(target, set_as_default=False, timeout="30s"))
        except OSError as error:
            raise ValueError(f"--scheduler {scheduler}: no Dask scheduler answers there ({error})") from error
        stack.enter_context(client.as_current())
        yield True


def _local_cluster(n_workers: int | None) -> Any:
    """Worker processes that share this machine's cores."""
    import logging

    from distributed import LocalCluster

    from globular.threads import default_threads

    return LocalCluster(
        n_workers=n_workers,
        threads_per_worker=max(1, default_threads() // (n_workers or 1)),
        processes=True,
        dashboard_address=":0",
        silence_logs=logging.ERROR,
    )


def on_workers(data: Sequence[str], source: Source, columns: Sequence[str] | None) -> Any:
    """DATA as files that the workers read, with the columns of `source` where those were chosen."""
    from globular.data.open import Files

    chosen = None if columns is None else (getattr(source, "column_names", None) or columns)
    return Files(tuple(data), None if chosen is None else tuple(chosen))
