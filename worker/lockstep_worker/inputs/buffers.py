"""Memory for a run's inputs that outlives the run: allocated once, at its largest, and filled anew each time.

A run's input lies at the same address every time, which a captured graph needs, and a GPU's copies start from pinned
memory that is not allocated in the middle of a step. What has no bound that is known beforehand may grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_HOST_COPIES = 2
"""A run's copies may still be under way when the next run is packed, but not when the one after that is: by then the
first one's tokens were collected. So two runs' host memory is kept apart. On the device one is enough, for runs follow
one another there."""


class _Input:
    """One named input: its memory on the host, as torch and as numpy see it, and on the device."""

    def __init__(self, size: int, kind: type[np.generic], device: torch.device) -> None:
        self.is_remote = device.type != "cpu"
        hosts = [torch.from_numpy(np.zeros(size, dtype=kind)) for _ in range(_HOST_COPIES if self.is_remote else 1)]
        self.hosts = [host.pin_memory() for host in hosts] if self.is_remote else hosts
        self.arrays = [host.numpy() for host in self.hosts]
        self.own = self.hosts[0].to(device)  # on a CPU the host's itself


class Buffers:
    """Named inputs of a run, on the host and on the device.

    Args:
        sizes: the most elements and the number type of each.
        device: where the runs are.
    """

    def __init__(self, sizes: Mapping[str, tuple[int, type[np.generic]]], device: torch.device) -> None:
        self._turn = 0
        self._device = device
        self._inputs = {name: _Input(size, kind, device) for name, (size, kind) in sizes.items()}

    def turn(self) -> None:
        """Another run is packed from here on."""
        self._turn += 1

    def make_room(self, name: str, size: int) -> None:
        """Have an input hold so many elements; one that grows gets another address, so no captured run may read it."""
        held = self._inputs[name].arrays[0]
        if size > held.size:
            self._inputs[name] = _Input(2 * size, held.dtype.type, self._device)

    def fill(self, name: str, array: npt.NDArray[Any]) -> Tensor:
        """Copy an array into a named input, once a run, without waiting for the device.

        Returns:
            The input on the device, of the array's shape; it holds until the input is filled again.
        """
        one, size = self._inputs[name], array.size
        turn = self._turn % len(one.arrays)
        one.arrays[turn][:size] = array.reshape(-1)
        own = one.own[:size]
        if one.is_remote:
            own.copy_(one.hosts[turn][:size], non_blocking=True)
        return own if array.ndim == 1 else own.view(array.shape)
