# SPDX-License-Identifier: Apache-2.0
"""A training that is killed in its middle ends on all ranks, and resumed it learns what one learns that nobody
disturbed; where there are several GPUs, it goes on with half of them, too."""
import time

from gpu_checks import ranks, training
from gpu_checks.process import Failed, Slow, within

STEPS, SAVE_EVERY, MORE_STEPS = 600, 40, 20
END_S = 60          # after one rank is killed, the others have ended
NCCL_BOUND = 1e-2   # of the loss: NCCL does not promise an order, and 600 steps carry it on


def arguments(check, world, steps=STEPS):
    communicator = ["--communicator", "nccl"] if world > 1 else ["--ranks", 1]
    # The rate is constant, so that it does not matter how many steps there are in all.
    return ranks.tiny(check, 8 // world, "--param-dtype", "fp32", "--device", "cuda", "--strategy", "yafsdp",
                      "--schedule", "constant", "--save-every", SAVE_EVERY, "--keep", 2, "--steps", steps, *communicator)


def wait_for_checkpoint(job, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if list(job.out.glob("checkpoints/step-*")):
            return
        if job.ranks[0][0].poll() is not None:
            raise Failed(f"the run ended before its first checkpoint: {job.said(0, errors=True)[-400:]}")
        time.sleep(0.005)
    raise Slow(f"no checkpoint after {seconds:.0f} s", "")


def resume(check, world, out, steps=STEPS):
    job = training.Processes(check, [*arguments(check, world, steps), "--resume", "auto"], out, world)
    try:
        with within(check, 90) as limit:
            codes = job.wait(limit)
        if any(codes):
            raise Failed(f"the run that resumes on {world} ranks failed: {job.said(0, errors=True)[-400:]}")
        _, metrics = training.results_of(job.said(0), out)
    finally:
        job.close()
    # Steps behind the checkpoint are written again; the last line of each counts.
    last = {row["step"]: row for row in metrics}
    return training.curve_of([last[step] for step in sorted(last)])


def check_restart(check, report):
    world = max(count for count in (1, 2, 4, 8) if count <= len(check.machine["gpus"]))
    report["ranks"] = world
    threads = ["--ranks", world] if world > 1 else []
    undisturbed = training.curve_of(training.train(check, [*arguments(check, world), *threads], "undisturbed")[1])
    out = training.fresh(check, "killed")
    job = training.Processes(check, arguments(check, world), out, world)
    try:
        wait_for_checkpoint(job, check.left(60))
        job.kill(world - 1)
        begin = time.monotonic()
        with within(check, END_S) as limit:
            codes = job.wait(limit)
        report.update(exit_codes_after_the_kill=codes, ended_after_s=time.monotonic() - begin)
    finally:
        job.close()
    if 0 in codes:
        raise Failed(f"a rank was killed, but others ended as if nothing had happened: {codes}")
    check.save()
    curve = resume(check, world, out)
    report["largest_loss_difference"] = training.apart(undisturbed, curve)
    report["same_bits"] = curve == undisturbed
    if report["largest_loss_difference"] > (NCCL_BOUND if world > 1 else 0):
        raise Failed(f"the resumed run's losses are {report['largest_loss_difference']:.3g} from the undisturbed one's")
    check.save()
    if world > 1:
        curve = resume(check, world // 2, out, STEPS + MORE_STEPS)
        report["steps_on_half_the_ranks"] = len(curve) - STEPS
