# SPDX-License-Identifier: Apache-2.0
"""Turns texts and chats into a token file (exec/train/data/token_file.h) with the model's own tokenizer, which
`shardwright run --data` trains on.

    python3 -m shardwright.tokens OUT.tok --tokenizer FOLDER DATA...

DATA are files, folders and globs of *.txt and *.md (a document each), *.jsonl (a document a line) and *.json (a list of
documents). A document is a text, {"text"}, {"prompt", "completion" or "response"}, {"instruction", "input", "output"}
(Alpaca), {"messages": [{"role", "content"}]} or {"conversations": [{"from", "value"}]} (ShareGPT). Conversations are set in
the tokenizer's chat template; the loss is on what the assistant says: what stands within {% generation %} where the
template has that, else what rendering up to an assistant's turn adds to the rendering before it. What is done is kept in
OUT.tok.parts until all of it is; the same command goes on there. Needs transformers, and never runs code of a model.
"""
from __future__ import annotations

import argparse
import array
import bisect
import codecs
import concurrent.futures
import contextlib
import fcntl
import functools
import glob
import hashlib
import itertools
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import struct
import sys
import zlib
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

MAGIC = b"SHWTOKEN"
FORMAT = 2  # of what a part holds: another number begins anew
UNIT_BYTES = 1 << 20
OVERLAP_BYTES = 4096  # of a window beyond its unit
AGREEING = 16  # tokens on either side of a cut that must be alike in every window
VARIED = 4  # of those before it, how many must differ from each other
BLOCK_TOKENS = 1 << 18
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json")
ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", **{role: role for role in ("user", "assistant", "system", "tool")}}
CONTENT = ("system", "messages", "conversations", "prompt", "instruction", "input", "context", "completion", "response", "output",
           "history", "chosen", "rejected", "text")
Document = Tuple[List[int], Optional[List[int]]]  # ids, and 1 where the loss is on one; None: on all


class Refused(Exception):
    """One sentence for the person who asked."""


class Unsplit(Exception):
    """A text whose windows do not agree about their tokens."""


def files_of(folder: pathlib.Path) -> bytes:
    """What says which tokens a tokenizer has; nothing of one that is in no folder. run hashes the same of a model's folder."""
    files = [folder / name for name in TOKENIZER_FILES]
    return b"".join(b"%s %d\n%s" % (file.name.encode(), file.stat().st_size, file.read_bytes()) for file in files if file.is_file())


class Bytes:
    """The UTF-8 bytes of a text as its tokens."""
    vocab, template, generation, files, kept, eos, specials = 256, "", False, b"bytes", b"bytes", None, frozenset()
    prefix: List[int] = []
    suffix: List[int] = []

    def encode(self, text: str) -> Tuple[List[int], List[Tuple[int, int]]]:
        return list(text.encode()), [(at, at + 1) for at, letter in enumerate(text) for _ in letter.encode()]


class Pretrained:
    """A tokenizer of Transformers, which stands in a folder or has a name that Transformers knows."""

    def __init__(self, options: argparse.Namespace):
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        try:
            import transformers
            own = transformers.AutoTokenizer.from_pretrained(options.tokenizer, trust_remote_code=False)
        except ImportError as error:
            raise Refused(f"{sys.executable} has no transformers ({error}); install transformers and jinja2 there, or begin with a "
                          "Python that has them") from error
        except Exception as error:  # whatever a tokenizer's files make it raise
            raise Refused(f"--tokenizer is '{options.tokenizer}', expected a folder or name with a tokenizer: "
                          f"{(str(error).strip() or repr(error)).splitlines()[0]}") from error
        self.own, self.vocab, self.eos, self.specials = own, len(own), own.eos_token_id, frozenset(own.all_special_ids)
        if options.chat_template:
            own.chat_template = pathlib.Path(options.chat_template).read_text(encoding="utf-8")
        self.template: str = own.get_chat_template() if own.chat_template else ""
        self.generation = bool(re.search(r"\{%-?\s*generation\s*-?%\}", self.template))
        whole, bare = (own("a", add_special_tokens=marks)["input_ids"] for marks in (True, False))
        at = next((at for at in range(len(whole)) if whole[at:at + len(bare)] == bare), 0)
        self.prefix, self.suffix = whole[:at], whole[at + len(bare):]
        if self.eos is not None and self.eos not in self.suffix:
            self.suffix = self.suffix + [self.eos]
        self.files = files_of(pathlib.Path(options.tokenizer))
        self.kept = self.files or json.dumps(sorted(own.get_vocab().items())).encode()

    def encode(self, text: str) -> Tuple[List[int], Optional[List[Tuple[int, int]]]]:
        text.encode()  # tokenizers say less of half a letter
        done = self.own(text, add_special_tokens=False, return_offsets_mapping=self.own.is_fast)
        return done["input_ids"], done.get("offset_mapping")

    def render(self, messages: List[dict], more: dict, prompt: bool = False) -> str:
        return self.own.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt, **more)

    def generated(self, messages: List[dict], more: dict) -> Document:
        done = self.own.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **more)
        return list(done["input_ids"]), list(done["assistant_masks"])


