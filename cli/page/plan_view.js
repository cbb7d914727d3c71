// SPDX-License-Identifier: Apache-2.0
// "Plan": one plan on one cluster. Every change of an input asks `predict`; the timeline follows when the hand rests.
import {catalogue, clusterOf, flagOf, flagsOfPlan, wordsFor} from './catalogue.js';
import {clusterChooser, flagInput, modelChooser, remainingInputs, row, slider, stackChooser} from './controls.js';
import {documentOf, sentenceOf} from './engine.js';
import {PARTS, fillPlan, reasonsView, timelinesView, wholeRun} from './plan_answers.js';
import {changed, priceOf, setFlag, setFlags, setPrice, state} from './store.js';
import {fold, html, part} from './svg.js';

const DOUBLING = Array.from({length: 15}, (_, power) => 2 ** power);
const BATCHES = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64];
// Beside these the page shows every flag that --help lists.
const SHOWN_IN_PLAN = ['model', 'cluster', 'stack', 'gpus', 'seq-len', 'micro-batch', 'grad-accum', 'ckpt-layers', 'recompute', 'strategy', 'tokens', 'price'];
// Of a whole run, so only with its tokens.
const OF_A_RUN = ['price', 'prices'];
// The parallel layout: sliders for the numbers, the rest of the kind as --help lists it.
const PARALLEL_SIZES = {tp: 'Tensor parallel', pp: 'Pipeline stages', cp: 'Context parallel', ep: 'Expert parallel'};
const HOW_PARALLEL = ['virtual-stages', 'pp-schedule', 'sp', 'precision', 'fp8-recipe', 'fp8-params', 'dispatcher', 'expert-load', 'expert-capacity', 'ep-overlap', 'tp-overlap', 'etp', 'cp-comm',
  'pp-layout', 'cuda-graphs', 'global-batch'];
const NOT_IN_PLAN = ['json', 'explain', 'trace', 'plan', 'out', 'color', 'version'];
const REST_MS = 140;

const perNode = () => (clusterOf(state.flags.get('cluster')) || {gpus_per_node: 8}).gpus_per_node;

function gpuStops() {
  const node = perNode();
  const within = Array.from({length: node}, (_, index) => index + 1).filter((count) => node % count === 0);
  return [...within, ...DOUBLING.slice(1).map((nodes) => nodes * node)].filter((count) => count <= 16384);
}

function layersOf(plan) {
  const model = catalogue.models.find((one) => one.id === state.flags.get('model'));
  return model ? model.layers : plan ? plan.layers : 80;
}

export class PlanView {
  constructor(engine, search) {
    this.engine = engine;
    this.answer = null;    // the prediction on show
    this.beside = null;    // {label, prediction, trace} of the plan kept
    this.layers = 80;
    this.sections = {};
    this.inputs = this.makeInputs();
    this.answers = this.makeAnswers(search);
    this.watchRoom();
  }

  makeInputs() {
    const layerStops = () => Array.from({length: layersOf({layers: this.layers}) + 1}, (_, index) => index);
    this.controls = [
      modelChooser(), clusterChooser(), slider('gpus', 'GPUs', gpuStops, (plan) => plan.gpus, false),
      slider('seq-len', 'Tokens of a sequence', () => DOUBLING.slice(8).concat(32768, 65536, 131072), (plan) => plan.seq_len, false),
      slider('micro-batch', 'Sequences at a time', () => BATCHES, (plan) => plan.micro_batch),
      slider('grad-accum', 'Accumulation', () => DOUBLING.slice(0, 9), (plan) => plan.grad_accum),
      slider('ckpt-layers', 'Layers recomputed', layerStops, (plan) => plan.ckpt_layers),
      flagInput(flagOf('predict', 'strategy'), true), flagInput(flagOf('predict', 'recompute'), true), stackChooser()];
    this.parallelControls = [
      ...Object.keys(PARALLEL_SIZES).filter((name) => flagOf('predict', name)).map((name) =>
        slider(name, PARALLEL_SIZES[name], () => DOUBLING.slice(0, name === 'pp' || name === 'ep' ? 8 : 6), (plan) => plan[name] || 1)),
      ...HOW_PARALLEL.filter((name) => flagOf('predict', name)).map((name) => flagInput(flagOf('predict', name), true))];
    this.rest = remainingInputs('predict', [...SHOWN_IN_PLAN, ...NOT_IN_PLAN, ...Object.keys(PARALLEL_SIZES), ...HOW_PARALLEL], true);
    this.parallel = fold('Model parallelism: tensor, pipeline, context, experts, precision', this.parallelControls.map((control) => control.element));
    return html('form', {class: 'inputs', 'aria-label': 'The plan', onsubmit: (event) => event.preventDefault()},
      this.controls.map((control) => control.element), this.parallel, fold('All settings', this.rest.element));
  }

