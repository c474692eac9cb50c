// Messages of any topic, found by id, key, tag or time.

import { head, h } from "../dom.js";
import { messageList } from "../message_list.js";

export function show(place) {
  place.main.append(
    head("Find messages", { lead: "Every message that the log keeps can be found: by its id, by a key, by the producer’s own id, or the newest of a topic." }),
    h("section", {}, messageList(place).element));
}
