// SPDX-License-Identifier: Apache-2.0
// The step over time: one lane for each stream, the memory curve below, to one scale. The window is moved with
// buttons, keys, wheel and fingers; "one layer" finds the middle layer's forward or backward pass.
import {gib, seconds} from './format.js';
import {fold, html, legend, picture, room, svg, table, text, ticks} from './svg.js';

const LANE = 38;
const CURVE = 120;

// In this order: the first that fits a span's kind names its colour.
const COLORS = [[/gather/, 'gather'], [/reduce/, 'reduce'], [/attention/, 'attention'], [/cast|copy|send|recv|synchron/, 'copy'],
  [/projection|input_gradient|weight_gradient|product|gemm/, 'product']];

// Slices of a pipeline's stage have no kind; what they are is their category.
const OF_A_STAGE = {forward: 'forward', backward: 'backward', 'input gradient': 'backward', 'weight gradient': 'weights', 'deferred gradient': 'weights',
  bubble: 'bubble', transfer: 'copy', host: 'host', 'nodes vary': 'host', 'gradient reduction': 'reduce', 'parameter gather': 'gather'};

function classOfSpan({cat, args = {}}) {
  if (cat === 'optimizer') return 'optimizer';
  if (!args.kind && OF_A_STAGE[cat]) return OF_A_STAGE[cat];
  const found = COLORS.find(([kind]) => kind.test(args.kind || ''));
  return found ? found[1] : 'memory';
}

const LABELS = {product: 'matrix products', attention: 'attention', memory: 'other kernels', gather: 'gathers',
  reduce: 'reductions', copy: 'copies', optimizer: 'optimizer', host: 'host issues work', forward: 'forward', backward: 'backward',
  weights: 'weight gradients', bubble: 'bubble'};

/** Of a trace of `run`, which holds several steps and ranks: the step of median length, from 0, on the first rank, of a pipeline on that
 *  of each stage. */
export function usualStep({traceEvents}) {
  const firsts = new Map();  // the process shown, by stage
  for (const {ph, name, pid, args} of traceEvents) {
    if (ph !== 'M' || name !== 'process_name') continue;
    const stage = args.stage ?? 0;
    if (!firsts.has(stage) || pid < firsts.get(stage)) firsts.set(stage, pid);
  }
  const shown = new Set(firsts.values());
  const stepOf = ({args}) => (args && args.step) || 0;
  const steps = new Map();
  for (const event of traceEvents) {
    if (event.ph !== 'X') continue;
    const step = steps.get(stepOf(event)) || {number: stepOf(event), begin: Infinity, end: -Infinity};
    steps.set(step.number, step);
    step.begin = Math.min(step.begin, event.ts);
    step.end = Math.max(step.end, event.ts + event.dur);
  }
  const byLength = [...steps.values()].sort((one, other) => one.end - one.begin - (other.end - other.begin));
  if (!byLength.length) throw new Error('it has no slices');
  const usual = byLength[Math.floor((byLength.length - 1) / 2)];
  // The shortest gradient norm is what each rank does in its own; before, it waits for the others.
  const norms = new Map();  // by process, the first one
  for (const event of traceEvents) {
    if (event.ph !== 'X' || stepOf(event) !== usual.number || !event.args || event.args.kind !== 'gradient_norm') continue;
    if (!norms.has(event.pid) || event.args.id < norms.get(event.pid).args.id) norms.set(event.pid, event);
  }
  const shortest = Math.min(...[...norms.values()].map(({dur}) => dur));
  const apart = (event) => {
    if (norms.get(event.pid) !== event || event.dur <= shortest) return [event];
    const waits = event.dur - shortest;
    return [{...event, dur: waits, cat: 'bubble', args: {step: event.args.step}}, {...event, ts: event.ts + waits, dur: shortest}];
  };
  const kept = traceEvents.filter((event) => shown.has(event.pid) && (event.ph === 'M' || (event.ph === 'X' && stepOf(event) === usual.number)));
  return {traceEvents: kept.flatMap(apart).map((event) => (event.ph === 'X' ? {...event, ts: event.ts - usual.begin} : event))};
}

/** Steps under each other share a scale, unless the shortest would vanish beside the longest; then each has its own. */
export function sharedEnd(ends, own) {
  const most = Math.max(...ends);
  return most > 6 * Math.min(...ends) ? own : most;
}

/** {end, lanes: [{name, role, spans}], curves} of a Chrome trace that the program wrote, or of a step as `report` draws it; times in
 *  microseconds. */
