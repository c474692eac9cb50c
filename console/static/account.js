// Who is signed in, and what the role allows here; the server asks again at each request.

import { call, prove } from "./api.js";

const ROLES = ["viewer", "operator", "admin"];
let known = null;
let way = "accounts";

function take(answer) {
  known = answer.account;
  way = answer.auth;
  prove(answer.csrf);
  return answer;
}

export const account = () => known;
// Whether people sign in here at all: without accounts everybody is "anyone", and may do everything.
export const hasAccounts = () => way === "accounts";
export const may = (role) => known !== null && ROLES.indexOf(known.role) >= ROLES.indexOf(role);
export const forget = () => { known = null; };

export const load = async () => take(await call("/api/v1/session"));
export const signIn = async (name, password) => take(await call("/api/v1/session", { method: "POST", body: { name, password } }));
export const changePassword = async (old_password, new_password) => take(await call("/api/v1/session/password", { method: "PUT", body: { old: old_password, new: new_password } }));
export async function signOut() {
  await call("/api/v1/session", { method: "DELETE" });
  take({ account: null, csrf: "", auth: way });
}
