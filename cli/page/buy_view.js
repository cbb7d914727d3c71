// SPDX-License-Identifier: Apache-2.0
// "Buy": which GPUs, how many, for how long, for how much. `size` in its own worker; every option it weighed is a
// point of days and dollars, and any of them can be looked at as a plan.
import {OF_THE_MACHINE, catalogue, flagOf, flagsOfPlan, wordsFor} from './catalogue.js';
import {modelChooser, remainingInputs, row, stackChooser} from './controls.js';
import {documentOf, sentenceOf} from './engine.js';
import {countOf, days, daysOf, grouped, percent, short, usd} from './format.js';
import {priceOf, setPrice} from './prices.js';
import {scatter} from './scatter.js';
import {Progress} from './search.js';
import {changed, filesOf, setFlag, setFlags, state} from './store.js';
import {fold, html, table} from './svg.js';

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

  draw() {
    const {sizing} = this;
    const [first, ...rest] = sizing.summary || sizing.words || [];
    const details = (sizing.words || []).filter((sentence) => sentence !== first && !rest.includes(sentence));
    this.found.replaceChildren(...[
      first ? html('p', {class: 'answer', role: 'status'}, first) : null,
      rest.length ? html('ul', {}, rest.map((sentence) => html('li', {}, sentence))) : null,
      details.length ? fold('Behind it', html('ul', {}, details.map((sentence) => html('li', {}, sentence)))) : null,
      ...this.picture(), ...this.bestTable(), ...this.breakEven(), ...this.scaling(),
      html('section', {}, html('h2', {}, 'What this rests on'), html('ul', {}, sizing.assumptions.map((sentence) => html('li', {}, sentence)))),
      sizing.left_out.length ? fold('What was left out, and why', table(['cluster', 'GPUs', 'why'],
        sizing.left_out.map((one) => [one.cluster, grouped(one.gpus), one.reason]), 'What was left out')) : null].filter(Boolean));
    changed('sizing');
  }

  picture() {
    const {options, pareto, recommended} = this.sizing;
    const deadline = daysOf(state.flags.get('deadline'));
    const budget = countOf(state.flags.get('budget') || '');
    // The goal as it stands now: its line and the points that meet it move at once, the search need not be made again.
    const meets = (one) => !(one.days > deadline) && !(one.cost_usd > budget);
    const same = (one, other) => other && one.cluster === other.cluster && one.gpus === other.gpus && one.days === other.days;
    const points = options.filter((one) => one.cost_usd > 0).map((one) => ({
      x: one.days, y: one.cost_usd, front: pareto.some((other) => same(one, other)),
      kind: same(one, recommended) ? 'chosen' : meets(one) ? 'meets' : 'misses',
      name: `${one.gpus} × ${one.cluster}`, title: this.optionWords(one), onpick: () => this.look(one)}));
    if (points.length < 2) return [];
    const label = `Days and dollars of ${points.length} options; the front has ${pareto.length}.${recommended ? ` Recommended: ${this.optionWords(recommended)}` : ''}`;
    const older = this.words().join(' ') !== this.asked;
    return [html('section', {}, html('h2', {}, 'Days and dollars'),
      older ? html('p', {class: 'note'}, 'The goal changed since this search; the words and the recommendation are of the search. “Find GPUs” searches again.') : null,
      scatter({points, label, xName: 'days', yName: 'USD', xText: (mark) => grouped(mark), yText: (mark) => short(mark), xGoal: deadline, yGoal: budget}),
      html('p', {class: 'note'}, 'Filled: meets the goal. On the line: nothing is both faster and cheaper. Red: the goal. Choose a point to see its plan.'),
      fold('The front as a table', this.optionTable(pareto, 'The front of days and dollars')))];
  }

  optionWords(one) {
    return `${grouped(one.gpus)} GPUs of ${one.cluster}: ${days(one.days)}, ${one.cost_usd ? usd(one.cost_usd) : 'no price'} (${one.plan_words})`;
  }

  optionTable(options, caption) {
    return table(['cluster', 'GPUs', 'days', 'cost', 'interval', 'MFU', 'plan', ''], options.map((one) => [
      `${one.cluster}${one.recommended ? ' (recommended)' : ''}${one.estimate_only ? ' (nothing measured)' : ''}`,
      grouped(one.gpus), days(one.days), one.cost_usd ? usd(one.cost_usd) : 'no price',
      one.days_interval ? one.days_interval.map((value) => days(value)).join(' to ') : '', percent(one.mfu), one.plan_words,
      html('button', {type: 'button', class: 'small', onclick: () => this.look(one)}, 'see the plan')]), caption);
  }

  bestTable() {
    return [html('section', {}, html('h2', {}, 'The best of each cluster'), this.optionTable(this.sizing.best_of_each || [], 'The best option of each cluster'))];
  }

  /** Of clusters that lost: the price at which each would draw level, beside what it is listed at and since when. */
  breakEven() {
    const {break_even: rows} = this.sizing;
    if (!rows || !rows.length) return [];
    const listed = ({price, usd_per_gpu_hour: usdAnHour}) => {
      if (!usdAnHour) return 'no price';
      const age = price && price.age_days > 90 ? `, ${price.age_days} days old` : '';
      return `${usdAnHour.toFixed(2)}${price && price.date ? ` (${price.kind}, ${price.date}${age})` : ''}`;
    };
    return [html('section', {id: 'break-even'}, html('h2', {}, 'Break-even: the price at which each would win'),
      table(['cluster', 'GPUs', 'wins at, USD a GPU hour', 'is listed at'], rows.map((one) => [one.cluster, grouped(one.gpus),
        one.break_even_usd_per_gpu_hour.toFixed(2), listed(one)]), 'Break-even prices'))];
  }

  scaling() {
    const {knee} = this.sizing;
    if (!knee || !knee.growth || !knee.growth.length) return [];
    const growth = knee.growth.map((one) => [`${grouped(one.from_gpus)} → ${grouped(one.to_gpus)}`, one.speedup.toFixed(2), String(one.ideal), one.pays ? 'yes' : 'no']);
    return [html('section', {}, html('h2', {}, `How ${knee.cluster} scales`), html('ul', {}, (knee.why || []).map((sentence) => html('li', {}, sentence))),
      fold('Every doubling as a table', table(['GPUs', 'faster by', 'ideal', 'pays'], growth, 'What each doubling brings')))];
  }

  look(one) {
    setFlags([['cluster', one.cluster], ['gpus', String(one.gpus)], ...flagsOfPlan(one.plan)]);
    state.view = 'plan';
    changed('view');
    document.getElementById('headline').scrollIntoView();
  }
}
