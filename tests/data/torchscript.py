"""TorchScript modules for tests and for jobs/torchscript.toml, and PyTorch's numbers for them.

    python3 -m venv env && env/bin/pip install torch==2.11.0 numpy safetensors
    env/bin/python tests/data/torchscript.py

writes torchscript/*.pt and torchscript.safetensors beside this file, and jobs/digits_net.pt. What TorchScript keeps for
debugging (paths of sources on the machine at hand) is left out of the files.
"""

import io
import zipfile
from pathlib import Path
from typing import Dict, List

import torch
from safetensors.torch import save_file
from torch import nn

HERE = Path(__file__).parent
FOLDER = HERE / "torchscript"


class Digits(nn.Module):
    """That of jobs/torchscript.toml."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(16)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = nn.functional.max_pool2d(torch.relu(self.norm2(self.conv2(x))), 2)
        return self.fc(self.dropout(x.flatten(1)))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


class Masked(nn.Module):
    """Attends to no row behind its own: the mask among its buffers has infinities."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((8, 8), -torch.inf).triu(1))
        self.score = nn.Linear(8, 8)
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = x.reshape(-1, 8, 8)
        weights = torch.softmax(self.score(x) @ x.transpose(1, 2) + self.mask, 2)
        return self.fc((weights @ x).flatten(1))


class Everything(nn.Module):
    """A batch normalisation, tied and fixed parameters, buffers that a forward writes, each in its own way."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, 2.0, 1.0, -1.0]), requires_grad=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("largest", torch.zeros(4))
        self.encode = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4, momentum=0.3)
        self.average = nn.BatchNorm1d(4, momentum=None, affine=False)
        self.dropout = nn.Dropout(dropout)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        x = self.average(self.norm(self.encode(x))) * self.scale
        if self.training:
            self.calls += 1
            self.largest = torch.maximum(self.largest, x.detach().amax(0))
        return self.second(torch.tanh(self.first(self.dropout(x))))


class Two(nn.Module):
    def forward(self, x, y):
        return x + y


class Pair(nn.Module):
    def forward(self, x):
        return x, x


class OnCuda(nn.Module):
    def forward(self, x):
        return x + torch.ones(4, device="cuda:0")


class Fails(nn.Module):
    def forward(self, x):
        if x.size(0) != 64:
            raise ValueError("batches of 64 only")
        return x


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x):
        if self.training:
            self.teacher.add_(1.0)
        return x + self.teacher


class Nothing(nn.Module):
    """Without parameters."""

    def forward(self, x):
        return x.flatten(1)[:, :10]


class Wide(nn.Module):
    """Parameters of float64 behind float32."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10).double()

    def forward(self, x):
        return self.fc(x.flatten(1).double()).float()


class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen = torch.cat([self.seen, self.seen])
        return x


class Recurrent(nn.Module):
    """`nn.LSTM` computes with a list of its parameters; so does this with lists, a tuple and a dictionary."""

    by_name: Dict[str, torch.Tensor]

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True)
        self.gru = nn.GRU(3, 3, batch_first=True, bidirectional=True)
        self.rnn = nn.RNN(6, 3, batch_first=True)
        self.scale = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
        self.shift = nn.Parameter(torch.tensor([0.1, 0.2, 0.3]))
        self.both = [self.scale, self.shift]
        self.nested = (self.both, self.scale)
        self.by_name = {"shift": self.shift}

    def forward(self, x):
        x, _ = self.lstm(x)
        x, _ = self.gru(x)
        x, _ = self.rnn(x)
        lists, scale = self.nested
        return x[:, -1] * self.both[0] * scale + lists[1] + self.by_name["shift"]


class Remembers(nn.Module):
    """Reads a buffer that it writes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        if self.training:
            self.mean.mul_(0.5).add_(0.5 * x.detach().mean(0))
        return self.fc(x - self.mean)


class Counts(nn.Module):
    """Keeps something for the next forward that is no buffer."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.fc(x) / self.calls


class Collects(nn.Module):
    """As `Counts`, in a list."""

    seen: List[torch.Tensor]

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.seen = []

    def forward(self, x):
        self.seen.append(x.detach())
        return self.fc(x) + len(self.seen)


class Halves(nn.Module):
    """Computes with views of a parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(8.0).reshape(2, 4))
        self.rows = [self.weight.detach()[0], self.weight.detach()[1]]

    def forward(self, x):
        return x * self.rows[0] + self.rows[1]


class Apart(nn.Module):
    """Two parameters in one storage, side by side."""

    def __init__(self):
        super().__init__()
        left, right = torch.arange(16.0).reshape(2, 8).chunk(2, dim=1)
        self.left, self.right = nn.Parameter(left), nn.Parameter(right)

    def forward(self, x):
        return x * self.left[0] + self.right[1]


class Private(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.ones(4))
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x * self.kept + self.table)


class CutOff(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x).detach()


class Loops(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        turns = 1
        while turns > 0:
            turns += 1
        return self.fc(x.flatten(1))


class Rows(nn.Module):
    """An image row by row."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        rows, _ = self.lstm(x.squeeze(1))
        return self.fc(rows[:, -1])


