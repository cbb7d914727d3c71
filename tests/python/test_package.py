# SPDX-License-Identifier: Apache-2.0
"""What is around the verbs: views, the program on PATH, types, pages for notebooks, Ctrl-C."""
import ast
import html
import inspect
import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import shardwright

FOLDER = pathlib.Path(shardwright.__file__).parent
PREDICTION = {"model": "llama-3-8b", "cluster": "dgx-h100", "gpus": 16}


def test_views_are_the_json():
    prediction = shardwright.predict(**PREDICTION)
    data = prediction.to_dict()
    assert prediction.memory.total_bytes == prediction["memory"]["total_bytes"] == data["memory"]["total_bytes"]
    assert isinstance(prediction.memory, shardwright.Memory) and isinstance(prediction.inputs.plan, shardwright.Plan)
    assert "mfu" in prediction and prediction.get("nothing", 7) == 7 and list(prediction) == list(data)
    assert pickle.loads(pickle.dumps(prediction)).to_dict() == data
    with pytest.raises(AttributeError, match="Prediction has no 'mfuu'; it has schema"):
        prediction.mfuu
    assert "s a step" in repr(prediction)


def test_documented_fields_exist():
    """An attribute that a view declares is in the document; so no docstring tells of what is not there."""
    prediction = shardwright.predict(**PREDICTION, tp=2, pp=2, stack="megatron-core")
    tuning = shardwright.tune(**PREDICTION, strategy="fsdp2", for_="torchtitan")
    sizing = shardwright.size(model="llama-3-8b", tokens="1T", clusters="dgx-h100", gpus=64, deadline="1y")
    for view in (prediction, prediction.memory, prediction.time_s, prediction.inputs, prediction.stages[0], tuning, tuning.best,
                 tuning.best.plan, sizing, sizing.options[0], shardwright.validate(),
                 shardwright.export(**PREDICTION, strategy="fsdp2", format="torchtitan")):
        declared = [name for name in type(view).__annotations__ if not name.startswith("_") and name not in ("plan_file", "page")]
        assert declared and not [name for name in declared if name not in view], type(view).__name__
        assert type(view).__doc__


def test_signatures_and_help_are_the_programs():
    parameters = inspect.signature(shardwright.predict).parameters
    assert {"model", "cluster", "gpus", "ckpt_layers", "tp"} <= set(parameters) and "json" not in parameters
    assert "for_" in inspect.signature(shardwright.tune).parameters  # `for` is a word of Python
    assert "ckpt_layers (K|all): checkpoint the first K layers" in inspect.getdoc(shardwright.predict)
    choices = shardwright._help.flags("export")["format"]  # too many for one line of --help
    assert choices.takes.split("|")[0] == "torchtitan" and choices.takes.split("|")[-1] == "memory-snapshot"
    assert choices.text.startswith("the trainer whose settings to write")


def test_types_are_those_of_this_build():
    tree = ast.parse((FOLDER / "_verbs.pyi").read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}  # of overloads the last
    for verb in ("predict", "tune", "size", "validate", "export"):
        flags = shardwright._help.flags(verb)
        names = {one.arg for one in functions[verb].args.kwonlyargs}
        assert names == {keyword for keyword in flags if keyword != "json"}, verb
    assert (FOLDER / "py.typed").exists()


def test_sources_are_of_python_3_9():
    for path in FOLDER.glob("*.py"):
        ast.parse(path.read_text(), path.name, feature_version=(3, 9))


