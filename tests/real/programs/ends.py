"""A program that ends in its own way: ends.py exit | os._exit | raise | signal | reexec | thread."""

import os
import signal
import sys
import threading

import kprof

kprof.recorder().launch("once", num_blocks=1)
print("it ran", flush=True)
how = sys.argv[1]
if how == "exit":
    sys.exit(7)
if how == "os._exit":
    os._exit(9)
if how == "raise":
    raise ValueError("of the program's own")
if how == "signal":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "reexec":
    os.execv(sys.executable, [sys.executable, __file__, "again"])
if how == "thread":
    thread = threading.Thread(target=lambda: print("in a thread"))
    thread.start()
    thread.join()
