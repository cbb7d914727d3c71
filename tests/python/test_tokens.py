# SPDX-License-Identifier: Apache-2.0
"""shardwright.tokens: ids are those of one pass, masks are what the assistant says, and nothing is lost on the way. With the
README's two examples where SHARDWRIGHT_PROGRAM trains."""
import argparse
import array
import importlib.util
import json
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
package = importlib.util.find_spec("shardwright")
SCRIPT = (pathlib.Path(package.origin).parent if package else ROOT / "cli/python/shardwright") / "tokens.py"
spec = importlib.util.spec_from_file_location("shardwright_tokens", SCRIPT)
tokens = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tokens)

LANGUAGES = ["It is a truth universally acknowledged, that a single man must be in want of a wife. However little known?\n\n",
             "Все счастливые семьи похожи друг на друга; каждая несчастливая семья несчастлива по-своему.\n",
             "道可道,非常道。名可名,非常名。無名天地之始;有名萬物之母。 ",
             "كان يا ما كان، في قديم الزمان، ملك له ثلاث بنات.  ",
             "एक समय की बात है, एक गाँव में एक किसान रहता था।\t🙂👩‍👩‍👧 e\u0301\r\n"]


def text_of(letters, seed=1):
    draw, text = random.Random(seed), ""
    while len(text) < letters:
        text += draw.choice(LANGUAGES) if draw.random() < 0.9 else f"{draw.random()}  "
    return text


