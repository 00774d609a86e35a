"""Recorded work, replayed as CUDA graphs.

Work of fixed shapes is recorded as CUDA graphs: what the host would launch kernel by kernel, a hundred of them, it
launches as one. Where rows are few a pass is bound by the host, and recorded it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch

Work = Callable[..., tuple[Any, ...]]

MOST_RECORDED = 12
"""Graphs that are kept, each with the memory of what it computes."""

MOST_RECORDED_ROWS = 1 << 22
"""With more, the host keeps ahead of the card, and a graph would hold much memory."""

RECORDING = Lock()
"""Held while a graph is recorded: another thread that records at the same time would spoil both."""


@dataclass
class _Graph:
    given: list[Any]
    graph: Any
    found: tuple[Any, ...]


class Recordings:
    """Graphs by what they do.

    Work is carried out as it is the first time, when kernels are compiled, recorded the second time, and replayed from
    then on. It must not wait for the card, and look at nothing that changes its place but for the tensors it is given.
    """

    def __init__(self, *, by_kernels: bool, n_rows: int = 0) -> None:
        """Plain torch waits for the card: what is not done by kernels is not recorded; nor are passes of many rows."""
        self._is_on = by_kernels and n_rows <= MOST_RECORDED_ROWS
        self._graphs: dict[Hashable, _Graph | None] = {}
        self._pool: Any = None

    def run(self, name: Hashable, work: Work, *given: Any) -> tuple[Any, ...]:
        """What the work makes of these tensors: tensors that the next run with the same name writes over."""
        if not self._is_on or given[0].device.type != "cuda":
            return work(*given)
        key = name, *((tuple(tensor.shape), tensor.dtype) for tensor in given)
        if key not in self._graphs:
            self._graphs[key] = None
            return work(*given)
        recorded = self._graphs.pop(key) or self._record(work, given)
        self._graphs[key] = recorded  # the last one used comes last
        if recorded is None:
            return work(*given)
        for held, tensor in zip(recorded.given, given, strict=True):
            held.copy_(tensor)
        recorded.graph.replay()
        return recorded.found

    def _record(self, work: Work, given: tuple[Any, ...]) -> _Graph | None:
        """A graph of the work; None where the card has too little memory for one."""
        made = [key for key, graph in self._graphs.items() if graph is not None]
        if len(made) >= MOST_RECORDED:
            del self._graphs[made[0]]
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        held, graph, stream = [tensor.clone() for tensor in given], torch.cuda.CUDAGraph(), torch.cuda.Stream()
        try:
            with RECORDING, torch.cuda.stream(stream):
                torch.cuda.synchronize()
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    found = work(*held)
                finally:
                    graph.capture_end()
        except torch.cuda.OutOfMemoryError:
            return None
        return _Graph(held, graph, found)
