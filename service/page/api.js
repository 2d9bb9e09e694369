// Talking to the service: the key, requests, errors in words, event streams.

const KEY = "lanewise.key";

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code ?? null;
    this.param = error.param ?? null;
  }
}

export const readKey = () => localStorage.getItem(KEY) ?? "";

export function writeKey(key) {
  if (key) localStorage.setItem(KEY, key);
  else localStorage.removeItem(KEY);
  announce();
}

/** Takes `#key=sk-…` out of the address, so that it is neither shown nor kept in history. */
export function takeKeyFromAddress() {
  const match = /[#&?]key=([^&]+)/.exec(location.hash);
  if (!match) return;
  writeKey(decodeURIComponent(match[1]));
  history.replaceState(null, "", `${location.pathname}#/video`);
}

const listeners = new Set();
const announce = () => listeners.forEach((listener) => listener());
/** Calls back when the key changes or turns out to be wrong. */
export const onKeyChange = (listener) => listeners.add(listener);

let refused = "";
/** Why the service did not take the key, or "". */
export const refusal = () => refused;

function headers(extra = {}) {
  const key = readKey();
  return key ? { Authorization: `Bearer ${key}`, ...extra } : { ...extra };
}

async function failure(response) {
  let error = { message: `The service answered ${response.status} ${response.statusText}.` };
  try {
    const body = await response.json();
    if (body.error?.message) error = body.error;
  } catch {
    error.code = "not_json";
  }
  return new ApiError(response.status, error);
}

const isOpen = (path) => path.includes("sig=");

async function send(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (cause) {
    if (cause.name === "AbortError") throw cause;
    throw new ApiError(0, { message: "The service does not answer. Is `lanewise serve` running?", code: "unreachable" });
  }
  if (response.ok) {
    if (!isOpen(path)) refused = "";
    return response;
  }
  const error = await failure(response);
  if (response.status === 401 || (response.status === 403 && /key/.test(error.code ?? ""))) {
    const isNews = refused !== error.message;
    refused = error.message;
    if (isNews) announce();
  }
  throw error;
}

/** One request: `body` may be FormData or anything JSON can hold. Returns the parsed answer. */
export async function api(method, path, body, { signal, idempotencyKey } = {}) {
  const extra = idempotencyKey ? { "Idempotency-Key": idempotencyKey } : {};
  const isForm = body instanceof FormData;
  if (body !== undefined && !isForm) extra["Content-Type"] = "application/json";
  const content = body === undefined || isForm ? body : JSON.stringify(body);
  const response = await send(path, { method, headers: headers(extra), body: content, signal });
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

/** The content of a protected file. */
export const readBlob = async (path) => (await send(path, { headers: headers() })).blob();

/** A protected file as an object URL. The caller revokes it. */
export const objectUrl = async (path) => URL.createObjectURL(await readBlob(path));

/** Readiness, without a key; also understands the 503 that an unready service gives. */
export async function readiness() {
  try {
    const response = await fetch("/readyz", { headers: headers() });
    return { isReady: response.ok, isReachable: true, ...(await response.json()) };
  } catch {
    return { isReady: false, isReachable: false };
  }
}

/** Server-sent events by fetch, so that the key travels in a header. Yields {event, data}. */
export async function* events(path, { method = "GET", body, signal } = {}) {
  const extra = { Accept: "text/event-stream" };
  if (body !== undefined) extra["Content-Type"] = "application/json";
  const content = body === undefined ? undefined : JSON.stringify(body);
  const response = await send(path, { method, headers: headers(extra), body: content, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = parseEvent(block);
      if (event) yield event;
    }
  }
}

function parseEvent(block) {
  let [event, data] = ["message", []];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { event, data: data.join("\n") } : null;
}
