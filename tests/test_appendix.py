"""The settings tables: what is printed is what runs."""

from rslib import presets
from rslib.show import appendix


def test_tables_hold_what_the_presets_hold():
    """Broken: a reader copies a setting that no run used."""
    tables = appendix.settings_tables()
    assert tables["settings"].frame.loc["Split MNIST", "batch_size"] == "128"
    assert len(tables["settings"].frame) == len(presets.PAPER)
    assert tables["taus"].frame.loc[("Split MNIST", "task"), "tau"] == "0.96"
    assert tables["methods"].frame.loc[("hal", "Split MNIST"), "decay"] == "0.7"
    dqn = tables["agents_dqn"]
    assert len(dqn.frame) == len(presets.DQN)
    assert dqn.frame.loc["New dataset, Split FashionMNIST", "buffer_size"] == "100000"
    assert "hidden 512" in dqn.caption and "log_every" not in dqn.caption
    a2c = tables["agents_a2c"].frame
    assert a2c.loc["New task order, Split FashionMNIST", "environments"] == "40"
    assert len(tables["taus_policies"].frame) == 6
    # Every class once in every environment.
    for split in tables["task_splits"].frame.itertuples(index=False):
        assert sorted(c for task in split for c in map(int, task.split(", "))) == list(range(10))
