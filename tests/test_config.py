"""Policies and configs: composition, precedence, and errors that say what to do."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor import config_files
from supervisor.actions.catalogue import build_actions
from supervisor.config import (
    available_configs,
    available_policies,
    load_config,
    load_policy,
    load_resolved_config,
    load_resolved_policy,
    save_resolved,
    split_overrides,
)
from supervisor.config_check import ACTION_NAMES, CAUSE_NAMES, leaf_keys
from supervisor.detectors.registry import build_detectors
from supervisor.errors import ConfigError
from supervisor.ladder.rungs import Rungs
from supervisor.settings import PolicySettings, RunSettings

ROOT = Path(__file__).parents[1]
POLICY_NAMES = [file.name for file in available_policies()]
CONFIG_NAMES = [file.name for file in available_configs()]


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def load_both(pair: str) -> tuple[RunSettings, PolicySettings]:
    config_pairs, policy_pairs = split_overrides([pair])
    return load_config(overrides=config_pairs), load_policy(overrides=policy_pairs)


# What is shipped


def test_every_kind_of_training_has_its_policy_and_config() -> None:
    policies = {"observe_only", "cautious", "aggressive", "fp16", "vae", "rlhf", "llm"}

    assert policies | {"default", "preemptible"} <= set(POLICY_NAMES)
    assert {"default", "sensitive", "fast_detection", "fp16", "vae", "rlhf", "llm", "vision"} <= (
        set(CONFIG_NAMES)
    )


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_a_shipped_policy_is_named_and_described(name: str) -> None:
    policy = load_policy(name)

    assert policy.name == name
    assert policy.description
    assert policy.rungs


@pytest.mark.parametrize("name", CONFIG_NAMES)
def test_a_shipped_config_builds_its_detectors(name: str) -> None:
    config = load_config(name)

    assert config.name == name
    assert config.description
    assert build_detectors(config.detectors)


def test_the_default_ladder_is_the_documented_one() -> None:
    policy = load_policy()
    begins = Rungs(policy).begins

    levels = [
        (at, rung.actions) for at, rung in zip(begins, policy.rungs, strict=True) if not rung.causes
    ]

    assert levels == [
        (0.3, ["checkpoint"]),
        (0.5, ["cut_lr", "tighten_clip"]),
        (0.7, ["rollback"]),
        (0.9, ["restart"]),
    ]


def test_the_default_config_says_what_the_schema_says() -> None:
    config = load_config()

    config.description = ""

    assert config == RunSettings()


@pytest.mark.parametrize("folder", ["policies", "configs"])
def test_a_wheel_takes_the_shipped_files_along(folder: str) -> None:
    project = (ROOT / "pyproject.toml").read_text()

    assert f'"{folder}" = "supervisor/_shipped/{folder}"' in project
    assert (ROOT / folder / "default.yaml").is_file()


# Composition and precedence


def test_a_file_builds_on_default_unless_it_says_otherwise(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.yaml", "cooldown_steps: 7\n")

    policy = load_policy(path)

    assert (policy.name, policy.cooldown_steps) == ("mine", 7)
    assert policy.rungs == load_policy().rungs


def test_empty_defaults_build_on_the_schema_alone(tmp_path: Path) -> None:
    path = write(tmp_path, "bare.yaml", "defaults: []\nclip_factor: 0.9\n")

    policy = load_policy(path)

    assert policy == PolicySettings(name="bare", clip_factor=0.9)


def test_files_build_on_each_other_in_order(tmp_path: Path) -> None:
    write(tmp_path, "one.yaml", "seed: 1\ncheckpoint:\n  keep_last: 9\n")
    write(tmp_path, "two.yaml", "seed: 2\n")
    path = write(tmp_path, "top.yaml", "defaults: [one.yaml, two.yaml]\nrestart: {backoff_s: 0}\n")

    config = load_config(path)

    assert (config.seed, config.checkpoint.keep_last, config.restart.backoff_s) == (2, 9, 0.0)


def test_set_beats_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.yaml", "seed: 1\n")

    config = load_config(path, ["seed=2", "seed=3", "checkpoint.every_steps=20"])

    assert (config.seed, config.checkpoint.every_steps) == (3, 20)


def test_one_detector_is_changed_and_another_switched_off() -> None:
    config = load_config(overrides=["detectors.loss_anomaly.k=2.5", "detectors.loss_scale=null"])

    assert config.detectors == {"loss_anomaly": {"k": 2.5}, "loss_scale": None}


def test_one_rung_is_changed_by_its_index() -> None:
    policy = load_policy(overrides=["rungs[0].at=0.25"])

    assert policy.rungs[0].at == 0.25
    assert policy.rungs[1] == load_policy().rungs[1]


def test_a_lower_alarm_takes_the_warning_along() -> None:
    policy = load_policy(overrides=["alarm_threshold=0.2"])

    assert policy.warn_threshold == 0.2


def test_an_interpolation_takes_another_keys_value(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.yaml", "seed: 5\nrestart:\n  crash_limit: ${seed}\n")

    assert load_config(path).restart.crash_limit == 5


def test_overrides_are_split_between_config_and_policy() -> None:
    config, policy = split_overrides(["seed=1", "policy.lr_factor=0.7"])

    assert (config, policy) == (["seed=1"], ["lr_factor=0.7"])


@pytest.mark.parametrize(
    "pair",
    [
        "checkpoint.every_steps=100",
        "checkpoint.every_s=30",
        "checkpoint.keep_last=2",
        "checkpoint.stable_after_steps=10",
        "watchdog.hang_timeout_s=5",
        "watchdog.first_step_timeout_s=20",
        "watchdog.grace_s=2.5",
        "restart.crash_limit=5",
        "restart.backoff_s=0.1",
        "policy.alarm_threshold=0.6",
        "seed=7",
    ],
)
def test_a_key_that_scripts_may_set_is_there(pair: str) -> None:
    assert load_both(pair) != (load_config(), load_policy())


# Saved and read again


def test_a_saved_config_is_private_and_the_same_again(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    config = load_config("llm", ["seed=1", "faults=[{kind: sigkill, step: 90}]"])

    save_resolved(config, path)

    assert load_resolved_config(path) == config
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "{}\n", "name: default\n"])
def test_a_saved_file_that_lost_keys_is_no_default(tmp_path: Path, text: str) -> None:
    for load, word in ((load_resolved_policy, "observe_only"), (load_resolved_config, "detectors")):
        path = tmp_path / f"{word}.yaml"
        path.write_text(text)

        with pytest.raises(ConfigError, match="missing: this file says what the run uses"):
            load(path)


def test_one_key_that_is_missing_from_a_saved_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    save_resolved(load_config(), path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if "keep_last" not in line))

    with pytest.raises(ConfigError, match=r"checkpoint\.keep_last: missing"):
        load_resolved_config(path)


def without(path: Path, *words: str) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not any(word in line for word in words)))


LATER = ("limits:", "log_mib", "alerts_at_once", "treatments_at_once", "every_steps: 500",
         "observed_max_gib", "keep_background", "stdin_mib", "idle_timeout_s")  # fmt: skip


def test_keys_that_are_newer_than_the_file_get_their_defaults_and_that_is_said(
    tmp_path: Path,
) -> None:
    path, told = tmp_path / "config.yaml", list[str]()
    save_resolved(load_config("llm", ["seed=7"]), path)
    without(path, *LATER)
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first.replace("0.1.0", "0.0.9"), *rest]))
    with pytest.raises(ConfigError, match="missing"):  # it says that it had more
        load_resolved_config(path)
    count = int(first.split()[-2])
    path.write_text("".join([f"# written by supervisor 0.0.9: {count - 8} keys\n", *rest]))

    found = load_resolved_config(path, (), told.append)

    assert found == load_config("llm", ["seed=7"])
    [line] = told
    assert "of version 0.0.9, which did not know" in line
    assert "limits.log_mib" in line
    assert "their defaults are used" in line


def test_a_key_that_this_version_has_no_more_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    path, told = tmp_path / "config.yaml", list[str]()
    save_resolved(load_config("llm", ["seed=7"]), path)
    first, *rest = path.read_text().splitlines(keepends=True)
    count = int(first.split()[-2])
    written = f"# written by supervisor 0.0.9: {count + 1} keys\n"
    path.write_text("".join([written, *rest, "huge_pages: true\n"]))

    found = load_resolved_config(path, (), told.append)

    assert found == load_config("llm", ["seed=7"])
    assert ["huge_pages: this version has no such setting" in line for line in told] == [True]


def test_a_key_of_a_section_that_this_version_has_no_more_is_left_out(tmp_path: Path) -> None:
    path, told = tmp_path / "policy.yaml", list[str]()
    save_resolved(load_policy(), path)
    first, *rest = path.read_text().splitlines(keepends=True)
    written = f"# written by supervisor 0.0.9: {int(first.split()[-2]) + 1} keys\n"
    lines = [f"{line}  reinstate: true\n" if line == "guard:\n" else line for line in rest]
    path.write_text("".join([written, *lines]))

    found = load_resolved_policy(path, (), told.append)

    assert found == load_policy()
    assert ["guard.reinstate: this version has no such" in line for line in told] == [True]


def test_a_cause_that_is_found_no_more_is_no_mistake(tmp_path: Path) -> None:
    rungs = "rungs: [{actions: [cut_lr], causes: [instability]}]\n"
    text = f"by_cause: {{instability: [cut_lr]}}\n{rungs}"

    policy = load_policy(write(tmp_path, "mine.yaml", text))

    assert policy.rungs[0].causes == ["instability"]


def test_an_action_that_is_no_more_is_no_mistake(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path, "mine.yaml", "by_cause: {spike: [repair_optimizer]}"))

    assert policy.by_cause["spike"] == ["repair_optimizer"]


def test_a_file_of_the_time_before_headers_may_lack_what_came_since(tmp_path: Path) -> None:
    path, told = tmp_path / "config.yaml", list[str]()
    save_resolved(load_config("llm"), path)
    without(path, "# written by", *LATER)

    assert load_resolved_config(path, (), told.append) == load_config("llm")
    assert len(told) == 1
    without(path, "keep_last")
    with pytest.raises(ConfigError, match="missing"):
        load_resolved_config(path)


@pytest.mark.parametrize("kept", ["first line", "half", "all but observe_only", "no header"])
def test_a_policy_that_lost_its_observe_only_is_never_treated(tmp_path: Path, kept: str) -> None:
    path = tmp_path / "policy.yaml"
    save_resolved(load_policy("observe_only"), path)
    text = path.read_text()
    if kept == "first line":
        path.write_text(text.splitlines(keepends=True)[0])
    elif kept == "half":
        path.write_text(text[: text.index("observe_only: true")])
    else:
        without(path, "observe_only: true", *(["# written"] if kept == "no header" else []))

    with pytest.raises(ConfigError, match="observe_only"):
        load_resolved_policy(path)


def test_the_environment_is_not_read_into_a_file_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_NAME", "hunter22")
    path = tmp_path / "mine.yaml"
    path.write_text("description: ${oc.env:SECRET_NAME}\n")

    with pytest.raises(ConfigError, match="the environment is not read"):
        load_policy(str(path))
    with pytest.raises(ConfigError, match="the environment is not read"):
        load_config("default", ["description=${oc.env:SECRET_NAME}"])


def test_a_saved_policy_is_the_same_again_and_takes_overrides(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    policy = load_policy("vae")

    save_resolved(policy, path)

    assert load_resolved_policy(path) == policy
    assert load_resolved_policy(path, ["lr_factor=0.9"]).lr_factor == 0.9


# Errors


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("checkpoint.evry_steps=1", "did you mean every_steps?"),
        ("chekpoint.every_steps=1", "did you mean checkpoint?"),
        ("every_steps=1", "did you mean checkpoint.every_steps?"),
        ("alarm_threshold=1", "did you mean policy.alarm_threshold?"),
        ("policy.alarm_treshold=1", "did you mean policy.alarm_threshold?"),
        ("checkpoint.every_steps=many", "expected a whole number, got 'many'"),
        ("checkpoint.every_steps=1.5", "expected a whole number, got 1.5"),
        ("checkpoint.every_steps=0", "at least 1, got 0"),
        ("checkpoint.background=7", "expected true or false, got 7"),
        ("checkpoint.keep_last=null", "expected a whole number, got null"),
        ("checkpoint=3", "expected a section with every_steps"),
        ("watchdog.grace_s=-1", "at least 0, got -1"),
        ("watchdog.grace_s=.nan", "at least 0, got nan"),
        ("seed.x=1", "there is nothing below seed"),
        ("seed", "expected KEY=VALUE"),
        ("=3", "expected KEY=VALUE"),
        ("seed={", "is not a YAML value"),
        ("seed=${nowhere}", "nowhere"),
        ("policy.alarm_threshold=1.5", "from 0 to 1, got 1.5"),
        ("policy.rungs[0].actions=[cut_lrs]", "unknown action 'cut_lrs'; did you mean cut_lr?"),
        ("policy.rungs[0].causes=[spik]", "unknown cause 'spik'; did you mean spike?"),
        ("policy.rungs[9].at=0.5", "of them, counted from 0"),
        ("policy.rungs[3].at=0.1", "rungs[3].at: 0.1 is below the rung before"),
        (
            "fast_forward.fallbacks=[strat]",
            "unknown fallback 'strat'; did you mean start?",
        ),
        ("policy.by_cause.spike=[dance]", "unknown action 'dance'; known: skip_update"),
        ("policy.by_cause.spik=[stop]", "by_cause.spik: unknown cause 'spik'"),
    ],
)
def test_a_wrong_set_names_the_key_and_what_is_right(pair: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_both(pair)

    message = str(caught.value)
    assert message.startswith(
        "--set " + pair.partition("=")[0].partition("[")[0].rpartition(".")[0]
    )
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("a: [1\nb: 2\n", ":2", "not YAML"),
        ("- a\n- b\n", "", "expected `key: value` lines"),
        ("name: x\ncooldown_step: 3\n", ":2", "cooldown_step: unknown key; did you mean cooldown_"),
        ("guard:\n  skip_nonfinit: true\n", ":2", "did you mean skip_nonfinite?"),
        ("rungs:\n  - at: 0.3\n    actions: [cut_lrs]\n", ":3", "rungs[0].actions[0]: unknown"),
        ("rungs:\n  - at: high\n", ":2", "rungs[0].at: expected a number, got 'high'"),
        ("rungs: {at: 0.5}\n", ":1", "rungs: expected a list"),
        ("\nby_cause:\n  plateu: []\n", ":3", "did you mean plateau?"),
        ("rungs:\n  - at: 0.9\n  - at: 0.2\n", ":3", "below the rung before"),
        ("defaults: [nowhere]\n", "", "defaults: no policy is called 'nowhere'"),
        ("defaults: [cautios]\n", "", "did you mean cautious?"),
        ("defaults: [gone.yaml]\n", "", "no such file"),
        ("defaults: 3\n", "", "expected a list of names or files, got 3"),
        ("lr_factor: ${nowhere}\n", "", "nowhere"),
        ("lr_factor: \x00\n", "", "mine.yaml"),
    ],
)
def test_a_wrong_file_is_named_with_line_and_key(
    tmp_path: Path, text: str, line: str, expected: str
) -> None:
    path = write(tmp_path, "mine.yaml", text)

    with pytest.raises(ConfigError) as caught:
        load_policy(path)

    assert str(caught.value).startswith(f"{path}{line}")
    assert expected in str(caught.value)


def test_files_that_build_on_each_other_in_a_circle_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "defaults: [b.yaml]\n")
    write(tmp_path, "b.yaml", "defaults: [a.yaml]\n")

    with pytest.raises(ConfigError, match=r"circle: a.yaml -> b.yaml -> a.yaml"):
        load_config(path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("defalt", "no config is called 'defalt'; did you mean default?"),
        ("zzz", "known: default, "),
        ("nowhere/mine.yaml", "nowhere/mine.yaml: no such file"),
    ],
)
def test_a_config_that_is_not_there_is_named(name: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(name)

    assert expected in str(caught.value)


def test_a_wheels_files_come_before_the_checkouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "supervisor" / "_shipped" / "policies"
    installed.mkdir(parents=True)
    monkeypatch.setattr(config_files, "__file__", str(tmp_path / "supervisor" / "config_files.py"))

    assert config_files.shipped_folder("policies") == installed
    assert config_files.shipped_folder("configs") == tmp_path / "configs"


@settings(max_examples=50, deadline=None)
@given(
    key=st.lists(st.text("abc.[]0_", max_size=6), max_size=3),
    value=st.text(max_size=8),
)
def test_any_set_is_taken_or_refused_in_words(key: Sequence[str], value: str) -> None:
    pair = f"{'.'.join(['rungs', *key])}={value}"

    refusal = ""
    try:
        load_policy(overrides=[pair])
    except ConfigError as error:
        refusal = str(error)

    assert not refusal or refusal.startswith("--set policy.rungs")


@pytest.mark.parametrize(("given", "expected"), [("on", "on"), ("off", "off"), ("auto", "auto")])
def test_a_word_that_yaml_takes_for_true_or_false_is_a_word(
    tmp_path: Path, given: str, expected: str
) -> None:
    path = write(tmp_path, "mine.yaml", f"device:\n  late_reads: {given}\n")

    in_file, by_set = load_config(path), load_config(overrides=[f"device.late_reads={given}"])

    assert in_file.device.late_reads == by_set.device.late_reads == expected
    save_resolved(by_set, tmp_path / "saved.yaml")
    assert load_resolved_config(tmp_path / "saved.yaml").device.late_reads == expected


def test_another_word_for_late_reads_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown word 'onn'; did you mean on"):
        load_config(overrides=["device.late_reads=onn"])


def test_a_policy_may_name_every_action_there_is() -> None:
    assert sorted(ACTION_NAMES) == sorted(build_actions())


@pytest.mark.parametrize("schema", [RunSettings, PolicySettings])
def test_every_key_is_documented(schema: type) -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()

    missing = [key for key in leaf_keys(schema) if f"| `{key}` |" not in text]

    assert not missing


def test_every_action_and_cause_is_documented() -> None:
    actions = (ROOT / "docs" / "actions.md").read_text()
    text = (ROOT / "docs" / "configuration.md").read_text()

    assert all(f"`{name}`" in actions for name in ACTION_NAMES)
    assert all(f"`{name}`" in text for name in CAUSE_NAMES)
