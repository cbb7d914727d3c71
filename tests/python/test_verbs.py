# SPDX-License-Identifier: Apache-2.0
"""Every verb in process says what the program says, to the last byte of its JSON."""
import concurrent.futures
import json
import pathlib
import re

import pytest

import shardwright

MODEL = {"model": "llama-3-8b", "cluster": "dgx-h100"}
PLAIN = ["--model", "llama-3-8b", "--cluster", "dgx-h100"]


def of_anywhere(text):
    """What depends on this machine, on what a build can besides planning, or on when it was asked, taken out."""
    text = re.sub(r'simulated; [0-9.]+ m?s\.|"why_not_here": ("(\\.|[^"\\])*"|null)', "", text)
    return re.sub(r'"(seconds|seconds_with_reasons|age_days|simulated|pruned|considered|predicted_in_full)": [0-9.e-]+', r'"\1": 0', text)


@pytest.mark.parametrize("keywords, words", [
    ({**MODEL, "gpus": 64}, [*PLAIN, "--gpus", "64"]),
    ({**MODEL, "gpus": 64, "explain": True, "tokens": 1e12}, [*PLAIN, "--gpus", "64", "--explain", "--tokens", "1000000000000"]),
    ({**MODEL, "strategy": ["yafsdp", "fsdp2"]}, [*PLAIN, "--strategy", "yafsdp,fsdp2"]),
    ({**MODEL, "ckpt_layers": 4, "recompute": "norm,swiglu", "deterministic": False},
     [*PLAIN, "--ckpt-layers", "4", "--recompute", "norm,swiglu", "--deterministic", "off"]),
    ({**MODEL, "set": {"gpu.hbm_bytes_per_s": 4e12}}, [*PLAIN, "--set", "gpu.hbm_bytes_per_s=4000000000000"]),
    ({"model": "llama-3.1-405b", "cluster": "dgx-h100", "gpus": 1024, "tp": 8, "pp": 16, "global_batch": 512, "stack": "megatron-core"},
     ["--model", "llama-3.1-405b", "--cluster", "dgx-h100", "--gpus", "1024", "--tp", "8", "--pp", "16", "--global-batch", "512",
      "--stack", "megatron-core"]),
])
def test_predict(program, keywords, words):
    code, said, told = program.run("predict", *words, "--json")
    result = shardwright.predict(**keywords)
    assert code == 0, told
    assert of_anywhere(result.json) == of_anywhere(said)
    assert result.to_dict() == json.loads(result.json)


def test_tune(program):
    words = [*PLAIN, "--gpus", "16", "--strategy", "fsdp2", "--threads", "1"]
    tuning = shardwright.tune(**MODEL, gpus=16, strategy="fsdp2", threads=1)
    assert of_anywhere(tuning.json) == of_anywhere(program.run("tune", *words, "--json")[1])
    assert tuning.best.prediction.iteration_time_s == tuning.top[0].prediction.iteration_time_s
    assert isinstance(tuning.best.plan, shardwright.Plan)


def test_size(program):
    goal = ["--model", "llama-3-8b", "--tokens", "1T", "--deadline", "30d", "--clusters", "dgx-h100", "--gpus", "256"]
    sizing = shardwright.size(model="llama-3-8b", tokens="1T", deadline="30d", clusters="dgx-h100", gpus=256)
    assert of_anywhere(sizing.json) == of_anywhere(program.run("size", *goal, "--json")[1])
    assert sizing.recommended.gpus == 256
    assert sizing.page.startswith("<!DOCTYPE html>")


def test_validate(program):
    result = shardwright.validate()
    assert result.json == program.run("validate", "--json")[1]
    assert len(result.rows) > 200 and result.summary.time.n > 190


def test_inspect(program):
    assert shardwright.inspect("model", "qwen2.5-7b").json == program.run("inspect", "model", "qwen2.5-7b", "--json")[1]
    assert shardwright.inspect("gpu", "h100-80g").json == program.run("inspect", "gpu", "h100-80g", "--json")[1]


def test_export(program):
    result = shardwright.export(**MODEL, strategy="fsdp2", format="torchtitan")
    assert of_anywhere(result.json) == of_anywhere(program.run("export", *PLAIN, "--strategy", "fsdp2", "--format", "torchtitan", "--json")[1])
    assert str(result) == result.settings and "parallelism" in result.settings


