"""The settings that the paper prints, as a table of names and numbers: presets are tested against it.

`settings.csv` is made by `python tests/facts/extract.py` where the paper's LaTeX lies beside the
checkout (../shared/paper/paper.tex), so that the tests need the table only.
"""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

PAPER = Path(__file__).resolve().parents[3] / "shared" / "paper" / "paper.tex"
SETTINGS = Path(__file__).with_name("settings.csv")
COLUMNS = ("experiment", "method", "dataset", "setting", "value")
Row = tuple[str, str, str, str, str]

DATASETS = {
    "Split MNIST": "mnist",
    "Split FashionMNIST": "fashionmnist",
    "Split notMNIST": "notmnist",
    "Permuted MNIST": "permutedmnist",
    "Split CIFAR-100": "cifar100",
    "Split miniImagenet": "miniimagenet",
    "Split CIFAR-10": "cifar10",
}
# Tables have no room for the words.
DATASETS |= {
    name.replace("Split ", "S-").replace("Permuted ", "P-"): ours for name, ours in DATASETS.items()
}
METHOD_SETTINGS = {
    ("HAL", r"$\eta$"): ("hal", "lr"),
    ("HAL", r"$\lambda$"): ("hal", "strength"),
    ("HAL", r"$\gamma$"): ("hal", "embedding"),
    ("HAL", r"$\beta$"): ("hal", "decay"),
    ("HAL", "$k$"): ("hal", "anchor_steps"),
    ("MER", r"$\gamma$"): ("mer", "gamma"),
    ("MER", r"$\beta$"): ("mer", "beta"),
    ("DER", r"$\alpha$"): ("der", "alpha"),
    ("DER++", r"$\alpha$"): ("derpp", "alpha"),
    ("DER++", r"$\beta$"): ("derpp", "beta"),
}
AGENT_SETTINGS = {
    "Training Environments": "environments",
    "Learning Rate": "lr",
    "Optimizer": "optimizer",
    "Buffer Size": "buffer_size",
    "Target Update per step": "target_period",
    "Batch Size": "batch_size",
    r"Discount Factor $\gamma$": "gamma",
    r"Exploration Start $\epsilon_{start}$": "epsilon_start",
    r"Exploration Final $\epsilon_{final}$": "epsilon_final",
    "Exploration Annealing (episodes)": "anneal_episodes",
    "Training Episodes": "episodes",
    "Gradient Clipping": "max_norm",
    r"GAE parameter $\lambda$": "gae_lambda",
    "VF coefficient": "value_coef",
    "Entropy coefficient": "entropy_coef",
    "Number of steps $n_{steps}$": "n_steps",
}


def settings(tex: str) -> Iterator[Row]:
    """All settings, in the order of COLUMNS."""
    yield from training(tex, "mcts", r"\label{app:experimental_settings_single_cl_environments}")
    yield from training(tex, "rl", r"\label{app:experimental_settings_rl_framework}")
    grids = "in Single CL Environments.}"
    yield from thresholds("task", "heur-gd", after(tex, grids, r"in \textbf{bold}:"))
    class_il = "in the Class Incremental Learning setting"
    yield from thresholds("class", "heur-gd", after(tex, grids, class_il))
    label = r"\label{app:mcts_results_with_ets_combined_with_heuristic}"
    yield from thresholds("task", "ets+heur-gd", after(tex, label))
    yield from replay_methods(tex)
    for experiment, words, n_columns in (
        ("new_task_order", "new_task_orders", 5),
        ("new_dataset", "new_dataset", 3),
    ):
        for agent in ("dqn", "a2c"):
            rest = after(tex, rf"\label{{tab:{agent}_hyperparameters_{words}}}")
            yield from agents(experiment, agent, table(rest, n_columns))
    # Every second column of the first table is a number of environments.
    yield from heuristics(tex, "tab:grid_search_heuristics_multiple_cl_environments", 13, 2)
    yield from heuristics(tex, "tab:grid_search_ets_heuristic_rs_experiments", 7, 1)