  makeAnswers(search) {
    this.sections.headline = html('div', {id: 'headline', class: 'headline'});
    this.trouble = html('p', {class: 'trouble', role: 'alert', hidden: true});
    this.ways = html('p', {hidden: true}, html('button', {type: 'button', onclick: () => search.start()}, 'What would fit?'));
    const keep = html('button', {type: 'button', onclick: () => this.keep()}, 'Keep this plan to compare with');
    const drop = html('button', {type: 'button', onclick: () => this.setBeside(null)}, 'Compare no more');
    const tokens = html('input', {type: 'text', 'data-flag': 'tokens', placeholder: '15T', onchange: () => setFlag('tokens', tokens.value.trim())});
    const price = html('input', {type: 'text', id: 'own-price', inputmode: 'decimal', placeholder: 'list price',
      onchange: () => setPrice(state.flags.get('cluster'), price.value.trim())});
    this.tokens = tokens;
    this.price = price;
    const named = (name, ...more) => part(this.sections, name, PARTS[name], ...more);
    const run = part(this.sections, 'run', 'The whole run', html('div', {class: 'pair'}, row('Tokens to train on', tokens), row('USD a GPU hour', price)));
    run.hidden = !flagOf('predict', 'tokens');
    return html('div', {}, this.trouble, this.sections.headline, this.ways, html('p', {class: 'tools'}, keep),
      named('beside', html('p', {class: 'tools'}, drop)), named('memory'), named('time'), search.element, named('timeline'), named('why'), run);
  }

  /** Pictures are drawn for the width they have. */
  watchRoom() {
    new ResizeObserver(() => this.answer && !this.answers.hidden && changed('room')).observe(this.answers);
  }

  redraw() {
    if (!this.answer) return;
    fillPlan(this.sections, this.rows());
    if (this.detailed) this.showDetails();
  }

  showDetails() {
    const {measured} = state;
    const forget = html('button', {type: 'button', class: 'small', onclick: () => {
      state.measured = null;
      changed('measured');
    }}, 'Leave out what was measured');
    this.sections.timeline.replaceChildren(...timelinesView([...this.rows(), ...(measured ? [measured] : [])]),
      ...(measured ? [html('p', {class: 'tools'}, forget)] : []));
    this.sections.why.replaceChildren(...reasonsView(this.answer));
  }

  rows() {
    const own = {label: this.beside ? `now: ${this.answer.inputs.plan_words}` : 'this plan', prediction: this.answer, trace: this.trace, noTrace: this.noTrace};
    return this.beside ? [own, this.beside] : [own];
  }

  refreshInputs() {
    const plan = this.answer && this.answer.inputs.plan;
    for (const control of [...this.controls, ...this.parallelControls]) control.refresh(plan);
    // Unfolded once the plan divides anything; whoever folds it again is left alone.
    const isParallel = [...Object.keys(PARALLEL_SIZES), ...HOW_PARALLEL].some((name) => state.flags.has(name));
    if (isParallel && !this.isParallel) this.parallel.open = true;
    this.isParallel = isParallel;
    this.rest.refresh(plan);
    for (const [input, value] of [[this.tokens, state.flags.get('tokens') || ''], [this.price, priceOf(state.flags.get('cluster'))]])
      if (document.activeElement !== input) input.value = value;
  }

