# SPDX-License-Identifier: Apache-2.0
"""What a memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot) comes to.

  python3 -I -S -c SCRIPT <FILE     prints an object of JSON: what lay allocated and reserved, and which code held the peak

A pickle is a program, which may name any function of Python's. Here it may name none: what is made is numbers, texts,
lists, tuples and dictionaries. Its lists may share what they hold, so that few bytes can name very many blocks: what is
looked at and the memory of this process are bounded by the file's bytes. Ends with 3 and a sentence for other files.
"""
import json
import os
import pickle
import resource
import sys

SITES, MOST_LOOKS, LONGEST_NAME, MOST_LIVE, MOST_BYTES = 8, 1 << 25, 512, 1 << 22, 1 << 50
# What a snapshot names takes more bytes than it is looked at: events twice, a stack once.
LOOKS_A_BYTE, LOOKS_OF_ANY_FILE = 2, 4096
MEMORY_A_BYTE, MEMORY_OF_ANY_FILE, MOST_MEMORY = 100, 1 << 30, 32 << 30


class Refused(Exception):
    pass


class Data(pickle.Unpickler):
    def find_class(self, module, name):
        raise Refused(f"the pickle names {ascii(f'{module}.{name}'[:80])}, which is not data, and is not run")


def load(file):
    try:
        return Data(file).load()
    except Refused as error:
        what = str(error)
    except MemoryError:
        what = "the pickle ends too early or holds too many objects"
    except EOFError:
        what = "the pickle ends too early"
    except Exception as error:  # which is its way to say that a pickle is none
        early = "truncated" in str(error) or "exhausted" in str(error)
        what = "the pickle ends too early" if early else f"the pickle is damaged: {ascii(str(error)[:200])[1:-1]}"
    raise Refused(f"{what}, expected a snapshot of torch.cuda.memory")


def member(of, key):
    return of.get(key) if isinstance(of, dict) else None


def items(of, key):
    """A list's or a tuple's; None where there is none."""
    value = member(of, key)
    return value if isinstance(value, (list, tuple)) else None


def text(of, key):
    value = member(of, key)
    return value if isinstance(value, str) else ""


def number(of, key):
    value = member(of, key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    # No address and no size has more than 64 bits.
    return max(-1 << 63, min(int(value), (1 << 63) - 1)) if isinstance(value, int) else 0


def size_in(of, key):
    size = number(of, key)
    if not 0 <= size <= MOST_BYTES:
        raise Refused(f"{key} is {size}, expected 0 to {MOST_BYTES} bytes")
    return size


def added(total, more):
    if abs(total + more) > MOST_BYTES:
        raise Refused(f"its sizes add up to more than {MOST_BYTES} bytes")
    return total + more


def hold(live, address, size, where):
    live[address] = size, where
    if len(live) > MOST_LIVE:
        raise Refused(f"more than {MOST_LIVE} blocks are live")


def largest_of(live):
    by_site = {}
    for size, where in live.values():
        by_site[where] = by_site.get(where, 0) + size
    return sorted(by_site.items(), key=lambda site: (-site[1], site[0]))[:SITES]


class Reader:
    def __init__(self, file_bytes):
        self.looks, self.most = 0, min(MOST_LOOKS, LOOKS_OF_ANY_FILE + LOOKS_A_BYTE * file_bytes)
        self.sites = {}  # by list of frames, which those of one place share

    def look(self):
        """Before each segment, block, event and frame."""
        self.looks += 1
        if self.looks > self.most:
            raise Refused(f"names more than {self.most} segments, blocks, events and frames")

    def site_of(self, event):
        frames = items(event, "frames")
        if id(frames) not in self.sites:
            self.sites[id(frames)] = self.first_site(frames or []) or "not recorded"
        return self.sites[id(frames)]

    def first_site(self, frames):
        """The first frame in Python that is not PyTorch's own."""
        first = ""
        for frame in frames:
            self.look()
            file = text(frame, "filename")[-LONGEST_NAME:]
            if not file.endswith(".py"):
                continue
            where = f"{file.rpartition('/')[2]}:{number(frame, 'line')} {text(frame, 'name')[:LONGEST_NAME]}"
            if "/torch/" not in file:
                return where
            first = first or where
        return first

    def read(self, root):
        segments = items(root, "segments")
        if segments is None:
            raise Refused("has no segments, expected what torch.cuda.memory._dump_snapshot writes")
        by_device = {0: 0}
        for segment in segments:
            self.look()
            at = number(segment, "device")
            by_device[at] = added(by_device.get(at, 0), size_in(segment, "total_size"))
        device = min(by_device, key=lambda one: (-by_device[one], one != 0, one))  # that holds most
        allocated, live, expandable = 0, {}, False
        for segment in segments:
            if number(segment, "device") != device:
                continue
            expandable = expandable or number(segment, "is_expandable") != 0
            address = number(segment, "address")
            for block in items(segment, "blocks") or []:
                self.look()
                size = size_in(block, "size")
                # Older releases give blocks no address of their own.
                address = number(block, "address") if member(block, "address") is not None else address
                if text(block, "state") == "active_allocated":
                    allocated = added(allocated, size)
                    hold(live, address, size, self.site_of(block))
                address += size
        seen = {"reserved": by_device[device], "allocated": allocated, "peak_allocated": allocated,
                "expandable": expandable, "largest": largest_of(live)}
        traces = items(root, "device_traces") or []
        if 0 <= device < len(traces) and isinstance(traces[device], (list, tuple)):
            self.walk_back(traces[device], live, seen)
        return seen

    def walk_back(self, trace, live, seen):
        """The recorded events, from what is live at the end: before an allocation it was not there, before a free it
        was. Once for where the peak is, once to stop there: blocks are not copied at every new peak."""
        peak, peak_at = seen["allocated"], len(trace)
        for finds in (True, False):
            now, blocks = seen["allocated"], dict(live)
            for at in range(len(trace) - 1, -1 if finds else peak_at - 1, -1):
                self.look()
                event = trace[at]
                action, address, asked = text(event, "action"), number(event, "addr"), size_in(event, "size")
                size = -(-asked // 512) * 512  # what the allocator counts for it
                if action == "alloc":
                    now = added(now, -size)
                    blocks.pop(address, None)
                elif action in ("free_requested", "free"):
                    now = added(now, size)
                    if not finds:
                        hold(blocks, address, size, self.site_of(event))
                elif action == "oom" and finds and "refused" not in seen:
                    seen.update(refused=asked, free=size_in(event, "device_free"))
                if finds and now > peak:
                    peak, peak_at = now, at
            seen["largest"] = largest_of(blocks)
        seen["peak_allocated"] = peak


size = os.fstat(0).st_size
most_memory = min(MOST_MEMORY, MEMORY_OF_ANY_FILE + MEMORY_A_BYTE * size)
resource.setrlimit(resource.RLIMIT_AS, (most_memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
try:
    code, said = 0, json.dumps(Reader(size).read(load(sys.stdin.buffer)), ensure_ascii=False)
except (Refused, MemoryError) as error:
    code, said = 3, str(error) or "holds too many objects"
sys.stdout.buffer.write(said.encode("utf-8", "replace"))
sys.stdout.flush()
os._exit(code)  # without taking deep trees apart