class Converter:
    """One document after the other, as tokens."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.by: Any = Bytes() if options.tokenizer == "bytes" else Pretrained(options)
        self.vocab = options.vocab or self.by.vocab

    def whole(self, ids: List[int], mask: Optional[List[int]] = None, end: bool = True) -> Document:
        """With what begins and ends a document, each once."""
        prefix, suffix = self.by.prefix, self.by.suffix if end else []
        while prefix and ids[:2 * len(prefix)] == prefix * 2:
            ids, mask = ids[len(prefix):], mask and mask[len(prefix):]
        before = [] if ids[:len(prefix)] == prefix else prefix
        after = [] if not suffix or ids[-len(suffix):] == suffix else suffix
        return before + ids + after, mask if mask is None else [0] * len(before) + mask + [1] * len(after)

    def trained(self, text: str, spans: Sequence[Tuple[int, int]]) -> Document:
        """The tokens of a text; the loss is on those that end in a span."""
        ids, places = self.by.encode(text)
        if places is None:
            raise Refused("the tokenizer tells no places of its tokens in the text, expected a fast one (tokenizer.json)")
        borders = list(itertools.chain(*spans))
        return ids, [bisect.bisect_right(borders, max(begin, end - 1)) % 2 for begin, end in places]

    def chat(self, messages: Any, more: dict, first: int = 0) -> Document:
        """`first`: the message from which on the assistant's turns are trained."""
        if not isinstance(messages, list) or not all(isinstance(one, dict) and "role" in one for one in messages):
            raise Refused("messages must be a list of objects with role and content")
        if any(one.get("weight", 1) != 1 for one in messages):
            raise Refused("a message has a weight of its own, expected 1: the loss is on all that the assistant says")
        if not self.by.template:
            raise Refused("the tokenizer has no chat template to set a conversation in; give one with --chat-template FILE")
        try:
            if self.by.generation:
                ids, mask = self.by.generated(messages, more)
                before = len(self.by.encode(self.by.render(messages[:first], more))[0]) if first else 0
                mask = [0] * before + mask[before:]
            else:
                ids, mask = self.trained(*self.suffixes(messages, first, more))
        except Refused:
            raise
        except Exception as error:  # templates raise what they like
            raise Refused(f"the chat template refuses this conversation: {error}") from error
        spoken = max((at for at in range(1, len(ids)) if mask[at] > mask[at - 1]), default=0)
        ended = self.by.specials.intersection(ids[max(spoken + 1, len(ids) - 3):])  # by the template's own mark, and a line end
        return self.whole(ids, mask, end=not ended and messages[-1:] != [] and messages[-1]["role"] == "assistant")

    def suffixes(self, messages: List[dict], first: int, more: dict) -> Tuple[str, List[Tuple[int, int]]]:
        """The rendering, and which parts of it the assistant's turns have added."""
        text, spans = self.by.render(messages, more), []
        for turn in (at for at, one in enumerate(messages) if one["role"] == "assistant" and at >= first):
            upto = self.by.render(messages[:turn + 1], more)
            earlier = (self.by.render(messages[:turn], more, prompt) for prompt in (True, False)) if turn else self.opening(upto, more)
            before = next((one for one in earlier if upto.startswith(one)), None)
            if before is None or not text.startswith(upto):
                raise Refused(f"the chat template is not prefix-stable: the rendering up to turn {turn + 1}, the assistant's, does not "
                              f"{'extend the rendering before it' if before is None else 'begin that of the whole conversation'}; expected "
                              "a template with {% generation %} around what the assistant says (--chat-template FILE)")
            spans.append((len(before), len(upto)))
        return text, spans

    def opening(self, upto: str, more: dict) -> List[str]:
        """What stands before the words of an assistant who speaks first: with the mark that asks for an answer elsewhere."""
        probe = [{"role": "user", "content": "?"}]
        asked, bare = (self.by.render(probe, more, prompt) for prompt in (True, False))
        mark = asked[len(bare):] if asked.startswith(bare) else ""
        return [upto[:upto.index(mark) + len(mark)]] if mark and mark in upto else [""]

    @staticmethod
    def role(name: Any) -> str:
        """Of a turn of ShareGPT."""
        if not isinstance(name, str) or name not in ROLES:
            raise Refused(f"a turn from {name!r}, expected one from {', '.join(ROLES)}")
        return ROLES[name]

    def of(self, value: Any) -> Document:
        value = {"text": value} if isinstance(value, str) else value
        if not isinstance(value, dict):
            raise Refused("expected an object or a text")
        value = {key: one for key, one in value.items() if one is not None}
        more = {"tools": value["tools"]} if value.get("tools") else {}
        system = [{"role": "system", "content": value["system"]}] if value.get("system") else []

        def alone(*used: str) -> None:
            """Nothing that says something is left out."""
            for key in CONTENT:
                if value.get(key) and key not in used:
                    raise Refused(f"has '{key}' beside '{used[0]}', which says nothing of it; expected a document without it")

        if isinstance(value.get("label"), bool):
            raise Refused("has 'label' true or false, as answers to prefer and to avoid have; expected answers to imitate, without it")
        if "messages" in value:
            alone("messages", "system")
            return self.chat(system + value["messages"] if system and isinstance(value["messages"], list) else value["messages"], more)
        if isinstance(value.get("conversations"), list):
            alone("conversations", "system")
            return self.chat(system + [{"role": self.role(one["from"]), "content": one.get("value"), **{key: one[key] for key in ("weight",) if key in one}}
                                       if isinstance(one, dict) and "from" in one else one for one in value["conversations"]], more)
        key = next((key for key in ("completion", "response", "output") if key in value), "")
        answer, asked = value.get(key), value.get("prompt")
        if asked is None and "instruction" in value:
            alone("instruction", "input", "context", "system", key)
            asked = "\n\n".join(str(value[part]) for part in ("instruction", "input", "context") if value.get(part))
            if self.by.template and answer is not None:
                asked, answer = system + [{"role": "user", "content": asked}], [{"role": "assistant", "content": answer}]
            else:
                asked = "\n\n".join([*(one["content"] for one in system), asked, ""])
        elif isinstance(asked, list):
            alone("prompt", "system", key)
            asked = system + asked
        elif asked is not None:
            alone("prompt", key)
        if isinstance(asked, list) and isinstance(answer, list):
            return self.chat(asked + answer, more, len(asked))
        if isinstance(asked, str) and isinstance(answer, str):
            return self.whole(*self.trained(asked + answer, [(len(asked), len(asked) + len(answer))]))
        if asked is None and isinstance(value.get("text"), str):
            alone("text")
            if not value["text"]:
                raise Refused("an empty text")
            return self.whole(self.by.encode(value["text"])[0])
        raise Refused(f"has the keys {', '.join(sorted(map(str, value)))}, expected messages, conversations, prompt and completion (both "
                      "texts or both messages), instruction and output, or text")

    def fitted(self, value: Any) -> Optional[Document]:
        """The document as the options want what is longer than a sequence; None: without it."""
        ids, mask = self.of(value)
        most = self.options.seq_len + 1 if self.options.seq_len and mask is not None else len(ids)
        if len(ids) > most and self.options.longer == "skip":
            return None
        if len(ids) > most and self.options.longer == "refuse":
            raise Refused(f"{len(ids)} tokens, expected at most {most}; --longer cut or skip takes it")
        if not ids or mask is not None and not any(mask[1:most]):
            raise Refused(f"no token that is trained within the first {most}; --longer skip leaves it out" if len(ids) > most else
                          "no token that is trained: nobody says anything that counts")
        return ids[:most], mask and mask[:most]


