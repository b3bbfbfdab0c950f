"""Profiles: how much of each experiment is run. Data only.

`smoke` is for tests (seconds per notebook), `quick` the default (every figure and table from embedded
data in minutes), `paper` the paper's own settings (but BFS on two of its seeds). A notebook parameter
that is given beats its profile.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Profile:
    seeds: tuple[int, ...]
    rollouts: int
    bfs_seeds: int  # how many of the seeds also get breadth-first search
    memory_sizes: int  # how many of the dataset's ladder of memory sizes
    new_seeds: tuple[int, ...]  # for the transfer of schedules
    rl: dict[str, int]  # environments, policy seeds and length of agent training in 07
    n_tasks_rl: int = 5
    changes: dict[str, dict] = field(default_factory=dict)  # by notebook number: less where slow
    environment: dict[str, int] = field(
        default_factory=dict
    )  # shortens training itself: tests only


PROFILES = {
    "smoke": Profile(
        seeds=(1, 2),
        rollouts=3,
        bfs_seeds=0,
        memory_sizes=2,
        new_seeds=(10, 11),
        rl=dict(train=2, test=2, policy_seeds=2),
        n_tasks_rl=3,
        environment=dict(epochs=1, first_epochs=1, hidden=16),
    ),
    "quick": Profile(
        seeds=(1, 2, 3),
        rollouts=20,
        bfs_seeds=1,
        memory_sizes=3,
        new_seeds=(10, 11, 12),
        rl=dict(train=6, test=4, policy_seeds=3),
        n_tasks_rl=4,
        changes={"03": dict(seeds=(1, 2)), "05": dict(seeds=(1, 2), rollouts=12)},
    ),
    "paper": Profile(
        seeds=(1, 2, 3, 4, 5),
        rollouts=100,
        bfs_seeds=2,  # the paper: all; a tree is 1,085 trainings, 45 minutes on Split MNIST
        memory_sizes=5,
        new_seeds=(10, 11, 12, 13, 14),
        rl=dict(train=0, test=10, policy_seeds=5),  # 0: as many as the paper's table says
    ),
}
