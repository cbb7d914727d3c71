// SPDX-License-Identifier: Apache-2.0
// Points over two logarithmic axes: days and dollars of every option of `size`, time and spare memory of plans.
import {logTicks, picture, room, svg, text, ticks} from './svg.js';

const HEIGHT = 380;
const LEAST_LEFT = 62;
const LETTER = 7; // pixels of one in the labels
const BOTTOM = 40;
const TOP = 14;

const widened = (values) => {
  const low = Math.min(...values);
  const high = Math.max(...values);
  return [low / 1.25, high * 1.25];
};

/** `points`: [{x, y, kind, title, onpick, name}]; kinds: front, meets, misses, chosen. Goals are lines. */
export function scatter({points, label, xName, yName, xText, yText, xGoal, yGoal}) {
  const width = room();
  const marksOf = (low, high, most) => {
    let marks = logTicks(low, high);
    if (marks.length > most) marks = marks.filter((mark) => /^1/.test(mark.toExponential()));
    // Within less than a decade powers of ten leave one mark or none.
    return marks.length < 3 ? ticks(low, high, Math.min(5, most)).filter((mark) => mark >= low && mark <= high) : marks;
  };
  const [xLow, xHigh] = widened([...points.map((point) => point.x), ...(xGoal ? [xGoal] : [])]);
  const [yLow, yHigh] = widened([...points.map((point) => point.y), ...(yGoal ? [yGoal] : [])]);
  const yMarks = marksOf(yLow, yHigh, 12);
  const LEFT = Math.max(LEAST_LEFT, 12 + LETTER * Math.max(...yMarks.map((mark) => yText(mark).length), 0));
  const x = (value) => LEFT + (Math.log(value / xLow) / Math.log(xHigh / xLow)) * (width - LEFT - 12);
  const y = (value) => HEIGHT - BOTTOM - (Math.log(value / yLow) / Math.log(yHigh / yLow)) * (HEIGHT - BOTTOM - TOP);
  const right = width - 12;
  const xMarks = marksOf(xLow, xHigh, width / 60);
  const grid = [
    ...xMarks.map((mark) => svg('g', {}, svg('line', {x1: x(mark), x2: x(mark), y1: TOP, y2: HEIGHT - BOTTOM, class: 'grid'}),
      markBelow(xText(mark), x(mark), width))),
    ...yMarks.map((mark) => svg('g', {}, svg('line', {x1: LEFT, x2: right, y1: y(mark), y2: y(mark), class: 'grid'}),
      text(LEFT - 6, y(mark) + 4, yText(mark), {class: 'soft', 'text-anchor': 'end'}))),
    text(right, HEIGHT - 6, xName, {class: 'soft', 'text-anchor': 'end'}), text(2, 11, yName, {class: 'soft'})];
  const goals = [
    xGoal ? svg('line', {x1: x(xGoal), x2: x(xGoal), y1: TOP, y2: HEIGHT - BOTTOM, class: 'limit'}) : null,
    yGoal ? svg('line', {x1: LEFT, x2: right, y1: y(yGoal), y2: y(yGoal), class: 'limit'}) : null];
  const front = points.filter((point) => point.front).sort((one, other) => one.x - other.x);
  const path = front.length > 1 ? svg('path', {d: `M${front.map((point) => `${x(point.x).toFixed(1)} ${y(point.y).toFixed(1)}`).join('L')}`, class: 'front'}) : null;
  const order = ['misses', 'meets', 'chosen'];
  const dots = [...points].sort((one, other) => order.indexOf(one.kind) - order.indexOf(other.kind))
    .map((point) => dot(point, x(point.x), y(point.y), LEFT));
  return picture(width, HEIGHT, label, ...grid, ...goals, path, ...dots);
}

/** The label of a mark of the lower axis; at the right edge it ends there. */
function markBelow(label, x, width) {
  const beyond = x + (label.length * LETTER) / 2 > width - 2;
  return text(beyond ? width - 2 : x, HEIGHT - BOTTOM + 15, label, {class: 'soft', 'text-anchor': beyond ? 'end' : 'middle'});
}

/** Beside its point, wherever there is room for all of it. */
function nameBeside(name, x, y, left) {
  const half = (name.length * LETTER) / 2;
  const anchor = x + half > room() - 4 ? 'end' : x - half < left ? 'start' : 'middle';
  return text(x, y < TOP + 28 ? y + 24 : y - 14, name, {class: 'strong halo', 'text-anchor': anchor});
}

function dot(point, x, y, left) {
  const radius = point.kind === 'chosen' ? 8 : point.front ? 5.5 : 4;
  const shape = svg('circle', {cx: x, cy: y, r: radius, class: `dot ${point.kind}${point.front ? ' onfront' : ''}`}, svg('title', {}, point.title));
  const group = svg('g', {class: 'pick'}, svg('circle', {cx: x, cy: y, r: 12, class: 'target'}, svg('title', {}, point.title)), shape,
    point.kind === 'chosen' && point.name ? nameBeside(point.name, x, y, left) : null);
  if (point.onpick) group.addEventListener('click', point.onpick);
  return group;
}