export const timelineOf = (trace) => (trace.traceEvents ? timelineOfEvents(trace) : timelineOfDrawn(trace));

/** Spans are [gap to the one before, length, operation, layer] in a row, in nanoseconds (cli/render/drawn_step.h). */
function timelineOfDrawn({end_ns: end, operations, processes, lanes, memory, layer}) {
  const shown = lanes.map(({spans, ...lane}) => {
    const drawn = [];
    let at = 0;
    for (let index = 0; index < spans.length; index += 4) {
      const [gap, length, number, of] = spans.slice(index, index + 4);
      const [cat, kind, name] = operations[number];
      const unit = of < 0 ? '' : `layer${of}`;
      const span = {begin: (at + gap) / 1e3, end: (at + gap + length) / 1e3, name: unit ? `${unit}.${name}` : name, cat, args: {kind, unit}};
      at += gap + length;
      drawn.push({...span, color: lane.role === 'host' ? 'host' : classOfSpan(span)});
    }
    return {...lane, ownName: lane.name, spans: drawn};
  });
  const curves = new Map(Object.entries(memory).map(([name, points]) => [`memory ${name}`, points.map(([time, size]) => [time / 1e3, size])]));
  const windows = Object.fromEntries(Object.entries(layer).map(([pass, window]) => [pass, window.map((time) => time / 1e3)]));
  return {end: end / 1e3, lanes: shown, curves, windows, ...stageLanes(shown, new Map(processes.map((name, index) => [index, name])))};
}

function timelineOfEvents(trace) {
  const lanes = new Map();
  const curves = new Map();
  const processes = new Map();
  let end = 0;
  for (const event of trace.traceEvents) {
    const key = `${event.pid} ${event.tid}`;
    if (event.ph === 'M' && event.name === 'process_name') {
      processes.set(event.pid, event.args.name);
    } else if (event.ph === 'M' && event.name === 'thread_name') {
      lanes.set(key, {name: event.args.name, ownName: event.args.name, role: event.args.role, process: event.pid, spans: []});
    } else if (event.ph === 'X' && lanes.has(key)) {
      const lane = lanes.get(key);
      lane.spans.push({begin: event.ts, end: event.ts + event.dur, name: event.name, cat: event.cat, args: event.args || {},
        color: lane.role === 'host' ? 'host' : classOfSpan(event)});
      end = Math.max(end, event.ts + event.dur);
    } else if (event.ph === 'C' && event.name.startsWith('memory')) {
      if (!curves.has(event.name)) curves.set(event.name, []);
      curves.get(event.name).push([event.ts, event.args.bytes]);
    }
  }
  for (const lane of lanes.values()) lane.spans.sort((one, other) => one.begin - other.begin);
  const shown = [...lanes.values()].filter((lane) => lane.spans.length);
  return {end, lanes: shown, curves, ...stageLanes(shown, processes)};
}

/** Of a pipeline, one process a stage: the lane of what each stage does, named after it. {} for a single process. */
function stageLanes(lanes, processes) {
  const firsts = new Map();
  for (const lane of lanes) {
    const stage = (processes.get(lane.process) || '').replace(/^.*?: /, '').replace(/ of \d+.*/, '');
    const tells = !firsts.has(lane.process) || lane.role === 'stage';
    if (tells) firsts.set(lane.process, lane);
    lane.name = lane.role === 'stage' && stage ? stage : `${stage}: ${lane.name}`;
  }
  if (firsts.size > 1) return {stages: [...firsts.values()]};
  for (const lane of lanes) lane.name = lane.ownName;
  return {};
}

/** The spans of a lane in the window, those too small to be seen drawn as one. */
function laneMarks(lane, row, [from, to], width) {
  const scale = width / (to - from);
  const marks = [];
  let last = null;
  for (const span of lane.spans) {
    if (span.end < from || span.begin > to) continue;
    const x = Math.max(0, (span.begin - from) * scale);
    const right = Math.min(width, (span.end - from) * scale);
    if (last && last.color === span.color && x - last.right < 0.6 && right - x < 2.5) {
      last.right = Math.max(last.right, right);
      last.count += 1;
      continue;
    }
    last = {x, right, color: span.color, span, count: 1};
    marks.push(last);
  }
  const y = row * LANE + 20;
  return marks.map(({x, right, color, span, count}) => {
    const wide = right - x;
    const what = count > 1 ? `${count} of ${LABELS[color]} from ${span.name}` : `${span.name}: ${seconds((span.end - span.begin) * 1e-6)}`;
    const mark = svg('rect', {x, y, width: Math.max(wide - (wide > 3 ? 0.6 : 0), 0.5), height: LANE - 20, class: `f-${color}`}, svg('title', {}, what));
    const name = span.args.kind ? span.args.kind.replaceAll('_', ' ') : span.name;
    return wide > name.length * 6.4 + 8 && count === 1
      ? svg('g', {}, mark, text(x + 4, y + 13, name, {class: 'inside'})) : mark;
  });
}

