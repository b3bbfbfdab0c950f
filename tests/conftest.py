"""What every test stands on: a store of its own, one torch thread, and no stopwatch."""

import pytest
import torch
from hypothesis import settings

# A busy machine must not fail a property test, and a red test must be red the next time too.
settings.register_profile("rslib", deadline=None, derandomize=True)
settings.load_profile("rslib")


@pytest.fixture(autouse=True)
def _own_store_and_one_thread(tmp_path, monkeypatch):
    """No test reads or writes the user's results, and none depends on the number of cores."""
    monkeypatch.setenv("RSLIB_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("RSLIB_RESULTS", str(tmp_path / "nothing shipped"))
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)  # a learner turns it on, and hypothesis wants all floats
