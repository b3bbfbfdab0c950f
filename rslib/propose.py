"""What to replay now: `from rslib.propose import Policy`, the name engineers' code already uses.

`rslib.policies` is where it lives, `python -m rslib propose` the same on the command line.
"""

from rslib.policies import Policy

__all__ = ["Policy"]
