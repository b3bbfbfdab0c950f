"""The paper's three networks, MLP, four-block ConvNet and reduced ResNet-18, and your own.

A network is a trunk (inputs to features) and one linear output layer. With several heads, the heads
are blocks of rows of that one layer, so a batch with samples of many tasks is one product and
picking each sample's own head is one gather (see `Network.own_head`). Weights come from a generator
that is handed in: the same seed gives the same network in any process.

`@register("name")` takes a function of the shape of one input and of `hidden` that makes your own trunk.
Any module will do: what it returns are the features, whose number is measured. Its weights stay as it
drew them, from torch's global generator, which is seeded for it.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor, nn

from rslib.errors import BadValue
from rslib.registry import Registry, RegistryError


class Network(nn.Module):
    """A trunk with `n_heads` heads of `head_size` outputs each."""

    columns: Tensor  # (n_heads, head_size) outputs of every head; moves with the network

    def __init__(self, trunk: nn.Module, n_features: int, n_heads: int, head_size: int):
        super().__init__()
        self.trunk = trunk
        self.output = nn.Linear(n_features, n_heads * head_size)
        self.n_heads, self.head_size = n_heads, head_size
        columns = torch.arange(n_heads * head_size).view(n_heads, head_size)
        self.register_buffer("columns", columns, persistent=False)

    def features(self, x: Tensor) -> Tensor:
        return self.trunk(x).flatten(1)  # (n, n_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.features(x))  # (n, n_heads * head_size)

    def own_head(self, outputs: Tensor, head: Tensor) -> Tensor:
        """Pick each sample's own head out of the outputs: (n, head_size)."""
        if self.n_heads == 1:
            return outputs
        return outputs.gather(1, self.columns.index_select(0, head))


OWN_DRAWS = threading.RLock()  # torch's global generator belongs to the whole process


def build(
    network: str,
    input_shape: tuple[int, ...],
    n_heads: int,
    head_size: int,
    generator: torch.Generator,
    hidden: int = 256,
) -> Network:
    """Build an untrained network for inputs of this shape."""
    make_trunk, built_in = NETWORKS[network], network in NETWORKS.built_in
    if built_in and network != "mlp" and len(input_shape) != 3:
        raise BadValue(f"{network} needs images (channels, height, width), got {input_shape}")
    with OWN_DRAWS, torch.random.fork_rng(devices=[]):
        if not built_in:
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        trunk = make_trunk(input_shape, hidden).eval()
        with torch.no_grad():
            shape = tuple(trunk(torch.zeros(2, *input_shape)).shape)
        if len(shape) < 2 or shape[0] != 2:
            raise RegistryError(f"network {network!r} made features of shape {shape} from 2 inputs")
        net = Network(trunk, math.prod(shape[1:]), n_heads, head_size)
    if built_in:
        _initialise(net, generator)
    if built_in and network != "mlp":
        # Weights with the channels last: torch then computes a convolution 1.5 times as fast, and
        # sums in another order.
        net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return net.train()


def _mlp(input_shape: tuple[int, ...], hidden: int) -> nn.Module:
    first = nn.Linear(math.prod(input_shape), hidden)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())


def _convnet(input_shape: tuple[int, ...], hidden: int, filters: int = 64) -> nn.Module:
    """Four blocks of 3x3 convolution, batch norm, ReLU, 2x2 max-pooling (Vinyals et al., 2016).

    ReLU is taken after the pooling: the same values and gradients, of a quarter of the numbers. The
    convolutions have no bias: batch norm would subtract it, and its gradient, which is zero, would take
    a tenth of a step.
    """
    channels, height, width = input_shape
    layers: list[nn.Module] = []
    for _ in range(4):
        convolution = nn.Conv2d(channels, filters, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(filters)]
        if min(height, width) > 1:  # images below 16x16 run out of pixels to pool
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        layers.append(nn.ReLU(inplace=True))
        channels = filters
    return nn.Sequential(*layers, nn.Flatten())


class _Block(nn.Module):
    """The basic residual block: two 3x3 convolutions and a shortcut."""

    def __init__(self, n_in: int, n_out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def _resnet(input_shape: tuple[int, ...], hidden: int, width: int = 20) -> nn.Module:
    """ResNet-18 with 20 instead of 64 filters (Lopez-Paz and Ranzato, 2017)."""
    layers: list[nn.Module] = [
        nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    n_in = width
    for stage, stride in enumerate((1, 2, 2, 2)):
        n_out = width * 2**stage
        layers += [_Block(n_in, n_out, stride), _Block(n_out, n_out, 1)]
        n_in = n_out
    # Global average pooling: one feature per filter whatever the image size.
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


NETWORKS = Registry("network", {"mlp": _mlp, "convnet": _convnet, "resnet": _resnet})
register = NETWORKS.register


def _initialise(net: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights from PyTorch's default distributions, but with our generator."""
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(module.weight[0].numel())  # U(-1/sqrt(fan_in), 1/sqrt(fan_in))
            with torch.no_grad():
                module.weight.uniform_(-bound, bound, generator=generator)
                if module.bias is not None:
                    module.bias.uniform_(-bound, bound, generator=generator)
