// SPDX-License-Identifier: Apache-2.0
// What `predict` says, in pictures first. Two plans stand side by side where the user keeps one to compare with.
import {changesList, memoryPicture, memorySentence, timePicture, verdictOf} from './bars.js';
import {bytes, days, gib, grouped, percent, seconds, signedPercent, usd, words} from './format.js';
import {groupsView, lossesList, stagesView} from './stages.js';
import {fold, html, list, table, tile} from './svg.js';
import {sharedEnd, timelineOf, timelineView} from './timeline.js';

/** What a plan's answer is made of, beside its headline: names of sections and their titles. */
export const PARTS = {beside: 'Side by side', memory: 'Memory of a GPU', time: 'Where a step goes',
  timeline: 'The step over time, and its memory', why: 'Why, and what would change it'};

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
  const all = rows.map((row) => row.prediction);
  const [one, other] = all;
  const across = (what, of, difference = '') => [what, ...all.map(of), ...(all.length === 2 ? [difference] : [])];
  const differing = (key, of) => (new Set(all.map(of)).size > 1 ? [across(words(key), (row) => String(of(row)))] : []);
  const results = COMPARED.map(([what, of, write]) =>
    across(what, (row) => write(of(row)), of(other) > 0 ? signedPercent(of(one) / of(other) - 1) : ''));
  return table(across('', (row, index) => rows[index].label, 'difference'), [
    ...['model', 'cluster'].flatMap((key) => differing(key, ({inputs}) => inputs[key])),
    ...Object.keys(one.inputs.plan).flatMap((key) => differing(key, ({inputs}) => inputs.plan[key])),
    ...results, across('memory', ({memory}) => verdictOf(memory))], 'Plans side by side');
}

/** Fills the sections from [{label, prediction, trace}], the present plan first. */
export function fillPlan(sections, rows) {
  const {prediction} = rows[0];
  sections.headline.replaceChildren(html('p', {class: 'answer', role: 'status'}, headline(prediction)), tiles(prediction),
    ...prediction.extrapolated.map((what) => html('p', {class: 'note'}, `Outside what was measured: ${what}.`)));
  sections.memory.replaceChildren(memoryPicture(rows.map(({label, prediction: {memory}}) => ({label, memory}))),
    html('p', {class: 'note'}, `${memorySentence(prediction.memory)} The peak is at ${prediction.memory.peak_at}.`), ...stagesView(prediction));
  sections.time.replaceChildren(timePicture(rows), ...groupsView(prediction));
  sections.beside.parentElement.hidden = rows.length < 2;
  if (rows.length > 1) sections.beside.replaceChildren(comparison(rows));
}

/** The steps of [{label, trace, prediction}] under each other; a plan that no timeline is drawn of says why. */
export function timelinesView(rows) {
  const timelines = rows.filter((row) => row.trace).map((row) => ({...row, timeline: timelineOf(row.trace)}));
  const ends = timelines.map((row) => row.timeline.end);
  return [...timelines.map(({label, timeline, trace, prediction}) => html('div', {},
    timelines.length > 1 ? html('h3', {}, label) : null,
    timelineView(timeline, {name: timelines.length > 1 ? label : 'The step over time', common: sharedEnd(ends, timeline.end), trace,
      usable: prediction && prediction.memory.usable_bytes - prediction.memory.runtime_bytes}))),
  ...rows.filter((row) => row.noTrace).map((row) => html('p', {class: 'note'}, `${row.label}: ${row.noTrace}`))];
}

/** Why the step takes as long as it does, and what would change that. */
export const reasonsView = (prediction) => whyOf(prediction.explanation || {});

function whyOf({sentences, losses, changes, parts, rule_of_thumb: thumb}) {
  return [sentences ? list(sentences) : null,
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
