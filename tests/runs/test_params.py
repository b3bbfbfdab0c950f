"""Notebook parameters: every papermill trap becomes the value that was meant, or a clear error."""

import contextlib
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from rslib.files import REPOSITORY
from rslib.models import NETWORKS
from rslib.runs import params, studies, values
from rslib.runs.grid import Cell, lookup, run
from rslib.runs.params import ParameterError, check
from rslib.store import Store
from rslib.store.rows import Row

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
        (dict(out_dir="/proc/here"), "out_dir '/proc/here' cannot be written"),
        (dict(out_dir=f"{__file__}/here"), "cannot be written"),
        (dict(out_dir="a\0b"), "cannot be written"),
        (dict(out_dir="~nosuchuser/x"), "out_dir '~nosuchuser/x' cannot be written"),
        (dict(dataset="~nosuchuser/x.npz"), "dataset '~nosuchuser/x.npz': "),
        (dict(out_dir="{}"), "out_dir must be the name of a folder, got {}"),
        (dict(dataset="{}"), "dataset must be a name or a path, got {}"),
        (dict(dataset="a{}"), "'a{}' is no known dataset"),
        (dict(dataset="/.."), "two .npz files or more"),
        (dict(dataset="a\0.npz"), "is no path that this system can open"),
        (dict(dataset="a" * 300 + ".npz"), "is no path that this system can open"),
        (dict(policies="wrost"), "unknown policy 'wrost'"),
        (dict(policies="heur-gd"), "needs tau"),
        (dict(policies=3), "policies must be names"),
        (dict(selections="uniform best"), "selection must be one of uniform, kmeans"),
        (dict(network="transformer"), "network must be one of mlp"),
        (dict(epochs=0), "epochs must be a whole number of at least 1"),
        (dict(n_tasks=1), "n_tasks must be a whole number of at least 2"),
        (dict(n_tasks=6), "6 tasks need at least 12 classes"),
        (dict(scenario="online"), "scenario must be one of task, domain, class"),
        (dict(dataset="permuteddigits", scenario="class"), "permuted tasks share one head"),
    ],
)
def test_what_cannot_be_meant_stops_with_what_is_allowed(changes, message):
    """Broken: a typing error costs an hour of the wrong experiment."""
    with pytest.raises(ParameterError) as caught:
        given(**changes)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["dataset", "out_dir", "policies", "profile", "n" * 400])
def test_a_long_value_is_not_echoed_whole(name):
    """Broken: what was pasted by mistake hides the sentence that says so; or it is a raw OSError."""
    with pytest.raises(ParameterError) as caught:
        given(**{name: "a" * 400})
    assert not re.search("a{81}|n{81}", str(caught.value))


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
    check(namespace, "04", extra={"flag": bool, "size": values.sizes})
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
    extra = {"tables": values.words, "datasets": params.dataset_names}
    lists = PARAMETERS | {"tables": "a.csv b.csv", "datasets": "digits glyphs"}
    for _ in range(2):  # the check's own cell alone, run twice
        check(lists, "07", extra)
        assert lists["tables"] == ["a.csv", "b.csv"] and lists["datasets"] == ["digits", "glyphs"]


def test_a_users_file_is_a_dataset(tmp_path):
    """Broken: `-p dataset path/to/mine.npz` does not run, or its figures go to a wrong folder."""
    y = np.arange(200) % 4
    x = np.random.default_rng(0).random((200, 6))
    file = tmp_path / "mine.npz"
    np.savez(file, x_train=x, y_train=y, x_test=x[:40], y_test=y[:40])
    p = given(dataset=str(file), out_dir=tmp_path)
    assert p.name == p.title == "mine" and p.environment(1, n_tasks=2).classes_per_task == 2
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
    assert {"git revision", "protocol", "CPU capability here"} <= set(facts)


def test_provenance_names_what_trained_the_rows_shown(tmp_path):
    """Broken: a table of shipped rows claims this machine's torch and CPU, which trained none, or seeds
    that were asked for and are not stored."""
    p, store = given(), Store(tmp_path)
    environment = p.environment(1)
    nothing, known = np.full(5, np.nan), np.full(5, 0.5)
    rows = {"-": Row(nothing, known, 1.0, "1.0", "NEON")}
    for k, text in enumerate(("", "10", "10/5,5", "10/5,5/4,3,3", "10/5,5/4,3,3/0,0,0,10"), 1):
        rows[text] = Row(np.where(np.arange(5) < k, 0.5, np.nan), known, 1.0, "1.0", "NEON")
    for text, row in rows.items():
        store.put(environment.key, environment.as_stored(), text, row)
    cells = [Cell(environment, f"schedule:{text}"), Cell(p.environment(2), "ets")]
    facts = p.provenance(lookup(cells, store))
    assert facts["rows shown, trained with"] == "torch 1.0 with NEON"
    assert facts["seeds"] == "1" and p.seeds == (1, 2)
    assert p.provenance(lookup(cells[1:], store))["rows shown, trained with"] == "no rows"


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
        return check(PARAMETERS | dict(dataset=str(path), out_dir=tmp_path), "03")

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
    assert values.environment_numbers("0-3,20") == [0, 1, 2, 3, 20]
    assert values.environment_numbers([4, 5]) == [4, 5] and values.environment_numbers(None) is None
    for bad in ("", "3-1", "1,5-3", "a", "1,1", [1, 1], (5, 5, 7), [], "0-2,1", "-3", "1-"):
        with pytest.raises(ParameterError):
            values.environment_numbers(bad)


