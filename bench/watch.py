"""Processes as they run: what /proc says about each rank of a job."""
import json
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from side_by_side import fail, told

PAGE = resource.getpagesize()


class Usage(NamedTuple):
    resident: int
    sockets: int


class Sample(NamedTuple):
    seconds: float  # since the command was started
    step: int       # the last one that the run folder tells of
    ranks: list     # a Usage for each


def usage(process):
    folder = Path("/proc", process)
    links = (link.readlink() for link in (folder / "fd").iterdir())
    sockets = sum(str(target).startswith("socket:") for target in links)
    return Usage(int((folder / "statm").read_text().split()[1]) * PAGE, sockets)


def ranks_of(launcher):
    """Processes of the ranks in their order, which is the one in which they were started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    # Python's multiprocessing has a process of its own beside them.
    return [child for child in sorted(children, key=int)
            if b"resource_tracker" not in Path("/proc", child, "cmdline").read_bytes()]


def last_step(folder):
    """The last step in a run folder's metrics; 0 before the first."""
    try:
        lines = (Path(folder) / "metrics.jsonl").read_bytes().rpartition(b"\n")[0].splitlines()
    except FileNotFoundError:
        return 0
    return max((json.loads(line)["step"] for line in lines[-1:]), default=0)


class Launched:
    """A command that runs. When the `with` is left it has ended well, or the benchmark is over."""

    def __init__(self, command, env=None):
        self.command, self.env = [str(part) for part in command], env

    def __enter__(self):
        self.out, self.errors = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.started = time.monotonic()
        self.process = subprocess.Popen(self.command, stdout=self.out, stderr=self.errors, env=self.env)
        return self

    def __exit__(self, kind, *_):
        if kind:
            self.process.terminate()
        code = self.process.wait()
        if code and not kind:
            self.errors.seek(0)
            fail(f"exit {code}: {' '.join(self.command)}\n{told(self.errors.read())}", "run this command alone")

    def runs(self):
        return self.process.poll() is None

    def seconds(self):
        return time.monotonic() - self.started

    def printed(self):
        self.out.seek(0)
        return self.out.read()


def first_step_s(command, folder):
    """Runs a command to its end; the seconds until its run folder told of a step."""
    first = None
    with Launched(command) as launched:
        while launched.runs():
            if first is None and last_step(folder):
                first = launched.seconds()
            time.sleep(0.002)
    if first is None:
        fail(f"no step is told of in its run folder: {' '.join(launched.command)}", "run this command alone")
    return first


def watch(command, world_size, folder=None, env=None):
    """Runs a command to its end; what it printed, and samples from when all ranks were there."""
    samples = []
    with Launched(command, env) as launched:
        while launched.runs():
            try:
                step = last_step(folder) if folder else 0
                ranks = [usage(rank) for rank in ranks_of(launched.process.pid)]
            except (FileNotFoundError, ProcessLookupError):
                continue  # a rank has just ended
            if len(ranks) == world_size:
                samples.append(Sample(launched.seconds(), step, ranks))
            time.sleep(0.1)
    return launched.printed(), samples
