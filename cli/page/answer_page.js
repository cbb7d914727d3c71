// SPDX-License-Identifier: Apache-2.0
// The page of one answer: what `report`, `size --out` and notebooks show. It holds its answer as JSON and needs no program:
// {answer: of predict --explain or size, timelines, measured, comparison, tuning, provenance}, each where there is one.
import {days, grouped, seconds, short, signedPercent, usd, words} from './format.js';
import {PARTS, fillPlan, reasonsView, timelinesView} from './plan_answers.js';
import {sizingView} from './size_answers.js';
import {fold, html, measureRoom, part, section, table, tile} from './svg.js';
import {tuningView} from './tuning_answers.js';

/** Whoever signs has no command line: parts of a sentence that name a flag are left out. */
const withoutFlags = (sentences) => sentences
  .map((sentence) => sentence.split(/(?<=[.;]) /).filter((clause) => !clause.includes('--')).join(' ').replace(/;$/, '.')).filter(Boolean);

function asked({inputs, host, iteration_time_s: step, tokens_per_s: speed}) {
  const {plan} = inputs;
  const tokens = step * speed;
  const rows = [['model', `${inputs.model}: ${short(inputs.parameters)} parameters, ${inputs.layers} layers`],
    ['GPUs', `${grouped(plan.gpus)} × ${inputs.gpu}, ${inputs.gpus_per_node} a node, cluster ${inputs.cluster}`], ['plan', inputs.plan_words],
    ['a step', `${grouped(tokens / plan.seq_len)} sequences of ${grouped(plan.seq_len)}: ${grouped(tokens)} tokens`],
    ['the host', `issues in ${seconds(host.issues_s)} what the device does in ${seconds(host.device_s)}: ${host.regime}`],
    ...(inputs.usual_length ? [['length', inputs.usual_length]] : []), ...inputs.set.map((value) => ['set by hand', value])];
  return section('What was asked', table(['', ''], rows, 'What was asked'), fold('Every knob of the plan',
    table(['knob', 'value'], Object.entries(plan).map(([key, value]) => [words(key), String(value)]), 'The plan')));
}

/** What 10^12 tokens take and cost, failures apart. */
function trillion({tokens_per_s: speed, inputs}, usdPerHour) {
  const hours = 1e12 / speed / 3600;
  const price = usdPerHour > 0 ? `${usd(hours * inputs.plan.gpus * usdPerHour)} at ${usdPerHour.toFixed(2)} USD a GPU hour` : 'price unknown';
  return tile('', '10¹² tokens', days(hours / 24), price);
}

function drawnPlans({answer, timelines, measured, tuning, comparison, usd_per_gpu_hour: usdPerHour}) {
  const predictions = answer.predictions || [answer];
  const rows = predictions.map((prediction, index) => ({
    label: predictions.length > 1 ? prediction.inputs.plan_words : 'predicted', prediction, trace: timelines[index]}));
  const sections = {headline: html('div', {id: 'headline'})};
  const [beside, memory, time, timeline, why] = Object.entries(PARTS).map(([name, title]) => part(sections, name, title));
  fillPlan(sections, rows);
  sections.headline.querySelector('.tiles').append(trillion(predictions[0], usdPerHour));
  sections.timeline.replaceChildren(...timelinesView([...rows, ...(measured ? [{label: 'measured', trace: measured}] : [])]));
  sections.why.replaceChildren(...reasonsView(predictions[0]));
  return [sections.headline, beside, asked(predictions[0]), memory, time, ...measuredBeside(comparison), timeline, why,
    ...searched(tuning, predictions[0].inputs.plan),
    section('What the numbers rest on', table(['', ''], (predictions[0].origins || []).map(({what, words: said}) => [what, said]), 'What the numbers rest on'))];
}

/** A step that was measured, held against the predicted one, as `compare` tells it. */
function measuredBeside(comparison) {
  if (!comparison) return [];
  const {step_time_s: step, classes, exposed_by_group: exposed, plan_differences: differences, measured_ranks: ranks} = comparison;
  const pair = (what, predicted, found) => [what, seconds(predicted), seconds(found), predicted > 0 && found > 0 ? signedPercent(found / predicted - 1) : ''];
  const groups = Object.keys(exposed.predicted).filter((group) => exposed.predicted[group] + exposed.measured[group] > 0);
  return [section('Predicted and measured', table(['', 'predicted', 'measured', 'difference'], [
    pair('first kernel to last', step.predicted, step.measured),
    ...classes.slice(0, 12).map((one) => pair(words(`${one.phase} ${one.kind}`), one.predicted_s, one.measured_s)),
    ...groups.map((group) => pair(`waits for ${group} communication`, exposed.predicted[group], exposed.measured[group]))], 'Predicted and measured'),
  ...stagesBeside(comparison.stages || {}),
  ranks > 1 ? html('p', {class: 'note'}, `Measured: the median of ${ranks} ranks.`) : null,
  differences.length ? html('p', {class: 'note'}, `What was measured is of another plan: ${differences.join('; ')}.`) : null)];
}

/** Of a pipeline: how long each stage computes, and waits for others. */
function stagesBeside(sides) {
  const told = Object.entries(sides).filter(([, stages]) => stages);
  const waits = (stage) => Object.entries(stage).filter(([key, value]) => key !== 'busy_s' && typeof value === 'number').reduce((sum, [, value]) => sum + value, 0);
  const cells = told.flatMap(([side]) => [`busy, ${side}`, `bubble, ${side}`]);
  const rows = Array.from({length: Math.max(0, ...told.map(([, stages]) => stages.length))}, (_, index) => [String(index),
    ...told.flatMap(([, stages]) => (stages[index] ? [seconds(stages[index].busy_s), seconds(waits(stages[index]))] : ['', '']))]);
  return rows.length ? [html('h3', {}, 'Each stage'), table(['stage', ...cells], rows, 'The stages, predicted and measured')] : [];
}

function drawnSizing({answer}) {
  const {inputs} = answer;
  return [html('p', {class: 'note'}, `${inputs.model} on ${short(inputs.tokens)} tokens in sequences of ${inputs.seq_len}`),
    ...(inputs.usual_length ? [html('p', {class: 'note'}, inputs.usual_length)] : []),
    ...sizingView(answer, {deadline: inputs.deadline_days, budget: inputs.budget_usd, words: withoutFlags})];
}

const searched = (tuning, shown) => (tuning ? [section('Why this plan and not another', ...tuningView(tuning, {shown}))] : []);

function drawnTimelines({timelines, measured, comparison, tuning}) {
  const rows = [...timelines.map((trace) => ({label: 'predicted', trace})), ...(measured ? [{label: 'measured', trace: measured}] : [])];
  return [...measuredBeside(comparison), section(PARTS.timeline, ...timelinesView(rows)), ...searched(tuning)];
}

function drawPage(place, page) {
  const {answer, provenance} = page;
  const drawing = !answer ? drawnTimelines : answer.options ? drawnSizing : drawnPlans;
  let drawn;
  try {
    drawn = drawing(page);
  } catch (error) {
    drawn = [html('p', {class: 'trouble', role: 'alert'}, `This answer could not be drawn: ${error.message}.`)];
  }
  place.replaceChildren(...drawn, section('Where this comes from', table(['', ''], provenance, 'Where this comes from')));
}

const place = document.getElementById('answers');
const held = JSON.parse(document.getElementById('answer').textContent);
measureRoom(place);
drawPage(place, held);
new ResizeObserver(() => measureRoom(place) && drawPage(place, held)).observe(place);
