from __future__ import annotations

from supervisor.parent.process.family import sample_memory


def test_a_sample_reads_as_a_sentence() -> None:
    text = str(sample_memory(3 * 2**30))

    assert text.startswith("last memory sample: 3.00 GiB used by the worker, ")
