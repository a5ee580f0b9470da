"""An exponential moving average of the weights, which is what is evaluated."""

import torch
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

import coddl  # plain:
from tests.runtime.idioms import reporting, toy

torch.manual_seed(reporting.SEED)
loader = DataLoader(toy.regression(), batch_size=32, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
model, optimizer, loader, ema = coddl.prepare(model, optimizer, loader, ema)  # plain:

for _epoch in coddl.epochs(3):  # plain: for _epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        ema.update_parameters(model)
        reporting.rest()

near = {"loss": toy.evaluate(ema)}
if coddl.is_main():  # plain: if True:
    averaged = int(ema.n_averaged)
    reporting.report(ema, near, updates=reporting.updates(optimizer), averaged=averaged)
