// The timeline: lanes of trainer, engines and rewards. Bubbles show as background.
import { get } from "../api.js";
import { canvas, clock, color, duration, h, number, replace } from "../dom.js";
import { niceTicks } from "../chart.js";

const LABEL = 15, LANE = 22, GAP = 7, TOP = 38, PAD = 6;
// Lines of the head, below that of the times: versions, and marks of no lane.
const NAMES = 24, MARKS = 33;
const FETCH_MS = 90;
const LOUD = new Set(["death", "end", "back"]);

export class TimelineView {
  constructor(run) {
    this.run = run;
    this.document = null;
    this.window = null; // [start, end] in seconds of the run; null: all of it
    this.follow = true;
    this.pointer = null;
    this.shownLanes = 0;
    this.note = h("p", { class: "readout", "aria-live": "polite" });
    this.picture = canvas(() => this.height, (c, w, t) => this.draw(c, w, t), {
      tabindex: 0, role: "application", class: "timeline",
      "aria-label": "Timeline. Plus and minus zoom, left and right arrows move, Home shows all, End follows the newest.",
    });
    const button = (label, title, act) => h("button", { type: "button", title, onclick: act }, label);
    this.element = h("div", {},
      h("div", { class: "tools" },
        button("+", "Zoom in (key: +)", () => this.zoom(0.5)), button("−", "Zoom out (key: −)", () => this.zoom(2)),
        button("◀", "Earlier (key: ←)", () => this.move(-0.4)), button("▶", "Later (key: →)", () => this.move(0.4)),
        button("All", "The whole run (key: Home)", () => this.show(null)),
        button("Newest", "Follow the newest 30 s (key: End)", () => this.newest()),
        h("span", { class: "keys" }, ...[["training", "training"], ["publishing", "publishing"], ["generating", "generating"],
          ["weights", "waiting for weights"], ["swapping", "swapping weights"], ["scoring", "scoring"], ["evaluating", "evaluating"], ["idle", "idle or waiting"]]
          .map(([name, words]) => h("span", {}, h("i", { class: `box ${name}` }), words)))),
      this.note, this.picture, h("h2", {}, "Events in this window"), (this.events = h("div", { class: "events" })));
    this.listen();
  }

  get lanes() { return this.document?.lanes ?? []; }

  get height() { return TOP + Math.max(this.lanes.length, 3) * (LABEL + LANE + GAP) + PAD; }

