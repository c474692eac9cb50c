// Groups that gave messages up.

import { call } from "../api.js";
import { empty, every, h, head, notice, tell } from "../dom.js";
import { number } from "../format.js";
import { putRows, table } from "../rows.js";

const LOOK_MS = 5000;
const COLUMNS = [
  { title: "Group", cell: (row) => h("a", { href: `/dead-letters/${encodeURIComponent(row.group)}` }, row.group) },
  { title: "Dead letters", class: "n", cell: (row) => number(row.messages) },
  { title: "Sent again", class: "n", cell: (row) => number(row.resent) },
];

export function show({ main, signal }) {
  const wrong = notice({ role: "alert" }), groups = table("Groups with dead letters", COLUMNS, { hidden: true });
  const none = empty("No group has given a message up.", "After its last retry a message comes here, and stays until it is sent again or purged.");
  none.hidden = true;
  main.append(head("Dead letters", { lead: "Messages that a group failed with too often. Nothing else waits for them: read why, send them again, or give them up." }), wrong, groups, none);
  every(LOOK_MS, signal, async () => {
    try {
      const answer = await call("/api/v1/dead-letters", { signal });
      tell(wrong, answer.notice);
      putRows(groups.tBodies[0], COLUMNS, answer.groups, (row) => row.group);
      groups.hidden = !(none.hidden = answer.groups.length > 0);
    } catch (error) {
      if (error.name !== "AbortError") tell(wrong, error);
    }
  });
}
