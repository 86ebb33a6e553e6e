"""The first hour with a simulator, beside Optuna and stable-baselines3: ``python -m benchmarks.first_hour``.

The same small inventory is given to each, as its own tutorial would: a newcomer's program, run in a process of its own.
Measured are the lines of the program, the seconds from its start to its first result (imports included), whether there
is a word of progress, how long a run that was told to end after a few seconds really takes, whether the same program
goes on after it was killed, and whether a picture comes with it. What is not installed is not measured: give
``--python`` an interpreter that has the others. They find good parameters or policies and certify nothing; this table
is about the way in.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

SECONDS = 5  # that a run is told to take
_PATIENCE = 300.0

DAY = """
import numpy as np

def day(stock, order, rng):
    sold = min(stock + order, rng.poisson(1.5))
    return 5.0 * sold - 2.0 * order - 0.5 * (stock + order - sold), stock + order - sold
"""


@dataclass(frozen=True)
class Contender:
    """A package and the programs that a newcomer would write with it.

    Attributes
    ----------
    name, module : str
    first : str
        From the simulator to a first result.
    limited : str
        The same for at most SECONDS seconds, kept in a file if the package can: run twice, the second one goes on.
    resumed : str
        Prints how many calls or steps the file holds; empty if the package has no such thing.
    picture : str
        Goes on after `first`, and leaves a file picture.png; empty if the package has no such thing.
    """

    name: str
    module: str
    first: str
    limited: str
    resumed: str = ""
    picture: str = ""


CONTENDERS = (
    Contender(
        "bestpolicy",
        "bestpolicy",
        first="""
import bestpolicy as bp
result = bp.identify(day, states=range(5), actions=lambda stock: range(5 - stock), discount=0.8, reward_range=(-10, 20),
                     epsilon="5%", delta=0.05, algorithm="sharp", seed=0, progress=True)
print(result)
""",
        limited=f"""
import bestpolicy as bp
result = bp.identify(day, states=range(5), actions=lambda stock: range(5 - stock), discount=0.8, reward_range=(-10, 20),
                     epsilon=0.0, delta=0.05, algorithm="sharp", seed=0, max_seconds={SECONDS}, store="run.db")
""",
        resumed="""
import bestpolicy as bp
print(next(iter(bp.studies("run.db"))).samples)
""",
        picture='result.plot().savefig("picture.png")',
    ),
    Contender(
        "Optuna",
        "optuna",
        first="""
import optuna
def objective(trial):
    orders = [trial.suggest_int(f"order at {stock}", 0, 4 - stock) for stock in range(5)]
    rng, stock, total = np.random.default_rng(trial.number), 0, 0.0
    for t in range(200):
        reward, stock = day(stock, orders[stock], rng)
        total += 0.8 ** t * reward
    return total
study = optuna.create_study(direction="maximize")
study.optimize(objective, n_trials=100)
print(study.best_params, study.best_value)
""",
        limited=f"""
import optuna
def objective(trial):
    orders = [trial.suggest_int(f"order at {{stock}}", 0, 4 - stock) for stock in range(5)]
    rng, stock, total = np.random.default_rng(trial.number), 0, 0.0
    for t in range(200):
        reward, stock = day(stock, orders[stock], rng)
        total += 0.8 ** t * reward
    return total
study = optuna.create_study(direction="maximize", storage="sqlite:///run.db", study_name="run", load_if_exists=True)
study.optimize(objective, timeout={SECONDS})
""",
        resumed="""
import optuna
print(len(optuna.load_study(storage="sqlite:///run.db", study_name="run").trials))
""",
        picture="""
from optuna.visualization.matplotlib import plot_optimization_history
plot_optimization_history(study).figure.savefig("picture.png")
""",
    ),
    Contender(
        "stable-baselines3",
        "stable_baselines3",
        first="""
