"""Tables of whole schedule trees with random accuracies, for tests that train nothing."""

import numpy as np

from rslib.complete_tree import Table, tree_shape


def synthetic_table(n_tasks: int = 5, seed: int = 0) -> Table:
    """A table of the right shape: accuracies of 0.5 to 1 for learned tasks, 0 before."""
    shape = tree_shape(n_tasks)
    draws = np.random.default_rng((n_tasks, seed))
    accuracies = draws.uniform(0.5, 1, (2, shape.first[-1], n_tasks)).round(6)
    accuracies[:, np.arange(n_tasks) >= shape.depth[:, None]] = 0
    return Table("synthetic", seed, accuracies[0], accuracies[1])
