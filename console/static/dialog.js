// Dialogs: one question at a time, over the page. Focus goes in, and back to where it was.

import { h, tell } from "./dom.js";

let number = 0;

// Shows a form, or without an `action` only what there is to read; comes to what `submit(values)` answered, or null when it was left.
// `fields` are of fields.js; `typed` is a word that has to be written before the button works; `submit` may throw
// an Error whose `field` names the field that it belongs to: the dialog stays, with the sentence beside it.
export function ask({ title, body = [], fields = [], action = "Save", danger = false, typed = null, submit }) {
  const id = `dialog-${++number}`, opener = document.activeElement;
  const wrong = h("p.notice", { role: "alert", hidden: true });
  const button = action && h(danger ? "button.primary.danger" : "button.primary", { type: "submit" }, action);
  const proof = typed === null ? null : h("input", { id: `${id}-typed`, autocomplete: "off", spellcheck: "false", autocapitalize: "off", required: true });
  if (proof) {
    button.disabled = true;
    proof.addEventListener("input", () => { button.disabled = proof.value !== typed; });
  }
  return new Promise((resolve) => {
    let answer = null;
    const cancel = h("button", { type: "button", onclick: () => dialog.close() }, action ? "Cancel" : "Close");
    const form = h("form", { method: "dialog", novalidate: true },
      h("h2", { id }, title),
      [body].flat().map((part) => (typeof part === "string" ? h("p", {}, part) : part)),
      fields.length ? h("div.fields", {}, fields.map((field) => field.element)) : null,
      proof && h("div.field", {}, h("label", { for: proof.id }, "Type ", h("code", {}, typed), " to confirm"), proof),
      wrong, h("div.actions", {}, cancel, button));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (!action || button.disabled || !fields.map((field) => field.check()).every(Boolean)) return form.querySelector('[aria-invalid="true"]')?.focus();
      tell(wrong, null);
      button.disabled = true;
      form.setAttribute("aria-busy", "true");
      try {
        answer = await submit(Object.fromEntries(fields.map((field) => [field.name, field.read()])));
        dialog.close();
      } catch (error) {
        const place = fields.find((field) => field.name === error.field);
        if (place) place.refuse(error);
        else tell(wrong, error);
      } finally {
        button.disabled = false;
        form.removeAttribute("aria-busy");
      }
    });
    const dialog = h("dialog", { "aria-labelledby": id }, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      (opener?.isConnected ? opener : document.querySelector("h1"))?.focus();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
    // First what can be filled in; of a question without fields the way out, not the deed.
    (form.querySelector("input:not([type=hidden]), select, textarea") ?? (danger || !action ? cancel : button)).focus();
  });
}
