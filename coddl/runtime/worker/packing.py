"""Small trees of tensors and plain values as bytes, to be broadcast. Nothing is pickled."""

import json
import struct

import torch
from torch import Tensor

from coddl.runtime.worker.group import Group
from coddl.runtime.worker.image import Tree, flatten, unflatten


def packed(tree: Tree) -> bytes:
    """Return a tree as bytes."""
    skeleton, tensors = flatten(tree)
    about = [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in tensors]
    head = json.dumps([skeleton, about]).encode()
    return b"".join([struct.pack("<q", len(head)), head, *map(_raw, tensors)])


def _raw(tensor: Tensor) -> bytearray:
    data = bytearray(tensor.nbytes)
    if data:
        held = torch.frombuffer(data, dtype=tensor.dtype).view(tensor.shape)
        held.copy_(tensor.detach())
    return data


def unpacked(data: bytes) -> Tree:
    """Put a tree together again."""
    (length,) = struct.unpack_from("<q", data)
    skeleton, about = json.loads(data[8 : 8 + length])
    tensors, at = [], 8 + length
    for name, shape in about:
        dtype: torch.dtype = getattr(torch, name)
        tensor = torch.empty(shape, dtype=dtype)
        if tensor.nbytes:
            raw = bytearray(data[at : at + tensor.nbytes])
            tensor.copy_(torch.frombuffer(raw, dtype=dtype).view(shape))
        tensors.append(tensor)
        at += tensor.nbytes
    return unflatten(skeleton, tensors)


def shared(group: Group, tree: Tree | None, root: int = 0) -> Tree:
    """Give all members the root's tree; raises GroupError."""
    data = packed(tree) if group.rank == root else b""
    size = torch.tensor([len(data)], dtype=torch.int64)
    group.finish(group.broadcast(size, root))
    raw = bytearray(data) if group.rank == root else bytearray(int(size))
    group.finish(group.broadcast(torch.frombuffer(raw, dtype=torch.uint8), root))
    return unpacked(bytes(raw))
