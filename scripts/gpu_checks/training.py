# SPDX-License-Identifier: Apache-2.0
"""Trainings by `shardwright run`: as one process, or as processes with the variables that torchrun sets."""
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import time

from gpu_checks.process import Failed, Slow, last_words, within


def command(check, arguments, out):
    return [str(word) for word in [check.programs.shardwright, "run", "--json", "--out", out, *arguments]]


def fresh(check, name):
    out = check.scratch / name
    shutil.rmtree(out, ignore_errors=True)
    return out


def results_of(output, out):
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return json.loads(output), metrics


def products_of(out):
    """Which algorithms the run's products were given, where it timed them."""
    try:
        return json.loads((out / "products.json").read_text())
    except (OSError, ValueError):
        return None


def train(check, arguments, name, seconds=240, **environment):
    """(summary, metrics) of a run in one process."""
    out = fresh(check, name)
    with within(check, seconds) as limit:
        return results_of(check.programs.run(command(check, arguments, out), limit, **environment).stdout, out)


def curve_of(metrics):
    return [(row["loss"], row["grad_norm"]) for row in metrics]


def apart(curve, other):
    """The largest difference of two runs' losses; infinite where one is shorter."""
    if len(curve) != len(other):
        return float("inf")
    return max(abs(a[0] - b[0]) for a, b in zip(curve, other))


def steady_step_s(metrics):
    # The first steps load modules, build plans and touch memory for the first time.
    return statistics.median(row["step_time_s"] for row in metrics[3:] or metrics)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Processes:
    """Ranks of one job as processes, each a session of its own: all of them, or those of this node from rank `first` on,
    which meet the others at `meet`, a host and a port."""

    def __init__(self, check, arguments, out, ranks, first=0, world=None, meet=None):
        self.out = out
        address, port = meet or ("127.0.0.1", free_port())
        key = os.environ.get("SHARDWRIGHT_MEETING_KEY", os.urandom(16).hex())
        logs = check.scratch / "ranks"
        logs.mkdir(exist_ok=True)
        self.ranks = []
        for rank in range(ranks):
            environment = {**check.programs.environment, "RANK": str(first + rank), "WORLD_SIZE": str(world or ranks),
                           "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": address,
                           "MASTER_PORT": str(port), "SHARDWRIGHT_MEETING_KEY": key}
            said = [open(logs / f"{rank}.{kind}", "w+") for kind in ("out", "err")]
            process = subprocess.Popen(command(check, arguments, out), env=environment, stdout=said[0], stderr=said[1],
                                       start_new_session=True)
            self.ranks.append((process, *said))

    def kill(self, rank):
        self.ranks[rank][0].send_signal(signal.SIGKILL)

    def wait(self, seconds):
        """Exit codes of all; those that do not end in time are killed, and Slow names them."""
        end = time.monotonic() + seconds
        hung = []
        for rank, (process, *_) in enumerate(self.ranks):
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                hung.append(rank)
        for rank in hung:
            self.kill(rank)
            self.ranks[rank][0].wait()
        if hung:
            raise Slow(f"ranks {', '.join(map(str, hung))} had not ended after {seconds:.0f} s", "")
        return [process.returncode for process, *_ in self.ranks]

    def said(self, rank, errors=False):
        file = self.ranks[rank][2 if errors else 1]
        file.flush()
        file.seek(0)
        return file.read()

    def close(self):
        for process, *files in self.ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
            for file in files:
                file.close()


def train_processes(check, arguments, name, ranks, seconds=180):
    """As train, by processes on as many GPUs. Without a launcher of PyTorch's, with the variables that it sets."""
    job = Processes(check, arguments, fresh(check, name), ranks)
    try:
        with within(check, seconds) as limit:
            codes = job.wait(limit)
        for rank, code in enumerate(codes):
            if code != 0:
                raise Failed(f"rank {rank} ended with {code}: {last_words(job.said(rank, errors=True))}")
        return results_of(job.said(0), job.out)
    finally:
        job.close()