class Made:
    """What a token file holds."""

    def __init__(self, path):
        data = pathlib.Path(path).read_bytes()
        _, version, width, self.vocab, count = struct.unpack_from("<8sIIQQ", data)
        documents, masked = struct.unpack_from("<QI", data, 48)
        self.hashes = [data[at:at + 32] for at in (64, 96, 128)]
        ends = [end & ~(1 << 63) for end in struct.unpack_from(f"<{documents}Q", data, 168)]
        bits = data[168 + 8 * documents:]
        values = array.array({1: "B", 2: "H", 4: "I"}[width])
        values.frombytes(data[-width * count:])
        mask = [bits[at // 8] >> at % 8 & 1 for at in range(count)] if masked else None
        assert version == 2 and ends[-1] == count
        self.ids = list(values)
        pieces = list(zip([0, *ends], ends))
        self.documents = [self.ids[begin:end] for begin, end in pieces]
        self.masks = [mask[begin:end] if mask else None for begin, end in pieces]


def make(out, tokenizer, data, *, template="", seq_len=0, longer="cut", vocab=0):
    said = tokens.run(argparse.Namespace(out=out, data=[str(data)], tokenizer=str(tokenizer), chat_template=str(template),
                                         seq_len=seq_len, longer=longer, vocab=vocab, processes=1))
    assert not out.with_name(out.name + ".parts").exists()
    return Made(out), said


def lines(path, *values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Folders with tokenizers of several kinds."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed here")
    import tokenizers
    marks = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|end|>"]
    corpus, kinds = [text_of(40000, 2)], {}
    kinds["bytes"] = tokenizers.ByteLevelBPETokenizer()
    kinds["bytes"].train_from_iterator(corpus, vocab_size=900, special_tokens=marks, show_progress=False)
    kinds["pieces"] = tokenizers.SentencePieceBPETokenizer()
    kinds["pieces"].train_from_iterator(corpus, vocab_size=900, special_tokens=["<unk>", *marks], show_progress=False)
    kinds["unigram"] = tokenizers.SentencePieceUnigramTokenizer()
    kinds["unigram"].train_from_iterator(corpus, vocab_size=600, special_tokens=["<unk>", *marks], unk_token="<unk>", show_progress=False)
    made = {}
    for kind, own in kinds.items():
        made[kind] = tmp_path_factory.mktemp(kind)
        transformers.PreTrainedTokenizerFast(tokenizer_object=own._tokenizer, bos_token="<s>", eos_token="</s>",
                                             additional_special_tokens=marks[2:]).save_pretrained(made[kind])
    marking = tokenizers.Tokenizer.from_str(kinds["pieces"].to_str())
    marking.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", marking.token_to_id("<s>"))])
    made["marking"] = tmp_path_factory.mktemp("marking")
    transformers.PreTrainedTokenizerFast(tokenizer_object=marking, bos_token="<s>", eos_token="</s>",
                                         additional_special_tokens=marks[2:]).save_pretrained(made["marking"])
    return made


def tokenizer_of(folder):
    import transformers
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", ["bytes", "pieces", "unigram", "marking"])
def test_ids_at_borders_are_those_of_one_pass(folders, tmp_path, monkeypatch, kind):
    own = tokenizer_of(folders[kind])
    for seed, unit in enumerate((700, 5000, 5001)):
        text = text_of(30000, seed)
        (tmp_path / "a.txt").write_bytes(text.encode())
        monkeypatch.setattr(tokens, "UNIT_BYTES", unit)
        monkeypatch.setattr(tokens, "OVERLAP_BYTES", 600)
        made, _ = make(tmp_path / "a.tok", folders[kind], tmp_path / "a.txt")
        assert made.ids == [*([own.bos_token_id] if kind == "marking" else []), *own(text, add_special_tokens=False)["input_ids"], own.eos_token_id]


def test_a_text_that_no_window_agrees_about_is_one(folders, tmp_path, monkeypatch):
    text = "a" * 3001 + "b" + "a" * 7000
    (tmp_path / "a.txt").write_text(text)
    monkeypatch.setattr(tokens, "UNIT_BYTES", 1000)
    monkeypatch.setattr(tokens, "OVERLAP_BYTES", 20)
    made, _ = make(tmp_path / "a.tok", folders["bytes"], tmp_path / "a.txt")
    assert made.ids[:-1] == tokenizer_of(folders["bytes"])(text)["input_ids"]


def test_what_is_stopped_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "UNIT_BYTES", 1000)
    lines(tmp_path / "a.jsonl", *({"prompt": f"{at} ", "completion": LANGUAGES[at % 5]} for at in range(200)))
    (tmp_path / "b.txt").write_text(text_of(9000))
    whole, said = make(tmp_path / "whole.tok", "bytes", tmp_path / "[ab].*")
    assert "201 documents" in said
    convert, done = tokens.convert, []

    def stops(converter, unit):
        if len(done) == 7:
            raise KeyboardInterrupt
        done.append(unit)
        return convert(converter, unit)
    monkeypatch.setattr(tokens, "convert", stops)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "a.tok", "bytes", tmp_path / "[ab].*")
    assert not (tmp_path / "a.tok").exists()
    again = []
    monkeypatch.setattr(tokens, "convert", lambda converter, unit: again.append(unit) or convert(converter, unit))
    made, _ = make(tmp_path / "a.tok", "bytes", tmp_path / "[ab].*")
    assert (tmp_path / "a.tok").read_bytes() == (tmp_path / "whole.tok").read_bytes()
    assert again and not set(again) & set(done)


def test_processes_make_the_same_file_also_after_a_kill(tmp_path):
    (tmp_path / "a.txt").write_text(text_of(6_000_000))
    command = [sys.executable, SCRIPT, tmp_path / "a.tok", "--tokenizer", "bytes", tmp_path / "a.txt", "--processes"]
    with subprocess.Popen([*command, "3"], start_new_session=True, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not list(tmp_path.glob("a.tok.parts/0*[0-9]")):
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
    assert subprocess.run([*command, "2"], check=True, capture_output=True, text=True).stdout.startswith(f"{tmp_path}/a.tok: 1 documents")
    assert bytes(Made(tmp_path / "a.tok").ids) == (tmp_path / "a.txt").read_bytes()


CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
TEMPLATES = {
    "chatml": CHATML,
    "llama-2": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }} "
               "{{ eos_token }}{% endif %}{% endfor %}",
    "gemma": "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}"
             "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    "chatml, tagged": CHATML.replace("{{ m.content }}<|im_end|>", "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>"
                                     "{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}"),
    "phi, tagged": "{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>\n"
                   "{% endgeneration %}{% else %}{{ m.content }}<|end|>\n{% endif %}{% endfor %}",
    "plain, tagged": "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}A: {{ m.content }}{{ eos_token }}"
                     "{% endgeneration %}{% else %}Q: {{ m.content }}\n{% endif %}{% endfor %}"}
