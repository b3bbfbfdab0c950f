"""What every test stands on: a store of its own, one torch thread, and no stopwatch."""

import os

import rslib  # noqa: F401  before torch: it chooses the instructions results were recorded with

# isort: split
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


# -- golden walks: how many were compared bit for bit ------------------------------------------------

_compared: list[bool] = []  # one per golden walk: bit for bit, or only within the tolerance


def pytest_runtest_logreport(report):
    if report.when == "call":
        _compared.extend(value for name, value in report.user_properties if name == "exact")


def pytest_sessionfinish(session):
    """In CI a tolerance is not enough: a learning rate that is 5 % higher passes it."""
    if os.environ.get("CI") and _compared and not any(_compared):
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter):
    if _compared:
        exact = sum(_compared)
        terminalreporter.write_line(
            f"golden walks: {exact} compared bit for bit, {len(_compared) - exact} within a tolerance"
        )
        if not exact:
            terminalreporter.write_line("torch or the CPU capability differ from the recorded ones")
