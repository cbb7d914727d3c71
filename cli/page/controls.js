// SPDX-License-Identifier: Apache-2.0
// Inputs bound to flags of the store: choices, sliders with their exact value beside them, and the generated rest.
import {catalogue, flagOf} from './catalogue.js';
import {short, usd} from './format.js';
import {filesOf, setFlag, state} from './store.js';
import {html} from './svg.js';

let numbered = 0;

/** A labelled input in a row of its own; `hint` stands below. */
export function row(label, input, hint, extra) {
  input.id = input.id || `input-${(numbered += 1)}`;
  const hintId = `${input.id}-hint`;
  if (hint) input.setAttribute('aria-describedby', hintId);
  return html('div', {class: 'row'}, html('label', {for: input.id}, label), extra || null, input,
    hint ? html('small', {id: hintId}, hint) : null);
}

const option = (value, label) => html('option', {value}, label);

const fileOptions = (kind) => filesOf(kind).map((name) => [`./${name}`, `${name} (yours)`]);

/** A value that is no option becomes one. */
function choose(select, value) {
  if (value && ![...select.options].some((one) => one.value === value)) select.append(option(value, value));
  if (select.value !== value) select.value = value;
}

const shown = new WeakMap();

/** `pairs`: values with their labels. Options are made anew only where they differ, for a slider asks at every step. */
function setOptions(select, pairs, value) {
  const words = JSON.stringify(pairs);
  if (shown.get(select) !== words) select.replaceChildren(...pairs.map(([one, label]) => option(one, label)));
  shown.set(select, words);
  choose(select, value);
}

function chooser(name, label, optionsOf, hintOf) {
  const select = html('select', {'data-flag': name, onchange: () => setFlag(name, select.value)});
  const element = row(label, select, ' ');
  const hint = element.querySelector('small');
  return {element, refresh(plan) {
    setOptions(select, optionsOf(plan), state.flags.get(name) || '');
    hint.textContent = hintOf ? hintOf(select.value) : '';
  }};
}

export const modelChooser = () => chooser('model', 'Model', () => [
  ...fileOptions('model'), ...[...catalogue.models].sort((one, other) => one.parameters - other.parameters)
    .map((model) => [model.id, `${model.id} · ${short(model.parameters)}`])], () => 'or drop a config.json on the page');

export const clusterChooser = () => chooser('cluster', 'Cluster', () => [
  ...fileOptions('cluster'), ...catalogue.clusters.map((cluster) => [cluster.id, `${cluster.id} · ${cluster.gpus_per_node} × ${cluster.gpu}`])], (value) => {
  const cluster = catalogue.clusters.find((one) => one.id === value);
  if (!cluster) return '';
  return `${cluster.description}${cluster.usd_per_gpu_hour ? `; ${usd(cluster.usd_per_gpu_hour)} a GPU hour` : '; no price'}`;
});

const documentedDefault = () => (flagOf('predict', 'stack').text.match(/default: ([^)]+)/) || [])[1] || 'of the program';

export const stackChooser = () => chooser('stack', 'Software', (plan) => [
  ['', `default (${plan ? plan.stack : documentedDefault()})`], ...catalogue.stacks.map((stack) => [stack.id, stack.id])], (value) =>
  (catalogue.stacks.find((one) => one.id === value) || {description: ''}).description);

const holdBox = (name) => html('label', {class: 'hold', title: 'A search keeps this value'},
  html('input', {type: 'checkbox', 'data-hold': name, onchange: (event) => {
    if (event.target.checked) state.held.add(name);
    else state.held.delete(name);
  }}), 'keep');

