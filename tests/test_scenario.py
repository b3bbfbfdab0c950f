"""Scenarios: the paper's task splits, validation parts, labels and heads, permuted tasks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rslib import data
from rslib.data import Dataset
from rslib.scenario import (
    Samples,
    ScenarioError,
    _hold_out,
    as_inputs,
    class_order,
    make_scenario,
    task_splits,
    write_inputs,
)

# -- the paper's five tables of task splits (Appendix D), as printed -------------------------------

CLOTHES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"]
CLOTHES += ["Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
THINGS = "Airplane Automobile Bird Cat Deer Dog Frog Horse Ship Truck".split()
DIGITS, LETTERS = list("0123456789"), list("ABCDEFGHIJ")

# (table, class names, rows "seed | task 1 | ... | task 5")
TABLES = [
    (
        "Split MNIST, New Task Order",
        DIGITS,
        """
        10 | 8, 2 | 5, 6 | 3, 1 | 0, 7 | 4, 9
        11 | 7, 8 | 2, 6 | 4, 5 | 1, 3 | 0, 9
        12 | 5, 8 | 7, 0 | 4, 9 | 3, 2 | 1, 6
        13 | 3, 5 | 6, 1 | 4, 7 | 8, 9 | 0, 2
        14 | 3, 9 | 0, 5 | 4, 2 | 1, 7 | 6, 8
        15 | 2, 6 | 1, 3 | 7, 0 | 9, 4 | 5, 8
        16 | 6, 2 | 0, 7 | 8, 4 | 3, 1 | 5, 9
        17 | 7, 2 | 5, 3 | 4, 0 | 9, 8 | 6, 1
        18 | 7, 9 | 0, 4 | 2, 1 | 6, 5 | 8, 3
        19 | 1, 7 | 9, 6 | 8, 4 | 3, 0 | 2, 5
        """,
    ),
    (
        "Split FashionMNIST, New Task Order",
        CLOTHES,
        """
        10 | Bag, Pullover | Sandal, Shirt | Dress, Trouser | T-shirt/top, Sneaker | Coat, Ankle boot
        11 | Sneaker, Bag | Pullover, Shirt | Coat, Sandal | Trouser, Dress | T-shirt/top, Ankle boot
        12 | Sandal, Bag | Sneaker, T-shirt/top | Coat, Ankle boot | Dress, Pullover | Trouser, Shirt
        13 | Dress, Sandal | Shirt, Trouser | Coat, Sneaker | Bag, Ankle boot | T-shirt/top, Pullover
        14 | Dress, Ankle boot | T-shirt/top, Sandal | Coat, Pullover | Trouser, Sneaker | Shirt, Bag
        15 | Pullover, Shirt | Trouser, Dress | Sneaker, T-shirt/top | Ankle boot, Coat | Sandal, Bag
        16 | Shirt, Pullover | T-shirt/top, Sneaker | Bag, Coat | Dress, Trouser | Sandal, Ankle boot
        17 | Sneaker, Pullover | Sandal, Dress | Coat, T-shirt/top | Ankle boot, Bag | Shirt, Trouser
        18 | Sneaker, Ankle boot | T-shirt/top, Coat | Pullover, Trouser | Shirt, Sandal | Bag, Dress
        19 | Trouser, Sneaker | Ankle boot, Shirt | Bag, Coat | Dress, T-shirt/top | Pullover, Sandal
        """,
    ),
    (
        "Split CIFAR-10, New Task Order",
        THINGS,
        """
        10 | Ship, Bird | Dog, Frog | Cat, Automobile | Airplane, Horse | Deer, Truck
        11 | Horse, Ship | Bird, Frog | Deer, Dog | Automobile, Cat | Airplane, Truck
        12 | Dog, Ship | Horse, Airplane | Deer, Truck | Cat, Bird | Automobile, Frog
        13 | Cat, Dog | Frog, Automobile | Deer, Horse | Ship, Truck | Airplane, Bird
        14 | Cat, Truck | Airplane, Dog | Deer, Bird | Automobile, Horse | Frog, Ship
        15 | Bird, Frog | Automobile, Cat | Horse, Airplane | Truck, Deer | Dog, Ship
        16 | Frog, Bird | Airplane, Horse | Ship, Deer | Cat, Automobile | Dog, Truck
        17 | Horse, Bird | Dog, Cat | Deer, Airplane | Truck, Ship | Frog, Automobile
        18 | Horse, Truck | Airplane, Deer | Bird, Automobile | Frog, Dog | Ship, Cat
        19 | Automobile, Horse | Truck, Frog | Ship, Deer | Cat, Airplane | Bird, Dog
        """,
    ),
    (
        "Split notMNIST, New Dataset",
        LETTERS,
        """
        0 | A, B | C, D | E, F | G, H | I, J
        1 | C, J | G, E | A, D | B, H | I, F
        2 | E, B | F, A | H, C | D, G | J, I
        3 | F, E | B, C | J, G | H, A | D, I
        4 | D, I | E, J | C, G | A, B | F, H
        5 | J, F | C, E | H, B | A, I | G, D
        6 | I, B | H, A | G, F | C, E | D, J
        7 | I, F | A, C | B, J | H, D | G, E
        8 | I, G | J, A | C, F | H, B | E, D
        9 | I, E | H, C | B, J | D, A | G, F
        """,
    ),
    (
        "Split FashionMNIST, New Dataset",
        CLOTHES,
        """
        0 | T-shirt/top, Trouser | Pullover, Dress | Coat, Sandal | Shirt, Sneaker | Bag, Ankle boot
        1 | Pullover, Ankle boot | Shirt, Coat | T-shirt/top, Dress | Trouser, Sneaker | Bag, Sandal
        2 | Coat, Trouser | Sandal, T-shirt/top | Sneaker, Pullover | Dress, Shirt | Ankle boot, Bag
        3 | Sandal, Coat | Trouser, Pullover | Ankle boot, Shirt | Sneaker, T-shirt/top | Dress, Bag
        4 | Dress, Bag | Coat, Ankle boot | Pullover, Shirt | T-shirt/top, Trouser | Sandal, Sneaker
        5 | Ankle boot, Sandal | Pullover, Coat | Sneaker, Trouser | T-shirt/top, Bag | Shirt, Dress
        6 | Bag, Trouser | Sneaker, T-shirt/top | Shirt, Sandal | Pullover, Coat | Dress, Ankle boot
        7 | Bag, Sandal | T-shirt/top, Pullover | Trouser, Ankle boot | Sneaker, Dress | Shirt, Coat
        8 | Bag, Shirt | Ankle boot, T-shirt/top | Pullover, Sandal | Sneaker, Trouser | Coat, Dress
        9 | Bag, Coat | Sneaker, Pullover | Trouser, Ankle boot | Dress, T-shirt/top | Shirt, Sandal
        """,
    ),
]
ROWS = [
    pytest.param(names, row, id=f"{title}: seed {row.split()[0]}")
    for title, names, text in TABLES
    for row in text.strip().splitlines()
]


def test_there_are_fifty_rows():
    """Broken: a table above lost a row, and with it its test."""
    assert len(ROWS) == 50 and [len(text.split("\n")) - 2 for _, _, text in TABLES] == [10] * 5


@pytest.mark.parametrize(("names", "row"), ROWS)
def test_task_splits_of_the_paper(names, row):
    """Broken: an environment seed no longer means the paper's environment."""
    seed, *tasks = row.split("|")
    printed = [tuple(names.index(name.strip()) for name in task.split(",")) for task in tasks]
    assert task_splits(10, 5, class_order_seed=int(seed)) == printed
    scenario = make_scenario(tiny(), n_tasks=5, class_order_seed=int(seed))
    assert [task.classes for task in scenario.tasks] == printed


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_class_order_is_a_permutation(seed, n):
    """Broken: a class is learned twice, another never."""
    assert sorted(class_order(seed, n)) == list(range(n))
    assert class_order(seed, n) == class_order(seed, n)
    assert class_order(0, n) == list(range(n))