def test_what_is_chosen_reaches_the_environments_and_the_tables():
    """Broken: `-p policies`, `-p epochs` and the like are taken and do nothing."""
    p = given(
        policies="heur-ld:0.9, ets",
        selections=["mof"],
        n_tasks="2",
        scenario="class",
        network="convnet",
        epochs=3,
    )
    environment = p.environment(1)
    chosen = (environment.n_tasks, environment.scenario, environment.network, environment.epochs)
    assert chosen == (2, "class", "convnet", 3) and environment.first_epochs == 3
    cells = studies.MEMORY_SELECTION.cells(p)
    assert {cell.environment.selection for cell in cells if cell.rollouts == 3} == {"mof"}
    rows = [cell.policy for cell in cells if cell.environment.selection == "mof"]
    assert rows == ["random", "ets", "heur-gd:0.5", "mcts", "heur-ld:0.9"] * 2, "each once per seed"
    assert studies.scenarios(p) == ("class",) and "heur-ld:0.9" in p._repr_html_()
    for study in (studies.TINY_MEMORY, studies.REPLAY_METHOD, studies.ETS_HEURISTIC):
        assert "heur-ld:0.9" in {cell.policy for cell in study.list_cells(p)}
    assert given().environment(1) == given(n_tasks=5, network="mlp", scenario="task").environment(1)


def notebook_with(injected: str, **variables) -> dict:
    """The globals of a notebook that papermill runs: a typed cell, its own cell, then the user's."""
    found: dict = {"__name__": "__main__", "In": ["", injected]}
    exec('dataset: str = "digits"\nseeds: list = None\nprofile: str = "smoke"', found)
    exec(injected, found)
    return found | variables


def test_a_users_own_variables_give_no_offence():
    """Broken: a line `threshold = 3` above the check stops a notebook, or `-p datset mnist` does not."""
    own = dict(threshold=3, names=["a"], colours={}, x=None)
    assert check(notebook_with("# Parameters\nseeds = [4]\n", **own), "04").seeds == (4,)
    hidden = notebook_with('# Parameters\nseeds = "[5]"\n', seeds=np, rollouts=np)
    assert check(hidden, "04").seeds == (5,), "an import of the same name hides what was given"
    for wrong in ('datset = "mnist"', "zzz = 1", "rollouts = 3"):
        with pytest.raises(ParameterError, match=r"unknown .* Allowed: dataset, seeds, profile"):
            check(notebook_with(f"# Parameters\n{wrong}\n"), "04")
    with pytest.warns(UserWarning, match="'seed' is no parameter. Did you mean 'seeds'"):
        assert check(notebook_with("# Parameters\n", seed=3), "04").seeds == (1, 2)


def test_two_files_of_one_name_do_not_share_a_folder_of_figures(tmp_path):
    """Broken: the figures of /a/mine.npz are overwritten by those of /b/mine.npz."""
    y, out = np.arange(80) % 4, dict(out_dir=tmp_path / "out")
    files = [tmp_path / "a" / "mine.npz", tmp_path / "b" / "mine.npz", tmp_path / "digits.npz"]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        np.savez(file, x_train=y[:, None] * 1.0, y_train=y, x_test=y[:, None] * 1.0, y_test=y)
    assert (
        given(dataset=str(files[0]), **out).name
        == given(dataset=str(files[0]), **out).name
        == "mine"
    )
    with pytest.raises(ParameterError, match=r"holds the figures of .*/a/mine.npz.*same name"):
        given(dataset=str(files[1]), **out)
    files[0].unlink()  # moved, perhaps: nothing of value is overwritten
    assert given(dataset=str(files[1]), **out).name == "mine"
    assert given(dataset=str(files[2]), **out).name == "own-digits"
    assert given(dataset=str(files[1].rename(tmp_path / "paper.npz")), **out).name == "own-paper"
    for name in ("日本.npz", "..npz"):  # whose folder would have no name
        nameless = files[2].rename(tmp_path / name)
        with pytest.raises(ParameterError, match="give it a name with a-z"):
            given(dataset=str(nameless), **out)
        nameless.rename(files[2])


