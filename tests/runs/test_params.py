"""Notebook parameters: every papermill trap becomes the value that was meant, or a clear error."""

import subprocess
import sys

import numpy as np
import pytest

from rslib.runs import params
from rslib.runs.params import ParameterError, check

PARAMETERS = dict(dataset="digits", profile="smoke", seeds=None, rollouts=None, n_jobs=1)


def given(**changes):
    return check(PARAMETERS | changes, "04")


def test_defaults_come_from_profile_and_preset():
    """Broken: a notebook with nothing set runs something else than its profile says."""
    p = given()
    assert (p.seeds, p.rollouts, p.memory_size) == ((1, 2), 3, 10)
    assert p.environment(7).epochs == 1 and p.environment(7).seed == 7
    assert check(dict(profile="quick"), "05").rollouts == 12  # less, where it is slow
    assert check(dict(profile="paper"), "05").rollouts == 100


@pytest.mark.parametrize(
    ("name", "text", "meant"),
    [
        ("seeds", "[1, 2]", (1, 2)),  # papermill hands a list over as a string
        ("seeds", 3, (3,)),
        ("seeds", "[1e0]", (1,)),
        ("rollouts", "7", 7),
        ("rollouts", 1e3, 1000),  # 1e3 arrives as a float
        ("memory_size", 8.0, 8),
        ("seeds", "none", (1, 2)),
    ],
)
def test_what_the_shell_hands_over_becomes_what_was_meant(name, text, meant):
    """Broken: `-p seeds "[1,2]"` iterates over the characters of a string, 1e3 is no whole number."""
    assert getattr(given(**{name: text}), name) == meant


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(profile="fast"), "profile must be one of smoke, quick, paper, got 'fast'"),
        (dict(seeds="[1, 1]"), "seeds must differ"),
        (dict(seeds="[]"), "seeds must be a list"),
        (dict(seeds="all"), "seeds must be a list"),
        (dict(seeds=[-1]), "every seed must be a whole number of at least 0"),
        (dict(rollouts=0), "rollouts must be a whole number of at least 1, got 0"),
        (dict(rollouts="many"), "rollouts must be a whole number"),
        (dict(rollouts=True), "rollouts must be a whole number"),
        (dict(rollouts=2.5), "rollouts must be a whole number"),
        (dict(memory_size=-3), "memory_size must be a whole number of at least 1"),
        (dict(n_jobs=0), "n_jobs must be a whole number of at least 1"),
        (dict(dataset="mnits"), "mnist"),
        (dict(dataset="nowhere.npz"), "nowhere.npz"),
        (dict(datset="mnist"), "unknown parameter 'datset'. Did you mean 'dataset'?"),
        (dict(zzz=1), "unknown parameter 'zzz'. Allowed: dataset, profile"),
        (dict(out_dir=__file__), "out_dir must be a folder"),
    ],
)
def test_what_cannot_be_meant_stops_with_what_is_allowed(changes, message):
    """Broken: a typing error costs an hour of the wrong experiment."""
    with pytest.raises(ParameterError) as caught:
        given(**changes)
    assert message in str(caught.value)


def test_a_parameter_this_notebook_lacks_is_refused():
    """Broken: `-p dataset mnist` on 09, which has none, is ignored and everything is shown."""
    notebook: dict = {}
    exec('profile: str = "smoke"\ndatasets: str = None', notebook)  # a typed parameters cell
    known = {"extra": {"datasets": params.dataset_names}}
    assert check(dict(notebook), "09", **known).profile_name == "smoke"
    with pytest.raises(ParameterError, match=r"'datasets'\? Allowed: profile, datasets$"):
        check(notebook | dict(dataset="mnist"), "09", **known)  # as papermill injects it: untyped


def test_a_dataset_is_not_fetched_for_a_run_that_cannot_start(monkeypatch):
    """Broken: a typing error in the seeds shows after a download instead of at once."""
    monkeypatch.setattr(params.data, "load", lambda name: pytest.fail("loaded"))
    for wrong in (dict(seeds="1-3"), dict(n_jobs=0), dict(out_dir=__file__), dict(memory_size=0)):
        with pytest.raises(ParameterError):
            given(**wrong)


def test_false_from_the_shell_is_false():
    """Broken: `-p flag false` arrives as the string "false", which is true."""
    namespace = PARAMETERS | dict(flag="false", size="[8, 24.0]")
    check(namespace, "04", extra={"flag": bool, "size": params.sizes})
    assert namespace["flag"] is False and namespace["size"] == (8, 24)
    with pytest.raises(ParameterError, match="flag must be true or false, got 'maybe'"):
        check(PARAMETERS | dict(flag="maybe"), "04", extra={"flag": bool})
    with pytest.raises(ParameterError, match="kind must be one of a, b, got 'c'"):
        check(PARAMETERS | dict(kind="c"), "04", extra={"kind": ("a", "b")})


