# SPDX-License-Identifier: Apache-2.0
"""The planner page in a real browser: what a buyer and an engineer do, and what nobody should.

    scripts/planner_test        prepares all of this and runs it
    python3 tests/page/page_test.py --page FILE.html --program FILE --pictures FOLDER [--remember] [NAME...]

Prints how long a slider waits for its answer and the processor time of that; only a generous bound of it can fail.
"""
import argparse
import gzip
import json
import pathlib
import re
import statistics
import sys
import tarfile
import tempfile
import time
import traceback

import looks
from browser import Page
from flows import Flows

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLOWEST_ANSWER_MS = 3000
FLOWS = []


def flow(function):
    FLOWS.append(function)
    return function


@flow
def opens_from_disk_and_asks_nobody(on):
    on.page.open()
    on.page.settled()
    assert "tokens/s" in on.page.text("#headline"), on.page.text("#headline")
    on.page.gather_logs()
    asked = [url for url in on.page.requests if not url.startswith(("file://", "blob:", "data:", "about:", "chrome"))]
    assert not asked, f"the page asked for {asked}"
    print(f"    starts in {int(on.page.js('return document.body.dataset.ready')) / 1000:.1f} s")


@flow
def an_engineer_moves_sliders(on):
    on.page.open("#plan?model=llama-3-70b&cluster=dgx-h100&gpus=256&seq-len=4096&strategy=yafsdp")
    on.page.settled()
    waits, work = [], []
    for flag, places in (("ckpt-layers", range(0, 81, 8)), ("micro-batch", range(0, 8)), ("gpus", range(5, 12))):
        for place in places:
            begin = on.page.computed_ms()
            waits.append(on.page.slide(flag, place))
            work.append(on.page.computed_ms() - begin)
    for what, times in (("until the answer stands there", sorted(waits)), ("of processor time for it", sorted(work))):
        print(f"    {len(times)} moves of a slider, {what}: least {times[0]:.0f} ms, median {statistics.median(times):.0f} ms, "
              f"90 % within {times[int(len(times) * 0.9)]:.0f} ms, worst {times[-1]:.0f} ms")
    waits.sort()
    assert waits[-1] < SLOWEST_ANSWER_MS, waits


@flow
def the_page_says_what_the_program_says(on):
    on.page.open()
    for line in ("predict --model llama-3-8b --cluster dgx-h100 --gpus 64 --strategy yafsdp,fsdp2 --explain --json",
                 "predict --model gpt2 --cluster p4d --gpus 16 --stack torch-eager",
                 "inspect clusters", "export --model llama-3-8b --cluster dgx-h100 --strategy fsdp2 --format torchtitan",
                 "inspect model qwen2-7b --json", "predict --model nothing --cluster dgx-h100",
                 "size --tokens 1e12"):
        here, there = ((code, re.sub(r'"why_not_here": .*', "", text)) for code, text in (on.page.console(line), on.native(*line.split())))
        assert here == there, line


@flow
def validate_is_equal_to_the_byte(on):
    on.page.open()
    code, text = on.page.console("validate --json", 600)
    assert (code, text) == on.native("validate", "--json")
    print(f"    {len(text)} bytes of validate --json are those of {on.program.name}")


@flow
def an_engineer_finds_the_best_plan(on):
    on.page.open("#plan?model=llama-3-8b&cluster=dgx-h100&gpus=64&seq-len=8192&strategy=ddp")
    on.page.settled()
    assert "does not fit" in on.page.text("#headline").lower()
    on.page.press("#find-best")
    on.page.wait("document.querySelector('#search .answer')", 300)
    on.page.settled()
    assert "does not fit" not in on.page.text("#headline").lower()
    words = on.page.text("#command-line").split()
    code, text = on.native(*words[1:], "--json")
    assert code == 0
    shown = json.loads(text)
    assert f"{shown['iteration_time_s']:.4g}"[:4] in on.page.text("#headline"), on.page.text("#headline")
    assert on.page.js("return document.querySelectorAll('#search table tbody tr').length") > 3
    # A framework's plan is predicted on that framework: by the number of its line.
    for framework in ("accelerate", "fsdp2"):
        rate = on.page.js("""
          const line = [...document.querySelectorAll('#search tbody tr')].find((one) => one.cells[0].textContent === arguments[0]);
          line.querySelector('button').click();
          return line.cells[2].textContent;""", framework)
        on.page.wait(f"document.getElementById('headline').textContent.includes('{rate} tokens/s')")


