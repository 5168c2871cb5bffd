// What a member or a task is doing, in words. Each state has its own word, shape and colour; none is told by colour alone.

const WAITS = new Map([
  ["wait-agent", "for the Team"],
  ["subagent", "for a subagent"],
  ["workflow", "for a workflow"],
]);

// {word, tone, mark, detail, since, until}: what is written beside a member.
export function describe(entry, status) {
  if (entry.phase === "failed") return { word: "creation failed", tone: "bad", mark: "✕", detail: entry.error ?? "", since: entry.since ?? status?.since };
  if (entry.phase === "provisioning") return { word: "being created", tone: "queued", mark: "◔", detail: "", since: entry.since ?? status?.since };
  if (!status) return { word: "not loaded", tone: "idle", mark: "·", detail: "" };
  if (status.fault) return { word: "unreadable", tone: "bad", mark: "✕", detail: status.fault };
  const turn = status.turn;
  const since = status.since;
  if (!turn) return resting(status, since);
  if (turn.state === "parked") return waiting(turn, since);
  if (turn.state === "running") {
    if (status.lost) return { word: "worker lost", tone: "bad", mark: "!", detail: `${turn.worker} stopped answering; the turn is given to another worker`, since };
    return { word: "working", tone: "busy", mark: "●", detail: `on ${turn.worker}`, since };
  }
  const again = /lost|handed over/.test(turn.reason);
  if (status.turns <= 1 && !again && status.workers.length === 0) return { word: "not started", tone: "queued", mark: "◔", detail: "its first turn waits for a worker", since };
  return { word: again ? "queued again" : "queued", tone: again ? "warn" : "queued", mark: "◔", detail: turn.reason || "waits for a worker", since };
}

function waiting(turn, since) {
  const waits = turn.waits ?? [];
  const backoff = waits.find((wait) => wait.kind === "backoff");
  const until = waits.length ? Math.min(...waits.map((wait) => wait.deadline)) : undefined;
  if (backoff) return { word: "model back-off", tone: "warn", mark: "‖", detail: turn.reason || "the model provider asked for a pause", since, until };
  const what = [...new Set(waits.map((wait) => WAITS.get(wait.kind) ?? `for ${wait.kind}`))].join(", ");
  return { word: "waiting", tone: "wait", mark: "‖", detail: what || turn.reason, since, until };
}

function resting(status, since) {
  const end = status.lastEnd;
  if (status.turns === 0 && !end) return { word: "never started", tone: "idle", mark: "○", detail: "", since };
  if (end && end.reason !== "completed") {
    const why = [end.reason + (end.code ? ` (${end.code})` : ""), end.message].filter(Boolean).join(": ");
    return { word: end.reason === "aborted" ? "interrupted" : "stopped", tone: end.reason === "aborted" ? "warn" : "bad", mark: "■", detail: why, since };
  }
  return { word: "idle", tone: "idle", mark: "○", detail: "", since };
}

export function taskState(task) {
  if (task.status === "completed") return { word: "completed", tone: "done", mark: "✓", group: "completed" };
  if (task.status === "in_progress") return { word: "in progress", tone: "busy", mark: "●", group: "in_progress" };
  if (task.ready) return { word: "ready", tone: "ready", mark: "▶", group: "ready" };
  return { word: "blocked", tone: "warn", mark: "‖", group: "blocked" };
}

export function tokens(count) {
  if (count < 1000) return String(count);
  if (count < 1_000_000) return `${(count / 1000).toFixed(count < 10_000 ? 1 : 0)}k`;
  return `${(count / 1_000_000).toFixed(1)}M`;
}

// A model by its name; of a scenario file, or any path, only the last part.
export function modelName(model) {
  const [kind, ...rest] = String(model).split(":");
  return rest.length ? `${kind}:${baseName(rest.join(":"))}` : baseName(kind);
}

export function baseName(path) {
  return String(path).split("/").filter(Boolean).at(-1) ?? String(path);
}

export function sourceName(source) {
  if (!source) return "unknown";
  switch (source.kind) {
    case "human":
      return source.actor ? `you (${source.actor})` : "you";
    case "team-message":
    case "delegation":
      return source.senderName;
    case "settlement":
      return `notice about ${source.memberName}`;
    case "runtime-context":
      return "runtime context";
    default:
      return source.kind;
  }
}
