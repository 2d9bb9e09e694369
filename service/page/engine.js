// The language engine at work: speed, cache and why it missed, drafts, memory, and its decisions.

import { api } from "./api.js";
import { bytes, dialog, fill, h, plural } from "./dom.js";

const LOOK_MS = 2500;
const CAUSES = { cold: "first time seen", evicted: "had to make room", below_minimum: "too short to reuse", different_adapter: "other adapter", different_salt: "other cache salt",
  prompt_logits: "prompt was scored", cache_off: "cache is off" };

export const share = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");
const speedWords = ({ speed, stats }) => (speed === null || speed === undefined || (!speed && !stats.running) ? "–" : `${speed.toFixed(1)} tokens/s`);
const count = (number) => (number ?? 0).toLocaleString();

/** The language worker's row of /v1/engine/stats, with its speed since the row before. */
class Meter {
  async read() {
    const row = (await api("GET", "/v1/engine/stats")).data.find((r) => r.role === "llm");
    if (!row || row.stats.steps_total === undefined) return null;
    const tokens = row.stats.generated_tokens_total ?? 0;
    if (row.beat_at !== this.beat) {
      const seconds = (Date.parse(row.beat_at) - Date.parse(this.beat)) / 1000;
      this.speed = this.worker === row.worker && seconds > 0.2 ? Math.max(0, tokens - this.tokens) / seconds : null;
      [this.beat, this.tokens, this.worker] = [row.beat_at, tokens, row.worker];
    }
    return { ...row, speed: this.speed };
  }
}

/** A small card beside the chat; the whole story opens from it, or with the key e. */
export class EngineCard {
  constructor() {
    this.meter = new Meter();
    this.figures = h("dl", { class: "figures" });
    this.warning = h("p", { class: "warning", role: "status" });
    this.element = h("section", { class: "card engine-card", "aria-label": "Engine", hidden: true },
      h("div", { class: "row" }, h("h2", {}, "Engine"), h("span", { class: "grow" }), h("button", { type: "button", class: "link", title: "All figures (e)", onclick: () => this.open() }, "all figures")), this.figures, this.warning);
  }

  /** Looks while it is on the page, and stops by itself. */
  start() {
    if (this.timer) return;
    this.look();
  }

  async look() {
    clearTimeout(this.timer);
    try {
      const row = await this.meter.read();
      this.element.hidden = !row;
      if (row) this.show(row);
    } catch {
      this.element.hidden = true;
    }
    this.timer = this.element.isConnected || this.panel?.isConnected ? setTimeout(() => this.look(), LOOK_MS) : null;
  }

  show(row) {
    const s = row.stats;
    const drafts = (s.accepted_drafts_total ?? 0) + (s.rejected_drafts_total ?? 0);
    fill(this.figures, pair("Speed", speedWords(row)), pair("At work", `${s.running} running, ${s.waiting} waiting`),
      pair("From the cache", share(s.prefix_hit_tokens_total, s.prefix_prompt_tokens_total)), pair("Drafts right", drafts ? share(s.accepted_drafts_total, drafts) : "–"));
    fill(this.warning, s.prefix_warnings_total ? `${plural(s.prefix_warnings_total, "run")} of prompts began alike and still missed the cache.` : "");
    this.warning.hidden = !s.prefix_warnings_total;
    if (this.panel?.isConnected) fill(this.panel, story(row));
  }

  open() {
    if (this.panel?.isConnected || document.querySelector("dialog[open]")) return;
    this.panel = h("div", { class: "engine" }, h("p", { class: "dim" }, "Reading …"));
    const box = dialog("Engine", this.panel, h("div", { class: "row end" }, h("button", { type: "button", onclick: () => showDecisions(this.meter.worker) }, "Decisions and why"), h("form", { method: "dialog" }, h("button", {}, "Close"))));
    box.classList.add("wide");
    this.look();
  }
}

const pair = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));