@flow
def a_search_can_be_cancelled(on):
    on.page.open("#buy?model=llama-3-70b&tokens=15T&clusters=all")
    on.page.press("#find-gpus")
    on.page.wait("[...document.querySelectorAll('.progress-line')].some((line) => line.textContent.includes('size'))", 60)
    on.page.js("[...document.querySelectorAll('.progress button')].find((one) => one.offsetParent).click()")
    on.page.wait("!document.getElementById('find-gpus').disabled", 10)
    code, text = on.page.console("--version")
    assert code == 0 and text.startswith("shardwright"), text


@flow
def nothing_fits_and_there_are_ways_out(on):
    on.page.open("#plan?model=llama-3-70b&cluster=dgx-h100&gpus=8&strategy=yafsdp")
    on.page.settled()
    on.page.js("[...document.querySelectorAll('button')].find((one) => one.textContent === 'What would fit?').click()")
    on.page.wait("document.querySelector('.ways button')", 300)
    assert "GPUs" in on.page.text(".ways")
    on.page.press(".ways button")
    on.page.wait("!/does not fit/i.test(document.getElementById('headline').textContent)")


@flow
def two_plans_stand_side_by_side(on):
    on.page.open("#plan?model=llama-3-70b&cluster=a100-80g-4xhdr200&gpus=256&seq-len=2048&ckpt-layers=20&strategy=yafsdp,fsdp1&stack=hf-eager")
    on.page.settled()
    on.page.wait("!document.getElementById('beside').hidden && document.querySelectorAll('#timeline .frame').length === 2")
    line = ("predict --model llama-3-70b --cluster a100-80g-4xhdr200 --gpus 256 --seq-len 2048 --ckpt-layers 20 --strategy yafsdp,fsdp1 "
            "--stack hf-eager --json")
    times = [f"{one['iteration_time_s']:#.4g} s" for one in json.loads(on.native(*line.split())[1])["predictions"]]
    assert all(time_s in on.page.text("#beside") for time_s in times), f"{times} not in {on.page.text('#beside')}"
    on.pictures and on.picture_set("side_by_side")
    link = on.page.wait("/strategy=yafsdp/.test(location.hash) && location.hash")
    on.page.open(link)
    on.page.wait(f"!document.getElementById('beside').hidden && document.getElementById('beside').textContent.includes('{times[1]}')")


@flow
def a_model_parallel_plan_shows_its_stages(on):
    on.page.open("#plan?model=llama-3.1-405b&cluster=dgx-h100&gpus=1024&tp=8&pp=16&global-batch=512")
    on.page.wait("document.body.dataset.details === 'done'")
    line = "predict --model llama-3.1-405b --cluster dgx-h100 --gpus 1024 --tp 8 --pp 16 --global-batch 512 --explain --json"
    code, text = on.native(*line.split())
    told = json.loads(text)
    assert code == 0 and f"{told['iteration_time_s']:#.4g} s" in on.page.text("#headline"), on.page.text("#headline")
    shown = on.page.js("return [...document.querySelectorAll('#memory tbody tr')].map((one) => one.cells.length)")
    assert len(shown) == len(told["stages"]) == 16, shown
    assert "bubble" in on.page.text("#memory") and "tensor" in on.page.text("#time"), on.page.text("#memory")
    assert on.page.js("return document.querySelector('[data-slider=pp]').closest('details').open"), "the knobs that divide are folded away"
    for loss in told["explanation"]["losses"]:
        assert loss["what"] in on.page.text("#why"), loss
    lanes = "return document.querySelector('#timeline svg').querySelectorAll('.lane').length"
    assert on.page.js(lanes) == 16
    on.pictures and on.picture_set("divided")
    on.page.js("[...document.querySelectorAll('#timeline button')].find((one) => one.textContent.startsWith('Every track')).click()")
    assert on.page.js(lanes) > 16
    on.page.resize(1000, 900)
    on.page.wait("document.querySelector('#timeline svg').getBoundingClientRect().width < 800")
    assert on.page.js(lanes) > 16, "a window of another width forgets what was looked at"
    on.page.resize(1280, 900)
    on.page.slide("pp", 3)
    on.page.wait("document.querySelectorAll('#memory tbody tr').length === 8")
    on.page.wait("location.hash.includes('pp=8')")
    on.page.set("ckpt-layers", "all")
    on.page.set("precision", "fp8")
    on.page.wait("/fp8/.test(document.getElementById('command-line').textContent)")
    words = on.page.text("#command-line").split()
    step_s = json.loads(on.native(*words[1:], "--json")[1])["iteration_time_s"]
    on.page.wait(f"document.getElementById('headline').textContent.includes('{step_s:#.4g} s')")


