// The engines now: load, cache, speed, version, queue, and what a drain would move.
import { get } from "../api.js";
import { duration, h, number, pill, replace, whole } from "../dom.js";

const KIND = { generating: "good", idle: "", "waiting for weights": "warn", "waiting for environments": "warn", stuck: "bad", draining: "warn", ended: "" };

function meter(value, most, words) {
  const share = most ? Math.min(value / most, 1) : 0;
  return h("div", { class: "meter", title: words }, h("i", { width: `${100 * share}%` }), h("span", {}, words));
}

export class EnginesView {
  constructor(run) {
    this.run = run;
    this.element = h("div", {});
  }

  async update() {
    const found = await get(`/api/runs/${this.run}/engines`);
    if (found === this.seen) return;
    this.seen = found;
    const columns = ["engine", "state", "version", "slots", "queue", "KV cache", "tokens/s", "a drain moves"];
    replace(this.element,
      found.engines.length ? h("p", { class: "quiet" }, found.live ? "By heartbeats, at most a few seconds old."
        : "The run is not at work: these are the last heartbeats that were kept.") : null,
      found.engines.length ? h("table", { class: "cards" },
        h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, found.engines.map((engine) => this.row(engine, columns))))
        : h("p", { class: "quiet" }, "No engine has been heard of yet."));
  }

  row(engine, columns) {
    const behind = engine.behind ? ` (${engine.behind} behind)` : "";
    const cells = [
      h("span", {}, h("strong", {}, engine.engine), h("br"), h("span", { class: "quiet" },
        `pool ${engine.pool}${engine.site ? `, site ${engine.site}` : ""}${engine.up !== null ? `, up ${duration(engine.up)}` : ""}`)),
      h("span", {}, pill(engine.state, KIND[engine.state]), engine.stuck ? h("span", { class: "problem" }, ` ${engine.stuck}`) : null),
      `${engine.version}${behind}`,
      meter(engine.running, engine.slots, `${engine.running} of ${engine.slots}`),
      engine.in_environment ? `${whole(engine.waiting)}, and ${whole(engine.in_environment)} in their environments` : whole(engine.waiting),
      engine.kv_tokens === null ? "–" : meter(engine.kv_used, engine.kv_tokens, `${whole(engine.kv_used)} of ${whole(engine.kv_tokens)}`),
      engine.tokens_per_second === null ? `– (${whole(engine.tokens)} in all)` : number(engine.tokens_per_second, 0),
      engine.drain.trajectories ? `${whole(engine.drain.trajectories)} trajectories, ${whole(engine.drain.tokens)} tokens` : "nothing",
    ];
    return h("tr", {}, cells.map((cell, place) => h("td", { "data-label": columns[place] }, cell)));
  }
}
