// One message with all that the log knows of it.

import { call, path } from "../api.js";
import { facts, h, head } from "../dom.js";
import { bytes, moment, number } from "../format.js";
import { decode } from "../message_list.js";
import { payloadView } from "../payload.js";

export async function show({ main, args: [id], signal }) {
  main.append(head("Message", { crumb: ["Search", "/messages"], lead: h("code", {}, id) }));
  const message = await call(path`/api/v1/messages/${id}`, { signal });
  const topic = h("a", { href: `/topics/${encodeURIComponent(message.topic)}` }, message.topic);
  const known = {
    Topic: topic, Tag: message.tag || "–", Keys: message.keys.join(", ") || "–", Size: bytes(message.size),
    Stored: moment(message.store_ms), Born: moment(message.born_ms), Queue: `${message.broker}/${message.queue_id}`, Offset: number(message.offset),
  };
  if (message.unique_id) known["Unique id"] = h("code", {}, message.unique_id);
  if (message.client_id) known["Sent by"] = message.client_id;
  if (message.reconsume_times) known.Retries = number(message.reconsume_times);
  const properties = Object.entries(message.properties ?? {});
  main.append(
    facts(known, "facts.plain"),
    h("div.section", {}, payloadView(decode(message.body_base64), message.message_id)),
    h("section.section", { "aria-labelledby": "properties-title" }, h("h2", { id: "properties-title" }, "Headers"),
      properties.length
        ? h("table", { "aria-labelledby": "properties-title" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Name"), h("th", { scope: "col" }, "Value"))),
          h("tbody", {}, properties.map(([name, value]) => h("tr", {}, h("td", {}, name), h("td.mono", {}, typeof value === "string" ? value : JSON.stringify(value))))))
        : h("p.muted", {}, "It was sent without any.")));
}
