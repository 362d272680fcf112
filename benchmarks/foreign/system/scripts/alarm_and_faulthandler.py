"""Its own SIGALRM for slow batches, its own faulthandler on SIGUSR1, its own SIGCHLD.

Kind: timeouts by `signal.setitimer` around loading; debugging aids that launchers recommend.
"""

import faulthandler
import signal
import subprocess
import sys

from common import finish, step

rang, children = 0, 0


def ring(number, frame):
    global rang
    rang += 1


def child(number, frame):
    global children
    children += 1


signal.signal(signal.SIGALRM, ring)
signal.signal(signal.SIGCHLD, child)
stacks = open("stacks.txt", "w")  # noqa: SIM115  (faulthandler keeps its descriptor)
faulthandler.register(signal.SIGUSR1, file=stacks)
signal.setitimer(signal.ITIMER_REAL, 0.05)
for number in range(80):
    step(number)
    if number == 40:
        subprocess.run([sys.executable, "-c", ""], check=True)
print("rang", rang, "children", children, flush=True)
finish()
