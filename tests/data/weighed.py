"""One process of PyTorch that trains on the joined batches of three trainers, with class weights and targets that do not
count: F.cross_entropy's `weight` and `ignore_index`, whose mean is divided by the weights of the targets that count.

    python3 -m venv env && env/bin/pip install torch==2.11.0 numpy safetensors
    env/bin/python tests/data/weighed.py

writes beside this file weighed.csv, the samples; weighed_start.safetensors, the parameters before the first step; and those
after the last: weighed.safetensors, and weighed_sum.safetensors where the loss is a sum, and the learning rate a twentieth.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).parent
# Of each of three trainers, whose samples of a step are every third of the joined batch.
TRAINERS, BATCH, STEPS = 3, 8, 12
JOINED = TRAINERS * BATCH
WEIGHT, IGNORE_INDEX = torch.tensor([0.5, 2.0, 0.75, 1.25]), -100

torch.manual_seed(11)
# The last step has fewer samples.
samples = JOINED * (STEPS - 1) + 7
x = (torch.randn(samples, 5) * 1000).round() / 1000
y = torch.randint(0, 4, (samples,))
y[torch.rand(samples) < 0.3] = IGNORE_INDEX
# None counts of the second trainer's in the third step, of any in the fifth, and of the first half of the first trainer's in
# the seventh.
y[2 * JOINED : 3 * JOINED][1::TRAINERS] = IGNORE_INDEX
y[4 * JOINED : 5 * JOINED] = IGNORE_INDEX
y[6 * JOINED : 7 * JOINED][0 : JOINED // 2 : TRAINERS] = IGNORE_INDEX

net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
save_file(net.state_dict(), HERE / "weighed_start.safetensors")
start = {name: tensor.clone() for name, tensor in net.state_dict().items()}
for reduction, lr, file in [("mean", 0.3, "weighed"), ("sum", 0.015, "weighed_sum")]:
    net.load_state_dict(start)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    options = dict(ignore_index=IGNORE_INDEX, label_smoothing=0.1, reduction=reduction)
    for step in range(STEPS):
        batch = slice(step * JOINED, (step + 1) * JOINED)
        optimizer.zero_grad()
        classes = y[batch]
        loss = F.cross_entropy(net(x[batch]), classes, WEIGHT, **options)
        if (classes == IGNORE_INDEX).all():
            # PyTorch's mean of nothing is not a number.
            loss = net(x[batch]).sum() * 0
        loss.backward()
        optimizer.step()
    save_file(net.state_dict(), HERE / f"{file}.safetensors")

with open(HERE / "weighed.csv", "w") as file:
    file.write("x0,x1,x2,x3,x4,y\n")
    for row, own in zip(x.tolist(), y.tolist()):
        file.write(",".join(f"{value:.3f}" for value in row) + f",{own}\n")