def test_the_program_is_on_path(program):
    path = os.path.join(os.path.dirname(sys.executable), "shardwright")
    done = subprocess.run([path, "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and shardwright.__version__ in done.stdout
    failed = subprocess.run([path, "predict", "--model", "nothing", "--cluster", "dgx-h100"], capture_output=True, text=True)
    assert failed.returncode == 3 and failed.stderr.startswith("error: ")
    with subprocess.Popen([path, "inspect", "models"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as piped:
        piped.stdout.close()  # as `| head` does
        assert b"Traceback" not in piped.stderr.read()


def test_an_assistant_is_served(tmp_path):
    """`mcp` starts the program again for each call: here that is Python with this package, in whatever folder."""
    (tmp_path / "shardwright.py").write_text("raise SystemExit('the wrong module')")
    words = [os.path.join(os.path.dirname(sys.executable), "shardwright"), "mcp"]
    ask = [{"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-03-26", "capabilities": {}}},
           {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "predict", "arguments": PREDICTION}},
           {"jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": "predict", "arguments": {**PREDICTION, "model": "nothing"}}}]
    done = subprocess.run(words, input="".join(json.dumps(one) + "\n" for one in ask), capture_output=True, text=True, cwd=tmp_path,
                          timeout=120)
    assert done.returncode == 0 and done.stderr == ""
    _, answered, refused = (json.loads(line)["result"] for line in done.stdout.splitlines())
    assert answered["structuredContent"] == shardwright.predict(**PREDICTION).to_dict()
    assert refused["isError"] and "nothing" in refused["content"][0]["text"]


def test_nothing_reaches_the_streams_of_the_process(capfd):
    shardwright.predict(**PREDICTION)
    shardwright.inspect("models")
    with pytest.raises(shardwright.InputError):
        shardwright.predict(model="nothing", cluster="dgx-h100")
    assert capfd.readouterr() == ("", "")


def test_notebooks_get_the_pages_of_the_answers():
    def answer_in(shown):
        framed = html.unescape(re.search(r'^<iframe srcdoc="([^"]*)"', shown)[1])
        return json.loads(re.search(r'<script type="application/json" id="answer">([^<]*)</script>', framed)[1])
    explained = shardwright.predict(**PREDICTION, explain=True)
    assert answer_in(shardwright.predict(**PREDICTION)._repr_html_())["answer"] == explained.to_dict()
    several = shardwright.predict(**PREDICTION, strategy="fsdp2,yafsdp")
    assert len(answer_in(several._repr_html_())["timelines"]) == 2
    tuned = shardwright.tune(**PREDICTION, strategy="fsdp2")
    assert answer_in(tuned._repr_html_())["tuning"] == tuned.to_dict()
    sized = shardwright.size(model="llama-3-8b", tokens="1T", clusters="dgx-h100,dgx-h200", deadline="90d")
    assert answer_in(sized._repr_html_())["answer"] == sized.to_dict()
    unknown = pickle.loads(pickle.dumps(several))
    assert unknown._repr_html_().startswith("<pre>&lt;Comparison")


def test_ctrl_c_ends_a_search():
    script = textwrap.dedent("""
        import shardwright, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background of a shell ignores it
        print("begins", flush=True)
        try:
            shardwright.size(model="llama-3-70b", tokens="15T", clusters="all")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            print(shardwright.predict(model="gpt2", cluster="dgx-h100").inputs.model)
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "begins\n"
        time.sleep(1.5)
        child.send_signal(signal.SIGINT)
        assert child.stdout.read() == "interrupted\ngpt2\n"
    assert child.returncode == 0


def test_a_forked_process_asks_for_itself():
    shardwright.predict(**PREDICTION)
    child = os.fork()
    if child == 0:
        os._exit(0 if shardwright.predict(**PREDICTION).iteration_time_s > 0 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_other_threads_run_meanwhile():
    counted = 0
    done = threading.Event()

    def count():
        nonlocal counted
        while not done.is_set():
            counted += 1
            time.sleep(0.001)
    thread = threading.Thread(target=count)
    thread.start()
    shardwright.validate()
    done.set()
    thread.join()
    assert counted > 20


def test_answers_are_rows_of_tables():
    prediction = shardwright.predict(model="llama-3-8b", cluster="dgx-h100", gpus=8)
    (row,) = prediction.to_rows()
    assert row["memory.total_bytes"] == prediction.memory.total_bytes
    assert row["inputs.plan.strategy"] == prediction.inputs.plan.strategy
    assert not any(isinstance(value, dict) for value in row.values())
    compared = shardwright.predict(model="llama-3-8b", cluster="dgx-h100", gpus=8, strategy=["fsdp2", "yafsdp"])
    assert [one["iteration_time_s"] for one in compared.to_rows()] == [one.iteration_time_s for one in compared.predictions]
    tuning = shardwright.tune(model="llama-3-8b", cluster="dgx-h100", gpus=8, strategy="fsdp2")
    assert [one["plan.micro_batch"] for one in tuning.to_rows()] == [one.plan.micro_batch for one in tuning.top]


def test_answers_are_frames_of_pandas():
    pandas = pytest.importorskip("pandas")
    predictions = [shardwright.predict(model="llama-3-8b", cluster="dgx-h100", gpus=gpus) for gpus in (8, 16)]
    frame = shardwright.to_frame(predictions)
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 2
    assert list(frame["inputs.plan.gpus"]) == [8, 16]
