"""The three networks: sizes by hand, heads against separate layers, initial weights."""

import math
import threading
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rslib.models import NETWORKS, Network, build


def network(kind="mlp", shape=(1, 28, 28), n_heads=5, head_size=2, seed=0, **more) -> Network:
    return build(kind, shape, n_heads, head_size, torch.Generator().manual_seed(seed), **more)


def n_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# -- parameter counts ------------------------------------------------------------------------------


def test_mlp_parameters_by_hand():
    """Broken: not the paper's MLP of two hidden layers of 256 units on 784 inputs."""
    hidden = (784 * 256 + 256) + (256 * 256 + 256)
    assert n_parameters(network().trunk) == hidden == 266_752
    assert n_parameters(network()) == hidden + 5 * (256 * 2 + 2)  # five heads of two classes
    assert n_parameters(network(n_heads=1, head_size=10)) == hidden + 256 * 10 + 10 == 269_322
    assert n_parameters(network(shape=(64,), hidden=32).trunk) == 64 * 32 + 32 + 32 * 32 + 32


def test_convnet_parameters_by_hand():
    """Broken: not the four blocks of 64 filters of Vinyals et al. (2016), 112,832 weights on RGB without
    the 256 biases that batch norm takes away again."""
    net = network("convnet", (3, 32, 32), n_heads=20, head_size=5)
    norm = 2 * 64
    trunk = (3 * 3 * 3 * 64 + norm) + 3 * (3 * 3 * 64 * 64 + norm)
    assert n_parameters(net.trunk) == trunk == 112_832
    features = 64 * 2 * 2  # 32 -> 16 -> 8 -> 4 -> 2
    assert n_parameters(net) == trunk + features * 100 + 100
    layers = [type(m).__name__ for m in net.trunk.children()]
    assert layers == ["Conv2d", "BatchNorm2d", "MaxPool2d", "ReLU"] * 4 + ["Flatten"]
    # The size Vinyals et al. had, 84 x 84: 84 -> 42 -> 21 -> 10 -> 5.
    assert network("convnet", (3, 84, 84)).features(torch.zeros(1, 3, 84, 84)).shape == (1, 1600)