def test_a_network_that_cannot_take_the_data_is_refused(tmp_path, monkeypatch):
    """Broken: it passes the check and fails in the grid, with sixty lines for each seed."""
    y, file = np.arange(200) % 4, tmp_path / "flat.npz"
    x = np.random.default_rng(0).random((200, 6))
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)
    monkeypatch.setitem(NETWORKS, "five", lambda shape, hidden: torch.nn.Linear(5, 3))
    for network, message in (("convnet", "needs images"), ("five", "shapes cannot be multiplied")):
        with pytest.raises(ParameterError, match=message):
            given(dataset=str(file), out_dir=tmp_path, network=network)
    assert given(dataset=str(file), out_dir=tmp_path, network="mlp").network == "mlp"


def test_shipped_figures_are_rewritten_by_the_papers_settings_alone(tmp_path, monkeypatch):
    """Broken: `make paper-figures`, or one seed of `-p dataset mnist`, replaces the real results that
    are committed, and the README's picture, by toy numbers."""
    monkeypatch.setenv("RSLIB_RESULTS", str(REPOSITORY / "results"))
    out = dict(out_dir=str(tmp_path))
    folders = {
        ("mnist", "paper"): dict(profile="paper", dataset="mnist", n_jobs=1),
        ("mnist-changed", "paper-changed"): dict(profile="paper", dataset="mnist", seeds=[1]),
        ("mnist-quick", "paper-quick"): dict(profile="quick", dataset="mnist"),
        ("digits", "paper-quick"): dict(profile="quick", dataset="digits"),
        ("digits", "paper"): dict(profile="paper", dataset="digits"),
    }
    for expected, asked in folders.items():
        p = check(asked | out, "04")
        assert (p.name, p.overview) == expected
    ignored = [f"figures/{name}/x.png" for name in ("mnist-quick", "paper-changed", "glyphs2")]
    ignored += ["tables/permuteddigits/x.tex", "tables/own.tex"]
    git = ["git", "-C", str(REPOSITORY), "check-ignore", *ignored, "figures/mnist/x.png"]
    if (REPOSITORY / ".git").exists():
        said = subprocess.run(git, capture_output=True, text=True, timeout=60).stdout.split()
        assert said == ignored


def test_a_folder_is_a_dataset(tmp_path):
    """Broken: `-p dataset weeks` does not run, or a folder beside us hides a dataset of that name."""
    y = np.arange(60) % 2
    for name in ("v1.2/a", "v1.2/b", "v1.2/c", "digits/a"):
        file = tmp_path / f"{name}.npz"
        file.parent.mkdir(exist_ok=True)
        np.savez(file, x_train=y[:, None] * 1.0, y_train=y, x_test=y[:, None] * 1.0, y_test=y)
    with contextlib.chdir(tmp_path):
        p = given(dataset="v1.2", out_dir="out")
        assert given(dataset="digits").name == "digits"
        assert (p.name, p.environment(1).n_tasks, studies.scenarios(p)) == ("v1.2", 3, ("domain",))
        assert "3, each a file of the folder" in p._repr_html_() and "task 1" in p._repr_html_()
        assert given(dataset="v1.2", out_dir="out", n_tasks=2).environment(1).n_tasks == 2
        with pytest.raises(ParameterError, match="has 3 files, which give no 4 tasks"):
            given(dataset="v1.2", out_dir="out", n_tasks=4)


def test_policies_that_share_a_name():
    """Broken: "-p policies heur-gd:0.9" or "bfs" trains for hours, and then two rows stand for one run
    of the table; or "-p policies none" is ignored."""
    p = check(
        {"dataset": "digits", "profile": "quick", "policies": "heur-gd:0.9 random:1 bfs"}, "02"
    )
    cells = studies.SCHEDULE_SEARCH.cells(p)
    assert len(cells) == len(set(cells))
    labels = {cell.policy: cell.label for cell in cells if cell.environment.method == "er"}
    assert (labels["heur-gd:0.9"], labels["random:1"]) == ("Heur-GD 0.9", "Random 1")
    assert {labels[name] for name in ("heur-gd:0.95", "random", "bfs", "none")} == {None}
    assert check({"policies": "none"}, "04").policies == ("none",)
    assert check({"policies": None}, "04").policies == ()


def test_new_seeds_are_new():
    """Broken: a schedule that was found on seed 10 is tried on seed 10, and that counts as transfer."""
    p = check({"dataset": "digits", "profile": "smoke", "seeds": [1, 10]}, "08")
    quick = replace(p, rollouts=1)
    run(studies.search_cells(quick), 1, progress=False)
    assert {cell.environment.seed for cell in studies.transfer_cells(quick)} == {11, 12}
