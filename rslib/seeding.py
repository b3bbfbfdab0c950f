"""Random numbers derived from (seed, purpose, task, ...), never from history.

This is what makes training along a schedule a pure function: whoever asks for the batch order of
task 3, epoch 2, seed 7 gets the same one, in any order of visits and in any process.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derived_seed(seed: int, *words: str | int) -> int:
    """A 63-bit seed for this purpose; the words are hashed, so their order and kind matter."""
    text = repr((int(seed), *words)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


def rng(seed: int, *words: str | int) -> np.random.Generator:
    """A NumPy generator of its own for this purpose."""
    return np.random.Generator(np.random.PCG64(derived_seed(seed, *words)))


def torch_rng(seed: int, *words: str | int) -> torch.Generator:
    """The same for torch, for weights and batch orders."""
    return torch.Generator("cpu").manual_seed(derived_seed(seed, *words))


def permutation(n: int, generator: torch.Generator) -> torch.Tensor:
    """Draw an order of n samples; on the CPU, so that every device learns the same batches."""
    return torch.randperm(n, generator=generator, device="cpu")