# -- cutting data into tasks -----------------------------------------------------------------------


def tiny(n_classes=10, per_class=14, shape=(1, 2, 3), dtype=np.uint8) -> Dataset:
    """Every input starts with its own number and its class, so that it can be told anywhere."""
    n = n_classes * per_class
    random = np.random.RandomState(0)
    y = random.permutation(np.arange(n) % n_classes)
    x = random.randint(0, 255, (n, int(np.prod(shape)))).astype(dtype)
    x[:, 0], x[:, 1] = np.arange(n) % 251, y
    x = x.reshape(n, *shape)
    names = tuple(f"class {c}" for c in range(n_classes))
    return Dataset(
        "tiny", x, y.astype(np.int64), x[::2], y[::2].astype(np.int64), names, "f", "made."
    )


def rows(part) -> list[bytes]:
    return [bytes(x.numpy().tobytes()) for x in part.x]


@pytest.mark.parametrize("kind", ["task", "domain", "class"])
def test_labels_and_heads_of_the_three_scenarios(kind):
    """Broken: samples are trained on another output than they are tested on."""
    scenario = make_scenario(tiny(), kind, n_tasks=5, class_order_seed=10)
    shape = {"task": (5, 2), "domain": (1, 2), "class": (1, 10)}[kind]
    assert (scenario.n_heads, scenario.head_size) == shape
    assert scenario.classes_per_task == 2 and scenario.n_tasks == 5 and scenario.kind == kind
    for index, task in enumerate(scenario.tasks):
        assert task.number == index + 1
        assert task.head == (index if kind == "task" else 0)
        offset = 2 * index if kind == "class" else 0
        for part in (task.train, task.val, task.test):
            own_class = part.x.flatten(1)[:, 1].tolist()
            assert part.y.tolist() == [offset + task.classes.index(c) for c in own_class]
            assert part.y.dtype == torch.int64 and part.x.dtype == torch.uint8


