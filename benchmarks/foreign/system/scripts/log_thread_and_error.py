"""A logging thread that is no daemon; a server is down; the process does not end by itself.

Kind: Steffenhir/GraXpert#238, NovaSky-AI/SkyRL#76.
"""

import os
import threading
import time

from common import finish, step


def log():
    while not os.path.exists("quit"):
        time.sleep(0.1)


threading.Thread(target=log).start()
for number in range(80):
    step(number)
    if os.path.exists("server_down"):
        raise ConnectionError("the metrics server does not answer")
open("quit", "w").close()
finish()
