"""The environment most tests train in: real digits, a tiny network, one epoch, every setting spelt out
so that no test moves when the embedded presets do."""

from rslib.environment import Environment

SMALL = dict(
    memory_size=10,
    scenario="task",
    n_tasks=5,
    network="mlp",
    hidden=16,
    epochs=1,
    first_epochs=1,
    batch_size=64,
    lr=0.01,
)


def small(dataset="digits", **changes) -> Environment:
    return Environment(dataset, **{**SMALL, **changes})