class Unit(NamedTuple):
    """What a process converts at a time: bytes of a text or of lines, or a whole list."""
    kind: str
    path: str
    begin: int
    end: int
    size: int  # of the file


class Part(NamedTuple):
    """What became of a unit."""
    ids: array.array
    mask: Optional[bytes] = None  # a byte a token
    lengths: Sequence[int] = ()  # of documents, negative where the loss is on all of it; none of a text
    left_out: int = 0

    def write(self, path: pathlib.Path) -> None:
        head = json.dumps([len(self.ids), self.mask is not None, self.lengths, self.left_out])
        write_whole(path, [head.encode() + b"\n", self.ids.tobytes(), self.mask or b""])

    @staticmethod
    def read(path: pathlib.Path) -> Part:
        with open(path, "rb") as file:
            count, masked, lengths, left_out = json.loads(file.readline())
            ids = array.array("I", file.read(array.array("I").itemsize * count))
            return Part(ids, file.read() if masked else None, lengths, left_out)


def write_whole(path: pathlib.Path, pieces: "Iterator[bytes] | List[bytes]") -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class Window:
    """A piece of a text, a little more than from `begin` to `end`, as tokens."""

    def __init__(self, by: Any, unit: Unit, begin: int, end: int):
        self.low, high = max(0, begin - OVERLAP_BYTES), min(unit.size, end + OVERLAP_BYTES)
        with open(unit.path, "rb") as file:
            file.seek(self.low)
            self.data = file.read(high - self.low)
        if self.low == 0 and self.data.startswith(codecs.BOM_UTF8):
            self.low, self.data = 3, self.data[3:]
        elif self.low > 0:  # perhaps in the middle of a letter
            first = next((at for at, byte in enumerate(self.data[:4]) if byte & 0xC0 != 0x80), 0)
            self.low, self.data = self.low + first, self.data[first:]
        try:
            self.text = codecs.getincrementaldecoder("utf-8")().decode(self.data, final=high == unit.size)
        except UnicodeDecodeError as error:
            raise Refused(f"{unit.path}: no UTF-8 at byte {self.low + error.start}, expected a text") from None
        self.ids, places = by.encode(self.text)
        self.starts = [begin for begin, _ in places or []]

    def index_near(self, byte: int) -> int:
        """The first token that begins there or behind."""
        return bisect.bisect_left(self.starts, len(self.data[:byte - self.low].decode(errors="ignore")))

    def cut(self, near: int) -> Tuple[int, List[int]]:
        """Where in the file a token begins, and those around it."""
        at = self.index_near(near)
        # Within letters, and in what repeats itself, windows agree on what one pass may divide otherwise.
        while AGREEING <= at < len(self.starts) - AGREEING and (self.starts[at] == self.starts[at - 1] or
                                                                len(set(self.ids[at - AGREEING:at])) < VARIED):
            at += 1
        if not AGREEING <= at < len(self.starts) - AGREEING:
            raise Unsplit
        return self.low + len(self.text[:self.starts[at]].encode()), self.ids[at - AGREEING:at + AGREEING]

    def index_of(self, cut: Tuple[int, List[int]]) -> int:
        at = self.index_near(cut[0])
        if at < AGREEING or self.ids[at - AGREEING:at + AGREEING] != cut[1]:
            raise Unsplit
        return at


