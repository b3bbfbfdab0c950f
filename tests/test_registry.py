"""Your own methods, networks, selections and policies: fingerprints, keys, and a training of each."""

import functools
import math
import pickle
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace

import cloudpickle
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_environment import small
from torch import nn

from rslib import memory, methods, models, policies
from rslib.errors import UserError
from rslib.learner import Learner
from rslib.memory import NeedsNetwork, make_pool
from rslib.methods import Method
from rslib.policies.heuristics import _with_ets
from rslib.registry import NoFingerprint, Registry, RegistryError, fingerprint
from rslib.runs.workers import WithRegistered
from rslib.search import run_policy
from rslib.store import Store
from rslib.tree import ScheduleTree

REGISTRIES = (policies.POLICIES, methods.METHODS, models.NETWORKS, memory.SELECTIONS)


@pytest.fixture(autouse=True)
def _what_a_test_registers_does_not_outlive_it():
    yield
    for registry in REGISTRIES:
        registry.replace_own({})


def weighted(weight, base=Method):
    """A factory: replayed samples count `weight` times."""

    class Weighted(base):
        def loss(self, learner, batch):
            losses = F.cross_entropy(learner.logits(batch.x, batch.head), batch.y, reduction="none")
            return (losses[batch.m :].sum() + weight * losses[: batch.m].sum()) / len(losses)

    return Weighted


def defined(source: str, **names):
    """What a notebook cell defines under the name `own`."""
    namespace = {"__name__": "__main__", "np": np, "Method": Method, **names}
    exec(textwrap.dedent(source), namespace)
    return namespace["own"]


# -- fingerprints ----------------------------------------------------------------------------------

