# SPDX-License-Identifier: Apache-2.0
"""How the half hour is divided. No part may take longer than what a lease of ten minutes a command allows; what one
does not need is the later ones'."""
import time

from gpu_checks.process import OutOfTime

# Minutes of each part, in the order in which they run: cheap and telling ones first.
MINUTES = {"tests": 4, "ranks": 2, "nccl": 3, "layouts": 2, "restart": 2, "models": 7, "measure": 3, "benchmarks": 3,
           "pytorch": 2, "sanitizer": 2}
MOST_MINUTES = 9
# What is asked for by its own flags, instead of the others.
ASKED_MINUTES = {"nodes": 9}
ALL_MINUTES = 30
LEAST_S = 5  # with less there is no use in beginning


def minutes_of(part):
    return MINUTES.get(part) or ASKED_MINUTES[part]


class Budget:
    def __init__(self, parts, minutes, clock=time.monotonic):
        self.clock = clock
        self.end = clock() + 60 * minutes
        self.waiting = list(parts)
        self.part_end = self.end

    def begin(self, part):
        """The part's time: its own and what earlier ones left, without that of later ones."""
        self.waiting.remove(part)
        later = 60 * sum(minutes_of(name) for name in self.waiting)
        free = self.end - self.clock() - later
        seconds = min(60 * MOST_MINUTES, max(free, 60 * minutes_of(part)))
        self.part_end = min(self.end, self.clock() + seconds)

    def left(self, seconds=float("inf")):
        """At most `seconds` of what the part still has; OutOfTime when that is nothing."""
        remaining = self.part_end - self.clock()
        if remaining < LEAST_S:
            raise OutOfTime("the time given to this part is over")
        return min(seconds, remaining)