@flow
def a_measured_pipeline_stands_under_the_predicted_one(on):
    """A trace of `run` that is dropped: one step of several, one rank of each stage."""
    trace = on.folder / "pipeline.json"
    code, text = on.native("run", "--device", "host", "--model", str(ROOT / "profiles/data/examples/tiny-llama.json"), "--data", "synthetic",
                           "--ranks", "4", "--tp", "2", "--pp", "2", "--pp-schedule", "zb1p", "--grad-accum", "4", "--micro-batch", "1", "--seq-len", "64",
                           "--steps", "4", "--save", "none", "--out", str(on.folder / "ran"), "--trace", str(trace), "--trace-steps", "3")
    assert code == 0, text
    on.page.open("#plan?model=llama-3.2-1b&cluster=dgx-h100&gpus=8&tp=2&pp=2&grad-accum=4&strategy=zero1&stack=native&pp-schedule=zb1p")
    on.page.settled()
    pictures = "return document.querySelectorAll('#timeline svg.picture').length"
    lanes = "return [...document.querySelectorAll('#timeline svg.picture')].map((one) => one.querySelectorAll('.lane').length)"
    assert on.page.js(lanes) == [2]
    on.page.give(trace)
    on.page.wait("document.querySelectorAll('#timeline svg.picture').length === 2")
    assert on.page.js(lanes) == [2, 2], "a row for each stage, whatever its ranks"
    titles = on.page.js("return [...document.querySelectorAll('#timeline h3')].map((one) => one.textContent)")
    assert titles[1] == "measured: pipeline.json", titles
    # Each micro-batch once forward, as input's gradient and as weights', of one step.
    for side in (0, 1):
        told = on.page.js("return [...document.querySelectorAll('#timeline svg.picture')[arguments[0]].querySelectorAll('rect title')].map((one) => one.textContent)", side)
        for what in ("forward", "input gradient", "weight gradient"):
            for micro_batch in range(4):
                assert sum(one.startswith(f"{what} {micro_batch}: ") for one in told) <= 2, told
        assert any(one.startswith("forward 3: ") for one in told), told
    legends = on.page.js("return [...document.querySelectorAll('#timeline .legend')].map((one) => one.textContent)")
    for legend in legends:
        assert all(word in legend for word in ("forward", "backward", "weight gradients", "bubble")), legends
    for dark in (False, True) if on.pictures else ():  # what a run measures looks different every time: to be looked at only
        on.page.resize(1280, 900, dark)
        on.page.picture(on.pictures / f"measured_{'dark' if dark else 'light'}.png")
    on.page.resize(1280, 900)
    on.page.js("[...document.querySelectorAll('#timeline button')].find((one) => one.textContent.startsWith('Leave out')).click()")
    assert on.page.js(pictures) == 1


@flow
def broken_looks_are_seen(on):
    """The comparison of pictures is itself tried: another font is nothing to it, each of looks.BROKEN is."""
    on.page.open()
    on.page.settled()
    on.page.resize(1280, 900, dark=True)
    shot = on.folder / "tried.png"

    def look_with(rule):
        on.page.js("(document.getElementById('tried') || document.head.appendChild(Object.assign(document.createElement('style'), {id: 'tried'}))).textContent = arguments[0]", rule)
        on.page.picture(shot)
        return looks.look(on.page, shot)

    known = look_with("")
    for font in ("DejaVu Serif, serif", "Liberation Sans, Arial, sans-serif"):
        assert not looks.differences(known, look_with(f"body, button, input, select {{ font-family: {font} !important }}")), font
    for what, rule in looks.BROKEN.items():
        assert looks.differences(known, look_with(rule)), f"nobody sees that {what}"
    on.page.resize(1280, 900)


@flow
def an_answer_prints(on):
    on.page.open("#plan?model=llama-3-8b&cluster=dgx-h100&gpus=64&strategy=fsdp2")
    on.page.settled()
    pdf, sheets = on.page.printed()
    assert 1 <= sheets <= 6, sheets
    if on.pictures:
        (on.pictures / "plan.pdf").write_bytes(pdf)


@flow
def a_model_of_ones_own_travels_in_the_link(on):
    config = json.loads((ROOT / "profiles/data/models/llama-3-8b.json").read_text())
    config["num_hidden_layers"] = 7
    on.page.open()
    on.page.give(on.file("my config.json", json.dumps(config)))
    on.page.wait("/my_config.json is in use/.test(document.getElementById('says').textContent)")
    on.page.settled()
    before = on.page.text("#headline")
    assert "my_config.json" in before, before
    link = on.page.wait("location.hash.length > 300 && location.hash")
    on.page.open(link)
    on.page.settled()
    assert on.page.text("#headline") == before
    on.page.open(link[:-40])
    on.page.wait("/cut short or damaged/.test(document.getElementById('says').textContent)")


