"""A program that ends in its own way: ends.py exit | reexec | thread | told | deaf | late."""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading

import kprof


def late():
    """Starts a process and ends it by SIGTERM."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child.terminate()
    child.communicate()
    print("child", child.returncode, signal.getsignal(signal.SIGTERM))


how = sys.argv[1]
if how == "late":
    # Registered first, it runs last.
    atexit.register(late)
kprof.recorder().launch("once", num_blocks=1)
print("it ran", flush=True)
if how == "exit":
    sys.exit(7)
if how == "reexec":
    os.execv(sys.executable, [sys.executable, __file__, "again"])
if how == "thread":
    thread = threading.Thread(target=lambda: print("in a thread"))
    thread.start()
    thread.join()
if how == "told":
    # With a thread that nobody ends.
    threading.Thread(target=threading.Event().wait).start()
    os.kill(os.getpid(), signal.SIGTERM)
if how == "deaf":
    threading.Timer(0, os.kill, [os.getpid(), signal.SIGTERM]).start()
    while True:
        with contextlib.suppress(BaseException):
            signal.pause()
