"""The file of episodes, and what the report makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from echo_core import ConfigError
from echo_rl.evaluation.episodes import Episode, EpisodesFile
from echo_rl.evaluation.report import Report
from echo_rl.training.metrics import mean_interval

BASE = Episode("shop", "react@m", 0, 0, 7, 0.5, False, 4, 100, 20, 25, 2.0, 0.01)


def filled(path: Path) -> EpisodesFile:
    file = EpisodesFile(path)
    file.plan({"tasks": ["shop"], "methods": ["react@m", "random", "ppo"], "seeds": [0, 1], "episodes": 2})
    for seed in (0, 1):
        for number in (0, 1):
            solved = number == 0 or seed == 1
            file.add(replace(BASE, seed=seed, episode=number, success=solved, reward=float(solved)))
            file.add(replace(BASE, method="random", seed=seed, episode=number, reward=0.0, prompt_tokens=0, tokens=0, cached_tokens=None, cost=0.0))
    file.not_run(("shop", "ppo", 0), "there is no library")
    return file


def row(report: Report, method: str) -> dict[str, Any]:
    return next(found for found in report.rows if found["method"] == method)


def test_figures_are_those_of_the_episodes(tmp_path: Path) -> None:
    report = Report(filled(tmp_path / "e.jsonl").read())
    react = row(report, "react@m")
    assert (react["success"]["mean"], react["success"]["seeds"]) == (0.75, [0.5, 1.0])
    low, high = mean_interval([0.5, 1.0])
    assert (react["success"]["low"], react["success"]["high"]) == (max(0, low), min(1, high))
    assert react["etps"] == 4 * 20 / (4 * 2.0) and react["kv_reuse"] == 0.25
    assert react["cost_per_success"] == pytest.approx(0.04 / 3) and react["steps"] == 4
    random = row(report, "random")
    assert random["success"]["interval"] == "wilson" and random["success"]["high"] > 0.4, "no width would say that nothing else can happen"
    assert random["kv_reuse"] is None and random["cost"] is None and random["etps"] is None
    assert row(report, "ppo")["not_run"] == "there is no library"
    cells = {(cell["method"], cell["seed"]): cell for cell in report.cells}
    assert cells["ppo", 0]["not_run"] == "there is no library" and cells["ppo", 1]["not_run"] == "no episode is recorded"
    (test,) = report.comparisons
    assert (test["first"], test["second"], test["pairs"], test["unit"], test["difference"]) == ("react@m", "random", 4, "episode", 0.75)
    assert test["p"] == test["p_holm"] == 4 / 16  # three pairs differ: all signs alike, in 2 of 8, with any sign of the fourth


def test_a_deleted_episode_takes_its_share_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    whole = Report(filled(path).read()).to_json()
    lines = path.read_text().splitlines(keepends=True)
    gone = next(line for line in lines if '"react@m", "seed": 0, "episode": 1' in line)
    path.write_text("".join(line for line in lines if line != gone))
    less = Report.of(path).to_json()
    assert [cell for cell in less["cells"] if (cell["method"], cell["seed"]) != ("react@m", 0)] == [
        cell for cell in whole["cells"] if (cell["method"], cell["seed"]) != ("react@m", 0)
    ]
    cell = less["cells"][0]
    assert (cell["episodes"], cell["success"], cell["not_run"]) == (1, 1.0, "1 of 2 are recorded")
    assert less["rows"][1:] == whole["rows"][1:] and less["rows"][0]["episodes"] == 3
    path.write_text("".join(line for line in lines if "react@m" not in line or "plan" in line))
    assert "not run: no episode is recorded" in Report.of(path).markdown()
    with pytest.raises(ConfigError, match=r"there is no file .*none.e.jsonl; name the folder of a run"):
        Report.of(tmp_path / "none" / "e.jsonl")


def test_a_mean_lies_within_its_interval_when_seeds_have_unequally_many_episodes(tmp_path: Path) -> None:
    file = EpisodesFile(tmp_path / "e.jsonl")
    for number in range(20):
        file.add(replace(BASE, episode=number, success=True, reward=1.0, trained_steps=1))
        file.add(replace(BASE, episode=number, reward=0.0, method="other"))
    for seed in range(1, 8):
        file.add(replace(BASE, seed=seed, success=False, reward=0.0, trained_steps=1), replace(BASE, seed=seed, reward=0.0, method="other"))
    report = Report(file.read())
    found = row(report, "react@m")
    assert (found["success"]["mean"], found["return"]["mean"], found["return"]["episode_mean"]) == (1 / 8, 1 / 8, 20 / 27)
    for low, mean, high in (("low", "mean", "high"), ("bca_low", "episode_mean", "bca_high")):
        for figure in ("success", "return"):
            assert found[figure][low] <= found[figure][mean] <= found[figure][high]
    assert "| 0.125 [0.000, 0.421] | 0.741 [" in report.markdown()
    (test,) = report.comparisons
    assert (test["unit"], test["difference"]) == ("seed", 1 / 8), "the difference is that of what the test compares"


def test_a_cell_says_which_faults_it_had(tmp_path: Path) -> None:
    file = EpisodesFile(tmp_path / "e.jsonl")
    file.plan({"tasks": ["shop"], "methods": ["react@m"], "seeds": [0], "episodes": 3})
    file.add(replace(BASE, fault="refused, 401"), replace(BASE, episode=1, fault="refused, 402"))
    (found,) = Report(file.read()).rows
    assert found["not_run"] == "0 of 3 are recorded; 2 faults, the last one: refused, 402"
    file.add(BASE)
    (found,) = Report(file.read()).rows
    assert found["not_run"] == "seed 0: 1 of 3 are recorded; 1 fault, the last one: refused, 402"


def test_faults_count_apart_and_the_later_record_holds(tmp_path: Path) -> None:
    file = EpisodesFile(tmp_path / "e.jsonl")
    file.add(replace(BASE, fault="it broke", reward=99.0), replace(BASE, episode=1, reward=1.0))
    (found,) = Report(file.read()).rows
    assert (found["episodes"], found["faults"], found["return"]["mean"]) == (1, 1, 1.0)
    file.add(replace(BASE, reward=0.0))
    (found,) = Report(file.read()).rows
    assert (found["episodes"], found["faults"], found["return"]["mean"]) == (2, 0, 0.5)


def test_seeds_are_the_unit_where_a_policy_was_trained(tmp_path: Path) -> None:
    file = EpisodesFile(tmp_path / "e.jsonl")
    for seed in range(3):
        for number in range(10):
            file.add(replace(BASE, seed=seed, episode=number, success=True, trained_steps=9, method="ppo"), replace(BASE, seed=seed, episode=number))
    (test,) = Report(file.read()).comparisons
    assert (test["unit"], test["pairs"], test["p"]) == ("seed", 3, 0.25)


def test_a_task_without_success_is_compared_by_its_return(tmp_path: Path) -> None:
    file = EpisodesFile(tmp_path / "e.jsonl")
    file.add(replace(BASE, success=None, cost=None), replace(BASE, success=None, method="random", reward=0.0, cached_tokens=None))
    report = Report(file.read())
    assert report.comparisons[0]["figure"] == "return" and report.rows[0]["success"] is None
    page = report.markdown()
    assert "the task has none" in page and "no price" in page and "not counted" in page
    json.dumps(report.to_json(), allow_nan=False)


def test_what_a_kill_has_cut_off_is_dropped_and_a_wrong_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    EpisodesFile(path).add(BASE)
    with path.open("ab") as file:
        file.write(b'{"kind": "episode", "ta')
    assert EpisodesFile(path).read().episodes == [BASE]
    EpisodesFile(path).add(replace(BASE, episode=1))
    assert [episode.episode for episode in EpisodesFile(path).read().episodes] == [0, 1]
    path.write_bytes(path.read_bytes()[:-1])  # an editor has removed the last end of a line
    assert len(EpisodesFile(path).read().episodes) == 2
    EpisodesFile(path).add(replace(BASE, episode=2))
    assert [episode.episode for episode in EpisodesFile(path).read().episodes] == [0, 1, 2]
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    good = path.read_bytes()
    entry = json.loads(good.splitlines()[0])
    for wrong in ({"steps": -1}, {"return": "1"}, {"success": 1}, {"more": 1}, {"kind": "picture"}, {"seconds": None}):
        path.write_bytes(good + json.dumps({**entry, **wrong}).encode() + b"\n")
        with pytest.raises(ConfigError, match=r"e.jsonl:3: this line is no record"):
            EpisodesFile(path).read()
    path.write_bytes(good + b'{"kind": "episode", "return": NaN}\n')
    with pytest.raises(ConfigError, match="jsonl:3"):
        EpisodesFile(path).read()


def test_the_picture_shows_each_method(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = Report(filled(tmp_path / "e.jsonl").read())
    assert report.draw(tmp_path / "a.png") and (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert not Report(EpisodesFile(tmp_path / "none").read()).draw(tmp_path / "b.png")