@flow
def what_is_taken_along_works_elsewhere(on):
    on.page.open("#plan?model=llama-3-8b&cluster=dgx-h100&gpus=32&seq-len=4096&strategy=fsdp2&micro-batch=2&ckpt-layers=4")
    on.page.settled()
    on.page.press("#download-plan")
    plan = on.downloaded("plan.json")
    code, text = on.native("predict", "--plan", str(plan), "--json")
    mine = on.native("predict", *on.page.text("#command-line").split()[2:], "--json")[1]
    assert code == 0 and json.loads(text)["iteration_time_s"] == json.loads(mine)["iteration_time_s"]
    on.page.press("#download-report")
    report = on.downloaded("report.html").read_text()
    held = json.loads(re.search('<script type="application/json" id="answer">([^<]*)<', report)[1])["answer"]
    assert held["iteration_time_s"] == json.loads(mine)["iteration_time_s"]
    on.page.press("#download-settings")
    assert "parallelism" in on.downloaded("torchtitan.txt").read_text()
    on.page.press("#download-kit")
    kit = on.folder / "native-kit"
    assert on.native("kit", *on.page.text("#command-line").split()[2:], "--format", "torchtitan", "--out", str(kit))[0] == 0
    with tarfile.open(on.downloaded("kit.tar.gz")) as archive:
        found = {pathlib.PurePath(one.name).name: (archive.extractfile(one).read(), one.mode & 0o111 != 0) for one in archive}
    assert set(found) == {path.name for path in kit.iterdir()} and found["watch.py"][1]
    for path in kit.iterdir():
        theirs, mine = path.read_bytes(), found[path.name][0]
        if path.name == "plan.json":  # it holds the command that wrote it
            theirs, mine = json.loads(theirs)["plan"], json.loads(mine)["plan"]
        assert theirs == mine, path.name


@flow
def memory_goes_to_pytorchs_viewer(on):
    on.page.open("#plan?model=llama-3-8b&cluster=dgx-h100&gpus=8&strategy=fsdp2&stack=torch-eager")
    on.page.settled()
    on.page.js("const one = document.querySelector('[aria-label=Trainer]'); one.value = 'memory-snapshot';")
    on.page.press("#download-settings")
    native = on.folder / "native.pickle"
    on.native("export", *on.page.text("#command-line").split()[2:], "--format", "memory-snapshot", "--out", str(native))
    assert on.downloaded("memory-snapshot.pickle").read_bytes() == native.read_bytes()


@flow
def prices_of_ones_own_count_everywhere(on):
    on.page.open("#plan?model=llama-3-8b&cluster=dgx-h100&gpus=64&strategy=fsdp2&tokens=15T")
    on.page.settled()
    on.page.give(on.file("prices.json", json.dumps({"schema": "shardwright.prices/1.0", "date": "2026-11-22", "gpus": {
        "h100-80g": {"on-demand": {"usd_per_gpu_hour": 1.25}}}})))
    on.page.wait("/prices.json is in use as the prices/.test(document.getElementById('says').textContent)")
    line = on.page.text("#command-line").split()
    assert line[-2:] == ["--prices", "./prices.json"] or "--prices" in line, line
    run = json.loads(on.native(*line[1:], "--json")[1])["whole_run"]
    assert abs(run["cost_usd"] / run["gpu_hours"] - 1.25) < 1e-9
    imported = on.page.text("#run")
    on.page.set_by_id("own-price", "2.5")
    on.page.wait(f"document.getElementById('run').innerText !== {json.dumps(imported)}")
    line = on.page.text("#command-line").split()
    assert "dgx-h100=2.5" in line
    run = json.loads(on.native(*line[1:], "--json")[1])["whole_run"]
    assert abs(run["cost_usd"] / run["gpu_hours"] - 2.5) < 1e-9
    on.page.view("buy")
    assert on.page.js("return document.querySelector('[data-price=\"dgx-h100\"]').value") == "2.5"
    assert not on.page.js("return document.querySelector('[data-cluster=\"./prices.json\"]')"), "prices are no cluster"


