"""Golden rows: results must not move unless the protocol number does.

`golden_rows.json` holds a few walks, recorded with the torch version and the CPU's capability. Where
both are the same, the rows must be the same to the last bit; elsewhere products are summed in another
order, and rows must agree within a tolerance. (Glyphs are drawn by the libraries that are installed:
other versions, other pixels, and the tolerance.) Environments spell out every setting, so that tuning
a preset is no change here. If a change is meant to move results: raise the network's number in PROTOCOL
in rslib/environment.py and run `python tests/guards/test_golden.py`, which records them anew. (A new
walk alone: `python tests/guards/test_golden.py --new` records what the file lacks.)
"""

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np
import PIL
import pytest
import scipy
import torch
from PIL import features

from rslib import environment as environment_module
from rslib.environment import Environment
from rslib.schedule import path_from_text
from rslib.store.rows import made_with
from rslib.tree import Node, ScheduleTree

FILE = Path(__file__).with_name("golden_rows.json")
ADVICE = (
    "Results have moved. If that is meant, raise the network's number in PROTOCOL in "
    "rslib/environment.py (old rows must not be mixed with new ones) and record anew with "
    "`python tests/guards/test_golden.py`; if not, it is a bug."
)
TOLERANCE = 0.03  # mean difference of accuracies on another CPU or torch

PLAIN = dict(
    seed=1,
    memory_size=10,
    selection="uniform",
    method="er",
    scenario="task",
    class_order_seed=0,
    samples_per_class=None,
    n_tasks=5,
    network="mlp",
    hidden=32,
    epochs=3,
    first_epochs=3,
    batch_size=32,
    lr=0.005,
    method_args={},
    setting="mcts",
)
WALKS = {
    "er": (dict(dataset="digits"), "10/5,5/4,3,3/3,3,2,2"),
    "other path and seed": (dict(dataset="digits", seed=7, class_order_seed=3), "10/10,0/0,3,7"),
    "mean of features": (dict(dataset="digits", selection="mof"), "10/0,10/3,0,7/2,3,5,0"),
    "k-center": (dict(dataset="digits", selection="kcenter"), "10/5,5/10,0,0"),
    "class-il": (dict(dataset="digits", scenario="class", memory_size=14), "12/5,5/0,4,4/2,2,1,1"),
    "memory above batch": (dict(dataset="digits", memory_size=40, batch_size=16), "40/20,20"),
    "joint": (dict(dataset="digits", method="joint"), "0/0,0"),
    "glyphs": (dict(dataset="glyphs", epochs=1, first_epochs=1), "10/5,5/4,3,3/3,3,2,2"),
    "permuted": (
        dict(dataset="permuteddigits", scenario="domain", n_tasks=10, memory_size=30),
        "30/15,15/0,0,30",
    ),
    # The paper's other ways to choose and to replay samples. scikit-learn's k-means is in no key: an
    # upgrade that moves its clusters shows here only.
    "k-means": (dict(dataset="digits", selection="kmeans"), "10/5,5/4,3,3/3,3,2,2"),
    "hal": (
        dict(
            dataset="digits",
            method="hal",
            method_args=dict(
                optimizer="sgd", lr=0.1, strength=0.1, embedding=0.1, decay=0.5, anchor_steps=10
            ),
        ),
        "10/5,5/0,5,5",
    ),
    "mer": (
        dict(dataset="digits", method="mer", method_args=dict(gamma=0.9, beta=0.5)),
        "10/5,5/0,5,5/1,2,3,4",
    ),
    "der": (dict(dataset="digits", method="der", method_args=dict(alpha=0.2)), "10/5,5/0,5,5"),
    "der++": (
        dict(dataset="digits", method="derpp", method_args=dict(alpha=0.2, beta=1.0)),
        "10/5,5/0,5,5",
    ),
    "der in class-il": (
        dict(
            dataset="digits",
            method="der",
            method_args=dict(alpha=0.2),
            scenario="class",
            memory_size=14,
        ),
        "12/5,5/0,4,4",
    ),
    "a-gem": (dict(dataset="digits", method="agem"), "10/5,5/0,5,5"),
    "er-ring": (dict(dataset="digits", method="er-ring", samples_per_class=2), "4/4,4/2,4,4"),
    "convnet": (dict(dataset="digits", network="convnet", lr=0.001), "10/5,5"),
    "resnet": (
        dict(dataset="digits", network="resnet", lr=0.001, epochs=1, first_epochs=1),
        "10/5,5",
    ),
}


def walked(spec: dict, path: str) -> Node:
    return ScheduleTree(Environment.from_spec(spec)).walk(path_from_text(path))


def as_json(matrix: np.ndarray) -> list:
    """NaN as null: JSON has none."""
    return [[None if np.isnan(a) else float(a) for a in row] for row in matrix]


def from_json(matrix: list) -> np.ndarray:
    return np.array([[np.nan if a is None else a for a in row] for row in matrix])


