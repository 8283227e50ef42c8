"""Processes below this one are found, and none of them outlives `end_all`."""

import os
import subprocess
import sys
import textwrap

TREE = """
import os, subprocess, sys, time
from turnwire.cluster import descendants

descendants.adopt_orphans()
# A grandchild whose parent ends at once, and a child that ignores being asked to end.
subprocess.Popen(["sh", "-c", "sleep 60 & exec true"])
stubborn = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True);"
    "time.sleep(60)"], stdout=subprocess.PIPE)
stubborn.stdout.readline()
killed = descendants.end_all(grace_s=0.0)
assert stubborn.pid in killed
assert descendants.below(os.getpid()) == []
print("alone")
"""


def test_orphans_and_stubborn_children_are_ended() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(TREE)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout == "alone\n", done.stderr


def test_a_child_is_found_by_its_name() -> None:
    from turnwire.cluster import descendants

    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert child.pid in descendants.below(os.getpid())
        finally:
            child.kill()
    assert descendants.named(os.getpid(), "sleep") is None
