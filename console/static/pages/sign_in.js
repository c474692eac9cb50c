// Sign-in, and at the first one a password of one's own.

import { account, changePassword, signIn } from "../account.js";
import { h, notice, tell } from "../dom.js";
import { field } from "../fields.js";
import { passwordFields } from "../password.js";

export function show({ main, again }) {
  if (account()?.must_change_password) first(main, again);
  else ordinary(main, again);
  main.addEventListener("shown", () => main.querySelector("input").focus());
}

function ordinary(main, again) {
  const name = field("name", "Name", { required: true, autocomplete: "username", autocapitalize: "off", spellcheck: "false" });
  const password = field("password", "Password", { type: "password", required: true, autocomplete: "current-password" });
  put(main, "Sign in", "To the console of this HoldMQ installation.", [name, password], "Sign in", async () => {
    const { account: who } = await signIn(name.read(), password.read());
    await again(who.must_change_password ? password.read() : null);
  }, h("p.muted.small", {}, "The first password was printed once, at the console’s first start. ", h("code", {}, "holdmq console --help"), " says how to get another."));
}

function first(main, again) {
  const old = field("old", "Password that you were given", { type: "password", required: true, autocomplete: "current-password" });
  const [fresh, repeated] = passwordFields();
  put(main, "Choose your password", `${account().name} was signed in with a password that somebody else has seen.`, [old, fresh, repeated], "Change and go on", async () => {
    await changePassword(old.read(), fresh.read());
    await again();
  });
}

function put(main, title, lead, fields, action, submit, ...rest) {
  const wrong = notice({ role: "alert" }), button = h("button.primary", { type: "submit" }, action);
  const form = h("form.card.fields", { novalidate: true }, fields.map(({ element }) => element), wrong, button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (button.disabled || !fields.map((one) => one.check()).every(Boolean)) return form.querySelector('[aria-invalid="true"]')?.focus();
    button.disabled = true;
    tell(wrong, null);
    try {
      await submit();
    } catch (error) {
      const place = fields.find(({ name }) => name === error.field);
      if (place) place.refuse(error);
      else tell(wrong, error);
    } finally {
      button.disabled = false;
    }
  });
  main.append(h("div.sign-in", {}, h("h1", { tabindex: "-1" }, title), h("p.lead", {}, lead), form, rest));
}
