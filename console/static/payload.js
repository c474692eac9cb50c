// A payload as text, as JSON or as hex, and as a file.

import { h } from "./dom.js";
import { bytes, number } from "./format.js";

// More than this nobody reads in a page; the file has all of it.
const SHOWN = 64 * 1024;

function hex(body) {
  const lines = [];
  for (let offset = 0; offset < body.length; offset += 16) {
    const row = [...body.subarray(offset, offset + 16)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0"));
    const letters = row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${offset.toString(16).padStart(6, "0")}  ${digits.slice(0, 8).join(" ").padEnd(23)}  ${digits.slice(8).join(" ").padEnd(23)}  ${letters}`);
  }
  return lines.join("\n");
}

function parsed(body) {
  try {
    return JSON.stringify(JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body)), null, 2);
  } catch {
    return null;
  }
}

function isText(body) {
  try {
    return !/[\u0000-\u0008\u000e-\u001f]/.test(new TextDecoder("utf-8", { fatal: true }).decode(body));
  } catch {
    return false;
  }
}

export function payloadView(body, name) {
  const part = body.subarray(0, SHOWN), json = body.length > SHOWN ? null : parsed(body);
  const box = h("pre.payload", { tabindex: "0", role: "region", "aria-label": "Payload" });
  const ways = {
    text: () => new TextDecoder().decode(part),
    json: () => json,
    hex: () => hex(part),
  };
  const buttons = Object.keys(ways).map((way) => h("button", { type: "button", "data-way": way, disabled: way === "json" && json === null, onclick: () => choose(way) }, way === "json" ? "JSON" : way));
  function choose(way) {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.way === way));
    box.classList.toggle("hex", way === "hex");
    box.textContent = body.length ? ways[way]() : "(empty)";
  }
  choose(json !== null && /^\s*[[{]/.test(new TextDecoder().decode(part.subarray(0, 64))) ? "json" : isText(body) ? "text" : "hex");
  const save = h("button", { type: "button", onclick: () => {
    const link = h("a", { href: URL.createObjectURL(new Blob([body])), download: `${name || "message"}.bin` });
    link.click();
    // The browser has begun to read it by then.
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  } }, "Save");
  return h("div", {},
    h("div.tools", {}, h("h2", {}, "Payload ", h("span.count", {}, bytes(body.length))), h("span.spring"),
      h("div.range", { role: "group", "aria-label": "Shown as" }, buttons), save),
    box, body.length > SHOWN && h("p.muted.small", {}, `The first ${number(SHOWN)} bytes; the file has all.`));
}