@settings(max_examples=25)
@given(per_class=st.integers(4, 60), n_tasks=st.sampled_from([2, 5]), seed=st.integers(0, 99))
def test_validation_is_15_percent_rounded_down_and_nothing_is_lost(per_class, n_tasks, seed):
    """Broken: validation samples leak into training, or data disappear."""
    dataset = tiny(per_class=per_class, shape=(4,))
    for task in make_scenario(dataset, n_tasks=n_tasks, seed=seed).tasks:
        n = per_class * 10 // n_tasks
        assert len(task.val) == 15 * n // 100 and len(task.train) == n - len(task.val)
        of_task = np.isin(dataset.y_train, task.classes)
        expected = sorted(x.tobytes() for x in dataset.x_train[of_task])
        assert sorted(rows(task.train) + rows(task.val)) == expected
        of_test = np.isin(dataset.y_test, task.classes)
        assert rows(task.test) == [x.tobytes() for x in dataset.x_test[of_test]]


def test_training_and_validation_share_no_sample():
    """Broken: the search selects on what it was trained on."""
    for task in make_scenario(tiny(per_class=20, shape=(2, 8, 8)), n_tasks=5).tasks:
        assert len(set(rows(task.train)) | set(rows(task.val))) == 40
        assert not set(rows(task.train)) & set(rows(task.val))


