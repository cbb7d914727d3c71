// SPDX-License-Identifier: Apache-2.0
// Elements and axes for the pictures. Every picture is an <svg> with a role, a name and a sentence that says what it
// shows; what can be pointed at carries a <title>.
const SVG = 'http://www.w3.org/2000/svg';

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function html(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, '');
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

let roomWidth = 900;

/** How many pixels a picture may be wide, so that its letters are as large on a phone as on a desk. */
export const room = () => roomWidth;

/** Returns whether that changed. */
export function measureRoom(element) {
  const width = Math.max(280, Math.min(1100, Math.floor(element.clientWidth)));
  const changed = Math.abs(width - roomWidth) > 4;
  if (changed) roomWidth = width;
  return changed;
}

/** A picture `width` by `height`, scaled to its place, that a screen reader reads as `label`. */
export function picture(width, height, label, ...children) {
  return svg('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label, class: 'picture'}, ...children);
}

export const text = (x, y, words, attributes = {}) => svg('text', {x, y, ...attributes}, words);

/** Round numbers between `low` and `high`, about `count` of them. */
export function ticks(low, high, count = 5) {
  const rough = (high - low) / count;
  if (!(rough > 0) || !Number.isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const marks = [];
  for (let mark = Math.ceil(low / step) * step; mark <= high + step * 1e-9; mark += step) marks.push(mark);
  return marks;
}

/** 1, 2, 5, 10, 20, ... within; fewer where the range is wide. */
export function logTicks(low, high) {
  const leads = high / low > 1000 ? [1] : [1, 2, 5];
  const marks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power) {
    for (const lead of leads) {
      const mark = lead * 10 ** power;
      if (mark >= low * 0.999 && mark <= high * 1.001) marks.push(mark);
    }
  }
  return marks;
}

/** Keys of colours: [[class, label, value]] as a list. */
export function legend(entries) {
  return html('ul', {class: 'legend'}, entries.map(([name, label, value]) =>
    html('li', {}, html('i', {class: `b-${name}`}), `${label} `, value ? html('b', {}, value) : null)));
}

export function table(head, rows, caption) {
  const cell = (value, tag, index) => html(tag, {class: index > 0 && typeof value === 'string' && /^[−+]?[\d.,]+( [A-Za-z%/]+){0,2}$/.test(value) ? 'number' : '',
    scope: tag === 'th' ? 'col' : null}, value ?? '');
  return html('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption},
    html('table', {}, html('caption', {class: 'hidden'}, caption),
      html('thead', {}, html('tr', {}, head.map((value, index) => cell(value, 'th', index)))),
      html('tbody', {}, rows.map((row) => html('tr', {}, row.map((value, index) => cell(value, 'td', index)))))));
}

export const list = (sentences) => html('ul', {}, sentences.map((sentence) => html('li', {}, sentence)));

export const section = (title, ...children) => html('section', {}, html('h2', {}, title), ...children);

/** A section whose content is filled later: sections[name]. */
export function part(sections, name, title, ...more) {
  sections[name] = html('div', {});
  return html('section', {id: name}, html('h2', {}, title), ...more, sections[name]);
}

/** A number to see from afar: what it is, itself, what more there is to say. */
export const tile = (mood, label, value, note) =>
  html('div', {class: `tile ${mood}`}, html('span', {}, label), html('b', {}, value), html('span', {}, note));

export const fold = (summary, ...children) => html('details', {}, html('summary', {}, summary), ...children);