class Idle(Mlp):
    def __init__(self):
        super().__init__()
        self.idle = nn.Linear(4, 4)


class Normed(nn.Module):
    """That of ddp.py."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 8, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(32, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.norm1(self.conv1(x))), 2)
        x = nn.functional.max_pool2d(torch.relu(self.norm2(self.conv2(x))), 2)
        return self.fc(x.flatten(1))


class BasicBlock(nn.Module):
    """That of torchvision's resnet18, with its names."""

    def __init__(self, channels, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = nn.Sequential()
        if stride != 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, planes, 1, stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.downsample(x))


class ResNet18(nn.Module):
    """torchvision's resnet18, a sixteenth as wide, for the digits at 32x32: that of ddp.py."""

    def __init__(self, width=4, inputs=1, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        blocks = [(width, width, 1)] + [(width * 2**nth, width * 2 ** (nth + 1), 2) for nth in range(3)]
        layers = [
            nn.Sequential(BasicBlock(channels, planes, stride), BasicBlock(planes, planes, 1))
            for channels, planes, stride in blocks
        ]
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = nn.functional.interpolate(x, scale_factor=4.0)
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def write(module, path):
    """As `module.save(path)`, without what is for debugging, and the same bytes each time."""
    whole = io.BytesIO()
    torch.jit.save(module, whole)
    with zipfile.ZipFile(whole) as made, zipfile.ZipFile(path, "w") as file:
        for name in made.namelist():
            if not name.endswith(".debug_pkl"):
                entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                file.writestr(entry, made.read(name))


def numbers(shape, step):
    """Inputs that need no generator: steps through a cycle of 101 values from -1 to 1."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * step % 101).to(torch.float32) / 50 - 1).reshape(shape)


def figures():
    """Of `everything.pt`: the first forward with its gradients, buffers after two, and one to evaluate."""
    module = torch.jit.load(FOLDER / "everything.pt")
    figures = {f"init/{name}": tensor.clone() for name, tensor in module.state_dict().items()}
    module.train()
    for number, step in enumerate([37, 53]):
        x = numbers([5, 6], step).requires_grad_(number == 0)
        y = module(x)
        if number == 0:
            figures["train/output"] = y.detach()
            y.square().sum().backward()
            figures["train/input.grad"] = x.grad
            for name, parameter in module.named_parameters():
                if parameter.requires_grad:
                    figures[f"train/{name}.grad"] = parameter.grad
    figures |= {f"after/{name}": tensor.clone() for name, tensor in module.named_buffers()}
    module.eval()
    figures["eval/output"] = module(numbers([5, 6], 19)).detach()
    figures |= trained("recurrent", numbers([2, 5, 4], 37)) | trained("remembers", numbers([5, 4], 37))
    return {name: tensor.contiguous().clone() for name, tensor in figures.items()}


def trained(name, x):
    """Of a forward in training: the output, its square's gradients, and the buffers after it."""
    module = torch.jit.load(FOLDER / f"{name}.pt").train()
    y = module(x)
    y.square().sum().backward()
    figures = {f"{name}/output": y.detach()}
    figures |= {f"{name}/{of}.grad": parameter.grad for of, parameter in module.named_parameters()}
    return figures | {f"{name}/{of}": buffer.clone() for of, buffer in module.named_buffers()}


def main():
    FOLDER.mkdir(exist_ok=True)
    torch.manual_seed(1)
    modules = {
        "mlp": Mlp(),
        "everything": Everything(),
        "dropping": Everything(dropout=0.5),
        "two_arguments": Two(),
        "two_outputs": Pair(),
        "on_cuda": OnCuda(),
        "half": nn.Linear(4, 4).half(),
        "double": nn.Linear(4, 4).double(),
        "fails": Fails(),
        "writes_a_parameter": Writes(),
        "grows_a_buffer": Grows(),
        "nothing": Nothing(),
    }
    for name, module in modules.items():
        write(torch.jit.script(module), FOLDER / f"{name}.pt")
    torch.save(nn.Linear(2, 2).state_dict(), FOLDER / "pickle.pt")
    write(torch.jit.script(Digits()), HERE.parent.parent / "jobs" / "digits_net.pt")
    torch.manual_seed(1)
    write(torch.jit.script(Wide()), FOLDER / "wide.pt")
    torch.manual_seed(1)
    for module in [Recurrent(), Remembers(), Counts(), Collects(), Halves(), Apart(), Private(), CutOff(), Loops(), Rows(), Idle(), Normed(), ResNet18(), Masked()]:
        write(torch.jit.script(module), FOLDER / f"{type(module).__name__.lower()}.pt")
    write(torch.jit.script(nn.Sequential(nn.BatchNorm1d(6, affine=False))), FOLDER / "statistics.pt")
    write(torch.jit.freeze(torch.jit.script(Mlp().eval())), FOLDER / "frozen.pt")
    save_file(figures(), HERE / "torchscript.safetensors")


if __name__ == "__main__":
    main()
