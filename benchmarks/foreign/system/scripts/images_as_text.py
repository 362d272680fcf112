"""Prints sample images as base64, lines of 100 KB without a blank, beside the losses.

Kind: notebooks and trackers that log data URIs to the terminal.
"""

import base64
import random

from common import finish, step

draw = random.Random(0)
for number in range(80):
    step(number)
    if number % 10 == 0:
        print("data:image/png;base64," + base64.b64encode(draw.randbytes(75_000)).decode())
finish()
