"""The same training for torchrun: SIGTERM has it save a checkpoint and end; it begins from there.

It is as good as a restart gets: it is told, not killed, so it saves at once and repeats no step.
"""

import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd import backward
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.elastic.state25mb import GLOBAL_BATCH, training

times_path, checkpoint = map(Path, sys.argv[1:])
told_to_end = torch.zeros(1)
signal.signal(signal.SIGTERM, lambda *_: told_to_end.fill_(1))

dist.init_process_group("gloo")
model, optimizer, data = training()
step = 0
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
parallel = DistributedDataParallel(model)
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
loader = DataLoader(data, GLOBAL_BATCH // dist.get_world_size(), sampler=sampler, drop_last=True)

with times_path.open("a", buffering=1) as times:
    while True:
        sampler.set_epoch(step)
        for inputs, labels in loader:
            backward(F.cross_entropy(parallel(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0:
                times.write(f"{step} {time.monotonic()}\n")
            step += 1
            anyone = told_to_end.clone()
            dist.all_reduce(anyone)  # all must end after the same step
            if anyone:
                if dist.get_rank() == 0:
                    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**states, "step": step}, checkpoint)
                dist.barrier()
                dist.destroy_process_group()
                sys.exit()
