"""Runs peers: other programs that solve the problem of a case.

A peer is one file of functions named like the cases, `case_name(size, inputs) -> call`, where `call()` solves the
problem once and returns arrays to compare, or None. A size it is not meant for raises NotImplementedError with the
reason. A peer runs in this process, or in an environment of its own when this file is started there as a program; so
this file may import NumPy and the standard library only.
"""

import importlib.util
import json
import os
import pathlib
import sys
import time

_loaded = {}


def load(path):
    """The module of a peer, loaded once; ImportError where the package it needs is missing."""
    path = str(pathlib.Path(path).resolve())
    if path not in _loaded:
        spec = importlib.util.spec_from_file_location(f"dynwarp_peer_{pathlib.Path(path).stem}", path)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _loaded[path] = module
    return _loaded[path]


def timed(call, number):
    """(wall, processor) seconds of one call, averaged over `number` calls."""
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(number):
        call()
    return (time.perf_counter() - wall) / number, (time.process_time() - processor) / number


def flatten(result):
    """The arrays of a result, a tuple, a list or one array, in order."""
    import numpy as np

    if result is None:
        return []
    parts = result if isinstance(result, tuple | list) else [result]
    return [np.asarray(part) for part in parts]


def _answer(state, request):
    import numpy as np

    if request["do"] == "build":
        module = load(request["path"])
        with np.load(request["inputs"], allow_pickle=False) as file:
            inputs = dict(file)
        state.clear()  # the problem before this one may be large
        state["call"] = getattr(module, request["problem"])(request["size"], inputs)
        return {"version": str(getattr(module, "VERSION", "unknown"))}
    if request["do"] == "first":
        start = time.perf_counter()
        result = flatten(state["call"]())
        seconds = time.perf_counter() - start
        np.savez(request["result"], *result)
        return {"seconds": seconds}
    return {"times": timed(state["call"], request["number"])}


def serve(requests, replies):
    """Answers one JSON request a line until the input ends."""
    state = {}
    for line in requests:
        try:
            reply = _answer(state, json.loads(line))
        except (ImportError, NotImplementedError) as error:
            reply = {"skipped": str(error)}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    # What a peer prints must not look like a reply, be it from Python, from C, or from a process that it starts.
    with open(os.dup(1), "w") as replies:
        os.dup2(2, 1)
        serve(sys.stdin, replies)
