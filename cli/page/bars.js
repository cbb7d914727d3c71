// SPDX-License-Identifier: Apache-2.0
// Bars: where the memory of a GPU goes, where the time of a step goes, what one change would buy.
import {gib, percent, seconds, signedPercent, words} from './format.js';
import {html, legend, picture, room, svg, text} from './svg.js';

const MEMORY_CLASSES = {optimizer: 'optstate', gather_buffers: 'gatherbuf', gradient_buffers: 'gradbuf'};
const TIME_CLASSES = {exposed_communication: 'exposed', other: 'copy'};
// Parts with a colour of their own (style.css); a part that is new to the page gets one of PALETTE.
const COLORED = new Set(['parameters', 'master', 'gradients', 'activations', 'loss', 'workspace', 'compute', 'host', 'optimizer']);
const PALETTE = ['copy', 'cached', 'attention', 'reduce', 'gather'];

const classOf = (key, known, index) => known[key] || (COLORED.has(key) ? key : PALETTE[index % PALETTE.length]);

/** [[class, label, bytes]] of `memory` of a prediction, what the allocator keeps and the runtime last. */
export function memoryParts(memory) {
  const parts = Object.entries(memory.breakdown_bytes).filter(([, size]) => size > 0)
    .map(([key, size], index) => [classOf(key, MEMORY_CLASSES, index), words(key), size]);
  const kept = memory.peak_reserved_bytes - parts.reduce((sum, part) => sum + part[2], 0);
  if (kept > 0.001 * memory.total_bytes) parts.push(['cached', 'kept by the allocator', kept]);
  if (memory.runtime_bytes > 0) parts.push(['runtime', 'runtime and libraries', memory.runtime_bytes]);
  return parts;
}

export function verdictOf(memory) {
  if (memory.verdict) return memory.verdict;
  return memory.fits ? 'fits' : 'does not fit';
}

export function memorySentence(memory) {
  const total = `${gib(memory.total_bytes)} of ${gib(memory.usable_bytes)}`;
  const spare = memory.usable_bytes - memory.total_bytes;
  const rest = spare >= 0 ? `${gib(spare)} to spare` : `${gib(-spare)} too much`;
  const verdict = verdictOf(memory);
  return `${verdict[0].toUpperCase()}${verdict.slice(1)}: ${total}, ${rest}.`;
}

/** One bar for each of [{label, memory}], to one scale, with the line that none may cross. */
export function memoryPicture(rows) {
  const width = room();
  const most = Math.max(...rows.flatMap(({memory}) => [memory.total_bytes, memory.usable_bytes])) * 1.04;
  const scale = (size) => (size / most) * width;
  const height = rows.length * 62 + 18;
  const children = rows.map(({label, memory}, row) => {
    const top = row * 62 + 18;
    let x = 0;
    const bars = memoryParts(memory).map(([name, what, size]) => {
      const bar = svg('rect', {x, y: top, width: Math.max(scale(size) - 0.7, 0.4), height: 34, class: `f-${name}`},
        svg('title', {}, `${what}: ${gib(size)}`));
      x += scale(size);
      return bar;
    });
    const limit = scale(memory.usable_bytes);
    return svg('g', {},
      svg('rect', {x: 0, y: top, width: limit, height: 34, class: 'room'}), ...bars,
      memory.fits ? null : svg('rect', {x: limit, y: top, width: Math.max(x - limit, 1), height: 34, class: 'over'}),
      svg('line', {x1: limit, x2: limit, y1: top - 7, y2: top + 41, class: 'limit'}),
      rows.length > 1 ? text(0, top - 5, label, {class: 'strong'}) : null,
      text(limit - 4, top - 6, `${gib(memory.usable_bytes)} usable`, {class: 'soft', 'text-anchor': 'end'}));
  });
  const label = rows.map((row) => `${rows.length > 1 ? `${row.label}: ` : ''}${memorySentence(row.memory)}`).join(' ');
  return html('div', {}, picture(width, height, label, ...children),
    legend(memoryParts(rows[0].memory).map(([name, what, size]) => [name, what, gib(size, 3)])));
}

/** [[class, label, seconds]] of an object of times. */
export const gatherParts = (times, known = TIME_CLASSES) => Object.entries(times).filter(([, value]) => value > 0)
  .map(([key, value], index) => [classOf(key, known, index), words(key), value]);

export const timeParts = (prediction) => gatherParts(prediction.time_s);

export function timePicture(rows) {
  const width = room();
  const most = Math.max(...rows.map(({prediction}) => prediction.iteration_time_interval_s[1])) * 1.02;
  const scale = (value) => (value / most) * width;
  const children = rows.map(({label, prediction}, row) => {
    const top = row * 52 + 16;
    let x = 0;
    const bars = timeParts(prediction).map(([name, what, value]) => {
      const bar = svg('rect', {x, y: top, width: Math.max(scale(value) - 0.7, 0.4), height: 24, class: `f-${name}`},
        svg('title', {}, `${what}: ${seconds(value)}`));
      x += scale(value);
      return bar;
    });
    const [low, high] = prediction.iteration_time_interval_s.map(scale);
    const y = top + 30;
    return svg('g', {}, ...bars,
      svg('path', {d: `M${low} ${y - 4}V${y + 4}M${low} ${y}H${high}M${high} ${y - 4}V${y + 4}`, class: 'whisker'},
        svg('title', {}, `${percent(prediction.interval_level)} between ${prediction.iteration_time_interval_s.map((value) => seconds(value)).join(' and ')}`)),
      rows.length > 1 ? text(0, top - 4, label, {class: 'strong'}) : null);
  });
  const label = rows.map((row) => `${row.label}: ${seconds(row.prediction.iteration_time_s)} a step; ` +
    timeParts(row.prediction).map(([, what, value]) => `${what} ${seconds(value)}`).join(', ')).join('. ');
  return html('div', {}, picture(width, rows.length * 52 + 8, label, ...children),
    legend(timeParts(rows[0].prediction).map(([name, what, value]) => [name, what, seconds(value, 3)])));
}

/** What each change of an explanation would do to tokens per second, best first. */
export function changesList(changes) {
  const most = Math.max(...changes.map((change) => Math.abs(change.tokens_per_s_gain)), 0.01);
  return html('ol', {class: 'changes'}, changes.map((change) => {
    const gain = change.tokens_per_s_gain;
    const notes = [change.also, change.fits ? null : 'does not fit'].filter(Boolean).join('; ');
    return html('li', {class: change.fits ? '' : 'faint'},
      html('span', {}, change.change, notes ? html('small', {}, ` ${notes}`) : null),
      html('i', {class: gain < 0 ? 'b-reduce' : 'b-gather', style: `--share:${Math.abs(gain) / most}`, 'aria-hidden': 'true'}),
      html('b', {}, signedPercent(gain)));
  }));
}