def test_convnet_is_the_papers_whichever_of_relu_and_pooling_comes_first():
    """Broken: pooling before ReLU, which takes less time, gives other features or gradients."""
    net = network("convnet", (3, 16, 16))
    layers = list(net.trunk.children())
    papers = nn.Sequential()
    for conv, norm, pool, relu in zip(*(layers[i:-1:4] for i in range(4)), strict=True):
        assert isinstance(pool, nn.MaxPool2d) and isinstance(relu, nn.ReLU)
        papers.extend([conv, norm, nn.ReLU(), pool])
    papers.append(nn.Flatten())
    x = torch.rand(6, 3, 16, 16)
    found = []
    for trunk in (net.trunk, papers):
        net.zero_grad()
        features = trunk(x)
        features.square().sum().backward()
        found.append([features.detach(), *(p.grad for p in net.trunk.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_resnet_parameters_by_hand():
    """Broken: not the reduced ResNet-18 of Lopez-Paz and Ranzato (2017), about 1.1 million."""

    def conv(n_in, n_out, size):  # without bias, followed by a batch norm
        return n_in * n_out * size * size + 2 * n_out

    def block(n_in, n_out):
        shortcut = 0 if n_in == n_out else conv(n_in, n_out, 1)
        return conv(n_in, n_out, 3) + conv(n_out, n_out, 3) + shortcut

    widths = [20, 20, 40, 80, 160]  # a third of ResNet-18's 64, as GEM has it
    trunk = conv(3, 20, 3) + sum(block(a, b) + block(b, b) for a, b in pairwise(widths))
    net = network("resnet", (3, 84, 84), n_heads=20, head_size=5)
    assert n_parameters(net.trunk) == trunk == 1_093_140
    assert n_parameters(net) == trunk + 160 * 100 + 100
    assert 1.05e6 < n_parameters(net) < 1.15e6


def test_resnet_has_eighteen_layers_with_weights():
    """Broken: a stage lost or gained a block."""
    net = network("resnet", (3, 32, 32))
    kernels = [m.kernel_size for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert kernels.count((3, 3)) == 17  # the stem and 8 blocks of 2; the head is the 18th
    assert kernels.count((1, 1)) == 3  # a shortcut where the width changes
    strides = [m.stride for m in net.modules() if isinstance(m, nn.Conv2d) and m.stride != (1, 1)]
    assert strides == [(2, 2)] * 6  # first convolution and shortcut of stages 2, 3, 4


# -- shapes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mlp", "convnet", "resnet"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 84, 84)])
def test_every_network_takes_every_image_size(kind, shape):
    """Broken: a dataset cannot be learned with one of the networks."""
    net = network(kind, shape, n_heads=3, head_size=4)
    x = torch.rand(2, *shape)
    assert net(x).shape == (2, 12)
    assert net.own_head(net(x), torch.tensor([0, 2])).shape == (2, 4)
    assert net.eval().features(x).shape == (2, net.output.in_features)
    assert torch.allclose(net.output(net.features(x)), net(x))


def test_convnets_refuse_inputs_that_are_no_images():
    """Broken: users' feature vectors fail deep inside torch."""
    for kind in ("convnet", "resnet"):
        with pytest.raises(ValueError, match=rf"{kind} needs images .*got \(64,\)"):
            network(kind, (64,))
    with pytest.raises(ValueError, match="mlp, convnet, resnet, got 'vgg'"):
        network("vgg")


# -- heads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_heads", "head_size"), [(5, 2), (3, 4), (1, 10)])
def test_loss_and_gradients_against_separate_heads(n_heads, head_size):
    """Broken: a sample trains another task's head, or the trunk gets the wrong gradient."""
    torch.manual_seed(0)
    net = network(shape=(6,), n_heads=n_heads, head_size=head_size, hidden=7).double()
    x = torch.rand(23, 6, dtype=torch.double)
    head, y = torch.randint(n_heads, (23,)), torch.randint(head_size, (23,))

    # The reference: a plain module per task, one loss over all samples.
    lower = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 7), nn.ReLU()).double()
    linear = [m for m in net.trunk.modules() if isinstance(m, nn.Linear)]
    lower[0].load_state_dict(linear[0].state_dict())
    lower[2].load_state_dict(linear[1].state_dict())
    heads = [nn.Linear(7, head_size).double() for _ in range(n_heads)]
    for h, layer in enumerate(heads):
        own = slice(h * head_size, (h + 1) * head_size)
        layer.weight.data = net.output.weight.data[own].clone()
        layer.bias.data = net.output.bias.data[own].clone()
    total = torch.zeros((), dtype=torch.double)
    for i in range(len(x)):
        logits = heads[int(head[i])](lower(x[i : i + 1]))
        total = total + F.cross_entropy(logits, y[i : i + 1])
    reference = total / len(x)
    reference.backward()

    loss = F.cross_entropy(net.own_head(net(x), head), y)
    loss.backward()
    assert torch.allclose(loss, reference)
    weight = torch.cat([_gradient(layer.weight) for layer in heads])
    bias = torch.cat([_gradient(layer.bias) for layer in heads])
    assert torch.allclose(_gradient(net.output.weight), weight)
    assert torch.allclose(_gradient(net.output.bias), bias)
    for ours, plain in zip(linear, (lower[0], lower[2]), strict=True):
        assert isinstance(plain, nn.Linear)
        assert torch.allclose(_gradient(ours.weight), _gradient(plain.weight))
        assert torch.allclose(_gradient(ours.bias), _gradient(plain.bias))


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """A head that no sample used has no gradient in the reference and zeros in ours."""
    return parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)


def test_a_head_without_samples_does_not_move():
    """Broken: learning a task changes the output layer of others."""
    net = network(shape=(6,), n_heads=3, hidden=7)
    loss = net.own_head(net(torch.rand(4, 6)), torch.tensor([0, 0, 2, 2])).sum()
    loss.backward()
    assert not _gradient(net.output.weight)[2:4].any()
    assert _gradient(net.output.weight)[:2].any() and _gradient(net.output.weight)[4:].any()


# -- initial weights -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mlp", "convnet", "resnet"])
def test_initial_weights_come_from_the_generator_alone(kind):
    """Broken: two processes with one seed start from different networks."""
    states = []
    for global_seed, seed in ((1, 0), (2, 0), (2, 1)):
        torch.manual_seed(global_seed)
        states.append(network(kind, (3, 16, 16), seed=seed).state_dict())
    first, again, other = (torch.cat([t.flatten() for t in s.values()]) for s in states)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_initial_weights_have_pytorchs_distribution():
    """Broken: networks start larger or smaller than torch.nn's, so the learning rates do not fit."""
    net = network("convnet", (3, 32, 32))
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            fan_in = module.weight[0].numel()
            bound = 1 / math.sqrt(fan_in)
            w = module.weight.detach()
            assert w.abs().max() <= bound and w.abs().max() > 0.95 * bound
            assert w.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
            if isinstance(module, nn.Linear):
                assert module.bias is not None and module.bias.abs().max() <= bound
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all() and (module.bias == 0).all()


def test_networks_of_ones_own_do_not_share_random_numbers(monkeypatch):
    """Broken: on threads, the initial weights of a registered network depend on who comes in between."""

    def noisy(input_shape, hidden):
        first = nn.Linear(math.prod(input_shape), 4)
        if threads:
            threads[0].start()
            threads[0].join(0.5)  # it gets in between, if it can
        return nn.Sequential(nn.Flatten(), first, nn.Linear(4, 4))

    monkeypatch.setitem(NETWORKS._entries, "noisy", noisy)
    arguments = "noisy", (1, 2, 2), 1, 2
    threads: list[threading.Thread] = []
    alone = build(*arguments, torch.Generator().manual_seed(1))
    other = "mlp", *arguments[1:], torch.Generator().manual_seed(2)
    threads.append(threading.Thread(target=build, args=other))
    beside = build(*arguments, torch.Generator().manual_seed(1))
    threads[0].join(60)
    for a, b in zip(alone.parameters(), beside.parameters(), strict=True):
        assert torch.equal(a, b)
