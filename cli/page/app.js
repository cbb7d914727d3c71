// SPDX-License-Identifier: Apache-2.0
// Starts the engine, reads the link, and lets the views follow what the user chooses.
import {BuyView} from './buy_view.js';
import {knownFlags, readCatalogue} from './catalogue.js';
import {ConsoleView} from './console_view.js';
import {Engine} from './engine.js';
import {FineTuneView} from './fine_tune_view.js';
import {GivenFiles} from './given_files.js';
import {stateOfLink} from './link.js';
import {brief} from './plan_answers.js';
import {PlanView} from './plan_view.js';
import {Progress, Search} from './search.js';
import {changed, files, listen, state} from './store.js';
import {fold, html, measureRoom} from './svg.js';
import {presentLink, TakeAway} from './take_away.js';

const VIEWS = {plan: 'Plan', tune: 'Fine-tune', buy: 'Buy', console: 'Command line'};
const FIRST = [['model', 'llama-3-8b'], ['cluster', 'dgx-h100'], ['gpus', '64'], ['tokens', '15T'], ['deadline', '60d']];
const LINK_REST_MS = 300;

/** A line above all: what was done, or what was wrong with a file or link. */
function say(sentence, wrong = false, more = '') {
  const close = html('button', {type: 'button', class: 'small', onclick: () => note.remove()}, 'close');
  const note = html('div', {class: `said ${wrong ? 'wrong' : ''}`, role: wrong ? 'alert' : 'status'}, html('span', {}, sentence), close,
    more ? fold('What the program says', html('pre', {}, more)) : null);
  const place = document.getElementById('says');
  place.prepend(note);
  while (place.children.length > 4) place.lastChild.remove();
}

class App {
  constructor(engine) {
    this.engine = engine;
    const progress = new Progress(engine);
    this.given = new GivenFiles(engine, progress, say);
    this.search = new Search(engine);
    this.plan = new PlanView(engine, this.search);
    this.buy = new BuyView(engine, this.plan);
    this.fine = new FineTuneView(engine);
    this.console = new ConsoleView(engine);
    window.shardwrightConsole = this.console;  // whoever automates the page reads results there to the byte
    this.take = new TakeAway(engine, this.plan, this.buy, this.fine, say);
    document.getElementById('inputs').append(this.given.element, progress.element, this.plan.inputs, this.fine.inputs, this.buy.inputs);
    document.getElementById('answers').append(this.plan.answers, this.fine.answers, this.buy.answers, this.console.element, this.take.element);
    for (const [view, label] of Object.entries(VIEWS)) {
      document.getElementById('views').append(html('button', {type: 'button', 'data-view': view, onclick: () => {
        state.view = view;
        changed('view');
      }}, label));
    }
    listen((what) => this.follow(what));
    document.getElementById('brief').addEventListener('click', () => document.getElementById('headline').scrollIntoView());
    addEventListener('hashchange', () => this.open());
  }

  /** Reads the address. What it does not say is as at the first start. */
  async open() {
    if (location.hash === this.written) return;
    const link = await stateOfLink(location.hash, Object.keys(VIEWS), knownFlags());
    for (const sentence of link.complaints) say(sentence, true);
    state.view = link.view;
    state.flags = new Map(link.flags.has('model') ? link.flags : [...FIRST, ...link.flags]);
    state.held = link.held;
    state.beside = link.beside;
    for (const [name, text] of link.files) files.set(name, text);
    this.plan.beside = null;
    if (link.beside) this.plan.setBeside(link.beside);
    changed('view');
  }

  follow(what) {
    if (what === 'view') this.showView();
    if (what === 'view' || what === 'flags') {
      this.search.refresh();
      this.buy.refreshInputs();
      this.fine.refreshInputs();
      if (state.view === 'plan') this.plan.update();
    }
    if (what === 'measured') this.plan.redraw();
    if (what === 'room' && measureRoom(document.getElementById('answers'))) {
      if (state.view === 'plan') this.plan.redraw();
      else if (this.buy.sizing) this.buy.draw();
    }
    this.showBrief();
    this.take.refresh();
    this.keepLink();
  }

  /** On a phone the inputs fill the window: the answer then stays in sight as one line. */
  showBrief() {
    const line = document.getElementById('brief');
    line.hidden = state.view !== 'plan' || !this.plan.answer;
    if (!line.hidden) line.textContent = this.plan.trouble.hidden ? brief(this.plan.answer) : this.plan.trouble.textContent;
  }

  showView() {
    const {view} = state;
    for (const button of document.querySelectorAll('#views button')) button.setAttribute('aria-pressed', String(button.dataset.view === view));
    this.plan.inputs.hidden = this.plan.answers.hidden = view !== 'plan';
    this.buy.inputs.hidden = this.buy.answers.hidden = view !== 'buy';
    this.fine.inputs.hidden = this.fine.answers.hidden = view !== 'tune';
    this.console.element.hidden = view !== 'console';
    this.take.element.hidden = view === 'console';
    document.getElementById('inputs').hidden = view === 'console';
    document.body.dataset.view = view;
    measureRoom(document.getElementById('answers'));
  }

  /** The address follows, without a step back for every move of a slider. */
  keepLink() {
    clearTimeout(this.linkTimer);
    this.linkTimer = setTimeout(async () => {
      const link = await presentLink();
      // Browsers write some letters of an address in their own way; what stands there then is what we wrote.
      history.replaceState(null, '', link);
      this.written = location.hash;
    }, LINK_REST_MS);
  }
}

async function main() {
  const begin = performance.now();
  try {
    const engine = await Engine.start(files);
    await readCatalogue(engine);
    document.getElementById('starting').remove();
    const app = new App(engine);
    await app.open();
    document.body.dataset.ready = (performance.now() - begin).toFixed(0);
  } catch (error) {
    const starting = document.getElementById('starting');
    if (starting) starting.textContent = `The planner could not start: ${error.message.replace(/\.$/, '')}. It needs a browser of 2023 or later with WebAssembly.`;
    else say(error.message, true);
  }
}

main();
