"""Reads images for tests."""

from pathlib import Path
from typing import Any

import torch

from coddl.runtime.worker.image import Tree, opened


def load(path: Path, device: torch.device | None = None) -> tuple[dict[str, Any], Tree]:
    """Read an image into tensors of its own; those that lived on a GPU go to `device`."""
    with opened(path) as (meta, tree, from_gpu):

        def copied(value: Tree) -> Tree:
            if isinstance(value, torch.Tensor):
                to = device if id(value) in from_gpu else None
                return torch.empty_like(value, device=to).copy_(value)
            if isinstance(value, dict):
                return type(value)({key: copied(item) for key, item in value.items()})
            if isinstance(value, list | tuple):
                return type(value)(copied(item) for item in value)
            return value

        return meta, copied(tree)
