// SPDX-License-Identifier: Apache-2.0
// What `predict` says, in pictures first. Two plans stand side by side where the user keeps one to compare with.
import {changesList, memoryPicture, memorySentence, timePicture, verdictOf} from './bars.js';
import {bytes, days, gib, grouped, percent, seconds, signedPercent, usd, words} from './format.js';
import {groupsView, lossesList, stagesView} from './stages.js';
import {fold, html, table} from './svg.js';
import {sharedEnd, timelineOf, timelineView} from './timeline.js';

const intervalWords = (prediction) =>
  `${percent(prediction.interval_level)} between ${prediction.iteration_time_interval_s.map((value) => seconds(value)).join(' and ')}`;

export function headline(prediction) {
  const {plan, model, cluster, gpus_per_node: node} = prediction.inputs;
  const part = plan.gpus > 1 && plan.gpus < node ? ` (a part of one node: ${plan.gpus} of its ${node} GPUs, with nothing beside them)` : '';
  return `${model} on ${grouped(plan.gpus)} GPUs of ${cluster}${part}: ${seconds(prediction.iteration_time_s)} a step (${intervalWords(prediction)}), ` +
    `${grouped(prediction.tokens_per_s)} tokens/s. ${memorySentence(prediction.memory)}`;
}

/** The answer in a line, for where there is no room for more. */
export function brief({iteration_time_s: step, memory, tokens_per_s: speed}) {
  return `${seconds(step)} · ${grouped(speed)} tokens/s · ${verdictOf(memory)}`;
}

const tile = (mood, label, value, note) =>
  html('div', {class: `tile ${mood}`}, html('span', {}, label), html('b', {}, value), html('span', {}, note));

export function tiles(prediction) {
  const {memory} = prediction;
  return html('div', {class: 'tiles'},
    tile('', 'a step', seconds(prediction.iteration_time_s), intervalWords(prediction)),
    tile('', 'tokens a second', grouped(prediction.tokens_per_s), `${grouped(prediction.tokens_per_gpu_s)} on each GPU`),
    tile('', 'MFU', percent(prediction.mfu, 1), `HFU ${percent(prediction.hfu, 1)}`),
    tile({fits: 'good', tight: 'warn'}[verdictOf(memory)] ?? 'bad', 'memory of a GPU', gib(memory.total_bytes), `${verdictOf(memory)}; ${gib(memory.usable_bytes)} usable`));
}

/** Days and dollars of a run: the program's, failures and what whole runs took elsewhere included. Null without tokens. */
export function wholeRun({whole_run: run}) {
  if (!run) return null;
  const {cost_usd: cost, cost_usd_interval: range} = run;
  return html('div', {}, html('div', {class: 'tiles'},
    tile('', 'training takes', days(run.days), `${percent(run.interval_level)} between ${run.days_interval.map(days).join(' and ')}`),
    cost ? tile('', 'and costs', usd(cost), range ? range.map((end) => usd(end)).join(' to ') : '') : tile('', 'and costs', 'unknown', 'this cluster has no price'),
    tile('', 'steps alone', days(run.step_only.days), run.step_only.cost_usd ? usd(run.step_only.cost_usd) : 'nothing ever fails')),
  html('p', {class: 'note'}, 'The whole run counts failures, restarts and what published trainings took beyond their steps.'));
}

// Kinds of messages; beside them model-parallel plans tell the same bytes by group.
const KINDS = ['all_gather', 'reduce_scatter', 'all_reduce', 'all_to_all', 'point_to_point'];
const sentBytes = ({communication_bytes: sent}) => KINDS.reduce((sum, kind) => sum + (sent[kind] || 0), 0);

const COMPARED = [
  ['a step', (one) => one.iteration_time_s, seconds], ['tokens a second', (one) => one.tokens_per_s, grouped],
  ['MFU', (one) => one.mfu, (value) => percent(value, 1)],
  ['exposed communication', (one) => one.time_s.exposed_communication, seconds],
  ['memory of a GPU', (one) => one.memory.total_bytes, (value) => gib(value)],
  ['sent by each GPU', sentBytes, bytes]];

