"""What a secret looks like; and what only looks like one."""

from __future__ import annotations

import dataclasses

import pytest

from supervisor.masking import mask_all, mask_command, mask_secrets

HIDDEN_FORMS = [
    ("train.py --api-key abcd1234 --lr 3e-4", "train.py --api-key *** --lr 3e-4"),
    ("train.py --wandb-key abcd1234 --lr 3e-4", "train.py --wandb-key *** --lr 3e-4"),
    ("train.py --wandb_key=abcd1234 x", "train.py --wandb_key=*** x"),
    ("train.py --pw=abc x", "train.py --pw=*** x"),
    ("train.py --pw abc x", "train.py --pw *** x"),
    ("train.py --password 'a b c' x", "train.py --password *** x"),
    ("train.py --hub_token abcdefgh", "train.py --hub_token ***"),
    ("HF_TOKEN=abcdefgh python x.py", "HF_TOKEN=*** python x.py"),
    ("AWS_ACCESS_KEY_ID=abcdefgh1234", "AWS_ACCESS_KEY_ID=***"),
    ("AWS_SECRET_ACCESS_KEY=ab/cd+ef x", "AWS_SECRET_ACCESS_KEY=*** x"),
    ("{'api_key': 'abcdefgh', 'lr': 0.1}", "{'api_key': ***, 'lr': 0.1}"),
    ('{"client_secret": "abc def"}', '{"client_secret": ***}'),
    ('password: "a b c"', "password: ***"),
    ("Authorization: Bearer abc.def-1", "Authorization: ***"),
    ("curl -H 'Authorization: Basic dXNlcjpwdw=='", "curl -H 'Authorization: ***'"),
    ("sent Bearer abcdef123456 to x", "sent Bearer *** to x"),
    ("git clone https://me:pass@host/x", "git clone https://me:***@host/x"),
    ("postgresql://me:p%40ss@db/x", "postgresql://me:***@db/x"),
    ("using hf_abcdefghijklmnop", "using ***"),
    ("key AKIAABCDEFGHIJKLMNOP", "key ***"),
    ("a glpat-abcdefghijklmnop", "a ***"),
    ("jwt eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJ", "jwt ***"),
]

PLAIN = [
    "tokens 8×128, loss 2.3",
    "tokens_per_s=1200 tokenizer=bpe",
    "num_token=512, token: 7",
    "KeyError: 'missing'; Missing key(s) in state_dict: \"fc.weight\"",
    "the learning rate 0.1 at step 5: cut it",
    "module layers.3.key_proj has relative error 0.1",
    "loss: 2.3, grad_norm: 1.5, author: me, path: /tmp/x",
    "supervisor resume runs/train-1 --set checkpoint.every_steps=10",
]


@pytest.mark.parametrize(("text", "masked"), HIDDEN_FORMS)
def test_what_looks_like_a_secret_is_masked(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked


@pytest.mark.parametrize("text", PLAIN)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert mask_secrets(text) == text


@pytest.mark.parametrize(("text", "masked"), HIDDEN_FORMS)
def test_what_is_masked_stays_so(text: str, masked: str) -> None:
    assert mask_secrets(mask_secrets(text)) == masked


def test_a_command_keeps_its_words() -> None:
    words = ["train.py", "--wandb-key", "a b'c", "--name", "two words", "--pw=x"]

    assert mask_command(words) == [
        "train.py",
        "--wandb-key",
        "***",
        "--name",
        "two words",
        "--pw=***",
    ]


def test_records_and_mappings_are_masked_to_the_last_text() -> None:
    @dataclasses.dataclass(frozen=True)
    class Note:
        message: str
        evidence: tuple[str, ...]
        memory: dict[str, object]

    note = Note("HF_TOKEN=abcdefgh", ("--pw", "abc", "x"), {"password": "hunter22", "gib": 1.5})

    masked = mask_all(note)

    assert masked == Note("HF_TOKEN=***", ("--pw", "***", "x"), {"password": "***", "gib": 1.5})