ENDS = {"chatml": "<|im_end|>\n", "llama-2": " </s>", "gemma": "<end_of_turn>\n", "chatml, tagged": "<|im_end|>", "phi, tagged": "<|end|>\n",
        "plain, tagged": "</s>"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_masks_are_what_the_assistant_says(folders, tmp_path, name):
    draw, own = random.Random(3), tokenizer_of(folders["bytes"])
    chats = [[{"role": role, "content": f"{draw.choice(LANGUAGES).strip()} {draw.random()}"} for _ in range(draw.randint(1, 4))
              for role in ("user", "assistant")] for _ in range(100)]
    (tmp_path / "t.jinja").write_text(TEMPLATES[name])
    made, _ = make(tmp_path / "a.tok", folders["bytes"], lines(tmp_path / "a.jsonl", *({"messages": chat} for chat in chats)),
                   template=tmp_path / "t.jinja")
    assert len(made.documents) == 100
    for chat, ids, mask in zip(chats, made.documents, made.masks):
        said = [one["content"] for one in chat if one["role"] == "assistant"]
        lead = {"llama-2": " ", "plain, tagged": "A: "}.get(name, "")
        text = own.decode([at for at, one in zip(ids, mask) if one])
        assert text.replace("<|end|>\n", ENDS[name]) == "".join(lead + one + ENDS[name] for one in said)
        assert ids == own(own.apply_chat_template(chat, tokenize=False, chat_template=TEMPLATES[name]), add_special_tokens=False)["input_ids"]


# The mark that asks for an answer is no answer, also where nobody has asked.
@pytest.mark.parametrize("name", TEMPLATES)
def test_masks_of_an_assistant_who_speaks_first(folders, tmp_path, name):
    own, chat = tokenizer_of(folders["bytes"]), [{"role": role, "content": f"words of {role}"} for role in ("assistant", "user", "assistant")]
    (tmp_path / "t.jinja").write_text(TEMPLATES[name])
    made, _ = make(tmp_path / "a.tok", folders["bytes"], lines(tmp_path / "a.jsonl", {"messages": chat}), template=tmp_path / "t.jinja")
    lead = {"llama-2": " ", "plain, tagged": "A: "}.get(name, "")
    said = own.decode([at for at, one in zip(made.documents[0], made.masks[0]) if one])
    assert said.replace("<s>", "") == 2 * (lead + "words of assistant" + ENDS[name])


def test_every_form_of_data_is_read(folders, tmp_path):
    (tmp_path / "t.jinja").write_text(CHATML)
    chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "man."}]
    values = [{"messages": chat}, {"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "man."}]},
              {"instruction": "Why?", "output": "man."}, {"prompt": chat[:1], "completion": chat[1:]}]
    folder = tmp_path / "data"
    folder.mkdir()
    lines(folder / "a.jsonl", *values)
    (folder / "B.JSON").write_text(json.dumps(values))
    made, _ = make(tmp_path / "a.tok", folders["bytes"], folder, template=tmp_path / "t.jinja")
    assert len(made.documents) == 8 and made.documents == made.documents[:1] * 8 and made.masks == made.masks[:1] * 8
    lines(tmp_path / "s.jsonl", *({"system": "Be.", **value} for value in values), {"messages": [{"role": "system", "content": "Be."}] + chat})
    made, _ = make(tmp_path / "s.tok", folders["bytes"], tmp_path / "s.jsonl", template=tmp_path / "t.jinja")
    assert made.documents == made.documents[:1] * 5 and made.masks == made.masks[:1] * 5
    lines(tmp_path / "c.jsonl", {"instruction": "Why?", "input": "It", "output": "man."}, {"prompt": "Why?", "response": " man."}, {"text": "man."})
    made, _ = make(tmp_path / "c.tok", folders["marking"], tmp_path / "c.jsonl")
    own = tokenizer_of(folders["marking"])
    assert [own.decode([at for at, one in zip(ids, mask) if one]).strip() for ids, mask in zip(made.documents, made.masks)] == \
        ["man.</s>", "man.</s>", "<s> man.</s>"]


def test_marks_of_begin_and_end_stand_once(folders, tmp_path):
    own = tokenizer_of(folders["marking"])
    chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "man."}]
    template = "{{ bos_token }}{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}"
    for text in (template, template.replace("{{ bos_token }}", ""), TEMPLATES["llama-2"]):
        (tmp_path / "t.jinja").write_text(text)
        made, _ = make(tmp_path / "a.tok", folders["marking"], lines(tmp_path / "a.jsonl", {"messages": chat}), template=tmp_path / "t.jinja")
        ids = made.documents[0]
        assert ids[0] == own.bos_token_id and ids[-1] == own.eos_token_id
        assert ids.count(own.bos_token_id) == ids.count(own.eos_token_id) == 1 and made.masks[0][-1] == 1
    lines(tmp_path / "a.jsonl", {"text": "<s>one</s>"}, {"text": "one"}, {"prompt": "<s>one", "completion": "one</s>"})
    for ids in make(tmp_path / "a.tok", folders["marking"], tmp_path / "a.jsonl")[0].documents:
        assert ids.count(own.bos_token_id) == ids.count(own.eos_token_id) == 1
    # The mark of a role ends nothing, however short the answer is.
    (tmp_path / "t.jinja").write_text("{% for m in messages %}{{ '<s>' if m.role == 'user' else '</s>' }}{{ m.content }}{% endfor %}")
    for words in ("y", "a longer answer"):
        said = lines(tmp_path / "a.jsonl", {"messages": [chat[0], {"role": "assistant", "content": words}]})
        ids = make(tmp_path / "a.tok", folders["marking"], said, template=tmp_path / "t.jinja")[0].documents[0]
        assert ids[-1] == own.eos_token_id and ids.count(own.eos_token_id) == 2
    (tmp_path / "b.txt").write_text("<s>one</s>two</s>")
    made, _ = make(tmp_path / "b.tok", folders["marking"], tmp_path / "b.txt")
    assert made.ids.count(own.bos_token_id) == 1 and made.ids.count(own.eos_token_id) == 2 and len(made.documents) == 2