def convert_text(by: Any, unit: Unit) -> Part:
    """The tokens that one pass over the text gives from near the begin of the unit to near its end. Both ends are where a
    token begins in a short window around them, in which the unit beside this one finds it, too."""
    borders = unit.begin, unit.end
    cuts = [Window(by, unit, border, border).cut(border) if 0 < border < unit.size else None for border in borders]
    window = Window(by, unit, *(cut[0] if cut else border for cut, border in zip(cuts, borders)))
    begin, end = (window.index_of(cut) if cut else None for cut in cuts)
    return Part(array.array("I", window.ids[begin:end]))


def documents_of(unit: Unit) -> Iterator[Tuple[Any, Callable[[], str]]]:
    """Values, and how each is named."""
    def name(begin: int) -> str:
        with open(unit.path, "rb") as before:
            return f"{unit.path}, line {before.read(begin).count(10) + 1}"
    with open(unit.path, "rb") as file:
        begin = 0
        try:
            if unit.kind == "list":
                values = json.load(file)
                if not isinstance(values, list):
                    raise Refused(f"{unit.path}: expected a list of documents; one a line is a .jsonl")
                yield from ((value, functools.partial("{}, entry {}".format, unit.path, at)) for at, value in enumerate(values, 1))
                return
            file.seek(max(0, unit.begin - 1))
            begin = file.tell() + len(file.readline() if unit.begin > 0 else b"")
            while begin < unit.end and (line := file.readline()):
                if line.strip():
                    yield json.loads(line), functools.partial(name, begin)
                begin += len(line)
        except (ValueError, RecursionError) as error:
            raise Refused(f"{name(begin)}: no JSON: {error}") from None


