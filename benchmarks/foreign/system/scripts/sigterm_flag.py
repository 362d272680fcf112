"""A preempted job: SIGTERM sets a flag, the loop finishes its step, saves, leaves, ends normally.

Kind: kyutai-labs/pocket-tts#277, goodfire-ai/spd#676, ServiceNow/Fast-LLM#260.
"""

import signal

from common import finish, step, torch

stop = False


def on_term(number, frame):
    global stop
    stop = True


signal.signal(signal.SIGTERM, on_term)
for number in range(80):
    step(number)
    if stop:
        torch.save({"step": number}, "preempted.pt")
        print("saved, leaving", flush=True)
        break
finish()