function bar(label, value, whole, words) {
  return h("div", { class: "bar-line" }, h("span", {}, label), h("progress", { max: whole || 1, value: Math.min(value ?? 0, whole || 1), "aria-label": `${label}: ${words}` }), h("span", { class: "right" }, words));
}

function story(row) {
  const s = row.stats;
  const [hit, prompt] = [s.prefix_hit_tokens_total ?? 0, s.prefix_prompt_tokens_total ?? 0];
  const misses = Object.entries(s.prefix_misses_total ?? {}).sort((a, b) => b[1] - a[1]);
  const requests = (s.prefix_hits_total ?? 0) + misses.reduce((sum, [, n]) => sum + n, 0);
  const [right, wrong] = [s.accepted_drafts_total ?? 0, s.rejected_drafts_total ?? 0];
  return [
    h("p", { class: "dim" }, `${row.model}, ${row.card.dtype ?? ""}, ${count(row.card.max_model_len)} tokens a chat. Plan `, h("code", {}, row.hash ?? "–")),
    h("dl", { class: "figures four" }, pair("Speed", speedWords(row)), pair("Running", count(s.running)), pair("Waiting", count(s.waiting)), pair("Preempted", count(s.preemptions_total))),
    h("h3", {}, "Memory of the cache"),
    bar("in use", s.kv_pages_used, s.kv_pages_total, share(s.kv_pages_used, s.kv_pages_total)),
    bar("kept for reuse", s.kv_pages_cached, s.kv_pages_total, share(s.kv_pages_cached, s.kv_pages_total)),
    s.host_cache_capacity_bytes ? bar("host memory", s.host_cache_bytes, s.host_cache_capacity_bytes, `${bytes(s.host_cache_bytes)} of ${bytes(s.host_cache_capacity_bytes)}`) : null,
    h("h3", {}, "Prompts from the cache"),
    bar("tokens", hit, prompt, `${share(hit, prompt)} of ${count(prompt)}`),
    bar("requests", s.prefix_hits_total, requests, `${count(s.prefix_hits_total)} of ${count(requests)}, ${count(s.prefix_partial_hits_total)} in part`),
    misses.map(([cause, n]) => bar(`missed: ${CAUSES[cause] ?? cause}`, n, requests, count(n))),
    h("p", { class: "hint" }, `A beginning of at least ${plural(s.min_reusable_prefix ?? 0, "token")} can be reused. ${plural(s.prefix_evicted_blocks_total ?? 0, "block")} had to make room so far.`),
    s.prefix_warnings_total ? h("p", { class: "warning" }, "Prompts that began alike kept missing the cache. Put what changes (dates, names, ids) at the end of the prompt, or give the cache more room: --kv-cache.") : null,
    right + wrong ? [h("h3", {}, "Tokens drafted ahead"), bar("right", right, right + wrong, `${share(right, right + wrong)} of ${count(right + wrong)}`)] : null,
  ];
}

async function showDecisions(worker) {
  const rows = (await api("GET", "/v1/engine/plan")).data;
  const decisions = rows.find((r) => r.worker === worker)?.decisions ?? [];
  const box = dialog("Decisions and why", h("div", { class: "decisions" }, decisions.map((d) => h("details", {}, h("summary", {}, h("b", {}, d.what), " ", d.chosen, h("span", { class: "dim" }, `  ${[d.tier, d.where].filter(Boolean).join(", ")}`)),
    h("ul", {}, (d.reasons ?? []).map((r) => h("li", {}, r)), (d.rejected ?? []).map((r) => h("li", { class: "dim" }, `not ${r.candidate}: ${(r.reasons ?? []).join(", ")}`)), d.remedy ? h("li", {}, `To change it: ${d.remedy}`) : null)))),
    decisions.length ? null : h("p", { class: "dim" }, "This worker has published none."), h("form", { method: "dialog", class: "row end" }, h("button", {}, "Close")));
  box.classList.add("wide");
}
