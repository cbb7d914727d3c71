# SPDX-License-Identifier: Apache-2.0
"""What gpu_check does, a part a file. A part is a function that takes the Check and fills a report, a dict that is
written to the results file whenever something is added to it: what is done is kept when a tool crashes, takes too
long or the machine is taken away. It raises Failed when it cannot go on, Skipped where this machine lacks what it
needs, and says in the report's rows what went wrong with one thing of several."""
