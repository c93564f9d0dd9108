// Samples: what the model answered, and why it was scored so.
import { get } from "../api.js";
import { h, number, pill, replace, whole } from "../dom.js";

const PAGE = 6, TOKENS_SHOWN = 1500, EVERY_TOKEN = 10000000;
const VERSIONS = ["v1", "v2", "v3", "v4"];

function choice(label, name, options, change) {
  return h("label", {}, `${label} `, h("select", { name, onchange: change }, options.map(([value, words]) => h("option", { value }, words))));
}

// Signs for what a browser would not show: an answer may hold anything.
function visible(text) {
  return text.replace(/[\u0000-\u0009\u000b-\u001f\u007f]/g, (sign) => String.fromCharCode(0x2400 + (sign === "\u007f" ? 0x21 : sign.charCodeAt(0))))
    .replace(/[\u0080-\u009f\u202a-\u202e\u2066-\u2069]/g, "\ufffd").replace(/\n/g, "↵\n");
}

export class SamplesView {
  constructor(run) {
    this.run = run;
    this.start = 0;
    this.colours = "version";
    this.tokens = TOKENS_SHOWN;
    const again = () => { this.start = 0; this.tokens = TOKENS_SHOWN; this.load(true); };
    const typed = () => { clearTimeout(this.timer); this.timer = setTimeout(again, 250); };
    this.form = h("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); again(); } },
      h("input", { type: "search", name: "prompt", placeholder: "Text in the prompt", "aria-label": "Text in the prompt", oninput: typed }),
      h("input", { type: "number", name: "step", min: 0, placeholder: "Step", "aria-label": "Step or evaluated version", class: "short", oninput: typed }),
      h("input", { type: "number", name: "reward_below", step: "any", placeholder: "Reward below", "aria-label": "Mean reward below", class: "short", oninput: typed }),
      choice("of", "evaluation", [["", "all"], ["no", "training"], ["yes", "evaluations"]], again),
      choice("with", "aborted", [["", "any answers"], ["yes", "answers that failed"], ["no", "scored answers"]], again),
      choice("first", "order", [["newest", "newest"], ["worst", "worst"], ["best", "best"], ["oldest", "oldest"]], again),
      choice("colours by", "colours", [["version", "version"], ["logprob", "log-probability"]], (event) => {
        this.colours = event.target.value;
        this.draw();
      }));
    this.note = h("p", { class: "readout", "aria-live": "polite" }, "Loading…");
    this.groups = h("div", {});
    this.pager = h("div", { class: "tools" });
    this.element = h("div", {}, this.form, this.note, this.groups, this.pager);
  }

  async update() {
    // Nothing moves under the eyes of somebody who reads.
    if (this.found?.groups.length && this.groups.matches(":hover, :focus-within")) return;
    await this.load();
  }

  async load(now = false) {
    const query = new URLSearchParams(new FormData(this.form));
    query.delete("colours");
    query.set("start", this.start);
    query.set("limit", PAGE);
    query.set("tokens", this.tokens);
    const found = await get(`/api/runs/${this.run}/samples?${query}`);
    if (found === this.found && !now) return;
    this.found = found;
    this.draw();
  }

  draw() {
    const { found } = this;
    if (!found) return;
    replace(this.note, found.reason ? found.reason
      : `${whole(found.total)} groups match, ${whole(found.kept)} are kept. Point at a token, or use arrow keys in an answer, to read its version and log-probability.`);
    replace(this.groups, found.problems.map((problem) => h("p", { class: "problem" }, problem)), found.groups.map((group) => this.group(group)));
    const turn = (by) => { this.start = Math.max(this.start + by, 0); this.tokens = TOKENS_SHOWN; this.load(true).catch(() => {}); };
    replace(this.pager,
      found.start ? h("button", { type: "button", onclick: () => turn(-PAGE) }, "Back") : null,
      found.start + found.groups.length < found.total ? h("button", { type: "button", onclick: () => turn(PAGE) }, "More") : null);
  }

