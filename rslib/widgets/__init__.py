"""Three panels for JupyterLab, each with a static `.figure` for pages where widgets cannot run.

`inspect_schedule` shows the schedules in the store, `play` makes you the scheduler, `explore_tree`
shows a search rollout by rollout. `known` (what has been evaluated) and `game` (the moves of `play`)
need no browser; `pictures` draws, `panel` has the controls and tables that all three share, and
`inspector`, `player` and `explorer` are the panels.
"""

from rslib.widgets.explorer import explore_tree
from rslib.widgets.inspector import inspect_schedule
from rslib.widgets.player import play

__all__ = ["explore_tree", "inspect_schedule", "play"]