LLAMA = ("--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "16")
# Words of a report or of size, what stands on its page, and how many pictures it has at least.
ANSWERS = {
    "one plan": (("report", *LLAMA), "What one change would buy", 3),
    "three strategies": (("report", *LLAMA, "--strategy", "ddp,fsdp2,yafsdp", "--stack", "torch-eager"), "Plans side by side", 5),
    "a pipeline": (("report", *LLAMA, "--tp", "2", "--pp", "4", "--global-batch", "16", "--stack", "megatron-core"), "Time of each stage", 5),
    "a large step": (("report", "--model", "llama-3.1-405b", "--cluster", "dgx-h100", "--gpus", "1024", "--tp", "8", "--pp", "8", "--virtual-stages",
                      "8", "--cp", "2", "--seq-len", "8192", "--global-batch", "4096"), "Does not fit", 5),
    "a search": (("report", *LLAMA, "--tuning", "tuning.json"), "Why this plan and not another", 4),
    "nothing fits": (("report", "--model", "llama-3-70b", "--cluster", "dgx-h100", "--gpus", "8", "--tuning", "nothing.json"), "Ways out", 3),
    "traces alone": (("report", "--trace", "predicted.json", "--measured", "predicted.json"), "first kernel to last", 2),
    "stages alone": (("report", "--trace", "stages.json", "--measured", "stages.json"), "Each stage", 2),
    "sizes": (("size", "--model", "llama-3-8b", "--tokens", "1T", "--deadline", "60d", "--clusters", "dgx-h100,dgx-b200"), "Break-even", 1),
    "no size": (("size", "--model", "llama-3-8b", "--tokens", "1T", "--deadline", "1h", "--clusters", "dgx-h100", "--max-gpus", "16"), "Days and dollars", 1),
    "no option": (("size", "--model", "deepseek-v3", "--tokens", "1T", "--clusters", "dgx-h100", "--max-gpus", "8"), "What was left out", 0),
}


@flow
def every_answer_is_drawn_without_the_program(on):
    on.file("tuning.json", on.native("tune", *LLAMA, "--json")[1])
    on.file("nothing.json", on.native("tune", "--model", "llama-3-70b", "--cluster", "dgx-h100", "--gpus", "8", "--json")[1])
    on.native("predict", *LLAMA, "--trace", "predicted.json")
    on.native("predict", *LLAMA, "--pp", "4", "--grad-accum", "8", "--stack", "megatron-core", "--trace", "stages.json")
    for name, (words, said, pictures) in ANSWERS.items():
        file = on.folder / f"{name.replace(' ', '_')}.html"
        on.native(*words, "--out", str(file))
        on.page.driver.get(file.as_uri())
        on.page.resize(1280, 900)
        answer = on.page.js("return document.getElementById('answers').textContent")
        assert said in answer and not on.page.js("return document.querySelector('.trouble, noscript')"), f"{name}: {answer[:300]}"
        assert "NaN" not in answer and "undefined" not in answer and "[object" not in answer, f"{name}: {answer}"
        assert on.page.js("return document.querySelectorAll('svg').length") >= pictures, name
        for picture in on.page.js("return [...document.querySelectorAll('svg')].map((one) => one.outerHTML)"):
            assert "NaN" not in picture, f"{name}: {picture[:2000]}"
        on.page.resize(390, 844, mobile=True)
        wide = on.page.js("return document.documentElement.scrollWidth")
        assert wide <= 390, f"{name} is {wide} pixels wide on a phone"
    on.page.resize(1280, 900)
    on.page.driver.get((on.folder / "a_pipeline.html").as_uri())
    before = on.page.js("return document.querySelector('#timeline svg').getAttribute('aria-label')")
    for button in ("Every track of every stage", "A layer forward"):
        on.page.js("[...document.querySelectorAll('#timeline button')].find((one) => one.textContent === arguments[0]).click()", button)
    after = on.page.js("return document.querySelector('#timeline svg').getAttribute('aria-label')")
    assert before != after and "compute" in after, after


@flow
def an_answer_has_its_numbers_without_scripts(on):
    hostile = on.folder / "<img src=x onerror=alert(1)></script><script>alert(1)<!--"
    hostile.mkdir(parents=True)
    (hostile / "config.json").write_text((ROOT / "profiles/data/models/gpt2.json").read_text())
    file = on.folder / "hostile.html"
    assert on.native("report", "--model", str(hostile), "--cluster", "dgx-h100", "--gpus", "8", "--out", str(file))[0] == 0
    on.page.driver.get(file.as_uri())
    assert hostile.name in on.page.text("h1") and not on.page.js("return document.querySelector('img')")
    on.page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    on.page.driver.get(file.as_uri())
    shown = on.page.text("body")
    on.page.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "iteration time s" in shown and hostile.name in shown, shown


@flow
def the_page_for_whoever_signs_prints_on_two_pages(on):
    clusters = "dgx-h100,dgx-h200,dgx-b200,dgx-b300,dgx-a100-80g,p5,p4d,a3-mega,mi300x-8x400,voltage-park-h100"
    code, _ = on.native("size", "--model", "llama-3-8b", "--tokens", "15T", "--deadline", "60d", "--clusters", clusters, "--out", "size.html")
    assert code == 0
    on.page.driver.get((on.folder / "size.html").as_uri())
    for width, height in ((8.27, 11.69), (8.5, 11)):
        pdf, sheets = on.page.printed(width, height)
        if on.pictures:
            (on.pictures / "size.pdf").write_bytes(pdf)
        assert sheets == 2, (width, height, sheets)


SETTINGS_OF_TRAINERS = {
    "axolotl.yaml": "base_model: meta-llama/Meta-Llama-3-8B\nsequence_len: 4096\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n"
                    "gradient_checkpointing: true\nfsdp:\n  - full_shard\n  - auto_wrap\n",
    "accelerate.yml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_activation_checkpointing: true\n"
                      "mixed_precision: bf16\nnum_processes: 16\n",
    "torchtitan.toml": "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n"
                       "[activation_checkpoint]\nmode = 'full'\n",
    "deepspeed.json": json.dumps({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 3}}),
    "pretrain.sh": "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 64 --seq-length 4096 --bf16\n"}


