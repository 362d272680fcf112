"""The training runs in a thread of an event loop, which has its own signal handlers.

Kind: servers that train in the background (asyncio's add_signal_handler uses a wakeup descriptor).
"""

import asyncio
import signal

from common import finish, step

stopping = False


def train():
    for number in range(80):
        step(number)
        if stopping:
            print("loop asked to stop", flush=True)
            return


def stop():
    global stopping
    stopping = True


async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop)
    await asyncio.to_thread(train)


asyncio.run(main())
finish()
