"""Imports point one way: the rooms of the house, and who may import whom.

Read from the source, so that an import inside a function counts too (imports for type checking do not).
"""

import pytest

from tools.house import arrows, imported, modules

# Spine modules by name, rooms as a whole. "spine" stands for all modules directly under rslib/.
NOTHING = {"files", "seeding", "schedule", "presets", "metrics", "stats", "models"}
MAY_IMPORT = {name: set() for name in NOTHING} | {
    "data": {"files"},
    "store": {"files", "schedule"},
    "scenario": {"data", "seeding"},
    "memory": {"scenario", "seeding"},
    "methods": {"memory", "seeding"},
    "environment": {"data", "presets", "scenario", "memory", "methods", "store"},
    "learner": {"environment", "models", "memory", "methods", "scenario", "seeding"},
    "tree": {"environment", "learner", "store", "metrics", "schedule"},
    "complete_tree": {"tree", "schedule", "files"},
    "policies": {"schedule", "seeding", "files", "complete_tree"},
    "gaussian_process": {"schedule"},
    "search": {"tree", "complete_tree", "policies", "gaussian_process", "schedule", "seeding"},
    "env": {"complete_tree", "schedule"},
    "propose": {"policies"},
}
SPINE = set(MAY_IMPORT) - {"data", "store", "methods", "policies"}
MAY_IMPORT["runs"] = {*MAY_IMPORT, "__init__"}
MAY_IMPORT["show"] = {"files", "schedule", "metrics", "stats", "search", "presets", "runs"}
MAY_IMPORT["widgets"] = {*SPINE, "policies", "methods", "data", "store", "show"}
# Commands stand above their room; the package itself imports its public names when they are used.
MAY_IMPORT["store.__main__"] = MAY_IMPORT["store"] | {"environment"}
MAY_IMPORT["__main__"] = {*SPINE, "data", "store", "policies"}
MAY_IMPORT["__init__"] = {*SPINE, "data", "store"}
MAY_IMPORT = {name: needs | {"errors"} for name, needs in MAY_IMPORT.items()} | {"errors": set()}


def room(module: str) -> str:
    return module if module in MAY_IMPORT else module.split(".")[0]


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_point_one_way(module):
    """Broken: a part of the library cannot be read, tested or used without what stands above it."""
    own = module.split(".")[0]
    wrong = imported(modules()[module]) - MAY_IMPORT[room(module)] - {own}
    assert not wrong, f"rslib.{module} may not import {sorted(wrong)}"


def test_the_arrows_make_no_circle():
    """Broken: the table above allows two rooms to import each other."""
    order: list[str] = []
    left = dict(MAY_IMPORT)
    while left:
        free = [name for name, needs in left.items() if not (needs - {name}) & set(left)]
        assert free, f"a circle among {sorted(left)}"
        order += free
        for name in free:
            del left[name]
    assert set(order) == set(MAY_IMPORT)


def test_rooms_stay_small():
    """Broken: a room has become a warehouse, in which a stranger finds nothing in half a minute."""
    by_room: dict[str, int] = {}
    for module in modules():
        first, *rest = module.split(".")
        if rest != ["__init__"]:
            by_room[first if rest else ""] = by_room.get(first if rest else "", 0) + 1
    assert by_room.pop("") <= 20
    assert max(by_room.values()) <= 9, by_room


def test_the_picture_shows_every_room_and_arrow():
    """Broken: CONTRIBUTING's picture is not the house as it is."""
    assert {"tree", "search", "data", "runs", "widgets"} <= set(arrows())
    assert "tree" in arrows()["search"] and "search" not in arrows()["tree"]
