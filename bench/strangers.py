#!/usr/bin/env python3
"""A job that strangers connect to, beside the same job left alone: what their connections cost.

    bench/strangers.py [--rounds 5] [--connections 500] [--ports-per-s 200] [--steps 6000]

Each round trains the built-in job twice. Once its ports get the silent connections, and a scanner tries ports of this
machine at random and the job's between them; once a listener of this program gets the same, so that what strangers cost the machine is paid in
both.
"""
import argparse
import contextlib
import json
import random
import resource
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from report import ratio, table
from side_by_side import PSTRAIN, in_turns
from watch import Launched, ranks_of

LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp
TRIED_BETWEEN = 40  # ports at random before the scanner comes back to the known ones


def listening_ports(processes):
    """TCP ports that these processes listen at."""
    inodes = set()
    for process in processes:
        try:
            links = [str(link.readlink()) for link in Path("/proc", process, "fd").iterdir()]
        except FileNotFoundError:
            continue  # it has just ended
        inodes |= {link[len("socket:["):-1] for link in links if link.startswith("socket:[")}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(line[1].partition(":")[2], 16) for line in lines if line[3] == LISTENS and line[9] in inodes}


class Strangers:
    """Connections to the ports that `ports()` tells of, which say nothing, and a scanner of all ports."""

    def __init__(self, ports, args):
        self.ports, self.args, self.over = ports, args, threading.Event()
        self.held, self.scanned = {}, 0
        self.threads = [threading.Thread(target=work) for work in (self.hold, self.scan)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()
        for connection in sum(self.held.values(), []):
            connection.close()

    def hold(self):
        ports, asked = set(), 0.0
        while not self.over.wait(0.01):
            # To look for ports costs more than to connect.
            if time.monotonic() - asked > 0.5:
                ports, asked = self.ports(), time.monotonic()
            for port in ports:
                held = self.held.setdefault(port, [])
                while len(held) < self.args.connections and (connection := connected(port)):
                    held.append(connection)

    def scan(self):
        while not self.over.is_set():
            for port in random.sample(range(1, 1 << 16), k=TRIED_BETWEEN) + sorted(self.held):
                if self.over.wait(1 / self.args.ports_per_s):
                    return
                connection = connected(port)
                self.scanned += 1
                if connection:
                    connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    connection.close()


def connected(port):
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=1)
    except OSError:
        return None


def trained(ports, args):
    """Steps a second beside strangers at the ports that `ports(launcher)` tells of."""
    with tempfile.TemporaryDirectory() as folder:
        master = free_port()
        command = [PSTRAIN, "spawn", "--world-size", 4, "--master-port", master, "--run-dir", folder,
                   "--set", f"train.steps={args.steps}", "--set", "train.epochs=100000"]
        with Launched(command) as launched, many_files():
            with Strangers(lambda: ports(launched, master), args) as strangers:
                while launched.runs():
                    time.sleep(0.1)
        held = {port: len(connections) for port, connections in strangers.held.items()}
        print(f"  connections held, by port: {held}; {strangers.scanned} ports scanned", file=sys.stderr)
        return json.loads((Path(folder) / "summary.json").read_text())["steps_per_s"]


@contextlib.contextmanager
def many_files():
    """As many open files as may be, for this program alone: the job has been started with the usual number."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (usual[1], usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def ports_of_job(launched, master):
    """Where rank 0 listens while ranks join, which is over in a moment, and where any rank listens now."""
    try:
        return {master} | listening_ports([str(launched.process.pid), *ranks_of(launched.process.pid)])
    except FileNotFoundError:
        return {master}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=500, help="to each port")
    parser.add_argument("--ports-per-s", type=float, default=200, help="of the scanner")
    parser.add_argument("--steps", type=int, default=6000, help="of each trainer")
    args = parser.parse_args()
    elsewhere = socket.create_server(("127.0.0.1", 0), backlog=4096)
    own = {elsewhere.getsockname()[1]}
    subjects = {"left alone": lambda launched, master: ports_of_job(launched, master) and own, "beset": ports_of_job}
    measured = in_turns({name: lambda ports=ports: trained(ports, args) for name, ports in subjects.items()}, args.rounds)
    row = ["the built-in job, steps/s", *measured.values(), ratio(measured["beset"], measured["left alone"])]
    print(table(["", *measured, "beset/left alone"], [row]))


if __name__ == "__main__":
    main()