  listen() {
    const picture = this.picture;
    let drag = null;
    picture.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.time(event.offsetX));
    }, { passive: false });
    picture.addEventListener("pointerdown", (event) => { drag = event.offsetX; picture.setPointerCapture(event.pointerId); });
    picture.addEventListener("pointermove", (event) => {
      if (drag !== null && Math.abs(event.offsetX - drag) > 2) {
        const [start, end] = this.span;
        const by = ((drag - event.offsetX) / picture.clientWidth) * (end - start);
        drag = event.offsetX;
        this.show([start + by, end + by]);
      }
      this.pointer = [event.offsetX, event.offsetY];
      this.read();
      picture.paint();
    });
    picture.addEventListener("pointerup", () => { drag = null; });
    picture.addEventListener("pointerleave", () => { this.pointer = null; this.read(); picture.paint(); });
    picture.addEventListener("dblclick", () => this.show(null));
    picture.addEventListener("keydown", (event) => {
      const act = { "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), ArrowLeft: () => this.move(-0.2),
        ArrowRight: () => this.move(0.2), Home: () => this.show(null), End: () => this.newest() }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
  }

  get length() { return this.document?.length || 1; }

  get span() { return this.window ?? [0, this.length]; }

  time(offset) {
    const [start, end] = this.span;
    return start + (offset / (this.picture.clientWidth || 1)) * (end - start);
  }

  zoom(factor, around = null) {
    const [start, end] = this.span, middle = around ?? (start + end) / 2;
    const wide = Math.min(Math.max((end - start) * factor, 0.02), this.length);
    const left = middle - ((middle - start) / (end - start)) * wide;
    this.show(wide >= this.length ? null : [left, left + wide]);
  }

  move(share) {
    const [start, end] = this.span, by = share * (end - start);
    this.show([start + by, end + by]);
  }

  newest() {
    this.window = [Math.max(this.length - 30, 0), Math.max(this.length, 1)];
    this.follow = true;
    this.fetchSoon();
  }

  show(window) {
    if (window) {
      const wide = window[1] - window[0];
      const left = Math.min(Math.max(window[0], 0), Math.max(this.length - wide, 0));
      this.follow = left + wide >= this.length - wide * 0.001;
      this.window = [left, left + wide];
    } else { this.window = null; this.follow = true; }
    this.picture.paint();
    this.fetchSoon();
  }

  fetchSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch().catch(() => {}), FETCH_MS);
  }

  async update(state) {
    this.state = state;
    const wanted = `${state.revisions.ledger}:${state.running}`;
    if (this.seen === wanted && !state.running) return;
    this.seen = wanted;
    await this.fetch();
  }

  async fetch() {
    const buckets = Math.min(Math.max(Math.round(this.picture.clientWidth / 2), 50), 1000);
    const query = this.window ? `&start=${this.window[0]}&end=${this.window[1]}` : "";
    const found = await get(`/api/runs/${this.run}/timeline?buckets=${buckets}${query}`);
    const grown = this.document ? found.length - this.length : 0;
    this.document = found.empty ? null : found;
    if (this.window && this.follow && grown > 0) this.window = this.window.map((edge) => edge + grown);
    this.empty = found.empty;
    this.read();
    this.list();
    this.picture.paint();
  }

  read() {
    const found = this.document;
    if (!found) {
      const ledger = this.state?.ledger;
      this.note.textContent = ledger?.total > ledger?.read ? `Reading the ledger: ${number((100 * ledger.read) / ledger.total, 0)} %`
        : "The ledger has told nothing yet: lanes begin with the first work that is sent to an engine.";
      return;
    }
    const reading = found.total > found.read + 200 ? `reading the ledger: ${Math.floor((100 * found.read) / found.total)} %; ` : "";
    const [start, end] = this.span;
    if (!this.pointer) {
      this.note.textContent = `${reading}${clock(start, end - start)} to ${clock(end, end - start)} of ${duration(found.length)}. ${this.shares()}`;
      return;
    }
    const [x, y] = this.pointer, time = this.time(x), lane = this.lanes[Math.floor((y - TOP) / (LABEL + LANE + GAP))];
    this.note.textContent = `${clock(time, end - start)}${lane ? ` · ${lane.name}: ${this.doing(lane, time)}` : ""}${this.stepAt(time)}`;
  }

  shares() {
    const engines = this.lanes.filter((lane) => lane.kind === "engine");
    if (!engines.length) return "";
    const busy = engines.flatMap((lane) => lane.busy);
    const [start, end] = [this.document.start, this.document.end];
    const trained = this.document.steps.reduce((sum, s) => sum + Math.max(Math.min(s[2], end) - Math.max(s[1], start), 0), 0);
    const percent = (share) => `${Math.round(100 * Math.min(share, 1))} %`;
    return `Engines had work ${percent(busy.reduce((a, b) => a + b, 0) / busy.length)} of this time, the trainer ${percent(trained / (end - start))}.`;
  }

  doing(lane, time) {
    if (lane.kind === "trainer") {
      const step = this.document.steps.find((s) => s[1] <= time && time <= s[2]);
      if (!step) return lane.open.length && time >= lane.open[0] ? "training" : "waiting for groups";
      return `${time > step[2] - step[5] ? "publishing" : "training"} version ${step[0]} (${duration(step[2] - step[1])}, ${step[4]} trajectories)`;
    }
    if (lane.kind === "evaluation") {
      const span = lane.spans.find((s) => s[1] <= time && time <= s[2]);
      return span ? `version ${span[0]} (${duration(span[2] - span[1])}, reward ${number(span[3], 3)})` : "nothing";
    }
    const swap = (lane.swaps ?? []).find((s) => s[1] <= time && time <= s[2]);
    if (swap) return `swapping to version ${swap[0]} (${duration(swap[2] - swap[1])})`;
    const seen = lane.seen.find((phase) => phase[1] <= time && time <= phase[2]);
    if (seen) return seen[0];
    const { start, end, buckets } = this.document;
    const bucket = Math.floor(((time - start) / (end - start)) * buckets);
    const mean = lane.mean[bucket] ?? 0, busy = lane.busy[bucket] ?? 0;
    const evaluation = lane.kind === "engine" && this.lanes.find((other) => other.kind === "evaluation");
    if (!busy && evaluation && evaluation.spans.some((s) => s[1] <= time && time <= s[2])) return "idle, or answers held-out prompts";
    if (!busy) return "idle";
    const what = lane.kind === "engine" ? "generating" : "scoring";
    return `${what} ${number(mean, 1)} trajectories${lane.slots ? ` in ${lane.slots} slots` : ""}${busy < 1 ? `, idle ${Math.round(100 * (1 - busy))} % here` : ""}`;
  }

  stepAt(time) {
    const before = this.document.steps.filter((step) => step[2] <= time).at(-1);
    return before ? ` · newest version ${before[0]}` : "";
  }

  list() {
    const marks = this.document?.marks ?? [];
    const [start, end] = this.span;
    const quiet = ([, kind]) => (LOUD.has(kind) ? 0 : kind === "reset" || kind === "checkpoint" ? 2 : 1);
    const rows = marks.slice().sort((a, b) => quiet(a) - quiet(b) || b[0] - a[0]).slice(0, 200).sort((a, b) => b[0] - a[0]);
    const left = (this.document?.marks_left_out ?? 0) + marks.length - rows.length;
    const table = h("table", {}, h("tbody", {}, rows.map(([time, kind, , text]) => h("tr", { class: `mark ${kind}` },
      h("td", {}, h("button", { type: "button", class: "link", title: "Show this moment",
        onclick: () => this.show([time - 2, time + 2]) }, clock(time, end - start))),
      h("td", {}, kind), h("td", {}, text)))));
    const key = JSON.stringify([rows, left]);
    if (key === this.listed) return;
    this.listed = key;
    replace(this.events, rows.length ? table : h("p", { class: "quiet" }, "None."),
      left > 0 ? h("p", { class: "quiet" }, `${left} more: zoom in to see them`) : null);
  }

  draw(context, width) {
    const found = this.document;
    if (!found) return;
    const [start, end] = this.span, px = (time) => ((time - start) / (end - start)) * width;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "alphabetic";
    this.axis(context, px, width);
    this.lanes.forEach((lane, place) => this.lane(context, lane, TOP + place * (LABEL + LANE + GAP), px, width));
    this.boundaries(context, px, width);
    for (const mark of found.marks) this.mark(context, mark, px, width);
    if (this.pointer) {
      context.strokeStyle = color("text");
      context.beginPath();
      context.moveTo(this.pointer[0] + 0.5, TOP);
      context.lineTo(this.pointer[0] + 0.5, this.height);
      context.stroke();
    }
  }

  axis(context, px, width) {
    const [start, end] = this.span;
    context.fillStyle = color("quiet");
    context.strokeStyle = color("grid");
    context.textAlign = "center";
    for (const tick of niceTicks(start, end, Math.max(2, width / 110))) {
      if (px(tick) > 24 && px(tick) < width - 24) context.fillText(clock(tick, end - start), px(tick), 12);
      context.beginPath();
      context.moveTo(px(tick) + 0.5, 16);
      context.lineTo(px(tick) + 0.5, this.height);
      context.stroke();
    }
    context.textAlign = "left";
  }

  lane(context, lane, top, px, width) {
    const y = top + LABEL;
    context.fillStyle = color("text");
    context.fillText(lane.name, 2, top + LABEL - 4);
    context.fillStyle = color("idle");
    context.fillRect(0, y, width, LANE);
    if (lane.kind === "trainer") { this.trainer(context, lane, y, px, width); return; }
    if (lane.kind === "evaluation") { this.spans(context, "evaluating", lane.spans, y, px); return; }
    const { start, end, buckets } = this.document, wide = (end - start) / buckets;
    const most = lane.slots || Math.max(...lane.mean, 1);
    context.fillStyle = color(lane.kind === "engine" ? "generating" : "scoring");
    for (let i = 0; i < buckets; i += 1) {
      if (!lane.busy[i]) continue;
      const left = px(start + i * wide), right = px(start + (i + 1) * wide);
      if (right < 0 || left > width) continue;
      // Colour: how full it was while it had work; height: for how much of the time it had any.
      context.globalAlpha = 0.35 + 0.65 * Math.min(lane.mean[i] / lane.busy[i] / most, 1);
      const tall = Math.max(LANE * lane.busy[i], 2);
      context.fillRect(left, y + LANE - tall, right - left + 0.4, tall);
    }
    context.globalAlpha = 1;
    for (const [, from, to] of lane.seen) {
      context.fillStyle = color("weights");
      context.fillRect(px(from), y, Math.max(px(to) - px(from), 1), LANE);
    }
    this.spans(context, "swapping", lane.swaps ?? [], y, px);
  }

  spans(context, name, spans, y, px) {
    context.fillStyle = color(name);
    for (const [, from, to] of spans) context.fillRect(px(from), y, Math.max(px(to) - px(from), 1), LANE);
  }

  trainer(context, lane, y, px, width) {
    for (const [, from, to, , , publishing] of this.document.steps) {
      if (px(to) < 0 || px(from) > width) continue;
      context.fillStyle = color("training");
      context.fillRect(px(from), y, Math.max(px(to - publishing) - px(from), 0.8), LANE);
      context.fillStyle = color("publishing");
      context.fillRect(px(to - publishing), y, px(to) - px(to - publishing), LANE);
    }
    if (lane.open.length) {
      context.fillStyle = color("training");
      context.globalAlpha = 0.6;
      context.fillRect(px(lane.open[0]), y, px(this.document.end) - px(lane.open[0]), LANE);
      context.globalAlpha = 1;
    }
  }

  boundaries(context, px, width) {
    const steps = this.document.steps.filter((step) => px(step[2]) >= 0 && px(step[2]) <= width);
    if (!steps.length) return;
    const lines = steps.length < width / 6;
    const every = Math.ceil(steps.length / (width / 34));
    context.strokeStyle = color("boundary");
    context.fillStyle = color("quiet");
    context.setLineDash([2, 3]);
    let free = 0;
    for (const [version, , to] of steps) {
      const name = `v${version}`, wide = context.measureText(name).width, x = Math.min(px(to) + 2, width - wide - 2);
      const named = version % every === 0 && x >= free;
      if (!lines && !named) continue;
      context.beginPath();
      context.moveTo(Math.round(px(to)) + 0.5, NAMES);
      context.lineTo(Math.round(px(to)) + 0.5, this.height);
      context.stroke();
      if (named) {
        context.fillText(name, x, NAMES);
        free = x + wide + 4;
      }
    }
    context.setLineDash([]);
  }

  mark(context, [time, kind, lane, ], px, width) {
    const x = px(time);
    if (x < -5 || x > width + 5) return;
    const place = this.lanes.findIndex((other) => other.name === lane);
    const y = place < 0 ? MARKS : TOP + place * (LABEL + LANE + GAP) + LABEL + LANE / 2;
    context.fillStyle = context.strokeStyle = color(kind === "end" ? "text" : LOUD.has(kind) ? "bad" : kind === "abort" || kind === "reset" || kind === "start" ? "warn" : "quiet");
    if (kind === "death") {
      context.lineWidth = 2.5;
      context.beginPath();
      context.moveTo(x - 6, y - 6); context.lineTo(x + 6, y + 6); context.moveTo(x + 6, y - 6); context.lineTo(x - 6, y + 6);
      context.stroke();
      context.lineWidth = 1;
      return;
    }
    context.beginPath();
    context.moveTo(x, y + 5); context.lineTo(x - 4, y - 3); context.lineTo(x + 4, y - 3);
    context.fill();
  }
}