def training(tex: str, experiment: str, label: str) -> Iterator[Row]:
    """Epochs, batch sizes and learning rate: Appendix C.1 and D.1."""
    rest = after(tex, label, r"\textbf{CL Hyperparameters.}")
    (lr,) = re.findall(r"\\eta = ([\d.]+)\$", rest[: rest.index(r"\begin{itemize}")])
    patterns = {
        "epochs": r"(\d+) epochs?/task",
        "batch_size": r"size (\d+)",
        "first_epochs": r"task 1 trained for (\d+) epochs",
    }
    for dataset, words in items(rest):
        yield experiment, "", dataset, "lr", number(lr)
        for setting, pattern in patterns.items():
            for value in re.findall(pattern, words):
                yield experiment, "", dataset, setting, number(value)


def thresholds(experiment: str, method: str, rest: str) -> Iterator[Row]:
    """The grids of tau with the chosen values in bold: Appendix B and C.9."""
    for dataset, words in items(rest):
        grid = words[words.index("=") :]
        for value in re.findall(r"\d+\.\d+", grid):
            yield experiment, method, dataset, "tau_grid", number(value)
        for value in re.findall(r"textbf\{([\d.]+)", grid):
            yield experiment, method, dataset, "tau", number(value)


def replay_methods(tex: str) -> Iterator[Row]:
    """The hyper-parameters of HAL, MER, DER and DER++: Appendix C.5."""
    rest = after(tex, "file: appendix/tables/hyperparameters_replay_methods")
    header, *rows = table(rest, 8)
    name = ""
    for first, symbol, *values in rows:
        name = re.sub(r"\\multirow\{\d\}\{\*\}\{(.*)\}", r"\1", first) or name
        method, setting = METHOD_SETTINGS[name, symbol]
        for title, value in zip(header[2:], values, strict=True):
            yield "mcts", method, DATASETS[title], setting, number(value)


def agents(experiment: str, agent: str, rows: list[list[str]]) -> Iterator[Row]:
    """The hyper-parameters of DQN and A2C: Appendix D.1."""
    header, *rows = rows
    titles = [re.sub(r"[{}]|\\bf", "", cell).strip() for cell in header[1:]]
    for name, *values in rows:
        setting = AGENT_SETTINGS[name]
        for title, value in zip(titles, values, strict=True):
            text = value.lower() if setting == "optimizer" else number(value)
            yield experiment, agent, DATASETS[title], setting, text


def heuristics(tex: str, label: str, n_columns: int, step: int) -> Iterator[Row]:
    """The thresholds in policy learning, and their grid: Appendix B and D."""
    caption, rest = tex.split(rf"\label{{{label}}}")
    found = re.search(r"tau \\in \\\{([\d., ]+)\\\}", caption.rsplit(r"\caption", 1)[1])
    assert found, label
    columns = [("new_task_order", d) for d in ("mnist", "fashionmnist", "notmnist", "cifar10")]
    columns += [("new_dataset", "notmnist"), ("new_dataset", "fashionmnist")]
    for name, *values in table(rest, n_columns):
        if "Heur-" in name:
            for value in found[1].split(","):
                yield "rl", name.lower(), "", "tau_grid", number(value)
            for (experiment, dataset), value in zip(columns, values[::step], strict=True):
                yield experiment, name.lower(), dataset, "tau", number(value)


def after(tex: str, *marks: str) -> str:
    """The rest of the paper behind these places, one after the other."""
    for mark in marks:
        assert mark in tex, mark
        tex = tex[tex.index(mark) + len(mark) :]
    return tex


def items(text: str) -> list[tuple[str, str]]:
    """The next itemised list: pairs of a dataset and what follows its name."""
    listed = text[text.index(r"\begin{itemize}") : text.index(r"\end{itemize}")]
    pairs = re.findall(r"\\item\s+([^:]+):(.*)", listed)
    return [(DATASETS[name.strip()], words) for name, words in pairs]


def table(text: str, n_columns: int) -> list[list[str]]:
    """The rows of the next tabular that have this number of cells."""
    body = text[text.index(r"\begin{tabular}") : text.index(r"\end{tabular}")]
    rows = [row.split("&") for row in re.sub(r"\\midrule|\n", " ", body).split(r"\\")]
    return [[cell.strip() for cell in row] for row in rows if len(row) == n_columns]


def number(text: str) -> str:
    """Write "0.90" as 0.9 and "10k" as 10000."""
    text = text.strip()
    return f"{float(text.removesuffix('k')) * (1000 if text.endswith('k') else 1):g}"


def as_csv(tex: str) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *settings(tex)])
    return text.getvalue()


if __name__ == "__main__":
    SETTINGS.write_text(as_csv(PAPER.read_text(encoding="utf-8")))
