// A new password for who is signed in, at the first sign-in and whenever he wants one.

import { changePassword } from "./account.js";
import { ask } from "./dialog.js";
import { field } from "./fields.js";

export const passwordFields = () => {
  const fresh = field("fresh", "New password", { type: "password", required: true, autocomplete: "new-password", hint: "10 characters or more; a sentence is good" });
  const again = field("again", "New password, again", {
    type: "password", required: true, autocomplete: "new-password",
    checks: (typed) => (typed === fresh.read() ? null : "the two are not the same"),
  });
  return [fresh, again];
};

export function askPassword() {
  const old = field("old", "Password now", { type: "password", required: true, autocomplete: "current-password" });
  return ask({
    title: "Change password",
    fields: [old, ...passwordFields()],
    action: "Change",
    submit: ({ old: before, fresh }) => changePassword(before, fresh),
  });
}