BEFORE = """
    def helper(x):
        return x + 1

    def outer(weight):
        class Own(Method):
            rate = 0.5

            def step(self, learner, batch, scale=2, *, shift=3):
                return helper(weight) * scale + shift + LIMIT

            @property
            def width(self):
                return 4

            @staticmethod
            def known(name):
                return name in {"a", "b", "c"}

        return Own

    own = outer(7)
"""
CHANGES = {
    "a constant of a method": ("LIMIT", "LIMIT + 1"),
    "what it closes over": ("outer(7)", "outer(8)"),
    "a default": ("scale=2", "scale=3"),
    "a keyword's default": ("shift=3", "shift=4"),
    "a class attribute": ("rate = 0.5", "rate = 0.6"),
    "a property": ("return 4", "return 5"),
    "a static method": ('"c"', '"d"'),
    "a helper": ("x + 1", "x - 1"),
    "a base": ("Own(Method)", "Own(type('Base', (Method,), {'a': 1}))"),
    "another method": ("rate = 0.5", "rate = 0.5; end = lambda self, learner: None"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_part_of_a_definition_is_in_its_fingerprint(change):
    """Broken: a method is redefined in this way, and the store returns the old method's numbers."""
    old, new = CHANGES[change]
    assert old in BEFORE
    changed = defined(BEFORE.replace(old, new), LIMIT=1)
    assert fingerprint(defined(BEFORE, LIMIT=1)) != fingerprint(changed)


def test_a_global_counts_and_comments_and_lines_do_not():
    """Broken: a weight in a notebook cell above goes unseen, or adding a comment trains anew."""
    own = fingerprint(defined(BEFORE, LIMIT=1))
    assert own == fingerprint(
        defined("\n\n" + BEFORE.replace("x + 1", "x + 1  # one more"), LIMIT=1)
    )
    assert own != fingerprint(defined(BEFORE, LIMIT=2))
    assert own == fingerprint(defined(BEFORE, LIMIT=1, unused=3))


@pytest.mark.parametrize(
    "one, other",
    [
        (np.arange(3), np.arange(1, 4)),
        (torch.ones(2), torch.zeros(2)),
        (np.float32(1), 1.0),
        ({"a": 1}, {"a": 2}),
        ([1, 2], (1, 2)),
        (functools.partial(math.pow, 2), functools.partial(math.pow, 3)),
        (np.random.default_rng(1), np.random.default_rng(2)),
        (functools.cache(lambda: 1), functools.cache(lambda: 2)),
        (nn.Flatten(), nn.Flatten(2)),
        (np.mean, np.median),
        (True, 1),
    ],
)
def test_values_that_a_method_closes_over_count(one, other):
    """Broken: the table of weights that a method closes over changes, and its rows do not."""
    first = fingerprint(weighted(one))
    assert first == fingerprint(weighted(one)) != fingerprint(weighted(other))


def test_what_refers_to_itself_has_a_fingerprint():
    """Broken: a recursive function, or a class that calls super(), hangs the registration."""
    source = "def own(n):\n    return own(n - {}) if n else 0"
    assert fingerprint(defined(source.format(1))) != fingerprint(defined(source.format(2)))


def test_what_an_installed_factory_was_called_with_counts():
    """Broken: a decorator from a package hides the function that it decorates."""

    def made(n):
        return lambda *args: n

    for decorate in (_with_ets, torch.no_grad(), np.vectorize):  # ours returns a bare lambda
        first = fingerprint(decorate(made(1)))
        assert first == fingerprint(decorate(made(1))) != fingerprint(decorate(made(2)))
    nameless: list[dict] = [{}, {}]
    for number, namespace in enumerate(nameless):  # Python files them under builtins, or nowhere
        exec(f"def own(): return {number}\nclass Own:\n    weight = {number}", namespace)
    for name in ("own", "Own"):
        assert fingerprint(nameless[0][name]) != fingerprint(nameless[1][name])


def test_a_users_module_counts_as_far_as_it_is_used(tmp_path, monkeypatch):
    """Broken: the loss is in a file beside the notebook, which is edited, and the old rows are used."""
    found = []
    for weight, other in ((1, 1), (2, 1), (2, 2)):
        (tmp_path / "losses.py").write_text(f"def half():\n    return {weight}\nother = {other}\n")
        monkeypatch.syspath_prepend(tmp_path)
        sys.modules.pop("losses", None)
        sys.dont_write_bytecode = True
        own = defined("import losses\ndef own():\n    return losses.half()")
        inside = defined("def own():\n    import losses\n    return losses.half()")
        found.append((fingerprint(own), fingerprint(inside)))
    assert found[0][0] != found[1][0] == found[2][0]
    assert found[0][1] != found[1][1] == found[2][1]
    sys.modules.pop("losses")


@pytest.mark.parametrize(
    "source",
    [
        "def make():\n    import NAME\n    return lambda: NAME.weight()\nown = make()",
        "import NAME\ndef own(module=NAME):\n    return module.weight()",
        "import NAME\nclass own:\n    module = NAME",
        "import NAME\nmodules = {1: NAME}\ndef own():\n    return modules[1].weight()",
        "import NAME\ndef own():\n    return getattr(NAME, 'weight')()",
        "import NAME\ndef own():\n    return vars(NAME)",
    ],
)
@pytest.mark.parametrize("name", ["losses", "sched"])  # Python has a sched.py too
def test_a_users_module_counts_however_it_is_reached(tmp_path, monkeypatch, source, name):
    """Broken: the loss is in a file beside the notebook, which is edited, and the old rows are used."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = []
    for weight in (1, 2):
        (tmp_path / f"{name}.py").write_text(f"def weight():\n    return {weight}\n")
        sys.modules.pop(name, None)
        found.append(fingerprint(defined(source.replace("NAME", name))))
        sys.modules.pop(name)
    assert found[0] != found[1]


def test_no_way_leads_around_a_built_in_name():
    """Broken: another method under the name of a built-in one is given its stored rows."""
    registry = Registry("method", {"er": int})
    with pytest.raises(RegistryError, match="built in"):
        registry.update({"er": str})
    with pytest.raises(TypeError):
        registry |= {"er": str}
    with pytest.raises(RegistryError, match="built in"):
        del registry["er"]
    assert registry.setdefault("er", str) is int and dict(registry) == {"er": int}


def test_another_process_finds_the_same_fingerprint():
    """Broken: rows are not found again in the next session (sets have another order there)."""
    script = f"""
from rslib.methods import Method
from rslib.registry import fingerprint
LIMIT = 1
{textwrap.dedent(BEFORE)}
print(fingerprint(own))
"""
    command = [sys.executable, "-c", script]
    found = {
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
        for _ in range(2)
    }
    assert found == {fingerprint(defined(BEFORE, LIMIT=1)) + "\n"}


def test_pickling_by_value_keeps_the_fingerprint():
    """Broken: workers file rows where the notebook does not find them."""
    own = defined(BEFORE, LIMIT=1)
    assert fingerprint(pickle.loads(cloudpickle.dumps(own))) == fingerprint(own)


def test_without_a_fingerprint_a_version_is_needed():
    """Broken: a change that nothing notices gives old numbers."""
    lock = threading.Lock()
    with pytest.raises(
        NoFingerprint, match=r"method 'own' has no fingerprint: .*'lock'.*version=1"
    ):
        methods.register("own")(weighted(lock))
    assert "own" not in methods.METHODS
    keys = []
    for version in (1, 1, 2):
        methods.register("own", version=version)(weighted(lock))
        keys.append(small(method="own").key)
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    "register, name",
    [
        (methods.register, "er"),
        (models.register, "mlp"),
        (memory.register, "mof"),
        (policies.register, "ets"),
    ],
)
def test_built_in_names_are_taken(register, name):
    """Broken: whoever registers "er" gets the shipped rows of another method."""
    with pytest.raises(ValueError, match=f"'{name}' is built in: register yours by another name"):
        register(name)(weighted(0.5))
    assert small().key == small().key


def test_unknown_names_are_listed_with_your_own():
    """Broken: an error that names everything but what the user has just registered."""
    methods.register("half")(weighted(0.5))
    with pytest.raises(ValueError, match=r"method must be one of er, .*, half, got 'quarter'"):
        small(method="quarter")


# -- methods ---------------------------------------------------------------------------------------


def test_a_redefined_method_is_trained_anew(tmp_path):
    """Broken: the store returns the old method's numbers, also through a tree made before."""
    environment, store = None, Store(tmp_path, shipped=None)
    found, trees = {}, []
    for weight in (0.0, 5.0, 0.0):
        methods.register("own")(weighted(weight))
        environment = environment or small(method="own")  # made before the second definition
        trees.append(ScheduleTree(environment, store))
        for tree in (trees[0], trees[-1]):
            node = run_policy(tree, "ets").node
            found.setdefault((weight, environment.key), []).append(node.test.tobytes())
    assert len(found) == 2  # the third definition is the first
    assert all(len(set(rows)) == 1 for rows in found.values())
    assert len({rows[0] for rows in found.values()}) == 2
    assert [tree.trained for tree in trees] == [10, 0, 0]  # by the tree made first, twice


def test_a_method_that_changes_itself_is_not_filed(tmp_path):
    """Broken: rows of a method that is another one after every batch are filed as one method's."""
    losses = []

    class Logs(Method):
        def loss(self, learner, batch):
            losses.append(1)
            return super().loss(learner, batch)

    methods.register("logs")(Logs)
    store = Store(tmp_path, shipped=None)
    with pytest.raises(UserError, match=r"changed while it was trained.*version=1"):
        ScheduleTree(small(method="logs"), store).walk()
    methods.register("logs", version=1)(Logs)
    assert ScheduleTree(small(method="logs"), store).walk().converged


def test_a_policy_is_not_in_the_key(tmp_path):
    """Broken: every new policy trains a tree of its own."""
    tree = ScheduleTree(small(), Store(tmp_path, shipped=None))
    key = tree.environment.key
    run_policy(tree, "ets")
    policies.register("even")(lambda val, rng, parameter: [2] * len(val))
    assert run_policy(tree, "even").trained == 0 and tree.environment.key == key


# -- selections ------------------------------------------------------------------------------------


def test_hardest_samples_are_those_with_the_highest_loss():
    """Broken: a selection does not see the network that has just learned the task."""

    @memory.register("hardest")
    def hardest(candidates, n):
        return np.argsort(-candidates.losses, kind="stable")[:n]

    learner = Learner(small(selection="hardest"))
    learner.learn(())
    task = learner.scenario.tasks[0]
    with torch.no_grad():
        logits = learner.logits(task.train.inputs(slice(None)), torch.zeros_like(task.train.y))
    loss = F.cross_entropy(logits, task.train.y, reduction="none").numpy()
    for label in (0, 1):
        mine = np.flatnonzero(task.train.y == label)
        wanted = sorted(mine, key=lambda i: -loss[i])[:5]
        pool = [i for i in learner.pools[0].tolist() if task.train.y[i] == label]
        np.testing.assert_allclose(loss[pool], loss[wanted], rtol=1e-5)
    with pytest.raises(NeedsNetwork):
        make_pool("hardest", task, 10, seed=1)


def test_own_selections_that_look_at_the_network_are_made_anew_on_every_path():
    """Broken: the pools of one schedule are replayed in another."""

    def near(source):
        return defined(
            f"def own(c, n):\n    return np.argsort(np.abs(c.{source}).sum(1), kind='stable')[:n]"
        )

    memory.register("near")(near("points"))
    memory.register("seen")(near("features"))
    for name, same in (("near", True), ("seen", False)):
        pools = []
        for path in ([(), (10,), (10, 0)], [(), (0,), (0, 0)]):
            learner = Learner(small(selection=name))
            for counts in path:
                learner.learn(counts)
            pools.append(learner.pools[2])
            assert (3 in learner._pool_cache) == same
        assert torch.equal(*pools) == same, name


@pytest.mark.parametrize("wrong", [[0, 0], [0], [0, 10**6], [0, -1], None, [0.0, 1.0]])
def test_a_selection_that_returns_nonsense_is_refused(wrong):
    """Broken: a sample is replayed twice, or another class's."""
    memory.register("wrong")(lambda candidates, n: wrong)
    task = small().tasks().tasks[0]
    with pytest.raises(ValueError, match="'wrong' must return 2 different places below"):
        make_pool("wrong", task, 4, seed=1)


# -- networks --------------------------------------------------------------------------------------


class Odd(nn.Module):
    """A module that rslib knows nothing of: features with two dimensions, dropout, a drawn tensor."""

    def __init__(self, shape, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, math.prod(shape), hidden) / 10)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return self.dropout(torch.einsum("ni,aij->naj", x.flatten(1), self.weight).tanh())


def test_any_module_becomes_a_trunk_with_heads():
    """Broken: an own network needs to know rslib's heads, or its weights are not the seed's."""
    models.register("odd")(Odd)
    states = []
    for global_seed, seed in ((1, 0), (2, 0), (2, 1)):
        torch.manual_seed(global_seed)
        generator = torch.Generator().manual_seed(seed)
        net = models.build("odd", (1, 8, 8), 3, 4, generator, hidden=5)
        states.append(torch.cat([t.flatten() for t in net.state_dict().values()]))
        assert torch.initial_seed() == global_seed  # the user's generator is left alone
    assert torch.equal(states[0], states[1]) and not torch.equal(states[0], states[2])
    assert net.output.in_features == 15 and net.training and net.trunk.training
    assert net(torch.rand(2, 1, 8, 8)).shape == (2, 12)


@pytest.mark.parametrize("method", ["er", "hal", "mer", "derpp", "agem", "er-ring"])
def test_every_method_trains_an_own_network(method):
    """Broken: a method reaches into the paper's networks."""
    models.register("odd")(Odd)
    environment = small(network="odd", method=method, n_tasks=2)
    assert ScheduleTree(environment).walk([(10,)]).converged


def test_a_walk_with_dropout_does_not_depend_on_what_was_walked_before(tmp_path):
    """Broken: a network that draws random numbers gives other rows in another order of visits."""
    models.register("odd")(Odd)
    environment = small(network="odd", n_tasks=3)
    tree = ScheduleTree(environment, Store(tmp_path, shipped=None))
    tree.walk([(0,), (0, 0)])
    torch.manual_seed(9)
    late = tree.walk([(10,), (5, 5)])
    fresh = ScheduleTree(environment).walk([(10,), (5, 5)])
    assert late.test.tobytes() == fresh.test.tobytes()


def test_a_network_that_edits_its_inputs_harms_neither_memory_nor_data(monkeypatch):
    """Broken: dropout in place eats up the memory's rows over a task, which are written once; or
    evaluation edits a user's floats. Batches that are gathered at once are the slow twin."""
    models.register("greedy")(
        lambda shape, hidden: nn.Sequential(
            nn.Flatten(), nn.Dropout(0.2, inplace=True), nn.Linear(math.prod(shape), hidden)
        )
    )
    environment = small(network="greedy", n_tasks=2, epochs=3)
    gathered = ScheduleTree(environment).walk([(10,)])
    monkeypatch.setattr("rslib.learner.SMALL", 0)  # one by one
    assert ScheduleTree(environment).walk([(10,)]).test.tobytes() == gathered.test.tobytes()
    learner = Learner(environment)
    samples = replace(learner.scenario.tasks[0].test, x=learner.scenario.tasks[0].test.inputs())
    before = samples.x.clone()
    learner.net.train()  # as a network that edits its inputs in evaluation too
    learner._accuracy(samples, 0)
    assert torch.equal(samples.x, before)
    monkeypatch.setattr(learner.net, "eval", learner.net.train)
    learner.features(samples.x)
    learner.losses(samples.x, samples.y, 0)
    assert torch.equal(samples.x, before)  # a selection goes on with them


def test_a_method_may_keep_its_batches(monkeypatch):
    """Broken: a reservoir holds the last batch again and again, on large tasks only: their batches are
    written into one buffer."""
    kept = []

    @methods.register("keeping", version=1)
    class Keeping(Method):
        def loss(self, learner, batch):
            kept.append((batch.x, batch.x.clone()))
            return super().loss(learner, batch)

    monkeypatch.setattr("rslib.learner.SMALL", 0)  # as if the task were large
    ScheduleTree(small(method="keeping", n_tasks=2)).walk([(10,)])
    assert len(kept) > 4 and all(torch.equal(now, then) for now, then in kept)


@pytest.mark.parametrize("method", ["agem", "hal"])
def test_weights_that_are_frozen_stay_so(method):
    """Broken: a pretrained trunk ends A-GEM and HAL with an error about gradients."""

    @models.register("frozen")
    def frozen(shape, hidden):
        trunk = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU())
        return trunk.requires_grad_(False)

    learner = Learner(small(network="frozen", method=method, n_tasks=3))
    before = [p.clone() for p in learner.net.parameters()]
    for counts in ((), (10,), (5, 5)):
        learner.learn(counts)
    moved = [not torch.equal(a, b) for a, b in zip(before, learner.net.parameters(), strict=True)]
    assert moved == [p.requires_grad for p in learner.net.parameters()] and any(moved)


