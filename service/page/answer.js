// One answer in the conversation: its reasoning, its text, the calls it makes, what it cost.

import { fill, h } from "./dom.js";

/** A bubble that grows with the chunks of a stream. */
export class Answer {
  constructor({ onResults }) {
    this.onResults = onResults;
    this.reasoning = h("div", { class: "thought" });
    this.summary = h("summary", {}, "Thinking …");
    this.thinking = h("details", { class: "fold", hidden: true }, this.summary, this.reasoning);
    this.content = h("span");
    this.calls = h("div", { class: "calls" });
    this.note = h("span", { class: "note" });
    this.cost = h("p", { class: "cost" });
    this.element = h("div", { class: "bubble assistant", "aria-busy": "true" }, this.thinking, this.content, this.note, this.calls, this.cost);
    this.text = "";
    this.thought = "";
    this.made = [];
  }

  /** Takes a delta in; true when it added something to read. */
  take(delta) {
    if (delta.reasoning_content) {
      this.thought += delta.reasoning_content;
      this.thinking.hidden = false;
      this.reasoning.textContent = this.thought;
    }
    if (delta.content) {
      this.text += delta.content;
      this.content.textContent = this.text;
    }
    for (const piece of delta.tool_calls ?? []) this.takeCall(piece);
    return Boolean(delta.content || delta.reasoning_content || delta.tool_calls?.length);
  }

  takeCall(piece) {
    const call = (this.made[piece.index] ??= this.addCall(piece));
    call.arguments += piece.function.arguments ?? "";
    call.shown.textContent = call.arguments;
  }

  addCall({ id, function: { name } }) {
    const shown = h("code", { class: "arguments" });
    const result = h("input", { type: "text", placeholder: "what it returns", "aria-label": `What ${name} returns`, disabled: true });
    this.calls.append(h("details", { class: "fold call", open: true }, h("summary", {}, "calls ", h("b", {}, name)), shown, result));
    return { id, name, arguments: "", shown, result };
  }

  say(text, isProblem = false) {
    this.note.className = isProblem ? "problem" : "note";
    this.note.textContent = text;
  }

  /** The stream is over: fold the reasoning, show the cost, ask for what the calls return. */
  finish(usage, seconds) {
    this.element.removeAttribute("aria-busy");
    this.summary.textContent = usage?.completion_tokens_details?.reasoning_tokens ? `Thought for ${usage.completion_tokens_details.reasoning_tokens} tokens` : "Thought";
    if (usage) fill(this.cost, costs(usage, seconds).join("  ·  "));
    const calls = this.made.filter(Boolean);
    if (!calls.length) return;
    for (const call of calls) { call.shown.textContent = pretty(call.arguments); call.result.disabled = false; }
    const send = h("button", { type: "submit" }, calls.length > 1 ? "Send the results" : "Send the result");
    const form = h("form", { class: "results", onsubmit: (e) => { e.preventDefault(); send.remove(); this.onResults(calls.map((c) => { c.result.disabled = true; return { role: "tool", tool_call_id: c.id, content: c.result.value }; })); } });
    form.append(...this.calls.children, send);
    this.calls.append(form);
    calls[0].result.focus();
  }

  /** The turn as the next request must repeat it; null when nothing was said. */
  message() {
    const calls = this.made.filter(Boolean).map((c) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } }));
    if (!this.text && !calls.length) return null;
    return { role: "assistant", content: this.text || null, ...(calls.length ? { tool_calls: calls } : {}) };
  }
}

function costs(usage, seconds) {
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const { accepted_prediction_tokens: right = 0, rejected_prediction_tokens: wrong = 0 } = usage.completion_tokens_details ?? {};
  return [`${usage.prompt_tokens} read, ${cached} from the cache`, `${usage.completion_tokens} written`, seconds > 0.2 ? `${(usage.completion_tokens / seconds).toFixed(1)} tokens/s` : "",
    right + wrong ? `${right} of ${right + wrong} drafts right` : ""].filter(Boolean);
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}