const stepped = (points, x, y) => points.map(([time, size], index) =>
  (index ? `H${x(time).toFixed(1)}V${y(size).toFixed(1)}` : `M${x(time).toFixed(1)} ${y(size).toFixed(1)}`)).join('');

function curveMarks(timeline, usable, [from, to], width, top) {
  const fullest = (points) => points.reduce((most, [, size]) => Math.max(most, size), 0);
  const most = Math.max(usable || 0, ...[...timeline.curves.values()].map(fullest)) * 1.06;
  const x = (time) => Math.min(width, Math.max(0, ((time - from) / (to - from)) * width));
  const y = (size) => top + CURVE - (size / most) * CURVE;
  const marks = ticks(0, most / 2 ** 30, 4).map((mark) => svg('g', {},
    svg('line', {x1: 0, x2: width, y1: y(mark * 2 ** 30), y2: y(mark * 2 ** 30), class: 'grid'}),
    mark > 0 ? text(2, y(mark * 2 ** 30) - 3, `${mark} GiB`, {class: 'soft'}) : null));
  for (const [name, points] of timeline.curves) {
    const until = [...points, [timeline.end, points[points.length - 1][1]]];
    const path = stepped(until, x, y);
    if (name === 'memory allocated') {
      marks.push(svg('path', {d: `${path}V${top + CURVE}H${x(until[0][0]).toFixed(1)}Z`, class: 'area'}));
    }
    marks.push(svg('path', {d: path, class: name === 'memory allocated' ? 'curve' : 'curve thin'}, svg('title', {}, name)));
  }
  if (usable) {
    marks.push(svg('line', {x1: 0, x2: width, y1: y(usable), y2: y(usable), class: 'limit'}),
      text(width - 2, y(usable) - 4, `${gib(usable)} for the plan`, {class: 'soft', 'text-anchor': 'end'}));
  }
  return marks;
}

function draw(timeline, usable, window, label) {
  const width = room();
  const curve = timeline.curves.size ? CURVE : 0;
  const [from, to] = window;
  const top = timeline.lanes.length * LANE + 30;
  const marks = timeline.lanes.flatMap((lane, row) => [
    svg('rect', {x: 0, y: row * LANE + 20, width, height: LANE - 20, class: 'lane'}),
    text(0, row * LANE + 15, lane.name, {class: 'soft'}), svg('g', {}, ...laneMarks(lane, row, window, width))]);
  const axis = ticks(from, to, Math.max(3, Math.round(width / 160))).map((time) => {
    const x = ((time - from) / (to - from)) * width;
    return svg('g', {}, svg('line', {x1: x, x2: x, y1: 16, y2: top + curve, class: 'grid'}),
      text(x, top + curve + 15, seconds(time * 1e-6, 3), {class: 'soft', 'text-anchor': x < 30 ? 'start' : x > width - 30 ? 'end' : 'middle'}));
  });
  return picture(width, top + curve + 22, label, ...axis, ...marks, ...(timeline.curves.size ? curveMarks(timeline, usable, window, width, top) : []));
}

/** From the first to the last operation of the middle layer in one pass. */
function layerWindow(timeline, pass) {
  if (timeline.windows) return timeline.windows[pass] || null;
  const spans = timeline.lanes.filter((lane) => lane.role !== 'host').flatMap((lane) => lane.spans)
    .filter((span) => span.cat === pass && /^layer\d+$/.test(span.args.unit || '') && !/gather|reduce/.test(span.args.kind));
  const layers = [...new Set(spans.map((span) => span.args.unit))];
  const middle = layers[Math.floor(layers.length / 2)];
  const own = spans.filter((span) => span.args.unit === middle && span.args.micro_step === spans[0].args.micro_step);
  if (!own.length) return null;
  const begin = Math.min(...own.map((span) => span.begin));
  const end = Math.max(...own.map((span) => span.end));
  return [begin - 0.04 * (end - begin), end + 0.04 * (end - begin)];
}

