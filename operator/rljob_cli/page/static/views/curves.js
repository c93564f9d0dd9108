// Curves of one run, or of several over each other.
import { Chart } from "../chart.js";
import { SERIES, h, replace } from "../dom.js";
import { points, refresh, rowsOf } from "../rows.js";

const SPARSE = "heldout_";
// What often has the same values as another line of its chart, which it would hide.
const DASHED = new Set(["pipeline.max_staleness", "reward_mean_trained", "reward_std_trained"]);
export const settings = { x: "step", smooth: 0 };

export class CurveBoard {
  constructor() {
    this.charts = new Map();
    this.grid = h("div", { class: "charts" });
    this.note = h("p", { class: "quiet" });
    const redraw = () => this.draw();
    const axis = h("select", { id: "axis", onchange: (event) => { settings.x = event.target.value; redraw(); } },
      h("option", { value: "step" }, "step"), h("option", { value: "seconds" }, "time"));
    axis.value = settings.x;
    const smooth = h("input", { id: "smooth", type: "range", min: 0, max: 0.95, step: 0.05, value: settings.smooth,
      oninput: (event) => { settings.smooth = Number(event.target.value); redraw(); } });
    this.element = h("div", {},
      h("div", { class: "tools" }, h("label", { for: "axis" }, "Over "), axis,
        h("label", { for: "smooth" }, "Smooth "), smooth), this.note, this.grid);
    this.sources = [];
  }

  // Sources: [{run, label}]; with several, a run has a colour, and a curve of it a dash.
  async update(sources) {
    this.sources = sources;
    let changed = this.grid.childElementCount === 0;
    for (const source of sources) changed = (await refresh(source.run, source.revision)) || changed;
    if (changed || this.drawn !== sources.map((s) => s.run).join()) this.draw();
  }

  draw() {
    const { sources } = this;
    this.drawn = sources.map((s) => s.run).join();
    const plans = new Map();
    for (const source of sources) {
      for (const plan of rowsOf(source.run).charts) {
        const known = plans.get(plan.title);
        if (!known) plans.set(plan.title, { ...plan, curves: [...plan.curves] });
        else for (const curve of plan.curves) if (!known.curves.some((c) => c[0] === curve[0])) known.curves.push(curve);
      }
    }
    for (const [title, chart] of this.charts) {
      if (!plans.has(title)) { chart.element.remove(); this.charts.delete(title); }
    }
    let place = 0;
    for (const [title, plan] of plans) {
      if (!this.charts.has(title)) this.charts.set(title, new Chart(plan));
      const chart = this.charts.get(title);
      if (this.grid.children[place] !== chart.element) this.grid.insertBefore(chart.element, this.grid.children[place] ?? null);
      place += 1;
      chart.set(this.lines(plan), settings);
    }
    const rows = sources.reduce((sum, source) => sum + rowsOf(source.run).versions.length, 0);
    replace(this.note, rows ? "" : "No step is finished yet: curves begin with the first line of metrics.jsonl.");
    this.note.hidden = rows > 0;
  }

  lines(plan) {
    const several = this.sources.length > 1;
    return plan.curves.flatMap(([column, name], curve) => this.sources.map((source, place) => ({
      ...points(rowsOf(source.run), column, settings.x),
      label: several ? (plan.curves.length > 1 ? `${source.label}: ${name}` : source.label) : name,
      color: SERIES[(several ? place : curve) % SERIES.length],
      dash: several ? curve % 4 : DASHED.has(column) ? 1 : 0,
      sparse: column.startsWith(SPARSE),
    }))).filter((line) => line.xs.length);
  }
}

export class CurvesView {
  constructor(run) {
    this.run = run;
    this.board = new CurveBoard();
    this.element = this.board.element;
  }

  update(state) {
    return this.board.update([{ run: this.run, label: state.name, revision: state.revisions.curves }]);
  }
}
