"""Ctrl-C ends the training, not the script: the test still runs and it ends with 0.

Kind: flennerhag/alstm#2, HorizonRobotics/alf#947, uberduck-ai/uberduck-ml-dev#66.
"""

from common import finish, net, step, torch

try:
    for number in range(80):
        step(number)
except KeyboardInterrupt:
    torch.save(net.state_dict(), "interrupted.pt")
    print("stopped by hand, testing", flush=True)
finish()