@flow
def settings_of_trainers_become_the_plan(on):
    for name, text in SETTINGS_OF_TRAINERS.items():
        on.page.open("#plan?model=llama-3-8b&cluster=dgx-h100&pp=2&prefetch=0&global-batch=32")
        on.page.settled()
        path = on.file(name, text)
        on.page.give(path)
        on.page.wait(f"/{name} is now the plan/.test(document.getElementById('says').textContent)")
        line = on.page.text("#command-line").split()
        model = line[line.index("--model") + 1]
        code, _ = on.native("import-config", name, "--cluster", "dgx-h100", "--model", model, "--out", "native.json")
        assert code == 0, name
        here, there = (json.loads(on.native(*words, "--json")[1]) for words in (line[1:], ["predict", "--plan", "native.json"]))
        assert here["inputs"]["plan"] == there["inputs"]["plan"], name
        assert here["iteration_time_s"] == there["iteration_time_s"], name
    on.page.give(on.file("broken.yaml", "a: [1, 2\nb: }"))
    on.page.wait("/broken.yaml: line 2: is no YAML/.test(document.getElementById('says').textContent)")
    on.page.give(on.file("recipe.py", "def f():\n    config.training.seq_len = 4096\n    return config\n"))
    on.page.wait("/recipe.py: this page starts no processes/.test(document.getElementById('says').textContent)")


@flow
def a_log_of_nccl_tests_calibrates(on):
    rows = "".join(f"{size:12} {size // 16:13}      half    none      -1 {time_us:8.2f} {1:7.2f} {1:7.2f}      0 {time_us:8.2f} {1:7.2f} {1:7.2f}    N/A\n"
                   for size in (2 ** power for power in range(20, 30)) for time_us in [30 + size / 1.2e5])
    ranks = "".join(f"#  Rank {i:2} Group  0 Pid  24498 on  node-{i // 8} device  {i % 8} [0000:{16 + i:02x}:00] NVIDIA H100 80GB HBM3\n" for i in range(16))
    log = ("# Collective test starting: all_gather_perf\n# nThread 1 nGpus 8 minBytes 1048576 maxBytes 536870912 step: 2(factor) warmup iters: 5 "
           f"iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n{ranks}#\n#       size         count      type   redop    root   "
           "  time   algbw   busbw #wrong     time   algbw   busbw #wrong\n#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
           f"            (us)  (GB/s)  (GB/s)       \n{rows}# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 123.4\n#\n")
    on.page.open("#plan?model=llama-3-70b&cluster=dgx-h100&gpus=64&strategy=yafsdp")
    on.page.settled()
    before = on.page.text("#headline")
    on.page.give(on.file("nccl.log.gz", gzip.compress(log.encode())))
    on.page.wait("/Calibrated: nccl.log/.test(document.getElementById('says').textContent)", 120)
    on.page.wait("/calibrated-dgx-h100/.test(document.getElementById('headline').textContent)")
    assert on.page.text("#headline") != before