def test_what_cannot_be_trained_is_refused(folders, tmp_path):
    stable = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    chat = [{"role": role, "content": "words " * 9} for role in ("user", "assistant", "user", "assistant")]

    def refused(value, template=stable, **how):
        (tmp_path / "t.jinja").write_text(template)
        with pytest.raises(tokens.Refused) as error:
            make(tmp_path / "a.tok", folders["bytes"], lines(tmp_path / "a.jsonl", {"messages": chat}, value), template=tmp_path / "t.jinja", **how)
        return str(error.value)
    assert refused({"messages": chat[:1]}).startswith(f"{tmp_path}/a.jsonl, line 2: no token that is trained: nobody")
    assert "expected messages" in refused({"question": 1})
    for one, more in (("instruction", "history"), ("messages", "chosen"), ("text", "completion"), ("prompt", "system"), ("prompt", "instruction")):
        value = {"messages": chat, "instruction": "a", "output": "b", "prompt": "a", "completion": "b", "text": "a"}
        kept = {one: value[one], **({"output": "b"} if one == "instruction" else {"completion": "b"} if one == "prompt" else {})}
        assert f"has '{more}' beside '{one}'" in refused({**kept, more: "words"})
    for label in (True, False):
        assert "has 'label' true or false" in refused({"prompt": "a", "completion": "b", "label": label})
    assert "a message has a weight" in refused({"messages": [chat[0], {**chat[1], "weight": 0}]})
    (tmp_path / "table.csv").write_text("a,b\n")
    with pytest.raises(tokens.Refused, match="table.csv: expected texts"):
        make(tmp_path / "a.tok", "bytes", tmp_path / "table.csv")
    assert "prefix-stable" in refused({}, stable + "{{ messages | length }}")
    marked = stable.replace("{{ m.content }}", "{% if loop.last and m.role == 'assistant' %}T{% endif %}{{ m.content }}")
    assert "does not begin that of the whole conversation" in refused({}, marked)
    assert "line 2: a turn from 'bing', expected one from human" in refused({"conversations": [{"from": "bing", "value": "x"}]})
    assert "line 2: an empty text" in refused({"text": ""})
    assert "line 2: half of a letter" in refused({"text": "\ud800"})
    (tmp_path / "deep.jsonl").write_text("[" * 100000)
    with pytest.raises(tokens.Refused, match="deep.jsonl, line 1: no JSON"):
        make(tmp_path / "a.tok", "bytes", tmp_path / "deep.jsonl")
    assert "refuses this conversation: no" in refused({}, "{{ raise_exception('no') }}")
    late = {"messages": [{"role": "user", "content": "x " * 400}, chat[1]]}
    assert "line 2: no token that is trained within the first 101" in refused(late, seq_len=100)
    assert "expected at most 11" in refused({}, seq_len=10, longer="refuse")
    assert "the vocabulary has 300" in refused({"messages": chat}, vocab=300)
    data, template = lines(tmp_path / "a.jsonl", {"messages": chat}, {"messages": chat[:2]}), tmp_path / "t.jinja"
    template.write_text(stable)
    whole, _ = make(tmp_path / "a.tok", folders["bytes"], data, template=template)
    length = len(whole.documents[1])  # one more than a sequence holds, as the last is a target only
    made, said = make(tmp_path / "a.tok", folders["bytes"], data, template=template, seq_len=length - 1, longer="skip")
    assert made.documents == whole.documents[1:] and "1 that are longer are left out" in said
    made, _ = make(tmp_path / "a.tok", folders["bytes"], data, template=template, seq_len=length - 1)
    assert made.documents == [whole.documents[0][:length], whole.documents[1]]
    with pytest.raises(tokens.Refused, match="is there and is no token file"):
        make(data, folders["bytes"], data, template=template)