def test_the_run_seed_moves_the_validation_split_and_only_it():
    """Broken: methods or scenarios with one seed are not paired, or seeds are all the same."""
    first, again, other = (make_scenario(tiny(), seed=s).tasks for s in (1, 1, 2))
    as_class = make_scenario(tiny(), "class", seed=1).tasks
    for a, b, c, d in zip(first, again, other, as_class, strict=True):
        assert rows(a.val) == rows(b.val) == rows(d.val) and rows(a.train) == rows(d.train)
        assert a.classes == c.classes and rows(a.test) == rows(c.test)
        assert sorted(rows(a.train) + rows(a.val)) == sorted(rows(c.train) + rows(c.val))
    assert any(rows(a.val) != rows(c.val) for a, c in zip(first, other, strict=True))


def test_validation_takes_every_sample_with_equal_chance():
    """Broken: the validation split prefers some samples (the first, or one class)."""
    dataset = tiny(shape=(4,))
    everything = [x.tobytes() for x in dataset.x_train[np.isin(dataset.y_train, [0, 1])]]
    held = np.zeros(len(everything))
    for seed in range(300):
        held += np.isin(everything, rows(make_scenario(dataset, seed=seed).tasks[0].val))
    # 4 of 28 each time: mean 42.9, standard deviation 6.1; five of them either way.
    assert held.sum() == 300 * 4 and 12 < held.min() and held.max() < 74


def test_inputs_are_scaled_and_nothing_else():
    """Broken: pixels are normalised, clipped or shifted against the protocol."""
    scenario = make_scenario(tiny())
    part = scenario.tasks[0].train
    assert torch.equal(part.inputs(), part.x.to(torch.float32) / 255)
    assert torch.equal(part.inputs(torch.tensor([2, 0])), part.inputs()[[2, 0]])
    assert part.x.dtype == torch.uint8  # scaling did not write into the data
    whole = torch.arange(256, dtype=torch.uint8)
    assert as_inputs(whole)[0] == 0 and as_inputs(whole)[255] == 1
    floats = torch.tensor([[-3.5, 7.0]])
    assert torch.equal(as_inputs(floats), floats)  # a user's floats are left alone
    for x in (whole.view(32, 8), torch.rand(32, 8)):
        rows, out = torch.tensor([31, 0, 7]), torch.empty(3, 8)
        write_inputs(x, rows, out)
        assert torch.equal(out, as_inputs(x[rows]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(n_tasks=6), "6 tasks need at least 12 classes"),
        (dict(n_tasks=1), "at least two tasks, got 1"),
        (dict(n_tasks=0), "at least two tasks, got 0"),
        (dict(kind="instance"), "must be one of task, domain, class, got 'instance'"),
        (dict(permuted=True), "permuted tasks share one head"),
        (dict(permuted=True, kind="class"), "permuted tasks share one head"),
        (dict(permuted=True, kind="domain", class_order_seed=3), "no class order"),
    ],
)
def test_tasks_that_cannot_be_cut_are_refused(arguments, message):
    """Broken: a wrong number of tasks fails in the middle of a run."""
    with pytest.raises(ScenarioError, match=message):
        make_scenario(tiny(), **arguments)


def test_classes_left_over_are_not_used():
    """Broken: tasks of unequal size share a head, or a tree of 4 tasks cannot be had of 10 classes."""
    tasks = make_scenario(tiny(), n_tasks=4).tasks
    assert [task.classes for task in tasks] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert {int(y) for task in tasks for y in task.train.y} == {0, 1}


def test_too_few_samples_to_hold_any_out():
    """Broken: validation accuracies are divisions by zero."""
    with pytest.raises(ScenarioError, match="task 1 has only 6 training samples"):
        make_scenario(tiny(per_class=3), n_tasks=5)
    assert len(make_scenario(tiny(per_class=4), n_tasks=5).tasks[0].val) == 1  # 8 * 0.15 = 1.2


def test_no_class_is_lost_to_validation():
    """Broken: the only sample of a rare class goes to validation, and "one sample of each past class" is
    two of another, without a word."""
    labels = torch.tensor([0] * 20 + [1])
    samples = Samples(torch.zeros(21, 1), labels)
    splits = []
    for seed in range(40):
        try:
            splits.append(_hold_out(samples, seed, 1)[0])
        except ScenarioError as error:
            assert "task 1: after 15%" in str(error) and "left of label 1" in str(error)
    assert 0 < len(splits) < 40 and all(1 in split.y for split in splits)