def test_running_all_again_does_not_mistake_variables_for_parameters():
    """Broken: the second "run all" in one kernel stops at the check, for the notebook's own names."""
    namespace = dict(PARAMETERS)
    check(namespace, "04")
    namespace["sizes"] = [8, 24]
    assert check(namespace, "04").dataset == "digits"


def test_a_users_file_is_a_dataset(tmp_path):
    """Broken: `-p dataset path/to/mine.npz` does not run, or its figures go to a wrong folder."""
    y = np.arange(200) % 4
    x = np.random.default_rng(0).random((200, 6))
    file = tmp_path / "mine.npz"
    np.savez(file, x_train=x, y_train=y, x_test=x[:40], y_test=y[:40])
    p = given(dataset=str(file))
    assert p.name == "mine" and p.environment(1, n_tasks=2).classes_per_task == 2
    assert "(0 of 4 not used)" not in p._repr_html_()


def test_tiny_memory_has_its_own_size():
    """Broken: 06 compares a schedule that replays M = 10 of one sample per class."""
    assert check(dict(PARAMETERS), "06").memory_size == 2
    assert check(PARAMETERS | dict(memory_size=3), "06").memory_size == 3


def test_provenance_names_what_moves_results():
    """Broken: a printed notebook cannot be traced to its code, data and seeds."""
    facts = given().provenance()
    assert len(facts["data fingerprint"]) == 64 and facts["seeds"] == "1, 2"
    assert facts["data fingerprint"] in facts._repr_html_()  # whole, where it is shown
    assert {"git revision", "protocol", "CPU capability"} <= set(facts)


def test_a_wrong_parameter_is_told_before_anything_slow_is_loaded():
    """Broken: a mistyped parameter is only told after torch, pandas and matplotlib are loaded."""
    code = """
import sys
from rslib.runs import params
for wrong in ({"seed": 1}, {"seeds": "x"}, {"profile": "fast"}, {"dataset": "minst"}):
    try:
        params.check(wrong, "04")
    except params.ParameterError as error:
        print(error)
print(*({"torch", "pandas", "scipy", "sklearn", "matplotlib", "seaborn"} & sys.modules.keys()))
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    *errors, loaded = told.stdout.split("\n")[:-1]
    assert len(errors) == 4 and loaded == "", told


def test_a_dataset_spelt_otherwise_is_the_same_dataset(monkeypatch):
    """Broken: "CIFAR-100" runs with another memory size, threshold and number of tasks than the
    paper's, under keys that look right."""
    monkeypatch.setattr(params.data, "load", lambda name: None)
    monkeypatch.setattr(params, "dataset_facts", lambda name: None)
    for spelt, name in (("CIFAR-100", "cifar100"), ("Permuted MNIST", "permutedmnist")):
        mine = params.check(dict(dataset=spelt, profile="paper"), "04")
        assert mine == params.check(dict(dataset=name, profile="paper"), "04")
        assert mine.memory_size == params.presets.PAPER[name].memory_size


def test_users_data_need_not_have_ten_classes(tmp_path):
    """Broken: six classes pass the check and fail later, with nothing a notebook's user can set."""

    def mine(n_classes: int):
        y = np.arange(20 * n_classes) % n_classes
        x = np.random.default_rng(0).random((len(y), 5), dtype=np.float32)
        path = tmp_path / f"of{n_classes}.npz"
        np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
        return check(PARAMETERS | dict(dataset=str(path)), "03")

    six, twenty = mine(6), mine(20)
    assert six.environment(1).n_tasks == 3 and "3 of 2 classes" in six._repr_html_()
    assert len(six.environment(1).tasks().tasks) == 3
    assert twenty.environment(1).n_tasks == 5
    # 1, 3, 5, 10, 25 samples of the 4 classes of each of 4 past tasks
    assert twenty.preset.memory_sizes == (16, 48, 80, 160, 400)
    with pytest.raises(ParameterError, match="two tasks need four classes, it has 3"):
        mine(3)


def test_environments_by_number():
    """Broken: policies would be trained or tested in environments that were not named."""
    assert params.environment_numbers("0-3,20") == [0, 1, 2, 3, 20]
    assert params.environment_numbers([4, 5]) == [4, 5] and params.environment_numbers(None) is None
    for bad in ("", "3-1", "a", "1,1", "0-2,1", "-3", "1-"):
        with pytest.raises(ParameterError):
            params.environment_numbers(bad)
