// The staleness buffers now: each coming step's batch, against its stamp.
import { get } from "../api.js";
import { h, replace, whole } from "../dom.js";

const PARTS = [["training", "in training"], ["occupied", "occupied"], ["reserved", "reserved"], ["free", "free"]];

export class BuffersView {
  constructor(run) {
    this.run = run;
    this.element = h("div", {});
  }

  async update(state) {
    if (this.seen === state.revisions.ledger) return;
    this.seen = state.revisions.ledger;
    const found = await get(`/api/runs/${this.run}/buffers`);
    replace(this.element,
      found.problem ? h("p", { class: "problem" }, found.problem) : null,
      h("p", {}, found.mode ? `The trainer is at version ${found.version}. New buffers are stamped ${found.mode}, maxStaleness ${found.max_staleness}.`
        : "The ledger has told nothing yet."),
      h("div", { class: "keys" }, PARTS.map(([part, words]) => h("span", {}, h("i", { class: `box ${part}` }), words))),
      found.buffers.length ? h("div", { class: "buffers" }, found.buffers.map((buffer) => this.buffer(buffer, found.version)))
        : h("p", { class: "quiet" }, state.running ? "No buffer is open." : "No buffer is open: the run is not at work."),
      found.left_out ? h("p", { class: "quiet" }, `and ${found.left_out} more`) : null,
      h("h2", {}, "Trajectories"), this.counts(found));
  }

  buffer(buffer, version) {
    const oldest = Math.max(buffer.step - buffer.bound, 0);
    const staleness = Object.entries(buffer.staleness).map(([distance, count]) => `${distance}: ${count}`).join(", ");
    const words = PARTS.map(([part, name]) => `${buffer[part]} ${name}`).join(", ");
    const siblings = Object.entries(buffer.siblings).map(([name, count]) => `${count} ${name}`).join(", ");
    return h("section", { class: "buffer" },
      h("h3", {}, `Step ${buffer.step}`, buffer.step === version ? " (next)" : ""),
      h("div", { class: "bar", role: "img", "aria-label": words },
        PARTS.map(([part]) => h("i", { class: `box ${part}`, width: `${(100 * buffer[part]) / buffer.capacity}%` }))),
      h("p", {}, `${words}, of ${buffer.capacity} groups`),
      h("p", { class: "quiet" }, `stamp ${buffer.mode} ${buffer.bound}: tokens of version ${oldest} or later; `
        + `groups by staleness so far: ${staleness || "none"}${siblings ? `; reserved groups' trajectories: ${siblings}` : ""}`));
  }

  counts(found) {
    const rows = [
      ...Object.entries(found.counts).map(([name, count]) => [name, count]),
      ...Object.entries(found.open).map(([name, count]) => [`open, ${name}`, count]),
      ...Object.entries(found.aborted).map(([reason, count]) => [`aborted, ${reason}`, count]),
      ...Object.entries(found.attempts_failed).map(([reason, count]) => [`attempts that failed, ${reason}`, count]),
    ];
    return rows.length ? h("table", { class: "narrow" }, h("tbody", {}, rows.map(([name, count]) => h("tr", {},
      h("th", { scope: "row" }, name), h("td", { class: "right" }, whole(count)))))) : h("p", { class: "quiet" }, "None yet.");
  }
}
