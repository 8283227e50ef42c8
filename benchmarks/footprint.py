"""What a server takes before anybody uses it: seconds until ready, and memory of each process.

Prints one JSON line; memory is the proportional set size, so that the sum is true.
`--seconds 0.5 --trials 1` is the smoke run.
"""

import argparse
import json
import platform
import statistics
import time
from typing import Any

import psutil
from served import ONLY_SIMULATED, pss_bytes, role, served

MIB = 1024 * 1024


def processes_of(server: psutil.Process) -> list[tuple[str, float]]:
    """Role and MiB of each, the largest first."""
    found = []
    for process in (server, *server.children(recursive=True)):
        try:
            found.append((role(process), pss_bytes(process) / MIB))
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
    return sorted(found, key=lambda pair: -pair[1])


def idle_cores(server: psutil.Process, seconds: float) -> float:
    """Cores that all its processes keep busy."""

    def used_s() -> float:
        total = 0.0
        for process in (server, *server.children(recursive=True)):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue  # it ended meanwhile
            total += times.user + times.system
        return total

    before, begin = used_s(), time.monotonic()
    time.sleep(seconds)
    return max(0.0, used_s() - before) / (time.monotonic() - begin)


def trial(settings: str, seconds: float) -> dict[str, Any]:
    with served(settings) as server:
        time.sleep(seconds)  # what was started in the background is there then
        cores = idle_cores(server.process, seconds)
        return {
            "ready_s": server.ready_s,
            "idle_cores": cores,
            "processes": processes_of(server.process),
        }


def spread(values: list[float], digits: int) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="idle before it is measured")
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--defaults", action="store_true", help="with all default models")
    args = parser.parse_args()
    settings = "" if args.defaults else ONLY_SIMULATED
    trials = [trial(settings, args.seconds) for _ in range(args.trials)]
    sums = [sum(mib for _, mib in one["processes"]) for one in trials]
    print(
        json.dumps(
            {
                "bench": "footprint",
                "unit": "MiB",
                "models": "default" if args.defaults else "simulated",
                "ready_s": spread([one["ready_s"] for one in trials], 1),
                "idle_cores": spread([one["idle_cores"] for one in trials], 3),
                "pss_mib": spread(sums, 0),
                "processes": [[name, round(mib, 1)] for name, mib in trials[-1]["processes"]],
                "trials": args.trials,
                "python": platform.python_version(),
            }
        )
    )


if __name__ == "__main__":
    main()
