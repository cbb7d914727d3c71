// SPDX-License-Identifier: Apache-2.0
// What `size` found: the recommendation, every option it weighed as a point of days and dollars, the best of each cluster,
// break-even prices, how it scales and what it rests on.
import {days, grouped, percent, short, usd} from './format.js';
import {scatter} from './scatter.js';
import {fold, html, list, section, table, tile} from './svg.js';

/** `deadline` in days and `budget` in USD, where there are any; `look` is called with an option that is chosen; `note` is
 *  said above the picture; `words` makes of sentences those that its readers understand. */
export function sizingView(sizing, {deadline, budget, look, note, words = (sentences) => sentences}) {
  const [first, ...rest] = words(sizing.summary || sizing.words || []);
  const details = words(sizing.words || []).filter((sentence) => sentence !== first && !rest.includes(sentence));
  return [
    first ? html('p', {class: 'answer', role: 'status'}, first) : null, ...tilesOf(sizing), rest.length ? list(rest) : null,
    details.length ? fold('Behind it', list(details)) : null,
    ...optionsPicture(sizing, {deadline, budget, look, note}),
    section('The best of each cluster', optionTable(sizing.best_of_each || [], 'The best option of each cluster', look)),
    ...breakEven(sizing), ...scaling(sizing, words),
    section('What this rests on', list(words(sizing.assumptions)), ...reached(sizing)),
    sizing.left_out && sizing.left_out.length ? fold('What was left out, and why', table(['cluster', 'GPUs', 'why'],
      sizing.left_out.map((one) => [one.cluster, grouped(one.gpus), one.reason]), 'What was left out')) : null].filter(Boolean);
}

const range = (pair, write) => (pair ? pair.map((end) => write(end)).join(' to ') : '');
const cost = ({cost_usd: amount}) => (amount ? usd(amount) : 'no price');

function tilesOf({recommended: one}) {
  if (!one) return [];
  return [html('div', {class: 'tiles'}, tile('', 'take', `${grouped(one.gpus)} GPUs`, `${one.cluster} (${one.gpu})`),
    tile('', 'for', days(one.days), range(one.days_interval, days)), tile('', 'and', cost(one), range(one.cost_usd_interval, usd)),
    one.step_only ? tile('', 'steps alone', days(one.step_only.days), cost(one.step_only))
      : tile('', 'at', `${percent(one.mfu, 1)} MFU`, `${grouped(one.tokens_per_s)} tokens/s`))];
}

function optionsPicture({options, pareto, recommended}, {deadline, budget, look, note}) {
  const meets = (one) => !(deadline && one.days > deadline) && !(budget && one.cost_usd > budget);
  const same = (one, other) => other && one.cluster === other.cluster && one.gpus === other.gpus && one.days === other.days;
  const points = options.filter((one) => one.cost_usd > 0).map((one) => ({
    x: one.days, y: one.cost_usd, front: pareto.some((other) => same(one, other)),
    kind: same(one, recommended) ? 'chosen' : meets(one) ? 'meets' : 'misses',
    name: `${one.gpus} × ${one.cluster}`, title: optionWords(one), onpick: look && (() => look(one))}));
  if (points.length < 2) return [];
  const label = `Days and dollars of ${points.length} options; the front has ${pareto.length}.${recommended ? ` Recommended: ${optionWords(recommended)}` : ''}`;
  return [section('Days and dollars', note ? html('p', {class: 'note'}, note) : null,
    scatter({points, label, xName: 'days', yName: 'USD', xText: (mark) => grouped(mark), yText: (mark) => short(mark), xGoal: deadline, yGoal: budget}),
    html('p', {class: 'note'}, `Filled: meets the goal. On the line: nothing is both faster and cheaper. Red: the goal.${look ? ' Choose a point to see its plan.' : ''}`),
    fold('The front as a table', optionTable(pareto, 'The front of days and dollars', look)))];
}

function optionWords(one) {
  return `${grouped(one.gpus)} GPUs of ${one.cluster}: ${days(one.days)}, ${cost(one)} (${one.plan_words})`;
}

function optionTable(options, caption, look) {
  return table(['cluster', 'GPUs', 'days', 'cost', 'interval', 'MFU', 'plan', ...(look ? [''] : [])], options.map((one) => [
    `${one.cluster}${one.recommended ? ' (recommended)' : ''}${one.estimate_only ? ' (nothing measured)' : ''}`,
    grouped(one.gpus), days(one.days), cost(one), range(one.days_interval, days), percent(one.mfu), one.plan_words,
    ...(look ? [html('button', {type: 'button', class: 'small', onclick: () => look(one)}, 'see the plan')] : [])]), caption);
}

/** Of clusters that lost: the price at which each would draw level, beside what it is listed at and since when. */
function breakEven({break_even: rows}) {
  if (!rows || !rows.length) return [];
  const listed = ({price, usd_per_gpu_hour: usdAnHour}) => {
    if (!usdAnHour) return 'no price';
    const age = price && price.age_days > 90 ? `, ${price.age_days} days old` : '';
    return `${usdAnHour.toFixed(2)}${price && price.date ? ` (${price.kind}, ${price.date}${age})` : ''}`;
  };
  const found = section('Break-even: the price at which each would win',
    table(['cluster', 'GPUs', 'wins at, USD a GPU hour', 'is listed at'], rows.map((one) => [one.cluster, grouped(one.gpus),
      one.break_even_usd_per_gpu_hour.toFixed(2), listed(one)]), 'Break-even prices'));
  found.id = 'break-even';
  return [found];
}

function scaling({knee}, words) {
  if (!knee || !knee.growth || !knee.growth.length) return [];
  const growth = knee.growth.map((one) => [`${grouped(one.from_gpus)} → ${grouped(one.to_gpus)}`, one.speedup.toFixed(2), String(one.ideal), one.pays ? 'yes' : 'no']);
  return [section(`How ${knee.cluster} scales`, list(words(knee.why || [])),
    fold('Every doubling as a table', table(['GPUs', 'faster by', 'ideal', 'pays'], growth, 'What each doubling brings')))];
}

/** What whole published trainings reached, beside which the answer can be held. */
function reached({whole_run_mfu_reached: all}) {
  const rows = Object.entries(all || {}).filter(([, one]) => one.mfu_quartiles && one.mfu_quartiles.length === 3);
  if (!rows.length) return [];
  return [fold('What published trainings reached', table(['GPUs', 'trainings', 'MFU, lower quartile', 'median', 'upper quartile'],
    rows.map(([gpus, one]) => [gpus, String(one.n), ...one.mfu_quartiles.map((share) => percent(share, 1))]), 'What published trainings reached'))];
}
