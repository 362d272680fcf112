"""What a secret looks like; and what only looks like one."""

from __future__ import annotations

import dataclasses
import random
import re
import time

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


_PLAIN_NAME = (
    r"(?:[\w-]*(?:secret|passw(?:or)?d|passphrase|passwd|credentials?|authorization|cookie"
    r"|(?:api|access|account|auth|aws|azure|client|comet|encryption|hf|license|neptune|openai"
    r"|private|service|signing|ssh|storage|wandb)[_-]?key)[\w-]*"
    r"|(?<![A-Za-z0-9])(?:pw|pwd_|auth|dsn)(?![A-Za-z0-9]))"
)
_PLAIN_TOKEN = r"[\w-]*token(?!s|i)[\w-]*"
_PLAIN_QUOTED = r"\"[^\"]*\"|'[^']*'"
_PLAIN_VALUE = rf"(?:\*\*\*|(?:(?:Bearer|Basic|Token)\s+)?(?:{_PLAIN_QUOTED}|[^\s'\",;]+))"
_PLAIN_COUNT = r"(?!\d{1,9}(?:\.\d+)?(?![^\s,;)\]}]))"
AS_SPECIFIED = (
    (r"(\w+://[^\s:/@]+:)[^\s@/]+(?=@)", r"\1***"),
    (rf"(?i)(--?(?:{_PLAIN_NAME}|{_PLAIN_TOKEN}|[\w-]*[_-]key)\s+)(?!-)({_PLAIN_VALUE})", r"\1***"),
    (rf"(?i)(--?[\w-]*[_-]key=)({_PLAIN_VALUE})", r"\1***"),
    (rf"(?i)({_PLAIN_NAME}['\"]?\s*[=:]\s*)({_PLAIN_VALUE})", r"\1***"),
    (
        rf"(?i)({_PLAIN_TOKEN}['\"]?\s*[=:]\s*){_PLAIN_COUNT}({_PLAIN_QUOTED}|[^\s'\",;]{{4,}})",
        r"\1***",
    ),
    (r"(?i)(\bBearer\s+)[\w.~+/=-]{4,}", r"\1***"),
    (
        r"\b(?:hf_|sk-|sk_live_|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|dapi"
        r"|npm_|pypi-)[\w-]{10,}",
        "***",
    ),
    (r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,}", "***"),
)
"""What a secret is, written without regard to time: quadratic in the length of a word."""

PIECES = [
    *("secret", "password", "pw", "pwd_", "auth", "dsn", "token", "tokens", "api", "key", "_key"),
    *("-key", "--", "-", "_", "=", ":", " ", "  ", "'", '"', ",", ";", "***", "Bearer", "Basic"),
    *(
        "a",
        "b1",
        "é",
        "ſ",
        "hf_",
        "eyJ",
        "eyJabcdefgh",
        "abcdefgh",
        ".",
        "://",
        "@",
        "/",
        "5",
        "5.0",
    ),
    *("\n", "AKIA", "cookie", "0123456789", "!", "wandb"),
]


def test_masking_does_what_is_specified() -> None:
    draw = random.Random(0)
    for _ in range(20_000):
        text = "".join(draw.choices(PIECES, k=draw.randint(1, 14)))

        expected = text
        for pattern, shown in AS_SPECIFIED:
            expected = re.sub(pattern, shown, expected)

        assert mask_secrets(text) == expected, text


@pytest.mark.parametrize("piece", [*PIECES, "ACGT", "-a", "secret-", "x.", "a://", "-eyJabcdefgh"])
def test_masking_takes_time_in_proportion_to_the_length_of_a_word(piece: str) -> None:
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        taken = []
        for _ in range(3):
            begin = time.process_time()
            mask_secrets(text)
            taken.append(time.process_time() - begin)
        return min(taken)

    # 16 times as long: 256 times as slow if it were quadratic.
    assert seconds(32_000) < 64 * max(seconds(2_000), 1e-4)