  words() {
    return this.wordsOf(state.flags);
  }

  wordsOf(flags) {
    return [...wordsFor('predict', flags, (name) => !NOT_IN_PLAN.includes(name) && (flags.has('tokens') || !OF_A_RUN.includes(name))), '--json'];
  }

  async update() {
    this.refreshInputs();
    clearTimeout(this.timer);
    this.turn = (this.turn || 0) + 1;
    document.body.dataset.details = 'pending';
    const begin = performance.now();
    try {
      const answer = await this.engine.ask(this.words(), {key: 'predict', urgent: true});
      if (!answer) return;
      this.show(documentOf(answer));
      document.body.dataset.latency = (performance.now() - begin).toFixed(1);
      this.timer = setTimeout(() => this.updateDetails(), REST_MS);
    } catch (error) {
      this.complain(error.message);
    }
  }

  show(document) {
    // Several strategies in one question: the second stands beside the first.
    const all = document.predictions || [document];
    if (all.length > 1) {
      const [first, second] = all.map((one) => one.inputs.plan.strategy);
      state.beside = new Map(state.flags).set('strategy', second);
      this.beside = {label: all[1].inputs.plan_words, prediction: all[1]};
      setFlag('strategy', first, true);
    }
    this.answer = all[0];
    this.layers = this.answer.inputs.layers;
    this.detailed = false;
    this.trouble.hidden = true;
    this.answers.classList.remove('stale');
    this.ways.hidden = this.answer.memory.fits;
    fillPlan(this.sections, this.rows());
    this.showRun();
    this.refreshInputs();
    changed('answer');
  }

  complain(sentence) {
    this.trouble.textContent = sentence;
    this.trouble.hidden = false;
    this.answers.classList.add('stale');
    changed('answer');
  }

  showRun() {
    const content = this.answer && wholeRun(this.answer);
    this.sections.run.replaceChildren(...(content ? [content] : []));
  }

  async updateDetails() {
    const {turn} = this;
    const own = await this.detailsOf(this.words());
    if (!own || turn !== this.turn) return;  // of a plan that the hand has left
    this.trace = own.trace;
    this.noTrace = own.noTrace;
    this.answer = own.prediction;
    if (this.beside && !this.beside.trace && !this.beside.noTrace) {
      const other = await this.besideOf(state.beside);
      if (turn !== this.turn) return;
      if (other) this.beside = other;
    }
    this.detailed = true;
    fillPlan(this.sections, this.rows());
    this.showDetails();
    document.body.dataset.details = 'done';
    changed('details');
  }

  async detailsOf(words, key = 'details') {
    try {
      const answer = await this.engine.look([...words, '--explain', '--trace', 'step.json'], {key, outputs: ['step.json']});
      if (answer && !answer.code) return {prediction: documentOf(answer), trace: JSON.parse(answer.outputs['step.json'])};
      // Of some plans no timeline is written; what else is known of them is worth showing.
      const without = answer && await this.engine.look([...words, '--explain'], {key});
      return without && !without.code ? {prediction: documentOf(without), noTrace: sentenceOf(answer)} : null;
    } catch (error) {
      this.complain(error.message);
      return null;
    }
  }

  async besideOf(flags) {
    const found = await this.detailsOf(this.wordsOf(flags), 'beside');
    return found && {...found, label: `kept: ${found.prediction.inputs.plan_words}`};
  }

  keep() {
    this.setBeside(new Map(state.flags));
    this.trouble.hidden = true;
    this.answers.querySelector('#beside').scrollIntoView({block: 'nearest'});
  }

  async setBeside(flags) {
    state.beside = flags;
    this.beside = flags && (await this.besideOf(flags));
    this.redraw();
    changed('beside');
  }

  /** Takes over a plan of a JSON document. */
  adopt(plan, more = []) {
    setFlags([...more, ...flagsOfPlan(plan)]);
  }
}
