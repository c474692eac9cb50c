// Calls of the API: an answer, or a Refusal whose message is the console's sentence.

import { kept } from "./address.js";

export class Refusal extends Error {
  constructor(message, { status = 0, code = "", hint = null, field = null } = {}) {
    super(message);
    Object.assign(this, { name: "Refusal", status, code, hint, field });
  }
}

let proof = "";
let turnedAway = () => {};

// What every request with an effect carries, so that no other site's page can make one.
export const prove = (token) => { proof = token ?? ""; };
// Called when nobody is signed in any more, or whoever is has to choose a password of his own first.
export const onTurnedAway = (work) => { turnedAway = work; };

// What is asked of brokers, and so of one cluster where the address of the page names one.
const OF_BROKERS = /^\/api\/v1\/(alarms|bans|brokers|clients|clients-busiest|cluster|configuration|connections|dead-letters|gateways|groups|messages|quotas|replicas|retained|sessions|stream|tables|tenants|topics)(?=[/?]|$)/;

export const apart = (path) => (OF_BROKERS.test(path) ? kept(path) : path);

export async function call(path, { method = "GET", body, signal } = {}) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  if (method !== "GET") headers["X-HoldMQ-CSRF"] = proof;
  let response;
  try {
    response = await fetch(apart(path), { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("the console does not answer", { hint: "Is it running, and is this machine connected to it? This page tries again." });
  }
  if (response.status === 204) return null;
  let answer;
  try {
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(`the console answered ${response.status} without a reason`, { status: response.status });
  }
  if (response.ok) return answer;
  const refusal = new Refusal(answer.error.message, { status: response.status, ...answer.error });
  if (response.status === 401 || refusal.code === "PASSWORD_NOT_CHOSEN") turnedAway(refusal);
  throw refusal;
}

// A path with names in it: path`/api/v1/topics/${name}`; a query from an object, without what is empty.
export const path = (parts, ...names) => parts.reduce((whole, part, i) => whole + encodeURIComponent(names[i - 1]) + part);

export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
}
