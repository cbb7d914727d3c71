// SPDX-License-Identifier: Apache-2.0
// "Buy": which GPUs, how many, for how long, for how much. `size` in its own worker; every option it weighed is a
// point of days and dollars, and any of them can be looked at as a plan.
import {OF_THE_MACHINE, catalogue, flagOf, flagsOfPlan, wordsFor} from './catalogue.js';
import {modelChooser, remainingInputs, row, stackChooser} from './controls.js';
import {documentOf, sentenceOf} from './engine.js';
import {countOf, daysOf} from './format.js';
import {Progress} from './search.js';
import {sizingView} from './size_answers.js';
import {changed, filesOf, priceOf, setFlag, setFlags, setPrice, state} from './store.js';
import {fold, html} from './svg.js';

const SHOWN_IN_BUY = ['model', 'stack', 'tokens', 'deadline', 'budget', 'clusters', 'price', 'cluster', 'gpus'];
const NOT_IN_BUY = ['json', 'out', 'plan', 'color', 'version'];
// Knobs of a plan are searched unless the user keeps them in "Plan".
const HELD_BY_SIZE = [...OF_THE_MACHINE, 'model', 'stack', 'seq-len', 'tokens', 'price', 'prices'];
const FIRST_CLUSTERS = ['dgx-h100', 'dgx-h200', 'dgx-b200', 'dgx-a100-80g'];

const PAGE = 'size.html';

export class BuyView {
  constructor(engine, plan) {
    this.engine = engine;
    this.plan = plan;
    this.progress = new Progress(engine);
    this.inputs = this.makeInputs();
    this.found = html('div', {});
    this.trouble = html('p', {class: 'trouble', role: 'alert', hidden: true});
    this.answers = html('div', {}, this.trouble, this.progress.element, this.found);
    this.intro();
    new ResizeObserver(() => this.sizing && !this.answers.hidden && changed('room')).observe(this.answers);
  }

  intro() {
    this.found.replaceChildren(html('p', {class: 'answer'}, 'Say what to train and until when; “Find GPUs” weighs every number of GPUs of the clusters you ticked.'),
      html('p', {class: 'note'}, 'Each cluster takes some seconds. More clusters, more seconds; you may cancel at any time.'));
  }

  makeInputs() {
    const text = (name, label, placeholder) => {
      const input = html('input', {type: 'text', 'data-flag': name, placeholder, autocomplete: 'off', onchange: () => setFlag(name, input.value.trim())});
      const element = row(label, input);
      return {element, refresh: () => document.activeElement !== input && (input.value = state.flags.get(name) || '')};
    };
    this.controls = [modelChooser(), text('tokens', 'Tokens to train on', '15T'), text('deadline', 'Deadline', '60d'),
      text('budget', 'Budget in USD', '5M'), this.clusterList(), stackChooser()];
    this.rest = remainingInputs('size', [...catalogue.flags.predict.map((flag) => flag.name).filter((name) => !['seq-len', 'prices'].includes(name)), ...SHOWN_IN_BUY, ...NOT_IN_BUY], false);
    this.go = html('button', {type: 'submit', class: 'main', id: 'find-gpus'}, 'Find GPUs');
    return html('form', {class: 'inputs', 'aria-label': 'The goal', onsubmit: (event) => {
      event.preventDefault();
      this.start();
    }}, this.controls.map((control) => control.element), this.go, fold('All settings', this.rest.element));
  }

  clusterList() {
    const chosen = () => new Set((state.flags.get('clusters') || FIRST_CLUSTERS.join(',')).split(','));
    const list = html('div', {class: 'clusters', role: 'group', 'aria-label': 'Clusters'});
    const line = (id, note, price) => {
      const tick = html('input', {type: 'checkbox', 'data-cluster': id, onchange: () => {
        const now = chosen();
        now.delete('all');
        if (tick.checked) now.add(id);
        else now.delete(id);
        setFlag('clusters', [...now].join(','));
      }});
      tick.checked = chosen().has(id) || chosen().has('all');
      const own = html('input', {type: 'text', inputmode: 'decimal', class: 'price', 'aria-label': `USD a GPU hour of ${id}`, 'data-price': id,
        value: priceOf(id), placeholder: price ? String(price) : 'price', onchange: () => setPrice(id, own.value.trim())});
      return html('div', {class: 'line'}, html('label', {}, tick, ` ${id} `, note ? html('small', {}, note) : null), own);
    };
    return {element: html('fieldset', {}, html('legend', {}, 'Clusters, and USD a GPU hour'), list), refresh: () => {
      if (list.contains(document.activeElement)) return;
      const own = filesOf('cluster').map((name) => line(`./${name}`, 'yours'));
      // Ticked ones first: they are what the search will cost.
      const ticked = (one) => (chosen().has(one.id) ? 0 : 1);
      list.replaceChildren(...own, ...catalogue.clusters.filter((one) => one.id !== 'host')
        .sort((one, other) => ticked(one) - ticked(other) || one.id.localeCompare(other.id))
        .map((one) => line(one.id, `${one.gpus_per_node} × ${one.gpu}`, one.usd_per_gpu_hour)));
    }};
  }

  refreshInputs() {
    for (const control of this.controls) control.refresh();
    this.rest.refresh();
    if (this.sizing && state.view === 'buy') this.draw();
  }

  words() {
    const flags = new Map(state.flags);
    if (!flags.get('clusters')) flags.set('clusters', FIRST_CLUSTERS.join(','));
    const mine = (name) => !NOT_IN_BUY.includes(name) && name !== 'cluster' && name !== 'gpus' &&
      (HELD_BY_SIZE.includes(name) || state.held.has(name) || !flagOf('predict', name));
    return wordsFor('size', flags, mine);
  }

  async start() {
    this.trouble.hidden = true;
    this.go.disabled = true;
    this.answers.classList.add('stale');
    try {
      const asked = this.words();
      const answer = await this.progress.during((onProgress) => this.engine.search([...asked, '--json', ...(flagOf('size', 'out') ? ['--out', PAGE] : [])], {onProgress, outputs: [PAGE]}));
      if (answer) {
        this.asked = asked.join(' ');
        this.show(documentOf(answer), answer);
      }
    } catch (error) {
      this.complain(error.message);
    }
    this.answers.classList.remove('stale');
    this.go.disabled = false;
  }

  complain(sentence) {
    this.trouble.textContent = sentence;
    this.trouble.hidden = false;
  }

  show(sizing, answer) {
    this.sizing = sizing;
    this.text = answer.stdout;
    this.page = answer.outputs[PAGE];
    if (answer.code) this.complain(sentenceOf(answer));
    this.draw();
  }

  /** The goal as it stands now: its lines and the points that meet it move at once, the search need not be made again. */
  draw() {
    const older = this.words().join(' ') !== this.asked;
    this.found.replaceChildren(...sizingView(this.sizing, {
      deadline: daysOf(state.flags.get('deadline')), budget: countOf(state.flags.get('budget') || ''), look: (one) => this.look(one),
      note: older ? 'The goal changed since this search; the words and the recommendation are of the search. “Find GPUs” searches again.' : null}));
    changed('sizing');
  }

  look(one) {
    setFlags([['cluster', one.cluster], ['gpus', String(one.gpus)], ...flagsOfPlan(one.plan)]);
    state.view = 'plan';
    changed('view');
    document.getElementById('headline').scrollIntoView();
  }
}
