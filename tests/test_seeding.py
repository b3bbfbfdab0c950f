"""Random numbers are derived from words, never from history."""

import hashlib

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rslib.seeding import derived_seed, rng, torch_rng

words = st.lists(st.one_of(st.text(max_size=8), st.integers(-5, 50)), max_size=4)


@given(st.integers(0, 100), words)
def test_the_same_words_give_the_same_numbers(seed, purpose):
    """Broken: a cached walk differs from a fresh one."""
    assert derived_seed(seed, *purpose) == derived_seed(seed, *purpose)
    assert 0 <= derived_seed(seed, *purpose) < 2**63
    assert rng(seed, *purpose).random() == rng(seed, *purpose).random()
    draws = [torch.rand(3, generator=torch_rng(seed, *purpose)) for _ in range(2)]
    assert torch.equal(*draws)


@given(st.integers(0, 100), words, st.integers(0, 100), words)
def test_other_words_give_other_numbers(seed, purpose, other_seed, other_purpose):
    """Broken: two purposes share their random numbers, so that one is not independent."""
    same = (seed, *purpose) == (other_seed, *other_purpose)
    assert (derived_seed(seed, *purpose) == derived_seed(other_seed, *other_purpose)) == same


def test_order_and_kind_of_words_matter():
    """Broken: task 1, epoch 2 has the batches of task 2, epoch 1; or "1" is 1."""
    seeds = [
        *[derived_seed(1, "batches", 1, 2), derived_seed(1, "batches", 2, 1)],
        *[derived_seed(1, "batches", "1", 2), derived_seed(1, "batches", 12)],
        *[derived_seed(1, "batches1", 2), derived_seed(2, "batches", 1, 2), derived_seed(1)],
    ]
    assert len(set(seeds)) == len(seeds)


def test_the_rule_by_hand():
    """Broken: stored results belong to other random numbers; or, with Python's salted `hash`, every
    process draws its own."""
    digest = hashlib.sha256(b"(7, 'pool', 3)").digest()
    assert derived_seed(7, "pool", 3) == int.from_bytes(digest[:8], "little") // 2
    expected = np.random.Generator(np.random.PCG64(derived_seed(7, "pool", 3))).random(4)
    assert np.array_equal(rng(7, "pool", 3).random(4), expected)
    assert derived_seed(np.int64(7), "pool", 3) == derived_seed(7, "pool", 3)  # pyright: ignore


def test_global_random_state_is_neither_read_nor_written():
    """Broken: results depend on what ran before."""
    np.random.seed(0)
    torch.manual_seed(0)
    before = (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # pyright: ignore
    first = rng(1, "a").random()
    torch.rand(1, generator=torch_rng(1, "a"))
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before  # pyright: ignore
    np.random.seed(99)
    assert rng(1, "a").random() == first
