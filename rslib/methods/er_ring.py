"""ER-Ring (Chaudhry et al., 2019, "tiny episodic memories"): ER whose pool is a ring per class.

Every training sample of a class pushes the oldest out of the class's ring, so when the task ends
the ring holds the class's last samples in the stream. The step is ER's. How many a ring holds is the
environment's `samples_per_class`; a memory of all rings is the schedule "ets" with a memory large
enough for all. Newest first: a smaller share is what a smaller ring would hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rslib.errors import BadValue
from rslib.memory import interleave
from rslib.methods.er import Batch, Method

if TYPE_CHECKING:
    from rslib.learner import Learner
    from rslib.memory import Memory


class ERRing(Method):
    """Experience replay of the last samples of every class."""

    def __init__(self, optimizer: str = "adam", lr: float | None = None):
        super().__init__(optimizer, lr)
        self.stream: list[Tensor] = []  # the current task's samples as they came

    def begin(self, learner: Learner, memory: Memory) -> None:
        super().begin(learner, memory)
        if learner.environment.selection != "uniform":
            raise BadValue(
                "ER-Ring selects its samples by their place in the stream. "
                f"Set selection='uniform', not {learner.environment.selection!r}"
            )
        self.stream = []

    def step(self, learner: Learner, batch: Batch) -> float:
        self.stream.append(batch.current)
        return super().step(learner, batch)

    def pool(self, learner: Learner) -> Tensor:
        labels = learner.scenario.tasks[learner.n_learned - 1].train.y
        # The last time that a sample came counts. One that never came (alone in a last batch that
        # batch norm cannot take) is the oldest.
        came = torch.cat(self.stream).flip(0).tolist()
        order = dict.fromkeys([*came, *range(len(labels))])
        newest_first = torch.tensor(list(order), device="cpu")
        self.stream = []
        rings = [newest_first[labels[newest_first] == label] for label in labels.unique()]
        interleaved = interleave([ring.numpy() for ring in rings])
        return torch.from_numpy(interleaved[: learner.environment.pool_size])
