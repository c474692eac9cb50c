// Messages of a topic: the newest first, or those with a key, an id or a tag.

import { go, setQuery } from "./address.js";
import { call, query } from "./api.js";
import { empty, h, notice, tell } from "./dom.js";
import { bytes, moment, parseDuration } from "./format.js";
import { putRows, table } from "./rows.js";

const SHOWN = 50;
const PREVIEW = 160;

const WAYS = [["newest", "newest"], ["key", "key"], ["unique_id", "unique id"], ["tag", "tag filter"]];

const link = (message) => `/messages/${encodeURIComponent(message.message_id)}`;

export function preview(message) {
  const text = new TextDecoder().decode(decode(message.body_base64).subarray(0, PREVIEW));
  // A letter that was cut at the end is no sign of anything else.
  return /[\u0000-\u0008\u000e-\u001f\ufffd]/.test(text.slice(0, -2)) ? "(binary)" : text;
}

export const decode = (base64) => Uint8Array.from(atob(base64 ?? ""), (letter) => letter.charCodeAt(0));

const COLUMNS = [
  { title: "Stored", cell: (message) => (message.message_id ? h("a", { href: link(message) }, moment(message.store_ms)) : moment(message.store_ms)) },
  { title: "Tag", class: "name", cell: (message) => message.tag || h("span.muted", {}, "–") },
  { title: "Keys", class: "wide", cell: (message) => (message.keys ?? []).join(", ") },
  { title: "Payload", class: "one-line mono", cell: preview },
  { title: "Size", class: "n wide", cell: (message) => bytes(message.size) },
  { title: "Queue", class: "n wide", cell: (message) => `${message.broker}/${message.queue_id}` },
];

// `topic` is fixed, or null: then it is asked for, and an id alone finds its message.
export function messageList(place, topic = null) {
  const asked = place.query;
  const named = topic === null && h("input", { name: "topic", "aria-label": "Topic", placeholder: "Topic", value: asked.get("topic") ?? "", autocapitalize: "off", spellcheck: "false" });
  const way = h("select", { "aria-label": "Find by" }, [...WAYS, ...(named ? [["id", "message id"]] : [])].map(([value, word]) => h("option", { value, selected: asked.get("by") === value }, word)));
  const what = h("input", { type: "search", "aria-label": "What to find", value: asked.get("find") ?? "", autocapitalize: "off", spellcheck: "false" });
  const since = h("input", { "aria-label": "Not older than", value: asked.get("since") ?? "", placeholder: "any age: 15m, 2h", size: "14", autocomplete: "off" });
  const wrong = notice({ role: "alert" }), status = h("span.muted.small", { role: "status" });
  const found = table(topic ? `Messages of ${topic}` : "Messages found", COLUMNS, { hidden: true }), nothing = h("div", { hidden: true });
  const more = h("button", { type: "button", hidden: true, onclick: () => find(true) }, "Older ones");
  const button = h("button.primary", { type: "submit" }, "Find");
  let after = null, stop = null, shown = [];

  function shape() {
    what.hidden = way.value === "newest";
    since.hidden = way.value === "id";
    if (named) named.hidden = way.value === "id";
    what.placeholder = { key: "order-4711", unique_id: "the producer’s own id", tag: "north/+/temp or #", id: "32 hex digits" }[way.value] ?? "";
  }

  async function find(goesOn) {
    const from = since.value.trim() ? parseDuration(since.value) : 0, target = topic ?? named.value.trim();
    tell(wrong, null);
    if (way.value === "id") return what.value.trim() ? go(link({ message_id: what.value.trim() })) : what.focus();
    if (from === null) return tell(wrong, "“not older than” takes 15m, 2h or 3d");
    if (!target) return named?.focus();
    if (way.value !== "newest" && !what.value.trim()) return what.focus();
    setQuery({ topic: topic === null ? target : "", by: way.value === "newest" ? "" : way.value, find: way.value === "newest" ? "" : what.value.trim(), since: since.value.trim() });
    stop?.abort();
    stop = new AbortController();
    button.disabled = more.disabled = true;
    status.textContent = "looking";
    try {
      const given = { topic: target, from: from ? new Date(Date.now() - from).toISOString() : "", after: goesOn ? after : "", limit: SHOWN };
      if (way.value !== "newest") given[way.value] = what.value.trim();
      const answer = await call(`/api/v1/messages${query(given)}`, { signal: AbortSignal.any([stop.signal, place.signal]) });
      shown = goesOn ? [...shown, ...answer.messages] : answer.messages;
      putRows(found.tBodies[0], COLUMNS, shown, (message) => message.message_id || `${message.broker}/${message.queue_id}/${message.offset}`);
      after = answer.next;
      more.hidden = !after;
      found.hidden = !shown.length;
      nothing.hidden = shown.length > 0;
      nothing.replaceChildren(way.value === "newest" && !from
        ? empty("No messages are stored here.", "Publish one above, or from a device: ", h("code", {}, `mosquitto_pub -t ${target}/1 -m hello -q 1`))
        : empty("No message fits.", "Retention may have taken it; a key or an id must be whole. The index is half a second behind."));
      status.textContent = shown.length ? `${shown.length} shown, newest first` : "";
      if (answer.is_complete === false && !after) tell(wrong, "Older ones may be missing: too many entries share this key’s place in the index.");
    } catch (error) {
      if (error.name === "AbortError") return;
      status.textContent = "";
      tell(wrong, error);
    } finally {
      button.disabled = more.disabled = false;
    }
  }

  const form = h("form.tools", { role: "search", "aria-label": "Find messages" }, named, h("label", {}, "by ", way), what, since, button, status);
  form.addEventListener("submit", (event) => { event.preventDefault(); find(false); });
  way.addEventListener("change", () => { shape(); if (way.value === "newest") find(false); });
  shape();
  if ((topic ?? named.value) && way.value !== "id") find(false);
  return { element: h("div", {}, form, wrong, found, nothing, h("div.pager", {}, more)), again: () => find(false) };
}