function longest(timeline) {
  return timeline.lanes.filter((lane) => lane.role !== 'host').flatMap((lane) => lane.spans.map((span) => [lane, span]))
    .sort(([, one], [, other]) => (other.end - other.begin) - (one.end - one.begin)).slice(0, 12)
    .map(([lane, span]) => [span.name, lane.name, seconds((span.end - span.begin) * 1e-6), seconds(span.begin * 1e-6)]);
}

// What the user looks at of each trace, so that a picture that is drawn anew for another width shows it again.
const looks = new WeakMap();

/** A section's content: buttons, the picture, its legend and the longest operations as a table. */
export function timelineView(all, {trace, usable, name, common}) {
  const look = looks.get(trace) || {};
  looks.set(trace, look);
  let timeline = all.stages && !look.everyTrack ? {...all, lanes: all.stages} : all;
  const whole = [0, Math.max(common || 0, timeline.end) * 1.0005];
  let window = look.window || whole;
  const frame = html('div', {class: 'frame', tabindex: 0, role: 'group',
    'aria-label': `${name}; arrows move, plus and minus zoom, 0 shows the whole step`});
  const show = (next) => {
    const size = Math.min(whole[1] - whole[0], Math.max(2, next[1] - next[0]));
    const begin = Math.min(Math.max(whole[0], next[0]), whole[1] - size);
    window = [begin, begin + size];
    look.window = size < whole[1] ? window : null;
    const label = `${name}: ${timeline.lanes.map((lane) => lane.name).join(', ')} from ${seconds(window[0] * 1e-6)} to ${seconds(window[1] * 1e-6)}.`;
    frame.replaceChildren(draw(timeline, usable, window, label));
  };
  const zoom = (factor, at = 0.5) => {
    const middle = window[0] + (window[1] - window[0]) * at;
    show([middle - (middle - window[0]) * factor, middle + (window[1] - middle) * factor]);
  };
  const move = (share) => show(window.map((time) => time + share * (window[1] - window[0])));
  steer(frame, {zoom, move, whole: () => show(whole)});
  const button = (label, act) => html('button', {type: 'button', class: 'small', onclick: act}, label);
  const layer = (label, pass) => {
    const found = layerWindow(timeline, pass);
    return found ? button(label, () => show(found)) : null;
  };
  const nameTracks = () => (tracks.textContent = look.everyTrack ? 'Stages only' : 'Every track of every stage');
  const tracks = all.stages ? button('', () => {
    look.everyTrack = !look.everyTrack;
    timeline = look.everyTrack ? all : {...all, lanes: all.stages};
    nameTracks();
    show(window);
  }) : null;
  if (tracks) nameTracks();
  show(window);
  const used = [...new Set(timeline.lanes.flatMap((lane) => lane.spans.map((span) => span.color)))];
  return html('div', {},
    html('p', {class: 'tools'}, button('Whole step', () => show(whole)), layer('A layer forward', 'forward'), layer('A layer backward', 'backward'),
      button('Zoom in', () => zoom(0.5)), button('Zoom out', () => zoom(2)), button('◀ earlier', () => move(-0.4)), button('later ▶', () => move(0.4)), tracks),
    frame, all.curves.size ? html('p', {class: 'note'}, all.curves.has('memory reserved')
      ? 'Below: memory allocated (line) and reserved (dotted). PyTorch counts it when the host asks, which may be long before the kernel runs.'
      : 'Below: memory of what is alive while kernels run.') : null,
    legend(used.map((color) => [color, LABELS[color]])),
    fold('The longest operations', table(['operation', 'stream', 'takes', 'begins at'], longest(timeline), 'The longest operations of the step')));
}

function steer(frame, {zoom, move, whole}) {
  const keys = {ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), '+': () => zoom(0.6), '=': () => zoom(0.6), '-': () => zoom(1.6), 0: whole};
  frame.addEventListener('keydown', (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  const share = (event) => (event.clientX - frame.getBoundingClientRect().left) / frame.clientWidth;
  frame.addEventListener('wheel', (event) => {
    if (!event.ctrlKey) return;  // a plain wheel scrolls the page
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, share(event));
  }, {passive: false});
  let held = null;
  frame.addEventListener('pointerdown', (event) => {
    held = event.clientX;
    frame.setPointerCapture(event.pointerId);
  });
  frame.addEventListener('pointermove', (event) => {
    if (held === null || Math.abs(event.clientX - held) < 3) return;
    move((held - event.clientX) / frame.clientWidth);
    held = event.clientX;
  });
  for (const end of ['pointerup', 'pointercancel']) frame.addEventListener(end, () => (held = null));
}