def convert(converter: Converter, unit: Unit) -> Part:
    ids, mask, lengths, left_out = array.array("I"), bytearray(), [], 0
    for value, name in documents_of(unit) if unit.kind != "text" else ():
        try:
            document = converter.fitted(value)
        except Refused as error:
            raise Refused(f"{name()}: {error}") from None
        except UnicodeError as error:
            raise Refused(f"{name()}: half of a letter (a lone surrogate), expected a text: {error}") from None
        if document is None:
            left_out += 1
            continue
        ids.extend(document[0])
        mask.extend(document[1] or b"\1" * len(document[0]))
        lengths.append(len(document[0]) * (1 if document[1] else -1))
    masked = any(length > 0 for length in lengths)
    part = convert_text(converter.by, unit) if unit.kind == "text" else Part(ids, bytes(mask) if masked else None, lengths, left_out)
    if part.ids and max(part.ids) >= converter.vocab:
        raise Refused(f"{unit.path}: the tokenizer gives the token {max(part.ids)}, but the vocabulary has {converter.vocab}; "
                      "expected the tokenizer of the model")
    return part


def units_of(words: List[str], undivided: Set[str]) -> List[Unit]:
    """Of files, folders and globs."""
    kinds = {".txt": "text", ".md": "text", ".jsonl": "lines", ".ndjson": "lines", ".json": "list"}
    units: List[Unit] = []
    for word in words:
        path = pathlib.Path(word)
        found = [path] if path.is_file() else [pathlib.Path(one) for one in sorted(glob.glob(word)) if os.path.isfile(one)]
        if path.is_dir():
            found = sorted(one for one in path.rglob("*") if one.suffix.lower() in kinds and one.is_file() and not one.name.startswith("."))
        if not found:
            raise Refused(f"{word}: no such file, and no folder with any *{', *'.join(kinds)}")
        for file in found:
            kind, size = kinds.get(file.suffix.lower(), "text"), file.stat().st_size
            if file.suffix.lower() in (".csv", ".tsv", ".xml", ".html", ".yaml", ".yml", ".parquet", ".arrow", ".gz", ".zst", ".xz", ".bz2", ".zip"):
                raise Refused(f"{file}: expected texts (*.txt, *.md, or any other ending), *.jsonl or *.json; convert it first")
            if size == 0:
                raise Refused(f"{file}: is empty, expected a document")
            step = size if kind == "list" or str(file) in undivided else UNIT_BYTES
            units += [Unit(kind, str(file), begin, min(begin + step, size), size) for begin in range(0, size, step)]
    return units


