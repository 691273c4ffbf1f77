"""What makes a program replayable: a CUDA graph that is captured once and does the same on the same memory again.

A capture that fails midway cannot be undone, so what would make it fail is found in the run before it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Program = Callable[[], None]
Capture = Callable[[Program], Program]
"""Runs a program once, to no effect that lasts, and returns what does the same work on the same memory again."""


class CannotCaptureError(Exception):
    """A program cannot be captured; it was run on nobody's rows and nothing else happened."""


class WaitsForDeviceError(CannotCaptureError):
    """The network's forward waits for the device, as some do that choose experts."""


class CudaCapture:
    """`Capture` on the current CUDA device; all its graphs share one memory pool."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, program: Program) -> Program:
        """See `Capture`; what a kernel compiles or a library allocates at its first call comes before the capture.

        Raises:
            CannotCaptureError: the program waits for the device, or there is no memory for it. Both are found before
                the capture begins, for one that fails midway cannot be undone.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._stream):
                _run_without_waits(program)
        finally:  # what was begun before it was refused comes before all that follows
            torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            program()
        return graph.replay


def _run_without_waits(program: Program) -> None:
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        program()
    except torch.cuda.OutOfMemoryError as error:
        raise CannotCaptureError("there is no memory for it") from error
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        raise WaitsForDeviceError("it waits for the device") from error
    finally:
        torch.cuda.set_sync_debug_mode(mode)
