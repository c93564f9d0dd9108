// Runs over each other, and in what their manifests differ.
import { get } from "../api.js";
import { h, replace } from "../dom.js";
import { CurveBoard } from "./curves.js";

function shown(value) {
  return value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);
}

export class CompareView {
  constructor(runs) {
    this.runs = runs;
    this.board = new CurveBoard();
    this.table = h("div", {});
    this.title = h("h1", {}, "Comparison");
    this.element = h("div", {}, this.title, this.board.element, h("h2", {}, "What differs in the manifests"), this.table);
  }

  async update() {
    const found = await get(`/api/compare?runs=${this.runs.join(",")}`);
    const names = found.runs.map((run) => run.name);
    const labels = names.map((name, place) => (names.indexOf(name) !== place || names.lastIndexOf(name) !== place ? `${name} (${this.runs[place]})` : name));
    this.title.textContent = labels.join(" and ");
    const states = await Promise.all(this.runs.map((run) => get(`/api/runs/${run}`)));
    await this.board.update(this.runs.map((run, place) => ({ run, label: labels[place], revision: states[place].revisions.curves })));
    const key = JSON.stringify(found);
    if (key === this.shown) return;
    this.shown = key;
    const unknown = found.runs.filter((run) => !run.known).map((run) => run.name);
    replace(this.table,
      unknown.length ? h("p", { class: "problem" }, `The manifest of ${unknown.join(", ")} cannot be read.`) : null,
      found.rows.length ? h("table", { class: "cards" },
        h("thead", {}, h("tr", {}, ["field", ...labels].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, found.rows.map((row) => h("tr", {}, h("th", { scope: "row", "data-label": "field" }, row.path),
          row.values.map((value, place) => h("td", { "data-label": labels[place] }, h("code", {}, shown(value))))))))
        : h("p", { class: "quiet" }, "Nothing."));
  }
}