def pieces_of(unit: Unit, part: Part, by: Any) -> Iterator[Tuple[array.array, Optional[bytes], Optional[bool]]]:
    """Tokens, what of them is trained, and whether a document ends with them: False; True where what a sequence does not hold
    is in the next; None: it goes on. Marks of an end divide a text into documents."""
    begin = 0
    for length in part.lengths:
        end = begin + abs(length)
        yield part.ids[begin:end], part.mask and part.mask[begin:end], length < 0
        begin = end
    if unit.kind != "text":
        return
    prefix = array.array("I", by.prefix)
    if unit.begin == 0 and part.ids[:len(prefix)] != prefix:
        yield prefix, None, None
    for end in [at + 1 for at, token in enumerate(part.ids) if token == by.eos]:
        yield part.ids[begin:end], None, True
        begin = end
    yield part.ids[begin:], None, None
    if unit.end == unit.size and (begin < len(part.ids) or not part.ids or by.eos is None):
        yield array.array("I", by.suffix), None, True


def assemble(out: pathlib.Path, folder: pathlib.Path, units: List[Unit], converter: Converter, paths: List[pathlib.Path]) -> str:
    masked = any(Part.read(path).mask is not None for unit, path in zip(units, paths) if unit.kind != "text")
    vocab, width = converter.vocab, 1 if converter.vocab <= 256 else 2 if converter.vocab <= 65536 else 4
    ends, ones, count, trained, left_out = array.array("Q"), bytearray(), 0, bytearray(), 0
    with open(folder / "tokens", "w+b") as tokens:
        for unit, path in zip(units, paths):
            part = Part.read(path)
            left_out += part.left_out
            for ids, mask, ended in pieces_of(unit, part, converter.by):
                array.array({1: "B", 2: "H", 4: "I"}[width], ids).tofile(tokens)
                count += len(ids)
                ones += (mask or b"\1" * len(ids)) if masked else b""
                if ended is not None:
                    ends.append(count | ended << 63)
        if not ends:
            raise Refused("the data hold no document" + (f" of at most {converter.options.seq_len} tokens" if left_out else ""))
        tokens.seek(0)
        blocks = b"".join(struct.pack("<I", zlib.crc32(block)) for block in iter(lambda: tokens.read(BLOCK_TOKENS * width), b""))
        for begin in range(0, len(ones), 1 << 16):  # a bit a token, the first one the lowest
            digits = ones[begin:begin + (1 << 16)].translate(b"01" + bytes(254))
            trained += int(digits[::-1], 2).to_bytes((len(digits) + 7) // 8, "little")
        tables = ends.tobytes() + bytes(trained)
        by, options = converter.by, [FORMAT, converter.options.seq_len, converter.options.longer, converter.by.prefix, converter.by.suffix]
        hashes = [hashlib.sha256(text).digest() for text in (by.files, by.template.encode(), json.dumps(options).encode())]
        hashes[0] = hashes[0] if by.files else bytes(32)
        head = struct.pack("<8sIIQQQI", MAGIC, 2, width, vocab, count, BLOCK_TOKENS, zlib.crc32(blocks))
        more = struct.pack("<QII32s32s32s", len(ends), masked, zlib.crc32(tables), *hashes)
        heads = head + struct.pack("<I", zlib.crc32(head)) + more + struct.pack("<II", zlib.crc32(more), 0)
        tokens.seek(0)
        write_whole(out, itertools.chain([heads, tables, blocks], iter(lambda: tokens.read(1 << 20), b"")))
    return (f"{out}: {len(ends)} documents, {count} tokens of a vocabulary of {vocab}" + (f", {sum(ones)} of them trained" if masked else "")
            + (f"; {left_out} that are longer are left out" if left_out else ""))


_converter: Optional[Converter] = None  # of a process


def _begin(options: argparse.Namespace) -> Converter:
    global _converter
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes are enough
    _converter = Converter(options)
    return _converter


def _work(unit: Unit, path: pathlib.Path) -> bool:
    assert _converter is not None
    try:
        convert(_converter, unit).write(path)
    except Unsplit:
        return False
    return True


def convert_all(units: List[Unit], parts: List[pathlib.Path], options: argparse.Namespace) -> Set[str]:
    """Writes the parts that are missing; the texts that cannot be divided."""
    todo, undivided = [one for one in zip(units, parts) if not one[1].exists()], set()
    processes, apply = min(options.processes, len(todo)), map
    with contextlib.ExitStack() as at_end:
        if processes > 1:
            spawn = multiprocessing.get_context("spawn")
            apply = at_end.enter_context(concurrent.futures.ProcessPoolExecutor(processes, spawn, _begin, (options,))).map
        bar = None
        if options.tokenizer != "bytes":  # which need no package
            import tqdm
            sizes = [sum(unit.end - unit.begin for unit in some) for some in (units, [unit for unit, _ in todo])]
            bar = at_end.enter_context(tqdm.tqdm(total=sizes[0], initial=sizes[0] - sizes[1], unit="B", unit_scale=True, desc="tokens",
                                                 mininterval=0.1 if sys.stderr.isatty() else 10))
        for (unit, _), done in zip(todo, apply(_work, [unit for unit, _ in todo], [path for _, path in todo])):
            undivided |= set() if done else {unit.path}
            if bar is not None:
                bar.update(unit.end - unit.begin)
    return undivided


def is_token_file(path: pathlib.Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def run(options: argparse.Namespace) -> str:
    """Writes options.out; says what is in it."""
    out, undivided = options.out, set()
    if out.is_file() and not is_token_file(out):
        raise Refused(f"{out}: is there and is no token file; what is written comes first, what is read behind it")
    converter = _begin(options)
    folder = out.with_name(out.name + ".parts")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused(f"{folder}: another process writes it; wait for it, or end it") from None
        while True:
            units = units_of(options.data, undivided)
            times = [os.stat(path).st_mtime_ns for path in sorted({unit.path for unit in units})]
            key = json.dumps([FORMAT, hashlib.sha256(converter.by.kept).hexdigest(), converter.by.template, options.seq_len, options.longer,
                              converter.vocab, units, times]).encode()
            kept = folder / "of.json"
            if not kept.exists() or kept.read_bytes() != key:
                for old in folder.glob("[0-9]*"):
                    old.unlink()
                write_whole(kept, [key])
            parts = [folder / f"{at:07}" for at in range(len(units))]
            undivided |= (failed := convert_all(units, parts, options))
            if not failed:
                break
        said = assemble(out, folder, units, converter, parts)
        shutil.rmtree(folder)
    return said


def at_least(least: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"is '{text}', expected a whole number from {least} on")
        return int(text)
    return count


def main(words: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="shardwright.tokens", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("out", type=pathlib.Path, metavar="OUT.tok")
    add("data", nargs="+", metavar="DATA", help="a file, a folder or a glob")
    add("--tokenizer", required=True, help="a folder, a name that transformers knows, or bytes")
    add("--chat-template", default="", metavar="FILE", help="instead of the tokenizer's own")
    add("--seq-len", type=at_least(0), default=0, metavar="S", help="tokens of a sequence; 0: documents of any length")
    add("--longer", choices=("cut", "skip", "refuse"), default="cut", help="what becomes of a conversation beyond --seq-len")
    add("--vocab", type=at_least(0), default=0, metavar="N", help="of the model (default: the tokenizer's)")
    add("--processes", type=at_least(1), default=len(os.sched_getaffinity(0)), metavar="N", help="default: one a core")
    options = parser.parse_args(words)
    try:
        print(run(options))
    except (Refused, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on from {options.out}.parts", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    # A script's own folder comes first, and this one has a torch.py.
    if os.path.realpath(sys.path[0] or ".") == os.path.dirname(os.path.realpath(__file__)):
        del sys.path[0]
    sys.exit(main())