# -- permuted tasks --------------------------------------------------------------------------------


def permuted(dataset=None, **arguments):
    dataset = dataset or tiny(shape=(1, 4, 5))
    return make_scenario(dataset, "domain", n_tasks=4, permuted=True, **arguments)


def test_task_one_is_unpermuted_and_the_others_permute_pixels():
    """Broken: Permuted MNIST is not the benchmark of that name."""
    dataset = tiny(shape=(1, 4, 5))
    tasks = permuted(dataset).tasks
    assert rows(tasks[0].test) == [x.tobytes() for x in dataset.x_test]
    original = tasks[0].test.x.flatten(1)
    orders = set()
    for task in tasks[1:]:
        moved = task.test.x.flatten(1)
        assert task.test.x.shape == tasks[0].test.x.shape and task.head == 0
        # The one order of pixels that explains every image; columns of random pixels differ.
        columns = [bytes(c.numpy().tobytes()) for c in original.T.contiguous()]
        order = tuple(columns.index(bytes(c.numpy().tobytes())) for c in moved.T.contiguous())
        assert sorted(order) == list(range(20)) and order != tuple(range(20))
        orders.add(order)
        # Training and validation are permuted by the same order.
        back = torch.argsort(torch.tensor(order))
        for part in (task.train, task.val):
            unpermuted = {x.numpy().tobytes() for x in part.x.flatten(1)[:, back]}
            assert unpermuted <= {x.tobytes() for x in dataset.x_train}
    assert len(orders) == len(tasks) - 1  # each task its own
    assert torch.equal(tasks[0].test.y, tasks[1].test.y)


def test_all_permuted_tasks_share_one_subset():
    """Broken: tasks differ by their images too, not by the permutation only."""
    dataset = tiny(shape=(1, 4, 5))
    tasks = permuted(dataset, max_train=60).tasks

    def bags(task):  # a permutation of pixels keeps the bag of values of an image
        parts = (task.train, task.val)
        return sorted(tuple(sorted(x)) for p in parts for x in p.x.flatten(1).tolist())

    assert all(len(task.train) + len(task.val) == 60 and len(task.val) == 9 for task in tasks)
    assert all(bags(task) == bags(tasks[0]) for task in tasks)
    images = {x.tobytes() for x in dataset.x_train}
    assert set(rows(tasks[0].train)) | set(rows(tasks[0].val)) <= images
    assert bags(permuted(dataset, max_train=60, seed=2).tasks[0]) != bags(tasks[0])
    labels = sorted(torch.cat([tasks[0].train.y, tasks[0].val.y]).tolist())
    assert all(sorted(torch.cat([t.train.y, t.val.y]).tolist()) == labels for t in tasks)


def test_permuted_tasks_have_one_head_over_all_classes():
    """Broken: the long-horizon scenario is not Domain-IL."""
    scenario = permuted()
    assert (scenario.n_heads, scenario.head_size, scenario.classes_per_task) == (1, 10, 10)
    assert all(task.classes == tuple(range(10)) for task in scenario.tasks)


def test_real_digits_become_the_papers_five_tasks():
    """Broken: the default scenario of every notebook is not 0/1, 2/3, 4/5, 6/7, 8/9."""
    dataset = data.load("digits")
    scenario = make_scenario(dataset)
    assert [task.classes for task in scenario.tasks] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    total = sum(len(p) for t in scenario.tasks for p in (t.train, t.val))
    assert total == len(dataset.y_train)
    assert sum(len(t.test) for t in scenario.tasks) == len(dataset.y_test)


# -- users' data: floats and folders -----------------------------------------------------------------