@pytest.mark.parametrize("name, text", [
    ("axolotl.yaml", "base_model: meta-llama/Meta-Llama-3-8B\nsequence_len: 4096\nmicro_batch_size: 2\nfsdp: [full_shard, auto_wrap]\n"),
    ("train.toml", "[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n"),
])
def test_settings_of_a_trainer(program, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    path = str(tmp_path / name)
    result = shardwright.import_config(path, cluster="dgx-h100", gpus=16)
    assert of_anywhere(result.json) == of_anywhere(program.run("import-config", path, "--cluster", "dgx-h100", "--gpus", "16", "--json")[1])
    assert result.plan.micro_batch == 2


def test_every_verb_of_the_program_is_a_function(program):
    for verb in re.findall(r"^  ([a-z][a-z-]*)  ", program.run("--help")[1].split("Verbs:")[1], re.M):
        if verb not in ("run", "compare", "measure", "doctor"):  # not in a planner
            assert callable(getattr(shardwright, verb.replace("-", "_"))), verb


def test_a_plan_goes_from_one_verb_to_the_next(tmp_path):
    tuning = shardwright.tune(**MODEL, gpus=16, strategy="fsdp2")
    again = shardwright.predict(plan=tuning)
    assert again.iteration_time_s == tuning.best.prediction.iteration_time_s
    tuning.save(tmp_path / "plan.json")
    assert shardwright.predict(plan=tmp_path / "plan.json").inputs.plan == tuning.best.plan
    assert "parallelism" in shardwright.export(plan=tuning, format="torchtitan").settings
    out = tmp_path / "chosen.json"
    shardwright.tune(**MODEL, gpus=16, strategy="fsdp2", out=out)
    assert shardwright.predict(plan=out).iteration_time_s == again.iteration_time_s


def test_a_configuration_is_a_model(tmp_path):
    config = json.loads((pathlib.Path(shardwright.__file__).parent / "data/models/llama-3-8b.json").read_text())
    path = tmp_path / "llama.json"
    path.write_text(json.dumps(config))
    by_name = shardwright.predict(**MODEL)

    class Config:  # as of Transformers
        def to_dict(self):
            return config
    for model in (path, str(path), config, Config()):
        assert shardwright.predict(model=model, cluster="dgx-h100").iteration_time_s == by_name.iteration_time_s
    with pytest.raises(TypeError, match="expected a name, a path"):
        shardwright.predict(model=7, cluster="dgx-h100")


@pytest.mark.parametrize("kind, code, keywords, sentence", [
    (shardwright.InputError, 3, {"model": "llama-3-9b", "cluster": "dgx-h100"}, "llama-3-9b"),
    (ValueError, 3, {**MODEL, "gpus": -5}, "gpus"),
    (shardwright.UsageError, 2, {**MODEL, "gpu": 8}, "'gpu'"),
    (TypeError, 2, {"cluster": "dgx-h100"}, "model"),
    (shardwright.Infeasible, 4, {"model": "llama-3-70b", "cluster": "dgx-h100", "strategy": "ddp", "require_fit": True}, ""),
])
def test_an_error_is_the_programs_sentence(program, kind, code, keywords, sentence):
    with pytest.raises(kind) as caught:
        shardwright.predict(**keywords)
    assert caught.value.code == code
    assert sentence in str(caught.value) and not str(caught.value).startswith("error")
    assert len(str(caught.value).splitlines()) == 1
    assert "--" not in str(caught.value), "keywords, not flags"


def test_nothing_fits_and_says_what_would():
    with pytest.raises(shardwright.Infeasible) as caught:
        shardwright.tune(model="llama-3-70b", cluster="dgx-h100", gpus=8, strategy="ddp")
    assert caught.value.result.best is None
    assert caught.value.result.nearest_feasible is not None


def test_what_is_not_in_a_planner_is_said():
    with pytest.raises(AttributeError, match="its verbs are predict"):
        shardwright.fly
    with pytest.raises(shardwright.Missing, match="not in this build"):
        shardwright._verbs.Verb("doctor")()


def test_threads_answer_as_one_after_the_other():
    gpus = [8, 16, 32, 64] * 4
    alone = [shardwright.predict(**MODEL, gpus=count).json for count in gpus]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda count: shardwright.predict(**MODEL, gpus=count).json, gpus)) == alone


def test_no_zero_bytes():
    with pytest.raises(ValueError, match="zero byte"):
        shardwright.predict(model="llama\0", cluster="dgx-h100")
