"""`torch.save` finds no room: RuntimeError "PytorchStreamWriter failed writing file", from C++.

Kind: SWivid/F5-TTS#458, hiyouga/LlamaFactory#1223, h2oai/h2o-llmstudio#214.
"""

from common import finish, net, step, torch

for number in range(80):
    step(number)
    if number % 20 == 19:
        torch.save(
            [p.detach().flatten().repeat(500) for p in net.parameters()], f"disk/own{number}.pt"
        )
finish()
