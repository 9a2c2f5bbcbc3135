"""Images in a tensor on a GPU, which stay there until they are needed on the host."""

from typing import TYPE_CHECKING

import numpy as np

from secondlook.arrays import Array, IntArray
from secondlook.sources.stored_images import describe_fault

if TYPE_CHECKING:
    from torch import Tensor


class DeviceImages:
    """A torch tensor [N, C, H, W] on a GPU as images [N, H, W, C]: uint8, or float32 converted block by block."""

    def __init__(self, tensor: "Tensor") -> None:
        self._pixels = tensor.detach().movedim(-3, -1)
        self.shape = tuple(self._pixels.shape)
        is_float = self._pixels.is_floating_point()
        self.dtype = np.dtype("float32" if is_float else str(tensor.dtype).removeprefix("torch."))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int) -> Array:
        """Copy one image to the host."""
        position = range(len(self))[index]
        image: Array = self.select(slice(position, position + 1)).cpu().numpy()[0]
        return image

    def select(self, positions: slice | IntArray) -> "Tensor":
        """Return images on their device, without a copy where possible. -> uint8 or float32 [n, H, W, C]"""
        import torch

        key = positions if isinstance(positions, slice) else torch.from_numpy(positions).to(self._pixels.device)
        block = self._pixels[key]
        return block.float() if block.is_floating_point() else block

    def describe_fault(self) -> str | None:
        """Return how these images fail to be uint8, or float32 in [0, 1], [N, H, W, 1 or 3]; None where they do not."""
        return describe_fault(self.dtype, self.shape, self._find_range)

    def _find_range(self) -> tuple[float, float]:
        import torch

        low, high = torch.stack(torch.aminmax(self._pixels)).float().tolist()
        return low, high


def is_on_accelerator(tensor: "Tensor") -> bool:
    """Whether a tensor is in the memory of a GPU, from which classifiers on GPUs can take it."""
    return tensor.is_cuda
