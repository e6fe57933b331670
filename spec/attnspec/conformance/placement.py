"""Where the code under test runs: what it is handed goes there, and what it returns comes back.

Cases, oracles and bounds live on the CPU, whatever the device: there they are drawn from one generator and
computed in float64. Only the code under test, its parameters and the tensors of its calls are elsewhere. On
the CPU nothing is moved, and the code gets the very tensors of the case.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Placement:
    """The device of this process; set once, before anything is recognised.

    Attributes:
        device: Where the code under test runs.
        moves: Whether tensors are copied there; a test sets it alone, to try the copying without a device.
    """

    device = torch.device("cpu")
    moves = False

    @classmethod
    def use(cls, name: str) -> None:
        """Run the code under test on a device from now on."""
        cls.device = torch.device(name)
        cls.moves = cls.device.type != "cpu"


def placed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call with every tensor on the device, its strides kept where they can be."""
    if not Placement.moves:
        return dict(given)
    return {name: _moved(value) if isinstance(value, Tensor) else value for name, value in given.items()}


def _moved(tensor: Tensor) -> Tensor:
    if tensor.requires_grad or tensor.numel() == 0:
        return tensor.to(Placement.device, copy=True)
    # Plain moving makes a sliced or expanded tensor dense; so the memory moves, and the view is taken there.
    memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).to(Placement.device, copy=True)
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


@torch.no_grad()
def show_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Write back what a call changed in the copies that it was handed, so that the change can be seen."""
    if not Placement.moves:
        return
    for name, tensor in before.items():
        if isinstance(tensor, Tensor) and not tensor.requires_grad and 0 not in tensor.stride():
            changed = after[name].cpu()
            if not torch.equal(changed.nan_to_num(), tensor.nan_to_num()):
                tensor.copy_(changed)
