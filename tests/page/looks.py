# SPDX-License-Identifier: Apache-2.0
"""What pictures of the page look like, coarsely, and whether they still do (looks.json).

Each block of the page (a section, the inputs) has a place, a height, how much of it has a colour, and how bright it is in
12 x 8 cells. Another font or a bar of another length changes little of that; a block that is gone, squeezed or empty,
bars without their colours, or paper that stays white in the dark change much.
"""
import json
import pathlib

from PIL import Image, ImageChops

FILE = pathlib.Path(__file__).with_name("looks.json")
CELLS = (12, 8)
LEVELS = 16  # of brightness
SIDEWAYS = 0.03  # of the width of the window
TALLER, SHORTER = 1.35, 0.7
BRIGHTER = 1.5  # levels, on average over the cells of a block
COLOR = 40  # between the brightest and the darkest of red, green and blue: no shade of grey
MORE_COLORED, LESS_COLORED, UNSEEN = 1.7, 0.6, 8  # of the block's per mille; what so few are nobody sees
BLOCKS = """
  const named = [['header', 'header'], ['inputs', '#inputs'], ['headline', '#headline'], ['footer', 'footer']];
  const blocks = named.map(([name, where]) => [name, document.querySelector(where)]);
  for (const one of document.querySelectorAll('#answers section')) blocks.push([one.id || one.querySelector('h2').textContent, one]);
  return blocks.filter(([, one]) => one && one.offsetParent && one.getBoundingClientRect().height > 0).map(([name, one]) => {
    const at = one.getBoundingClientRect();
    return [name, at.left + scrollX, at.top + scrollY, at.width, at.height];
  });
"""
# Rules of style each of which breaks what a reader sees: differences() must tell every one.
BROKEN = {"the columns stand below each other": "main { display: block !important }", "the pictures are gone": "svg { display: none !important }",
          "the inputs are squeezed": "#inputs { width: 120px !important }", "the sections lie upon each other": "#why { margin-top: -400px !important; height: 90px; overflow: hidden }",
          "bars have no colour": "svg * { fill: none !important; stroke: none !important } .bar, .bar * { background: none !important }",
          "paper stays white in the dark": ":root { --paper: #fff !important; --card: #fff !important; --ink: #111 !important }"}


def look(page, path):
    """{block: [left, width, height, per mille that have a colour, cells]} of the picture of the whole page as it stands."""
    with Image.open(path) as picture:
        whole = picture.convert("RGB")
    result = {}
    for name, left, top, width, height in page.js(BLOCKS):
        block = whole.crop((round(left), round(top), round(left + width), round(top + height)))
        red, green, blue = block.split()
        spread = ImageChops.subtract(ImageChops.lighter(ImageChops.lighter(red, green), blue),
                                     ImageChops.darker(ImageChops.darker(red, green), blue))
        colored = sum(spread.histogram()[COLOR:]) * 1000 // (block.width * block.height)
        shades = "".join(f"{shade * LEVELS // 256:x}" for shade in block.convert("L").resize(CELLS, Image.Resampling.BOX).tobytes())
        result[name] = [round(left), round(width), round(height), colored, shades]
    return result


def differences(known, seen):
    """What somebody would see at a glance, one clause for each block."""
    window = max(left + width for left, width, *_ in known.values())
    found = [f"{name} is gone" for name in known if name not in seen] + [f"{name} is new" for name in seen if name not in known]
    if not found and list(known) != list(seen):
        found.append(f"the blocks are in the order {', '.join(seen)}")
    for name in known.keys() & seen.keys():
        left, width, height, colored, cells = known[name]
        now_left, now_width, now_height, now_colored, now_cells = seen[name]
        if max(abs(left - now_left), abs(width - now_width)) > SIDEWAYS * window:
            found.append(f"{name} is at {now_left}, {now_width} wide, not at {left}, {width} wide")
        if not SHORTER * height < now_height < TALLER * height:
            found.append(f"{name} is {now_height} high, not {height}")
        if not LESS_COLORED * colored - UNSEEN < now_colored < MORE_COLORED * colored + UNSEEN:
            found.append(f"{now_colored} per mille of {name} have a colour, not {colored}")
        off = sum(abs(int(a, 16) - int(b, 16)) for a, b in zip(cells, now_cells)) / len(cells)
        if off > BRIGHTER:
            found.append(f"{name} differs by {off:.1f} of {LEVELS} levels of brightness")
    return found


def all_known():
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def remember(name, seen):
    known = all_known()
    known[name] = seen
    pictures = [f"{json.dumps(name)}: {{\n" + ",\n".join(f"  {json.dumps(block)}: {json.dumps(looks)}" for block, looks in known[name].items()) + "\n}"
                for name in sorted(known)]
    FILE.write_text("{\n" + ",\n".join(pictures) + "\n}\n")