def test_a_method_may_leave_out_its_bases_init():
    """Broken: the shortest constructor of one's own ends in an error about an attribute."""

    @methods.register("short")
    class Short(Method):
        def __init__(self, weight=0.5):
            self.weight = weight

    own, er = (
        ScheduleTree(small(method=m, n_tasks=3)).walk([(10,), (5, 5)]) for m in ("short", "er")
    )
    assert own.test.tobytes() == er.test.tobytes()


def test_a_method_whose_arguments_have_no_defaults_has_a_name():
    """Broken: it trains for hours, and its result cannot be printed."""

    @methods.register("weighted")
    class Weighted(Method):
        def __init__(self, weight, parts=()):
            super().__init__()

    arguments = dict(weight=0.5, parts=[1, 2])
    environment = small(method="weighted", method_args=arguments)
    assert "weighted" in str(environment) and "weight=0.5" in str(environment)
    assert hash(environment) == hash(type(environment).from_spec(environment.spec()))  # in grids
    for wrong in ({}, dict(weight=1, width=2)):
        with pytest.raises(UserError, match=r"method_args of 'weighted': .*argument"):
            small(method="weighted", method_args=wrong)


def test_a_methods_state_is_copied_or_refused():
    """Broken: a numpy counter in `state()` is shared with its snapshot, so that a walk depends on the
    walks before it; or it never comes back from the disk, and nobody is told."""

    @methods.register("counting")
    class Counting(Method):
        def state(self):
            return {"n": np.zeros(1)}

    tree = ScheduleTree(small(method="counting", n_tasks=3))
    with pytest.raises(UserError, match=r"state.. of a method must hold tensors.* got ndarray"):
        tree.walk([(10,)])


