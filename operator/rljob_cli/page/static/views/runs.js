// All runs that the page was given.
import { get } from "../api.js";
import { duration, h, number, pill, replace, whole } from "../dom.js";

export const STATE = { running: "good", starting: "good", finished: "", failed: "bad", damaged: "bad", interrupted: "warn" };

export class RunsView {
  constructor() {
    this.start = 0;
    this.chosen = new Set();
    this.find = h("input", { type: "search", placeholder: "Find a run", "aria-label": "Find a run",
      oninput: () => { this.start = 0; this.update(); } });
    this.compare = h("a", { class: "button", href: "#/runs" }, "Compare");
    this.table = h("div", {});
    this.element = h("div", {}, h("h1", {}, "Runs"), h("div", { class: "tools" }, this.find, this.compare), this.table);
    this.choose();
  }

  choose() {
    const runs = [...this.chosen].sort((a, b) => a - b);
    this.compare.href = runs.length > 1 ? `#/compare/${runs.join(",")}` : "#/runs";
    this.compare.textContent = runs.length > 1 ? `Compare ${runs.length} runs` : "Mark runs to compare them";
    this.compare.classList.toggle("off", runs.length < 2);
  }

  async update() {
    const found = await get(`/api/runs?start=${this.start}&find=${encodeURIComponent(this.find.value)}`);
    const key = JSON.stringify([found, [...this.chosen]]);
    if (key === this.shown) return;
    this.shown = key;
    const columns = ["", "run", "state", "step", "mode", "held-out reward", "time", "changed"];
    replace(this.table,
      found.runs.length ? h("table", { class: "cards" },
        h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, found.runs.map((run) => this.row(run, columns))))
        : h("p", { class: "quiet" }, this.find.value ? "No run has this name." : "No run is here yet: this page shows them as they come."),
      h("div", { class: "tools" },
        found.start ? h("button", { type: "button", onclick: () => this.turn(-100) }, "Newer") : null,
        found.total > found.start + found.runs.length ? h("button", { type: "button", onclick: () => this.turn(100) }, "Older") : null,
        h("span", { class: "quiet" }, `${whole(found.total)} run${found.total === 1 ? "" : "s"}`)));
  }

  turn(by) {
    this.start = Math.max(this.start + by, 0);
    this.update();
  }

  row(run, columns) {
    const mark = h("input", { type: "checkbox", "aria-label": `Mark ${run.name}`, onchange: (event) => {
      if (event.target.checked) this.chosen.add(run.id); else this.chosen.delete(run.id);
      this.choose();
    } });
    mark.checked = this.chosen.has(run.id);
    const cells = [mark, h("a", { href: `#/run/${run.id}/curves`, title: run.path }, run.name), pill(run.state, STATE[run.state]),
      run.step === undefined ? "–" : `${whole(run.step)} of ${whole(run.steps)}`, run.mode || "–", number(run.held_out),
      duration(run.wall_seconds), run.modified ? new Date(run.modified * 1000).toLocaleString() : "–"];
    return h("tr", {}, cells.map((cell, place) => h("td", { "data-label": columns[place] }, cell)));
  }
}
