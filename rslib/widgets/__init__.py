"""Schedules to touch: three panels for JupyterLab, each with `.figure` where widgets cannot run.

`inspect_schedule` looks at what is in the store, `play` makes you the scheduler, `explore_tree` shows a
search as it grew. `records`, `game` and `growth` hold what the panels know and can be used without a
browser; `pictures` draws it; `inspector`, `player` and `explorer` are the controls around it.
"""

from rslib.widgets.explorer import explore_tree
from rslib.widgets.inspector import inspect_schedule
from rslib.widgets.player import play

__all__ = ["explore_tree", "inspect_schedule", "play"]