def test_networks_of_other_widths_have_other_keys():
    """Broken: a factory called with another width finds the first one's rows."""

    def wide(times):
        return lambda shape, hidden: nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(shape), times * hidden), nn.Tanh()
        )

    keys = []
    for times in (1, 2, 1):
        models.register("wide")(wide(times))
        keys.append(small(network="wide").key)
    assert keys[0] == keys[2] != keys[1]


def test_features_for_each_input_are_needed():
    """Broken: a module that returns one row for the whole batch fails deep inside torch."""
    models.register("mean")(lambda shape, hidden: nn.Flatten(0))
    with pytest.raises(ValueError, match="'mean' made features of shape"):
        Learner(small(network="mean"))


# -- other processes -------------------------------------------------------------------------------


def test_a_job_registers_what_its_sender_has_and_nothing_else():
    """Broken: a long-lived worker goes on with the definition of an earlier job."""
    methods.register("half")(defined(BEFORE, LIMIT=1))
    key = small(method="half").key
    job = pickle.dumps(WithRegistered(_names_and_key))
    for registry in REGISTRIES:
        registry.replace_own({})
    methods.register("half")(weighted(3))
    methods.register("left over")(weighted(4))
    assert pickle.loads(job)() == (["half"], key)


def _names_and_key():
    return list(methods.METHODS.own()), small(method="half").key


def test_what_cannot_be_sent_is_named():
    """Broken: a grid in processes dies of a pickle error that names nothing."""
    lock = threading.Lock()
    methods.register("locked", version=1)(weighted(lock))
    with pytest.raises(ValueError, match=r"registered \(locked\) cannot be sent.*n_jobs=1"):
        pickle.dumps(WithRegistered(_names_and_key))
    assert WithRegistered(len)("abc") == 3  # in this process nothing is sent