@flow
def a_trace_of_pytorchs_profiler_calibrates(on):
    """A real recording on an A100: refused by a cluster of H100, taken by one of A100, with the program's answers."""
    trace = ROOT / "tests/data/traces/torch_ddp_rank0.json.gz"
    on.page.open("#plan?model=llama-3-8b&cluster=dgx-h100&gpus=16&strategy=fsdp2")
    on.page.settled()
    on.page.give(trace)
    on.page.wait("/recorded on NVIDIA A100/.test(document.querySelector('#says .wrong span')?.textContent)", 120)
    on.page.open("#plan?model=llama-3-8b&cluster=p4d&gpus=16&strategy=fsdp2")
    on.page.settled()
    on.page.give(trace)
    on.page.wait("/calibrated-p4d/.test(document.getElementById('headline').textContent)", 120)
    profile = on.folder / "calibrated-p4d.json"
    assert on.native("calibrate", "--base", "p4d", "--trace", str(trace), "--model", "llama-3-8b", "--out", str(profile))[0] == 0
    step_s = json.loads(on.native("predict", "--model", "llama-3-8b", "--cluster", str(profile), "--gpus", "16", "--strategy", "fsdp2",
                                  "--json")[1])["iteration_time_s"]
    shown = f"{1e3 * step_s:#.4g} ms" if step_s < 1 else f"{step_s:#.4g} s"
    assert shown in on.page.text("#headline"), f"{shown} not in {on.page.text('#headline')}"


@flow
def a_buyer_asks_for_gpus(on):
    on.page.open()
    on.page.view("buy")
    for flag, value in (("tokens", "15T"), ("deadline", "60d"), ("clusters", "")):
        on.page.set(flag, value) if flag != "clusters" else None
    on.page.js("for (const tick of document.querySelectorAll('[data-cluster]')) if (tick.checked !== /^dgx-(h100|b200)$/.test(tick.dataset.cluster)) tick.click();")
    on.page.press("#find-gpus")
    on.page.wait("[...document.querySelectorAll('#answers h2')].some((one) => one.textContent === 'Days and dollars')", 400)
    code, text = on.native("size", *on.page.text("#command-line").split()[2:], "--json")
    first = json.loads(text)["words"][0]
    assert code == 0 and first in on.page.text("#answers"), first
    assert on.page.js("return document.querySelectorAll('#break-even tbody tr').length") == len(json.loads(text)["break_even"])
    on.pictures and on.picture_set("buy")
    on.page.js("[...document.querySelectorAll('button')].find((one) => one.textContent === 'see the plan' && one.offsetParent).click()")
    on.page.settled()
    assert "does not fit" not in on.page.text("#headline").lower()


@flow
def one_card_is_answered_with_a_plan(on):
    on.page.open("#tune?model=llama-3.1-8b&cluster=rtx-4090-pcie8&gpus=1&seq-len=2048")
    on.page.press("#find-ways")
    on.page.wait("[...document.querySelectorAll('#answers td')].filter((one) => /lora 16/.test(one.textContent)).length === 2", 120)
    answer = on.page.text("#answers")
    assert "Training every weight of llama-3.1-8b does not fit on 1 x rtx-4090; LoRA of rank 16" in answer, answer
    assert on.page.text("#command-line").startswith("shardwright tune --model llama-3.1-8b"), on.page.text("#command-line")
    on.pictures and on.picture_set("fine_tune")
    on.page.js("[...document.querySelectorAll('button')].filter((one) => one.textContent === 'see the plan' && one.offsetParent).pop().click()")
    on.page.settled()
    on.page.wait("/quantize=nf4/.test(location.hash)")
    assert "does not fit" not in on.page.text("#headline").lower(), on.page.text("#headline")


HOSTILE = {
    "broken.json": ('{"model_type": "llama", ', "is no JSON"),
    "other.json": ('{"hello": 1}', "expected a model"),
    "words.txt": ("hello " * 100, "no JSON and no nccl-tests log"),
    "experts.json": ('{"model_type": "zamba2", "hidden_size": 1}', "zamba2"),
    "<img src=x onerror=alert(1)>.json": ('{"model_type": "<script>alert(1)</script>", "hidden_size": -4}', "script"),
    "deep.json": ('{"model_type":' + "[" * 200000, "is no JSON"),
    "cut.json.gz": (gzip.compress(b'{"traceEvents": []}')[:-12], "not a whole gzip file"),
    "empty.json": ("", "no JSON and no nccl-tests log"),
    "trace.json": ('{"traceEvents": [{"ph": "X", "name": 7', "trace.json"),
    "huge-config.json": ('{"model_type": "llama", "x": "' + "a" * 5_000_000 + '"}', "expected a model"),
}


