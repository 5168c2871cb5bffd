// Requests to the coordinator. A change carries a key, so that sending it twice does it once.

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function call(method, path, { body, headers = {} } = {}) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      cache: "no-store",
      headers: { "Team-Panel": "1", ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused(0, "UNREACHABLE", "The coordinator does not answer. Nothing is lost by trying again.");
  }
  const text = await answer.text();
  let decoded = {};
  try {
    decoded = text ? JSON.parse(text) : {};
  } catch {
    // An answer of something in between; the status says enough.
  }
  if (answer.ok) return decoded;
  throw new Refused(answer.status, decoded.error?.code ?? `HTTP ${answer.status}`, decoded.error?.message ?? `The coordinator answered ${answer.status}.`);
}

const part = encodeURIComponent;

export function newKey() {
  return `panel-${[...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

export const api = {
  role: () => call("GET", "/browser-session"),
  signIn: (token) => call("POST", "/browser-session", { headers: { Authorization: `Bearer ${token}` } }),
  signOut: () => call("DELETE", "/browser-session"),
  tail: (session, before, limit = 400) =>
    call("GET", `/v1/sessions/${part(session)}/tail?limit=${limit}${before ? `&before=${before}` : ""}`),
  timeline: (team) => call("GET", `/v1/teams/${part(team)}/timeline`),
  prompt: (session, text, delivery, key) =>
    call("POST", `/v1/sessions/${part(session)}/messages`, { body: { text, delivery }, headers: { "Idempotency-Key": key } }),
  interrupt: (session, key) => call("POST", `/v1/sessions/${part(session)}/interrupt`, { headers: { "Idempotency-Key": key } }),
  selectModel: (session, model, key) =>
    call("POST", `/v1/sessions/${part(session)}/model`, { body: { model }, headers: { "Idempotency-Key": key } }),
  close: (team, key) => call("POST", `/v1/teams/${part(team)}/close`, { headers: { "Idempotency-Key": key } }),
  usage: (team) => call("GET", `/v1/teams/${part(team)}/usage`),
};