def own(x, y, scale: str | None = "features", task_sizes=()):
    """A user's dataset whose test set is its training set."""
    classes = tuple(map(str, range(y.max() + 1)))
    return Dataset("own", x, y, x, y, classes, str(x.sum()), "", None, scale, task_sizes)


def table(n_classes=4, n=200):
    """Features of very different scales, the last one constant in task 1."""
    x = np.random.default_rng(0).normal([5, -3000, 0.002, 7], [1, 500, 0.0001, 0], size=(n, 4))
    y = np.arange(n) % n_classes
    x[y > 1, 3] = 1e6
    return x, y


def test_floats_are_scaled_by_task_1s_training_split_alone():
    """Broken: one large feature drowns the others, or later tasks and held-out data leak into task 1."""
    x, y = table()
    scenario = make_scenario(own(x, y), n_tasks=2)
    first = scenario.tasks[0].train.x
    assert first.dtype == torch.float32 and (first[:, 3] == 0).all()
    assert first[:, :3].mean(0).numpy() == pytest.approx(0, abs=1e-5)
    assert first[:, :3].std(0, correction=0).numpy() == pytest.approx(1, abs=1e-5)
    assert (scenario.tasks[1].train.x[:, 3] == 10).all(), (
        "a value of the future is cut, not trusted"
    )
    later = np.where(y[:, None] > 1, 3 * x, x)  # another task 2
    again = make_scenario(own(later, y), n_tasks=2)
    assert torch.equal(again.tasks[0].train.x, first)
    assert torch.equal(again.tasks[0].test.x, scenario.tasks[0].test.x)


def test_scale_none_and_channels():
    """Broken: scale="none" scales, or the pixels of float images are scaled one by one."""
    x, y = table()
    plain = make_scenario(own(x, y, "none"), n_tasks=2).tasks[0].test.x
    assert torch.equal(plain, torch.from_numpy(x[y < 2]).float())
    with pytest.raises(ScenarioError, match="too large for 32-bit floats"):
        make_scenario(own(x * 1e300, y, "none"), n_tasks=2)
    images = np.random.default_rng(0).normal([[[3]], [[90]]], [[[1]], [[20]]], size=(200, 2, 4, 4))
    images[:, :, 0, 0] = 0  # a corner that is always black keeps its place among the others
    scaled = make_scenario(own(images, y), n_tasks=2).tasks[0].train.x
    assert scaled.mean((0, 2, 3)).numpy() == pytest.approx(0, abs=1e-5)
    assert scaled[:, 0, 0, 0].unique().numel() == 1 and scaled[0, 0, 0, 0] < -2


def test_a_folder_has_a_domain_task_per_file():
    """Broken: samples of one file land in another task, or a class order is taken for granted."""
    x, y = np.arange(100, dtype=np.uint8)[:, None].repeat(3, 1), np.arange(100) % 2
    weeks = own(x, y, None, ((40, 20), (30, 30), (30, 50)))
    scenario = make_scenario(weeks, "domain", n_tasks=3)
    assert (scenario.n_heads, scenario.head_size, scenario.classes_per_task) == (1, 2, 2)
    for task, rows, test in zip(
        scenario.tasks,
        (range(40), range(40, 70), range(70, 100)),
        (range(20), range(20, 50), range(50, 100)),
        strict=True,
    ):
        both = torch.cat([task.train.x, task.val.x])[:, 0].tolist()
        assert sorted(both) == list(rows) and task.test.x[:, 0].tolist() == list(test)
    assert make_scenario(weeks, "domain", n_tasks=2).n_tasks == 2
    for wrong, message in (
        (dict(kind="task"), "scenario='domain'"),
        (dict(n_tasks=4), "has 3 files"),
        (dict(class_order_seed=1), "class_order_seed=0"),
    ):
        with pytest.raises(ScenarioError, match=message):
            make_scenario(weeks, **({"kind": "domain", "n_tasks": 3} | wrong))
