"""The program ``pulse``, from the moment when the interpreter runs: to load the command line takes a second or so."""

from __future__ import annotations

import gc
import signal


def main() -> int:
    """Load the command line, run it, and return its exit code.

    Ctrl-C while it loads ends the process at once, as the signal does where nothing catches it. There is nothing to
    clear up yet, and an exception in the middle of an import would be a traceback, or be taken for a broken module.

    What is imported stays to the end: Python looks for no garbage in it, neither now, for a tenth of the time that the
    imports take, nor later.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # and not ignored, as a shell has it for what runs in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    collects = gc.isenabled()
    gc.disable()
    from pulse_registry.cli import main as run

    gc.freeze()
    if collects:
        gc.enable()
    signal.signal(signal.SIGINT, handler)
    return run()