def difference(recorded: dict, node: Node, exact: bool) -> str | None:
    """What has moved, or None."""
    for name, now in (("val", node.val), ("test", node.test)):
        before = from_json(recorded[name])
        if before.shape != now.shape or not np.array_equal(np.isnan(before), np.isnan(now)):
            return f"{name}: other entries are known"
        gap = np.abs(np.nan_to_num(before) - np.nan_to_num(now))
        if exact and before.tobytes() != now.tobytes():
            return f"{name}: {np.count_nonzero(gap)} accuracies differ, by up to {gap.max():.4f}"
        if gap.mean() > TOLERANCE:
            return f"{name}: accuracies differ by {gap.mean():.4f} on average"
    return None


def drawing() -> list[str]:
    """The versions that glyphs are drawn with."""
    versions = [PIL.__version__, str(features.version("freetype2")), matplotlib.__version__]
    return [*versions, np.__version__, scipy.__version__]


def record(rows: dict) -> None:
    """Write the file: the rows that are handed in, and every other walk as it comes out now."""
    for name, (changes, path) in WALKS.items():
        if name in rows:
            continue
        spec = PLAIN | changes
        node = walked(spec, path)
        rows[name] = dict(
            environment=spec,
            path=path,
            cpu=Environment.from_spec(spec).cpu(),
            fingerprint=Environment.from_spec(spec).load().fingerprint,
            key=Environment.from_spec(spec).key,
            val=as_json(node.val),
            test=as_json(node.test),
        )
    torch_version, *_, cpu = made_with()
    tools = dict(torch=torch_version, drawing=drawing())
    what = dict(protocol=environment_module.PROTOCOL, **tools, rows=rows)
    FILE.write_text(json.dumps(what, indent=1) + "\n")
    print(f"{len(rows)} walks with torch {torch_version} on {cpu} in {FILE}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(record(json.loads(FILE.read_text())["rows"] if "--new" in sys.argv else {}))

GOLDEN = json.loads(FILE.read_text())


def same_instructions(row: dict) -> bool:
    cpu = Environment.from_spec(row["environment"]).cpu()
    return (GOLDEN["torch"], row["cpu"]) == (made_with()[0], cpu)


def same_pixels(row: dict) -> bool:
    return row["environment"]["dataset"] != "glyphs" or GOLDEN["drawing"] == drawing()


@pytest.mark.parametrize("name", GOLDEN["rows"])
def test_the_data_have_not_moved(name):
    """Then the rows below have moved too, and the protocol is not to blame."""
    row = GOLDEN["rows"][name]
    if not same_pixels(row):
        pytest.skip("glyphs are drawn by other versions of the libraries here")
    found = Environment.from_spec(row["environment"]).load().fingerprint
    assert found == row["fingerprint"], (
        f"{row['environment']['dataset']} has other bytes than when its rows were recorded. If that "
        "is meant, record anew with `python tests/guards/test_golden.py` (the key changes by itself)."
    )


@pytest.mark.parametrize("name", GOLDEN["rows"])
def test_results_have_not_moved(name, record_property):
    """Silent regressions: a table that no longer reproduces, and nobody knows since when."""
    row = GOLDEN["rows"][name]
    exact = same_instructions(row) and same_pixels(row)
    record_property("exact", exact)  # counted by tests/conftest.py
    moved = difference(row, walked(row["environment"], row["path"]), exact)
    assert moved is None, f"{name}, {moved}. {ADVICE}"


@pytest.mark.parametrize("name", GOLDEN["rows"])
def test_keys_have_not_moved(name):
    """With another key every stored and shipped row would be lost, and nothing would say so."""
    row = GOLDEN["rows"][name]
    if made_with()[0] != GOLDEN["torch"] or not same_pixels(row):
        pytest.skip("the torch version and the pixels are part of the key")
    assert Environment.from_spec(row["environment"]).key == row["key"], ADVICE


def test_every_setting_is_spelled_out():
    """An environment that leaves something to a preset would move when the preset is tuned."""
    assert GOLDEN["protocol"] == environment_module.PROTOCOL, ADVICE
    assert set(GOLDEN["rows"]) == set(WALKS)
    for row in GOLDEN["rows"].values():
        assert Environment.from_spec(row["environment"]).spec() == row["environment"]


@pytest.mark.parametrize("changes", [dict(seed=2), dict(lr=0.00501), dict(selection="uniform")])
def test_a_small_change_is_noticed(changes):
    """The comparison itself: without it, golden rows could be compared with nothing."""
    row = GOLDEN["rows"]["mean of features"]
    moved = walked(row["environment"] | changes, row["path"])
    assert "differ" in str(difference(row, moved, exact=True))
    assert difference(row, walked(row["environment"], row["path"]), exact=False) is None
    far = walked(row["environment"] | dict(lr=0.1), row["path"])
    assert "on average" in str(difference(row, far, exact=False))
