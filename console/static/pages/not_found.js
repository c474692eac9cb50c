// An address without a page.

import { empty, h, head } from "../dom.js";

export function show({ main }) {
  main.append(head("There is no such page"), empty("Nothing is at this address.", h("a", { href: "/" }, "Go to the overview")));
}