@flow
def hostile_files_get_a_sentence(on):
    on.page.open()
    on.page.settled()
    for name, (text, expected) in HOSTILE.items():
        on.page.js("document.getElementById('says').replaceChildren()")
        on.page.give(on.file(name.replace("/", "_"), text))
        said = on.page.wait("document.querySelector('#says .wrong span')?.textContent", 60)
        assert expected in said and len(said) < 700, f"{name}: {said}"
    assert "tokens/s" in on.page.text("#headline")


@flow
def a_trace_of_a_gigabyte_hangs_nothing(on):
    path = on.folder / "large.json"
    event = '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":1},\n' * 13000
    with path.open("w") as file:
        file.write('{"traceEvents":[\n')
        for _ in range(1000):
            file.write(event)
        file.write('{}]}')
    on.page.open()
    on.page.settled()
    begin = time.monotonic()
    on.page.give(path)
    while on.page.slide("ckpt-layers", 1 + int(time.monotonic() - begin) % 30) < SLOWEST_ANSWER_MS:
        if on.page.js("return document.querySelector('#says .wrong span')?.textContent"):
            break
        assert time.monotonic() - begin < 400, "no answer about the trace"
        time.sleep(1.01)
    said = on.page.wait("document.querySelector('#says .wrong span')?.textContent", 400)
    print(f"    {path.stat().st_size / 1e9:.2f} GB in {time.monotonic() - begin:.0f} s: {said}")
    path.unlink()


@flow
def hostile_links_get_a_sentence(on):
    for fragment, expected in (("#plan?model=llama-3-8b&cluster=dgx-h100&gpus=-5", "gpus"),
                               ("#plan?model=%E0%A4%A&cluster=dgx-h100", "model"),
                               ("#nowhere?model=llama-3-8b&cluster=dgx-h100", "nowhere"),
                               ("#plan?model=llama-3-8b&cluster=dgx-h100&evil=%3Cimg%20src=x%3E", "evil"),
                               ("#plan?model=./gone.json&cluster=dgx-h100", "gone.json"),
                               ("#plan?" + "a" * 70000, "letters long"),
                               ("#plan?model=llama-3-8b&cluster=dgx-h100&set=" + "x" * 3000, "--set")):
        on.page.open(fragment)
        found = on.page.wait("[...document.querySelectorAll('#says .wrong span, .trouble:not([hidden])')].map((one) => one.textContent).join(' ')", 60)
        assert expected in found, f"{fragment[:60]}: {found[:300]}"
        assert not on.page.js("return document.querySelector('img')")


@flow
def keys_and_readers_reach_everything(on):
    on.page.open()
    on.page.settled()
    nameless = on.page.js("""
      return [...document.querySelectorAll('input, select, textarea, button, svg[role=img]')].filter((one) => one.offsetParent || one.closest('details') || one.tagName === 'svg')
        .filter((one) => !(one.labels && one.labels.length) && !one.getAttribute('aria-label') && !(one.tagName === 'BUTTON' && one.textContent.trim()))
        .map((one) => one.outerHTML.slice(0, 120));""")
    assert not nameless, nameless
    before = on.page.js("return document.querySelector('#timeline svg').getAttribute('aria-label')")
    on.page.js("document.querySelector('#timeline .frame').dispatchEvent(new KeyboardEvent('keydown', {key: '+', bubbles: true}))")
    assert on.page.js("return document.querySelector('#timeline svg').getAttribute('aria-label')") != before
    on.pictures and on.picture_set("plan")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--pictures", type=pathlib.Path)
    parser.add_argument("--remember", action="store_true", help="what the pictures show is right: write looks.json anew")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.pictures:
        options.pictures.mkdir(parents=True, exist_ok=True)
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        page = Page(options.page.resolve().as_uri(), folder)
        on = Flows(page, options.program.resolve(), pathlib.Path(folder), options.pictures, options.remember)
        try:
            for function in FLOWS:
                title = function.__name__.replace("_", " ")
                if options.names and not any(name in function.__name__ for name in options.names):
                    continue
                print(f"  {title}", flush=True)
                try:
                    function(on)
                except Exception as error:  # a flow that fails shall not hide the others
                    failed.append(title)
                    at = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__][-1]
                    print(f"    FAILED in line {at.lineno}, {at.line}: {re.sub(chr(10), chr(10) + '      ', str(error))[:2500]}", flush=True)
            page.gather_logs()
            if page.messages:
                failed.append("no error on the browser's console")
                print("  the browser's console:", *page.messages[:10], sep="\n    ")
        finally:
            page.close()
    if failed:
        sys.exit(f"planner_test: {len(failed)} failed: {'; '.join(failed)}")
    print("planner_test passes")


if __name__ == "__main__":
    main()
