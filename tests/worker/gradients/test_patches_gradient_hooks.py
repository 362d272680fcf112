"""How a script's hooks behind gradients are registered."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: the patch lasts as long as the process.
REGISTERS = """
import types, torch
from supervisor.worker.core.call_state import CallState
from supervisor.worker.gradients.patches_gradient_hooks import watch_gradient_hooks

found, called = [], []
call_state = CallState()
call_state.active = True
watch_gradient_hooks(types.SimpleNamespace(
    call_state=call_state, object_found=lambda kind, hook: found.append(hook),
), types.SimpleNamespace(now=types.SimpleNamespace(called=lambda hook: hook.run())))
class Subclass(torch.Tensor):
    pass
for tensor in (torch.ones(2), torch.ones(2).as_subclass(Subclass)):
    parameter = torch.nn.Parameter(tensor)
    parameter.register_post_accumulate_grad_hook(called.append)
    parameter.sum().backward()
    assert len(found) == len(called) == 1, (found, called)
    assert called[0] is parameter
    found.clear(), called.clear()
"""


def test_a_hook_is_seen_once_also_at_a_tensor_of_a_class_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", REGISTERS], check=True, timeout=60)


COMPILED = """
import types, torch
from torch._dynamo import compiled_autograd
from supervisor.worker.core.call_state import CallState
from supervisor.worker.gradients.patches_gradient_hooks import watch_gradient_hooks

call_state = CallState()
call_state.active = True
watch_gradient_hooks(types.SimpleNamespace(
    call_state=call_state, object_found=lambda kind, hook: None,
), types.SimpleNamespace(now=types.SimpleNamespace(called=lambda hook: hook.run())))
parameter = torch.nn.Parameter(torch.ones(2))
parameter.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(3.0))
with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
    parameter.sum().backward()
assert parameter.grad.tolist() == [3.0, 3.0], parameter.grad
"""


def test_a_backward_that_is_compiled_whole_has_the_hook_in_its_graph() -> None:
    subprocess.run([sys.executable, "-c", COMPILED], check=True, timeout=120)