  group(group) {
    const of = group.evaluated !== null ? `evaluation of version ${group.evaluated}` : group.step !== null ? `step ${group.step}` : "not trained on";
    return h("section", { class: "group" },
      h("h3", {}, group.group, " ", h("span", { class: "quiet" }, of), " ", group.reward === null ? pill("no score", "bad") : pill(`mean reward ${number(group.reward)}`)),
      h("pre", { class: "prompt" }, visible(group.prompt)),
      group.expected ? h("pre", { class: "prompt" }, h("b", {}, "expected: "), visible(group.expected)) : null,
      h("div", { class: "answers" }, group.answers.map((answer) => this.answer(answer))));
  }

  answer(answer) {
    const readout = h("p", { class: "readout" });
    const tokens = h("pre", { class: "tokens", tabindex: 0, "aria-label": "Answer; arrow keys read its tokens" });
    const spans = [];
    const pick = (at) => {
      spans[answer.at]?.classList.remove("picked");
      answer.at = Math.min(Math.max(at, 0), spans.length - 1);
      spans[answer.at]?.classList.add("picked");
      const logprob = answer.logprobs[answer.at], version = answer.versions[answer.at];
      readout.textContent = version < 0 ? "the environment's token"
        : `${JSON.stringify(answer.texts[answer.at])}: version ${version}, log-probability ${number(logprob)} (${number(100 * Math.exp(logprob ?? -Infinity), 1)} %), token ${answer.tokens[answer.at]}`;
    };
    const fill = () => {
      const known = [...new Set(answer.versions.filter((version) => version >= 0))];
      for (let at = spans.length; at < answer.texts.length; at += 1) {
        const version = answer.versions[at];
        const style = version < 0 ? "environment" : this.colours === "version" ? VERSIONS[known.indexOf(version) % VERSIONS.length]
          : `p${Math.min(Math.floor(5 * Math.exp(answer.logprobs[at] ?? -Infinity)), 4)}`;
        if (at && version >= 0 && answer.versions[at - 1] >= 0 && version !== answer.versions[at - 1]) tokens.append(h("b", { class: "turn", title: `version ${version} answers from here on` }, `‹${version}›`));
        const span = h("span", { class: style, onpointerenter: () => pick(at) }, visible(answer.texts[at]));
        spans.push(span);
        tokens.append(span);
      }
      if (answer.length > spans.length) {
        const all = () => { this.tokens = EVERY_TOKEN; this.load(true).catch(() => {}); };
        tokens.append(h("button", { type: "button", class: "link", onclick: all }, ` … ${whole(answer.length - spans.length)} more tokens`));
      }
    };
    fill();
    tokens.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
      if (by) { event.preventDefault(); pick((answer.at ?? -1) + by); }
    });
    const versions = answer.version_min === answer.version_max ? `version ${answer.version_min}` : `versions ${answer.version_min} to ${answer.version_max}`;
    const notes = [versions, answer.trained?.staleness ? `staleness ${answer.trained.staleness}` : "",
      answer.trained?.advantage !== null && answer.trained?.advantage !== undefined ? `advantage ${number(answer.trained.advantage, 2)}` : "",
      answer.finish === "length" ? "cut at maxTokens" : "", answer.sample === "greedy" ? "greedy" : "", answer.replaced ? "generated again" : "",
      `${whole(answer.length)} tokens`, answer.engine].filter(Boolean);
    const parts = Object.entries(answer.parts);
    return h("article", { class: `answer ${answer.replaced ? "replaced" : ""}` },
      h("p", {}, answer.reward === null ? pill("no score", "bad") : pill(number(answer.reward), answer.reward > 0 ? "good" : "warn"), " ",
        parts.length > 1 ? h("span", { class: "quiet" }, parts.map(([name, value]) => `${name} ${number(value)}`).join(", ")) : null),
      tokens, readout,
      answer.error ? h("p", { class: "problem" }, answer.error) : null,
      h("p", { class: "quiet" }, notes.join(" · ")));
  }
}
