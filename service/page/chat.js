// The chat playground: streams an answer, counts its speed, can be stopped.

import { events } from "./api.js";
import { Answer } from "./answer.js";
import { fill, h } from "./dom.js";
import { EngineCard } from "./engine.js";

const STARTERS = ["Write two sentences about the sea.", "What is a transformer model?", "Give me three shot ideas for a short film about rain."];

const TOOL = `{
  "name": "weather",
  "description": "The weather of a city",
  "parameters": {
    "type": "object",
    "properties": { "city": { "type": "string" } },
    "required": ["city"]
  }
}`;

export class Chat {
  constructor() {
    this.messages = [];
    this.models = [];
    this.engine = new EngineCard();
    this.element = this.build();
    this.showEmpty();
  }

  build() {
    this.log = h("div", { class: "log", role: "log", "aria-live": "off", "aria-label": "Conversation" });
    this.text = h("textarea", { id: "message", rows: 1, placeholder: "Message", "aria-label": "Message", oninput: () => this.grow(), onkeydown: (e) => this.onKey(e) });
    this.send = h("button", { type: "submit", class: "primary", id: "send" }, "Send");
    this.stopper = h("button", { type: "button", id: "stop", hidden: true, onclick: () => this.stop() }, "Stop");
    this.rate = h("output", { class: "dim", id: "rate" });
    const form = h("form", { class: "composer card", onsubmit: (e) => { e.preventDefault(); this.submit(); } }, this.text, h("div", { class: "row" }, this.rate, h("span", { class: "grow" }), this.stopper, this.send));
    return h("div", { class: "chat" }, h("section", { class: "talk" }, this.log, form), this.settings());
  }

  settings() {
    this.model = h("select", { id: "chat-model" });
    this.system = h("textarea", { id: "system", rows: 3, placeholder: "none" });
    this.temperature = h("input", { type: "range", id: "temperature", min: "0", max: "2", step: "0.1", value: "0.7", oninput: () => fill(this.degree, Number(this.temperature.value).toFixed(1)) });
    this.degree = h("output", {}, "0.7");
    this.limit = h("input", { type: "number", id: "max-tokens", min: "1", step: "1", value: "256" });
    this.tools = h("textarea", { id: "tools", rows: 5, class: "code", spellcheck: "false", placeholder: TOOL, "aria-label": "Tools as JSON" });
    const field = (label, control, extra) => h("div", { class: "field" }, h("label", { for: control.id }, label, extra), control);
    const settings = h("section", { class: "card form", "aria-label": "Settings of the chat" }, field("Model", this.model), field("System prompt", this.system),
      field("Temperature ", this.temperature, this.degree), field("Most tokens", this.limit),
      h("details", { class: "fold" }, h("summary", {}, "Tools it may call"), this.tools, h("button", { type: "button", class: "link", onclick: () => { this.tools.value = TOOL; } }, "an example")), h("button", { type: "button", id: "clear", onclick: () => this.clear() }, "Clear the conversation"));
    return h("aside", { class: "chat-settings" }, settings, this.engine.element);
  }

  setModels(models) {
    if (models.join() === this.models.join()) return;
    this.models = models;
    fill(this.model, models.map((id) => h("option", { value: id }, id)));
  }

  showEmpty() {
    fill(this.log, h("div", { class: "empty-chat" }, h("h1", {}, "Ask something"), h("div", { class: "chips" }, STARTERS.map((text) =>
      h("button", { type: "button", class: "chip", onclick: () => { this.text.value = text; this.text.focus(); this.grow(); } }, text)))));
  }

  clear() {
    this.stop();
    this.messages = [];
    fill(this.rate);
    this.showEmpty();
    this.text.focus();
  }

  grow() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(this.text.scrollHeight, 200)}px`;
  }

  onKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.submit(); }
    if (event.key === "Escape") this.stop();
  }

  stop() { this.controller?.abort(); }

  async submit() {
    const text = this.text.value.trim();
    if (!text || this.controller) return;
    if (!this.messages.length) fill(this.log);
    this.messages.push({ role: "user", content: text });
    this.log.append(bubble("user", text));
    this.text.value = "";
    this.grow();
    await this.answer();
  }

  body() {
    const system = this.system.value.trim();
    const tools = this.readTools();
    return { model: this.model.value, messages: [...(system ? [{ role: "system", content: system }] : []), ...this.messages], stream: true, stream_options: { include_usage: true },
      temperature: Number(this.temperature.value), ...(this.limit.value ? { max_tokens: Number(this.limit.value) } : {}), ...(tools.length ? { tools } : {}) };
  }

  /** The tools in the field, as the API takes them; a lone function stands for itself. */
  readTools() {
    const text = this.tools.value.trim();
    if (!text) return [];
    const value = JSON.parse(text);
    return (Array.isArray(value) ? value : [value]).map((one) => (one.type === "function" ? one : { type: "function", function: one }));
  }

  async answer() {
    const answer = new Answer({ onResults: (results) => { this.messages.push(...results); this.answer(); } });
    this.log.append(answer.element);
    this.controller = new AbortController();
    this.setBusy(true);
    const state = { count: 0, first: null, started: performance.now(), reason: null, usage: null };
    try {
      for await (const { data } of events("/v1/chat/completions", { method: "POST", body: this.body(), signal: this.controller.signal })) {
        if (data === "[DONE]") break;
        this.take(JSON.parse(data), state, answer);
      }
      if (state.reason === "length") answer.say(" … cut at the most tokens");
    } catch (error) {
      const isStop = error.name === "AbortError";
      answer.say(isStop ? " (stopped)" : error instanceof SyntaxError ? `The tools are not JSON: ${error.message}` : error.message, !isStop);
    } finally {
      this.finish(state, answer);
    }
  }

  take(chunk, state, answer) {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) [state.usage, state.count] = [chunk.usage, chunk.usage.completion_tokens];
    const choice = chunk.choices?.[0];
    if (!choice) return;
    state.reason = choice.finish_reason ?? state.reason;
    const isAtEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
    if (!answer.take(choice.delta ?? {})) return;
    state.first ??= performance.now();
    state.last = performance.now();
    state.count += 1;
    if (isAtEnd) this.log.scrollTop = this.log.scrollHeight;
    this.showRate(state);
  }

  seconds(state) { return ((state.last ?? performance.now()) - (state.first ?? state.started)) / 1000; }

  showRate(state) {
    const seconds = this.seconds(state);
    const speed = seconds > 0.2 ? `  ·  ${(state.count / seconds).toFixed(1)} tokens/s` : "";
    const wait = state.first ? `  ·  first after ${((state.first - state.started) / 1000).toFixed(2)} s` : "";
    fill(this.rate, `${state.count} tokens${speed}${wait}`);
  }

  finish(state, answer) {
    this.controller = null;
    const message = answer.message();
    if (message) this.messages.push(message); else this.messages.pop();
    this.showRate(state);
    this.setBusy(false);
    answer.finish(state.usage, this.seconds(state));
    this.log.scrollTop = this.log.scrollHeight;
    this.engine.look();
  }

  setBusy(isBusy) {
    const wasFocused = [this.send, this.stopper].includes(document.activeElement);
    this.send.hidden = isBusy;
    this.stopper.hidden = !isBusy;
    if (wasFocused) this.text.focus();
  }
}

function bubble(role, text) {
  return h("div", { class: `bubble ${role}` }, document.createTextNode(text));
}