def test_the_header_tells_tokenizer_template_and_options_apart(folders, tmp_path):
    (tmp_path / "a.txt").write_text("one two")
    (tmp_path / "t.jinja").write_text(CHATML)
    first, same, template, length = (make(tmp_path / "a.tok", folders["bytes"], tmp_path / "a.txt", **how)[0].hashes
                                     for how in ({}, {}, {"template": tmp_path / "t.jinja"}, {"seq_len": 9}))
    assert first == same
    assert [one == other for one, other in zip(first, template)] == [True, False, True]
    assert [one == other for one, other in zip(first, length)] == [True, True, False]
    assert make(tmp_path / "a.tok", folders["pieces"], tmp_path / "a.txt")[0].hashes[0] != first[0]


def test_the_readmes_examples_train(tmp_path):
    """Pre-training, and fine-tuning that lowers the loss of chats that are held out."""
    program = os.environ.get("SHARDWRIGHT_PROGRAM")
    if not program or subprocess.run([program, "run", "--help"], capture_output=True, check=False).returncode:
        pytest.skip("SHARDWRIGHT_PROGRAM names no program that trains")
    pytest.importorskip("transformers", reason="transformers is not installed here")
    for name, path in {"shardwright": program, "python3": sys.executable}.items():
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {path} "$@"\n')
        (tmp_path / name).chmod(0o755)
    readme = (ROOT / "exec/train/README.md").read_text()
    script = re.search(r"## A model's own tokens.*?```sh\n(.*?)```", readme, re.S)[1]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TRAINED": str(tmp_path / "t"), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-euc", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]

    def losses(run, key):
        values = [json.loads(line) for line in (tmp_path / "t" / run / "metrics.jsonl").read_text().splitlines()]
        return [value[key] for value in values if key in value and value[key] is not None]
    assert losses("clm", "loss")[-1] < 0.8 * losses("clm", "loss")[0]
    held_out = losses("sft", "eval_loss")
    assert held_out[-1] < 0.9 * held_out[0], held_out