/** A range over `stopsOf()` and a number for what lies between; `resolved(plan)` is what the program took. */
export function slider(name, label, stopsOf, resolved, searched = true) {
  const range = html('input', {type: 'range', min: 0, step: 1, 'data-slider': name, 'aria-label': `${label}, slider`});
  const exact = html('input', {type: 'text', inputmode: 'numeric', 'data-flag': name, class: 'exact', autocomplete: 'off'});
  const fix = searched ? holdBox(name) : null;
  let stops = [];
  const place = (value) => {
    const number = Number(value);
    const nearest = stops.reduce((best, stop, index) => (Math.abs(stop - number) < Math.abs(stops[best] - number) ? index : best), 0);
    range.value = nearest;
    range.setAttribute('aria-valuetext', String(value));
  };
  range.addEventListener('input', () => {
    exact.value = stops[range.value];
    range.setAttribute('aria-valuetext', exact.value);
    setFlag(name, exact.value);
  });
  exact.addEventListener('change', () => {
    setFlag(name, exact.value.trim());
    if (exact.value.trim()) place(exact.value);
  });
  const element = html('div', {class: 'row slider'});
  exact.id = `exact-${name}`;
  element.append(html('label', {for: exact.id}, label), ...(fix ? [fix] : []), exact, range);
  return {element, refresh(plan) {
    stops = stopsOf();
    range.max = stops.length - 1;
    const value = state.flags.get(name) ?? (plan ? resolved(plan) : '');
    if (document.activeElement !== exact) exact.value = value;
    if (document.activeElement !== range && value !== '') place(value);
    if (fix) fix.firstChild.checked = state.held.has(name);
  }};
}

/** What the program took for a flag that nobody set. */
function showTaken(input, taken) {
  if (taken === undefined || taken === null || input.type === 'checkbox') return;
  const words = taken === true ? 'on' : taken === false ? 'off' : String(taken);
  if (input.tagName === 'SELECT') input.options[0].textContent = `default (${words})`;
  else input.placeholder = words;
}

/** The input that a flag of --help calls for: choices, a switch, or words with suggestions. */
export function flagInput(flag, searched = false) {
  const name = flag.name;
  let input;
  let list = null;
  if (!flag.type) {
    input = html('input', {type: 'checkbox', 'data-flag': name, onchange: () => setFlag(name, input.checked ? 'on' : '')});
  } else if (flag.choices.length) {
    input = html('select', {'data-flag': name, onchange: () => setFlag(name, input.value)},
      option('', flag.otherwise ? `default (${flag.otherwise})` : 'default'), flag.choices.map((choice) => option(choice, choice)));
  } else {
    list = flag.suggestions.length ? html('datalist', {id: `list-${(numbered += 1)}`}, flag.suggestions.map((word) => option(word, word))) : null;
    input = html('input', {type: 'text', 'data-flag': name, placeholder: flag.otherwise || flag.type, autocomplete: 'off',
      list: list ? list.id : null, onchange: () => setFlag(name, input.value.trim())});
  }
  const label = name.replaceAll('-', ' ').replace(/^./, (letter) => letter.toUpperCase()).replace(/\b([tpsc]p|e?tp|ep|fp8)\b/gi, (word) => word.toUpperCase());
  const element = row(label, input, flag.hint, searched ? holdBox(name) : null);
  if (list) element.append(list);
  return {element, refresh(plan) {
    const value = state.flags.get(name) || '';
    if (plan && !value) showTaken(input, plan[name.replaceAll('-', '_')]);
    if (input.type === 'checkbox') input.checked = value !== '' && value !== 'off';
    else if (input.tagName === 'SELECT') choose(input, value);
    else if (document.activeElement !== input) input.value = value;
    const fix = element.querySelector('[data-hold]');
    if (fix) fix.checked = state.held.has(name);
  }};
}

/** Inputs for all flags of `verb` but those of `left`, by their headings in --help. */
export function remainingInputs(verb, left, searched) {
  const groups = new Map();
  const inputs = [];
  for (const flag of catalogue.flags[verb]) {
    if (left.includes(flag.name)) continue;
    const input = flagInput(flag, searched);
    inputs.push(input);
    if (!groups.has(flag.group)) groups.set(flag.group, []);
    groups.get(flag.group).push(input.element);
  }
  const element = html('div', {}, [...groups].flatMap(([group, rows]) => [groups.size > 1 ? html('h4', {}, group) : null, ...rows]));
  return {element, refresh: (plan) => inputs.forEach((input) => input.refresh(plan))};
}
