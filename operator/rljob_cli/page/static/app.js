// The page: which view is shown, and the loop that keeps it up to date.
import { Refused, get } from "./api.js";
import { duration, h, number, pill, replace, whole } from "./dom.js";
import { AuditView, VERDICT } from "./views/audit.js";
import { BuffersView } from "./views/buffers.js";
import { CompareView } from "./views/compare.js";
import { CurvesView } from "./views/curves.js";
import { EnginesView } from "./views/engines.js";
import { RunsView, STATE } from "./views/runs.js";
import { SamplesView } from "./views/samples.js";
import { TimelineView } from "./views/timeline.js";

// The views of a run, in the order of the tabs. Each is given the run's number, has an `element`, and `update(state)`.
const VIEWS = {
  curves: ["Curves", CurvesView],
  timeline: ["Timeline", TimelineView],
  buffers: ["Buffers", BuffersView],
  engines: ["Engines", EnginesView],
  samples: ["Samples", SamplesView],
  audit: ["Audit", AuditView],
};
const TURN_MS = 1000, HIDDEN_MS = 5000;
const [banner, head, tabs, content, places] = ["banner", "head", "tabs", "content", "places"].map((id) => document.getElementById(id));
let shown = null; // {key, view, run, name}
let turning = 0;

function place() {
  const [, what, run, name] = location.hash.split("/");
  if (what === "run" && /^\d+$/.test(run)) return { key: `run/${run}/${name}`, run: Number(run), name: VIEWS[name] ? name : "curves" };
  if (what === "compare" && /^\d+(,\d+)+$/.test(run ?? "")) return { key: `compare/${run}`, runs: run.split(",").map(Number) };
  return { key: "runs" };
}

function open(where) {
  const view = where.run !== undefined ? new VIEWS[where.name][1](where.run) : where.runs ? new CompareView(where.runs) : new RunsView();
  shown = { ...where, view };
  replace(content, view.element);
  replace(tabs, where.run === undefined ? [] : Object.entries(VIEWS).map(([name, [title]], number_) => h("a", {
    href: `#/run/${where.run}/${name}`, "aria-current": name === where.name ? "page" : null, title: `key: ${number_ + 1}` }, title)));
  if (where.run === undefined) { replace(head); showHead.key = null; document.title = "rljob"; }
}

async function turn() {
  const mine = ++turning;
  const where = place();
  if (shown?.key !== where.key) open(where);
  const { view, run } = shown;
  try {
    let state = null;
    if (run !== undefined) {
      state = await get(`/api/runs/${run}`);
      if (mine !== turning) return;
      showHead(state);
    }
    await view.update(state);
    say("");
  } catch (error) {
    if (mine !== turning) return;
    if (error instanceof Refused && error.status === 401) say("This page's server was started again: open the address that it printed.");
    else if (error instanceof Refused && error.status === 404) say("There is no such run here. The list of runs shows all.");
    else if (error instanceof Refused) say(error.message);
    else say("The page's server does not answer. What is shown is the last that was known; the page tries again.");
  }
  if (mine === turning) setTimeout(() => { if (mine === turning) turn(); }, document.hidden ? HIDDEN_MS : TURN_MS);
}

function say(words) {
  if (banner.textContent !== words) banner.textContent = words;
}

function fact(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

function showHead(state) {
  const key = JSON.stringify(state);
  if (key === showHead.key) return;
  showHead.key = key;
  document.title = `${state.name} · ${state.step}/${state.steps} · rljob`;
  const share = state.steps ? (100 * state.step) / state.steps : 0;
  const aborted = Object.values(state.aborted).reduce((sum, count) => sum + (Number(count) || 0), 0);
  const audit = state.verdict ? pill(state.verdict, VERDICT[state.verdict]) : { running: "under way…", failed: "failed", large: "not made" }[state.audit_state] ?? "–";
  replace(head,
    h("h1", {}, state.name, " ", pill(state.state, STATE[state.state]), ...state.conditions.filter((c) => state.running || c.type === "Failed")
      .map((c) => h("span", { class: "pill warn", title: c.message }, c.type))),
    h("div", { class: "progress", role: "progressbar", "aria-label": "Steps", "aria-valuenow": state.step, "aria-valuemin": 0, "aria-valuemax": state.steps },
      h("i", { width: `${share}%` })),
    h("dl", {},
      fact("step", `${whole(state.step)} of ${whole(state.steps)}`),
      fact("reward", number(state.reward)), fact("held out", number(state.held_out)),
      fact("mode", state.mode ? `${state.mode}${state.max_staleness ? `, bound ${state.max_staleness}` : ""}` : "–"),
      fact("time", duration(state.seconds)),
      state.cost === null ? null : fact("cost", number(state.cost, 2)),
      fact("aborted", whole(aborted)),
      fact("audit", audit)),
    state.message ? h("p", { class: "problem" }, state.message) : null,
    state.problems.map((problem) => h("p", { class: "problem" }, problem)));
}

async function showPlaces() {
  const found = await get("/api/runs").catch(() => null);
  if (!found) return;
  if (!location.hash && found.total === 1) location.hash = `#/run/${found.runs[0].id}/curves`;
  else if (!location.hash && found.total > 1 && found.total <= 4) location.hash = "#/runs";
  const few = found.runs.slice(0, 5).sort((a, b) => a.id - b.id);
  replace(places, few.map((run) => h("a", { href: `#/run/${run.id}/curves` }, run.name)),
    found.total > 1 && found.total <= 8 ? h("a", { href: `#/compare/${found.runs.map((run) => run.id).sort((a, b) => a - b).join(",")}` }, "Compare") : null);
}

function theme(next) {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const now = document.documentElement.dataset.theme || system;
  document.documentElement.dataset.theme = next ?? (now === "dark" ? "light" : "dark");
  if (!next) localStorage.setItem("rljob-theme", document.documentElement.dataset.theme);
  for (const picture of document.querySelectorAll("canvas")) picture.paint?.();
}

if (localStorage.getItem("rljob-theme")) theme(localStorage.getItem("rljob-theme"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const picture of document.querySelectorAll("canvas")) picture.paint?.();
});
document.getElementById("theme").addEventListener("click", () => theme());
addEventListener("hashchange", turn);
addEventListener("visibilitychange", () => { if (!document.hidden) turn(); });
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const names = Object.keys(VIEWS), number_ = Number(event.key);
  if (shown?.run !== undefined && number_ >= 1 && number_ <= names.length) location.hash = `#/run/${shown.run}/${names[number_ - 1]}`;
  if (event.key === "d") theme();
});
await showPlaces();
turn();
setInterval(showPlaces, 15000);