function comparison(rows) {
  const [one, other] = rows.map((row) => row.prediction);
  const differing = Object.keys(one.inputs.plan).filter((key) => one.inputs.plan[key] !== other.inputs.plan[key])
    .map((key) => [words(key), String(one.inputs.plan[key]), String(other.inputs.plan[key]), '']);
  for (const key of ['model', 'cluster']) {
    if (one.inputs[key] !== other.inputs[key]) differing.unshift([key, one.inputs[key], other.inputs[key], '']);
  }
  const results = COMPARED.map(([what, of, write]) => {
    const before = of(other);
    return [what, write(of(one)), write(before), before > 0 ? signedPercent(of(one) / before - 1) : ''];
  });
  results.push(['memory', verdictOf(one.memory), verdictOf(other.memory), '']);
  return table(['', rows[0].label, rows[1].label, 'difference'], [...differing, ...results], 'Two plans side by side');
}

/** Fills the sections from [{label, prediction, trace}], the present plan first. */
export function fillPlan(sections, rows) {
  const {prediction} = rows[0];
  sections.headline.replaceChildren(html('p', {class: 'answer', role: 'status'}, headline(prediction)), tiles(prediction),
    ...prediction.extrapolated.map((what) => html('p', {class: 'note'}, `Outside what was measured: ${what}.`)));
  sections.memory.replaceChildren(memoryPicture(rows.map(({label, prediction: {memory}}) => ({label, memory}))),
    html('p', {class: 'note'}, `${memorySentence(prediction.memory)} The peak is at ${prediction.memory.peak_at}.`), ...stagesView(prediction));
  sections.time.replaceChildren(timePicture(rows), ...groupsView(prediction));
  sections.beside.hidden = rows.length < 2;
  if (rows.length > 1) sections.beside.lastChild.replaceChildren(comparison(rows));
}

/** What takes longer to find out: the timeline and the reasons. A plan that no timeline is drawn of says why; a step that was measured
 *  stands under those that are predicted. */
export function fillDetails(sections, rows, measured, forget) {
  const timelines = [...rows, ...(measured ? [measured] : [])].filter((row) => row.trace).map((row) => ({...row, timeline: timelineOf(row.trace)}));
  const ends = timelines.map((row) => row.timeline.end);
  const untold = rows.filter((row) => !row.trace && row.noTrace).map((row) => html('p', {class: 'note'}, `${row.label}: ${row.noTrace}`));
  sections.timeline.replaceChildren(...timelines.map(({label, timeline, trace, prediction}) => html('div', {},
    timelines.length > 1 ? html('h3', {}, label) : null,
    timelineView(timeline, {name: timelines.length > 1 ? label : 'The step over time', common: sharedEnd(ends, timeline.end), trace,
      usable: prediction && prediction.memory.usable_bytes - prediction.memory.runtime_bytes}))), ...untold,
    ...(measured ? [html('p', {class: 'tools'}, html('button', {type: 'button', class: 'small', onclick: forget}, 'Leave out what was measured'))] : []));
  sections.why.replaceChildren(...whyOf(rows[0].prediction.explanation || {}));
}

function whyOf({sentences, losses, changes, parts, rule_of_thumb: thumb}) {
  return [sentences ? html('ul', {}, sentences.map((sentence) => html('li', {}, sentence))) : null,
    ...(losses && losses.length ? [html('h3', {}, 'What the step loses, beside its products'), lossesList(losses)] : []),
    ...changesOf(changes || []),
    ...(thumb ? [html('h3', {}, 'Memory by the rule of thumb, 16 to 24 bytes a parameter'), html('p', {}, thumb.words.join(' '))] : []),
    parts ? fold('The parts of the step as a table', partsTable(parts)) : null].filter(Boolean);
}

/** Of plan and machine; nobody moves to another framework on this advice, so those are folded. */
function changesOf(changes) {
  const [software, own] = [true, false].map((wanted) => changes.filter((change) => (change.of === 'software') === wanted));
  return [...(own.length ? [html('h3', {}, 'What one change would buy, in tokens a second'), changesList(own)] : []),
    software.length ? fold('The same plan on other software', changesList(software)) : null].filter(Boolean);
}

function partsTable(parts) {
  const times = ['seconds', 'kernels_s', 'awaits_communication_s', 'gathers_s', 'reductions_s'];
  return table(['part', 'bound by', 'takes', 'kernels', 'waits for communication', 'gathers', 'reductions'],
    parts.map((part) => [part.part, part.bound_by, ...times.map((key) => seconds(part[key]))]), 'The parts of the step');
}
