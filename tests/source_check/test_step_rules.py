"""Rules about the order and the completeness of a training step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.source_check.checking import expected, found_in, program

PROGRAMS = {
    "a sound step": """
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        """,
    "clipping before backward": """
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: clip-before-backward
            loss.backward()
            optimizer.step()
        """,
    "clipping what the last pass left, then stepping": """
        for x, y in loader:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
        """,
    "clipping after the step": """
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: clip-after-step
        """,
    "two networks, each clipped before its step": """
        for x in loader:
            d_optimizer.zero_grad()
            d_loss = discriminate(x)
            d_loss.backward()
            nn.utils.clip_grad_norm_(d.parameters(), 1.0)
            d_optimizer.step()
            g_optimizer.zero_grad()
            g_loss = generate(x)
            g_loss.backward()
            nn.utils.clip_grad_norm_(g.parameters(), 1.0)
            g_optimizer.step()
        """,
    "gradients cleared before they are used": """
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.zero_grad()  # expect: zero-grad-before-step
            optimizer.step()
        """,
    "gradients cleared before they are used, in a method": """
        class Trainer:
            def step(self, x, y):
                loss = F.cross_entropy(self.model(x), y)
                loss.backward()
                self.optimizer.zero_grad()  # expect: zero-grad-before-step
                self.optimizer.step()
        """,
    "another optimizer cleared between backward and step": """
        for x in loader:
            d_optimizer.zero_grad()
            loss = both(x)
            loss.backward()
            d_optimizer.zero_grad()
            g_optimizer.step()
            g_optimizer.zero_grad()
        """,
    "gradients never cleared": """
        def train(model, optimizer, loader):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()  # expect: missing-zero-grad
        """,
    "gradients cleared by a function of the file": """
        def clear(optimizer):
            optimizer.zero_grad()

        def train(model, optimizer, loader):
            for x, y in loader:
                clear(optimizer)
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
        """,
    "gradients cleared by hand": """
        for x, y in loader:
            for p in model.parameters():
                p.grad = None
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """,
    "gradients cleared in a closure": """
        optimizer = torch.optim.LBFGS(model.parameters())
        for x, y in loader:
            def closure():
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                return loss
            optimizer.step(closure)
        """,
    "distributed autograd, which clears by itself": """
        import torch.distributed.autograd as dist_autograd

        for x, y in loader:
            with dist_autograd.context() as context:
                loss = F.mse_loss(model(x), y)
                dist_autograd.backward(context, [loss])
                optimizer.step(context)
        """,
    "the scheduler first": """
        for epoch in range(9):
            scheduler.step()  # expect: scheduler-before-optimizer
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        """,
    "the scheduler at the end of the epoch": """
        warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, rule)
        for epoch in range(9):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            warmup.step()
        """,
    "a scheduler that is told the epoch": """
        for epoch in range(9):
            scheduler.step(epoch)
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_exactly_the_findings_it_announces(name: str, tmp_path: Path) -> None:
    text = program(PROGRAMS[name])

    found = found_in(tmp_path, text)

    assert found == expected(text)
