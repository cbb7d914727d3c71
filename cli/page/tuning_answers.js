// SPDX-License-Identifier: Apache-2.0
// What `tune` found: the best plan, why, what each framework can be told, the next ones, speed against memory; and the ways
// out where nothing fits. Where plans can be taken, `take` is called with what a button stands for.
import {gib, grouped, percent, seconds, signedPercent} from './format.js';
import {scatter} from './scatter.js';
import {html, list, table} from './svg.js';

const button = (label, act) => html('button', {type: 'button', class: 'small', onclick: act}, label);

/** `shown`: the plan that the rest of the page is about; `note` follows how much was searched. */
export function tuningView(tuning, {take, shown, note = ''} = {}) {
  if (!tuning.best) return waysOut(tuning, {take});
  const [, ...why] = tuning.why;
  return [html('p', {class: 'answer'}, tuning.lead || tuning.why[0]),
    html('p', {class: 'note'}, `${grouped(tuning.considered)} plans considered, ${grouped(tuning.simulated)} simulated, in ${seconds(tuning.seconds, 3)}. ${note}`),
    html('h3', {}, 'Why this one'), list(why), ...frameworks(tuning, take), html('h3', {}, 'The next best'), topTable(tuning.top, take, shown),
    ...front(tuning, take)];
}

const withButton = (cells, take, plan, set) => [...cells, ...(take ? [button('show', () => take(plan, set))] : [])];
const heads = (names, take) => [...names, ...(take ? [''] : [])];
const same = (one, other = {}) => Object.keys(one).every((key) => one[key] === other[key]);

function topTable(top, take, shown) {
  const best = top[0].prediction.tokens_per_s;
  return table(heads(['plan', 'a step', 'to the best', 'memory', 'MFU'], take), top.map(({plan, prediction}) => withButton([
    `${prediction.inputs.plan_words}${same(plan, shown) ? ' (on show)' : ''}`, seconds(prediction.iteration_time_s),
    signedPercent(best / prediction.tokens_per_s - 1), gib(prediction.memory.total_bytes), percent(prediction.mfu, 1)], take, plan)), 'The best plans');
}

/** What each framework can be told at best. */
function frameworks({frameworks: all}, take) {
  const told = (all || []).filter((one) => one.plan);
  if (!told.length) return [];
  return [html('h3', {}, 'In your framework'), table(heads(['framework', 'its best plan', 'tokens a second', 'to the best', 'memory'], take),
    told.map((one) => withButton([one.framework, one.plan_words, grouped(one.tokens_per_s), signedPercent(one.cost), gib(one.total_bytes)], take, one.plan, one.set)),
    'The best plan that each framework can be told')];
}

function front(tuning, take) {
  if (!tuning.pareto || tuning.pareto.length < 3) return [];
  const points = tuning.pareto.filter((one) => one.headroom_bytes > 0).map(({plan, prediction}) => ({
    x: prediction.memory.total_bytes / 2 ** 30, y: prediction.tokens_per_s, front: true,
    kind: same(plan, tuning.best.plan) ? 'chosen' : 'meets', name: 'best',
    title: `${prediction.inputs.plan_words}: ${grouped(prediction.tokens_per_s)} tokens/s in ${gib(prediction.memory.total_bytes)}`,
    onpick: take && (() => take(plan))}));
  if (points.length < 3) return [];
  return [html('h3', {}, 'Speed against memory: nothing is both faster and smaller'), scatter({points, xName: 'GiB of a GPU', yName: 'tokens a second',
    xText: (mark) => String(mark), yText: grouped, label: `Speed against memory of ${points.length} plans.`})];
}

/** What would make it fit: each with the flags that say so. */
export function waysOut(tuning, {take} = {}) {
  const ways = tuning.ways && tuning.ways.length ? tuning.ways : tuning.nearest_feasible ? [tuning.nearest_feasible] : [];
  return [list(tuning.why), html('h3', {}, ways.length ? 'Ways out' : 'No way out was found'),
    html('ul', {class: 'ways'}, ways.map((way) => html('li', {}, html('b', {}, way.change), ` then ${way.prediction.inputs.plan_words}: `,
      `${seconds(way.prediction.iteration_time_s)} a step, ${gib(way.prediction.memory.total_bytes)}. `, take ? button('Take it', () => take(way)) : null)))];
}
