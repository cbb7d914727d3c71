// SPDX-License-Identifier: Apache-2.0
// What the program says of itself: its verbs, their flags, what ships. Read once, at the start.
import {documentOf} from './engine.js';
import {countOf} from './format.js';
import {flagsOfHelp, verbsOfHelp} from './help.js';
import {files, state} from './store.js';

export const catalogue = {verbs: {}, flags: {}, models: [], clusters: [], stacks: []};

const LISTS = ['models', 'clusters', 'stacks'];

export async function readCatalogue(engine) {
  catalogue.verbs = verbsOfHelp((await engine.ask(['--help'])).stdout);
  const verbs = Object.keys(catalogue.verbs);
  const helps = await Promise.all(verbs.map((verb) => engine.ask([verb, '--help'])));
  verbs.forEach((verb, index) => (catalogue.flags[verb] = flagsOfHelp(helps[index].stdout)));
  const lists = await Promise.all(LISTS.map((name) => engine.ask(['inspect', name, '--json'])));
  LISTS.forEach((name, index) => (catalogue[name] = documentOf(lists[index])[name]));
}

/** A shipped cluster, or the one that a file of the user's was calibrated from; undefined for others. */
export function clusterOf(name) {
  const own = files.get((name || '').replace(/^\.\//, ''));
  const id = own && name.startsWith('./') ? (/"base":\s*"([^"]+)"/.exec(own) || [])[1] : name;
  return catalogue.clusters.find((one) => one.id === id);
}

export const flagOf = (verb, name) => (catalogue.flags[verb] || []).find((flag) => flag.name === name);

export const knownFlags = () => new Set(Object.values(catalogue.flags).flat().map((flag) => flag.name));

const NUMBERS = new Set(['tokens', 'budget']);
const repeatable = (flag) => /repeatable/.test(flag.text);

/** The words of `verb` for what `flags` sets, of the flags that it has and `wanted` lets through. */
export function wordsFor(verb, flags, wanted = () => true) {
  const words = [verb];
  for (const flag of catalogue.flags[verb]) {
    if (!flags.has(flag.name) || !wanted(flag.name)) continue;
    const value = flags.get(flag.name);
    if (!flag.type) {
      if (value !== 'off') words.push(`--${flag.name}`);
      continue;
    }
    const count = NUMBERS.has(flag.name) ? countOf(value) : NaN;
    // As it was typed where the program reads that, too: "15T", not fifteen digits.
    const values = /^\s*[0-9.]+[TBMk]\s*$/.test(value) ? [value] : Number.isFinite(count) ? [String(count)] : repeatable(flag) ? value.split(';').filter(Boolean) : [value];
    for (const one of values) words.push(`--${flag.name}`, one.trim());
  }
  return words;
}

// `predict` finds these by itself where a plan needs them; of others the same plan takes another time.
const USUAL_STACKS = new Set(['torch-compile', 'megatron-core']);

/** What to do about --stack so that `stack` predicts; a search is not held to one that nobody named. */
function flagsOfStack(stack) {
  const now = state.flags.get('stack') || '';
  if (now === stack || now.startsWith('./')) return [];
  return [['stack', USUAL_STACKS.has(stack) ? '' : stack]];
}

// Of the machine, whatever its plan: a search takes them as they are.
export const OF_THE_MACHINE = ['cluster', 'set', 'node-network', 'power-limit-watts'];

const BESIDE_A_PLAN = new Set([...OF_THE_MACHINE, 'model', 'stack', 'plan', 'global-batch']);

/** The flags, by name, that say what the `plan` of a JSON document says, as far as `verb` has them; empty: not said there. */
export function flagsOfPlan(plan, verb = 'predict') {
  const {group} = flagOf(verb, 'strategy');
  const pairs = catalogue.flags[verb].filter((flag) => flag.group === group && !BESIDE_A_PLAN.has(flag.name)).map((flag) => [flag.name, '']);
  for (const [key, value] of Object.entries(plan)) {
    const name = key.replaceAll('_', '-');
    if (!flagOf(verb, name) || value === null) continue;
    if (name === 'stack') {
      pairs.push(...flagsOfStack(value));
      continue;
    }
    // Zero GPUs to a group are all of them, which is what nothing says.
    if (name === 'shard-group' && value === 0) continue;
    pairs.push([name, value === true ? 'on' : value === false ? 'off' : String(value)]);
  }
  return pairs;
}
