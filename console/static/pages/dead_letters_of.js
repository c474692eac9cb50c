// A group's dead letters: read, sent again, given up.

import { may } from "../account.js";
import { call, path, query } from "../api.js";
import { ask } from "../dialog.js";
import { empty, h, head, notice, say, tell, write } from "../dom.js";
import { field } from "../fields.js";
import { moment, number } from "../format.js";
import { decode, preview } from "../message_list.js";
import { payloadView } from "../payload.js";
import { putRows, table } from "../rows.js";

const PAGE = 50;
const place = (letter) => `${letter.broker}/${letter.offset}`;
const ONCE = "A dead letter is sent once: if its message failed again, there is a newer one of it to send.";

// When a letter was sent again, and by whom, as far as that is known.
function resentWords({ at_ms: at, by }) {
  return `${at === null ? "yes" : moment(at)}${by ? ` by ${by}` : ""}`;
}

export async function show({ main, args: [group], signal }) {
  const at = path`/api/v1/dead-letters/${group}`, chosen = new Set();
  let letters = [], next = null;
  const wrong = notice({ role: "alert" }), none = empty("This group has no dead letters.", h("a", { href: "/dead-letters" }, "All groups with dead letters"));
  const columns = [
    { title: h("span.sr", {}, "Chosen"), cell: (letter) => h("input", { type: "checkbox", "aria-label": `Choose ${place(letter)}`, checked: chosen.has(place(letter)), onchange: ({ target }) => {
      if (target.checked) chosen.add(place(letter)); else chosen.delete(place(letter));
      buttons();
    } }) },
    { title: "Given up", cell: (letter) => h("button.quiet", { type: "button", onclick: () => read(letter) }, moment(letter.failed_ms)) },
    { title: "Topic", class: "name", cell: ({ message }) => [message.topic, message.tag && h("span.muted", {}, `/${message.tag}`)] },
    { title: "Retries", class: "n wide", cell: ({ message }) => number(message.reconsume_times) },
    { title: "Sent again", class: "wide", cell: ({ resent }) => (resent ? resentWords(resent) : "–") },
    { title: "Payload", class: "one-line mono", cell: ({ message }) => preview(message) },
  ].filter((column, i) => i > 0 || may("operator"));
  const list = table(`Dead letters of ${group}`, columns, { hidden: true });
  const count = h("p.muted", { role: "status" });
  const more = h("button", { type: "button", hidden: true, onclick: () => load(true) }, "More");
  const resend = h("button.primary", { type: "button", onclick: () => send() });
  const purge = h("button.danger", { type: "button", onclick: () => giveUp() }, "Purge");

  function buttons() {
    resend.textContent = chosen.size ? `Send ${chosen.size} again` : "Send all again";
    resend.disabled = purge.disabled = !letters.length;
  }

  async function load(goesOn = false) {
    try {
      const answer = await call(`${at}${query({ limit: PAGE, after: goesOn ? next : "" })}`, { signal });
      write(count, answer.messages ? `${number(answer.messages)} in all, ${number(answer.resent)} of them sent again` : "");
      letters = goesOn ? [...letters, ...answer.letters] : answer.letters;
      next = answer.next;
      tell(wrong, answer.notice);
    } catch (error) {
      if (error.name === "AbortError") return;
      tell(wrong, error);
    }
    putRows(list.tBodies[0], columns, letters, place);
    list.hidden = !(none.hidden = letters.length > 0);
    more.hidden = !next;
    buttons();
  }

  async function send() {
    const places = chosen.size ? [...chosen].map((word) => ({ broker: word.slice(0, word.lastIndexOf("/")), offset: Number(word.slice(word.lastIndexOf("/") + 1)) })) : null;
    const before = letters.filter((letter) => letter.resent && chosen.has(place(letter))).length;
    const done = await ask({
      title: chosen.size ? `Send ${chosen.size} again?` : `Send all dead letters of ${group} again?`,
      body: [
        "Each becomes a new message of its topic; none is sent twice.",
        before && h("p.notice", {}, `${number(before)} of the ${number(chosen.size)} chosen had been sent again before and will not be sent. ${ONCE}`),
      ].filter(Boolean),
      fields: [field("topic", "To another topic", { hint: "nothing: each to its own", spellcheck: "false", autocapitalize: "off" })],
      action: "Send again",
      submit: ({ topic }) => call(`${at}/resend`, { method: "POST", body: { places, topic: topic.trim() } }),
    });
    if (!done) return;
    chosen.clear();
    const failed = done.failures?.length ? `, ${number(done.failures.length)} were not: ${done.failures[0].reason}` : "";
    say(`${number(done.resent)} sent again, ${number(done.repeated)} had been before${failed}.`);
    await load();
  }

  async function giveUp() {
    const done = await ask({
      title: `Purge the dead letters of ${group}?`, body: "All of them go for good, those sent again and the others.", typed: group, danger: true, action: "Purge",
      submit: () => call(`${at}/purge`, { method: "POST", body: {} }),
    });
    if (!done) return;
    say(`${number(done.purged)} dead letters of ${group} are gone.`);
    await load();
  }

  const read = ({ message, ...letter }) => ask({
    title: `${message.topic}${message.tag ? `/${message.tag}` : ""}`,
    body: [
      h("p.muted", {}, `Given up ${moment(letter.failed_ms)} after ${number(message.reconsume_times)} retries; ${place(letter)}.${message.keys.length ? ` Keys: ${message.keys.join(", ")}.` : ""}${message.is_cut ? " Only the beginning of its payload is shown." : ""}`),
      letter.resent && h("p.notice", {}, `Sent again: ${resentWords(letter.resent)}. ${ONCE}`),
      payloadView(decode(message.body_base64), message.message_id),
    ].filter(Boolean),
    action: may("operator") && !letter.resent ? "Send again" : null,
    submit: async () => {
      const done = await call(`${at}/resend`, { method: "POST", body: { places: [{ broker: letter.broker, offset: letter.offset }], topic: "" } });
      say(done.resent ? "It is sent again." : "It had been sent again before.");
      await load();
      return done;
    },
  });

  main.append(head(group, { crumb: ["Dead letters", "/dead-letters"], actions: may("operator") ? [resend, may("admin") && purge].filter(Boolean) : [] }), wrong, count, list, none, h("div.pager", {}, more));
  await load();
}
