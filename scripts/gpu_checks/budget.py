# SPDX-License-Identifier: Apache-2.0
"""How the half hour is divided. No part may take longer than what a lease of ten minutes a command allows; what one
does not need is the later ones'. Rows of a part run in the order of what they tell; one that would not end in time is
left out."""
import time

from gpu_checks.process import OutOfTime

# Minutes of each part, in the order in which they run: cheap and telling ones first.
MINUTES = {"tests": 4, "ranks": 2, "nccl": 3, "layouts": 2, "restart": 2, "models": 7, "measure": 4, "benchmarks": 2,
           "pytorch": 2, "sanitizer": 2}
MOST_MINUTES = 9
OPTIONAL = ("benchmarks", "pytorch", "sanitizer")  # of which it is no failure that their time was over
ALL_MINUTES = 30
LEAST_S = 5  # with less there is no use in beginning


class Budget:
    def __init__(self, parts, minutes, clock=time.monotonic):
        self.clock = clock
        self.end = clock() + 60 * minutes
        self.waiting = list(parts)
        self.part_end = self.end

    def begin(self, part):
        """The part's time: its own and what earlier ones left, without that of later ones."""
        self.waiting.remove(part)
        later = 60 * sum(MINUTES[name] for name in self.waiting)
        free = self.end - self.clock() - later
        seconds = min(60 * MOST_MINUTES, max(free, 60 * MINUTES.get(part, MOST_MINUTES)))
        self.part_end = min(self.end, self.clock() + seconds)

    def left(self, seconds=float("inf")):
        """At most `seconds` of what the part still has; OutOfTime when that is nothing."""
        remaining = self.part_end - self.clock()
        if remaining < LEAST_S:
            raise OutOfTime("the time given to this part is over")
        return min(seconds, remaining)


def run_rows(check, report, rows, core=1):
    """Runs `rows`: (name, the seconds that it is expected to take, what runs it). One that the part's time does not suffice
    for, at the pace of the one before, is left out and named; the first `core` prove the part and are not."""
    pace = 1
    for place, (name, seconds, start) in enumerate(rows):
        try:
            begin = check.budget.clock()
            if place >= core and check.left() < pace * seconds:
                raise OutOfTime
            start()
            pace = max(1, (check.budget.clock() - begin) / seconds)
        except OutOfTime:
            if place < core:
                raise
            report.setdefault("left_out", []).append(name)
