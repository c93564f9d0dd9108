// The audit: what it has proved so far, claim by claim.
import { get } from "../api.js";
import { duration, h, pill, replace, whole } from "../dom.js";

export const VERDICT = { holds: "good", unfinished: "warn", damaged: "bad", violated: "bad" };
const WORDS = {
  holds: "Every claim holds.",
  unfinished: "No claim is broken, but the ledger lost records that only `rljob run --resume` restores.",
  damaged: "Evidence is missing, altered or unreadable, so that not every claim can be decided.",
  violated: "Evidence shows that a claim is broken.",
};

export class AuditView {
  constructor(run) {
    this.run = run;
    this.element = h("div", {});
  }

  async update() {
    const found = await get(`/api/runs/${this.run}/audit`);
    const { findings } = found;
    const age = found.age === null ? "" : `, ${duration(found.age)} ago`;
    const state = { none: "The audit begins when the ledger has been read.", running: "An audit is under way…", done: found.message,
      failed: `The last audit failed: ${found.message}`, large: `It is not made here: ${found.message}` }[found.state] ?? "";
    const verdict = findings?.verdict;
    replace((this.top ??= h("div", {})), h("p", {}, verdict ? pill(verdict, VERDICT[verdict]) : null,
      verdict ? ` ${WORDS[verdict] ?? ""}${age}` : ""), state ? h("p", { class: found.state === "failed" ? "problem" : "quiet" }, state) : null);
    if (!this.top.isConnected) this.element.append(this.top, (this.table = h("div", {})));
    const key = JSON.stringify(findings);
    if (key === this.shown || !findings) return;
    this.shown = key;
    replace(this.table, h("table", { class: "cards" },
      h("thead", {}, h("tr", {}, ["", "claim", "checked on"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, findings.checks.map((check) => h("tr", {},
        h("td", { "data-label": "" }, pill(check.holds ? "holds" : "broken", check.holds ? "good" : "bad")),
        h("td", { "data-label": "claim" }, check.claim, check.violations.slice(0, 10).map((violation) =>
          h("p", { class: "problem" }, `${violation.ids.slice(0, 8).join(", ")} ${violation.text}`)),
        check.violations.length > 10 ? h("p", { class: "quiet" }, `and ${check.violations.length - 10} more: rljob audit --json`) : null),
        h("td", { class: "right", "data-label": "checked on" }, whole(check.examined)))))));
  }
}