import gymnasium
from stable_baselines3 import PPO
class Shop(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(5), gymnasium.spaces.Discrete(5)
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.stock, self.days = 0, 0
        return self.stock, {}
    def step(self, order):
        reward, self.stock = day(self.stock, min(int(order), 4 - self.stock), self.np_random)
        self.days += 1
        return self.stock, reward, False, self.days >= 200, {}
model = PPO("MlpPolicy", Shop(), gamma=0.8, seed=0, verbose=1, device="cpu")
model.learn(total_timesteps=20_000)
print([int(model.predict(stock, deterministic=True)[0]) for stock in range(5)])
""",
        limited="",  # learn() knows steps, not seconds; a callback of one's own would have to watch the clock
    ),
)


def main() -> None:
    """Measure what is installed, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the other packages")
    parser.add_argument("names", nargs="*", help="of packages; all by default")
    asked = parser.parse_args()
    heads = ("", "lines", "first result", "progress", f"told to end after {SECONDS} s", "after a kill", "picture")
    _print_row(heads)
    for contender in CONTENDERS:
        if not asked.names or contender.name in asked.names:
            python = sys.executable if contender.module == "bestpolicy" else asked.python
            _print_row((contender.name, *measured(contender, python)))
    print(
        "lines: without the simulator, which all share. What only bestpolicy gives, a certificate, is not in the table."
    )


def _print_row(cells: tuple[str, ...]) -> None:
    widths = (18, 6, 13, 9, 22, 25, 0)
    print(" ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip(), flush=True)


def measured(contender: Contender, python: str) -> tuple[str, ...]:
    """A row of the table."""
    found = subprocess.run([python, "-c", f"import {contender.module}"], capture_output=True, check=False)
    if found.returncode:
        return (*("–",) * 5, "not installed: not measured")
    lines = str(sum(bool(line.strip()) for line in contender.first.splitlines()))
    with tempfile.TemporaryDirectory() as folder:
        done, seconds = run(python, contender.first, folder)
        if done.returncode:
            return lines, "failed: " + done.stderr.strip().splitlines()[-1][:60], *("–",) * 4
        said = done.stderr.strip() or (len(done.stdout.splitlines()) > 2)
        drawn = "none of its own"
        if contender.picture:
            run(python, contender.first + textwrap.dedent(contender.picture), folder)
            drawn = "one line" if contender.picture.count("\n") < 2 else "two lines"
            drawn = drawn if Path(folder, "picture.png").exists() else "failed"
    kept, resumed = limited(contender, python)
    return lines, f"{seconds:.1f} s", "shown" if said else "none", kept, resumed, drawn


def limited(contender: Contender, python: str) -> tuple[str, str]:
    """How long a run with a limit takes, and what is left of one that is killed in its midst."""
    if not contender.limited:
        return "cannot be told", "starts anew"
    with tempfile.TemporaryDirectory() as folder:
        empty, idle = run(python, f"import {contender.module}", folder)
        done, seconds = run(python, contender.limited, folder)
        over = "failed" if done.returncode or empty.returncode else f"{seconds - idle:.1f} s"
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [python, "-c", DAY + contender.limited],
            cwd=folder,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        begun = time.monotonic()
        while not Path(folder, "run.db").exists() and time.monotonic() - begun < _PATIENCE:
            time.sleep(0.05)
        time.sleep(idle + SECONDS / 2)  # the file's tables take a while on a busy machine
        process.send_signal(signal.SIGKILL)
        process.wait()
        before, _ = run(python, contender.resumed, folder)
        run(python, contender.limited, folder)
        after, _ = run(python, contender.resumed, folder)
    if before.returncode or after.returncode:
        return over, "failed"
    grown = int(after.stdout.split()[-1]) > int(before.stdout.split()[-1]) > 0
    return over, "the same program goes on" if grown else "starts anew"


def run(python: str, program: str, folder: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a program after the simulator; return what became of it, and its seconds."""
    begun = time.monotonic()
    done = subprocess.run(
        [python, "-c", DAY + program],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    return done, time.monotonic() - begun


def environment() -> dict[str, str]:
    """One thread each, so that the machine's size does not matter."""
    return os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


if __name__ == "__main__":
    main()
