"""The first signal asks for a stop after this step, a second one raises KeyboardInterrupt.

Kind: pytorch/rl#4381. A scheduler that signals every process, and a parent that forwards, must
not look like two signals.
"""

import signal

from common import finish, step, torch

requests = []


def request(number, frame):
    requests.append(number)
    if len(requests) > 1:
        raise KeyboardInterrupt


for each in (signal.SIGTERM, signal.SIGINT):
    signal.signal(each, request)
try:
    for number in range(80):
        step(number)
        if requests:
            torch.save({"step": number}, "stopped.pt")
            print("asked", len(requests), "time", flush=True)
            break
except KeyboardInterrupt:
    print("asked twice, nothing saved", flush=True)
finish()
