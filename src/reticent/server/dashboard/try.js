// Asks for text and shows it as it comes, with what it cost. The key stays in a variable of this page.
import { bearer, byId, count, epsilonAtMost, nats, percentAtMost, plural, rho, say, sentence } from "/dashboard/elements.js";
import { Refusal, brokenOff, noConnection, refusalIn, refusalOf } from "/dashboard/refusals.js";

// After Stop the answer ends by itself, with its account; where that does not come, the connection is closed.
const STOP_MILLISECONDS = 10_000;

let key = "";
let model = "";
// What is counted: nats or ρ; the whole budget and the bound once it is spent, or null without a cap.
let amount = nats;
let cap = null;
let boundAtCap = null;
let isCorpus = false;
let writing = null;

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, cache: "no-store", headers: { ...bearer(key), ...options.headers } });
  } catch (error) {
    throw error.name === "AbortError" ? error : noConnection();
  }
  if (!response.ok) throw await refusalIn(response);
  return response;
}

const post = (path, body, options = {}) => request(path, {
  ...options,
  method: "POST",
  headers: { "Content-Type": "application/json", ...options.headers },
  body: JSON.stringify(body),
});

async function load() {
  const tried = key !== "";
  byId("retry").hidden = true;
  try {
    showPage(await (await request("/try/data")).json());
  } catch (refusal) {
    if (!(refusal instanceof Refusal)) throw refusal;
    // Without a key, 403 is about where this page was opened from; another key does not help.
    if (refusal.needsKey && (tried || refusal.status === 401)) {
      askForKey(tried ? refusal.message : null);
      return;
    }
    showRefusal(refusal);
    byId("retry").hidden = false;
  }
}

function askForKey(problem = null) {
  key = "";
  byId("forget").hidden = true;
  byId("entry").hidden = false;
  if (problem) {
    say("entry-reason", problem);
    byId("entry-reason").className = "problem";
    byId("key").setAttribute("aria-invalid", "true");
  }
  byId("key").focus();
}

function showPage(shown) {
  const wasAsked = byId("page").hidden || !byId("entry").hidden;
  ({ model } = shown);
  byId("entry").hidden = true;
  byId("page").hidden = false;
  byId("forget").hidden = shown.key_name === null;
  say("model", shown.key_name === null ? model : `${model}, for ${shown.key_name}`);
  say("version", `reticent ${shown.version}`);
  byId("mode").hidden = !shown.has_chat;
  byId("length").max = shown.max_tokens;
  byId("length").value = Math.min(byId("length").value || 64, shown.max_tokens);
  isCorpus = shown.guarantee === "corpus";
  if (isCorpus) showCorpusPromise(shown);
  else showRealisedWorldPromise(shown);
  say("half-guess", "(a guess: 50\u00a0%)");
  showTotals(shown.key, shown.deployment);
  if (shown.reason !== null) showRefusal({ heading: "Nothing can be written now", message: sentence(shown.reason) });
  if (wasAsked) byId("prompt").focus();
}

function showRealisedWorldPromise(shown) {
  [amount, cap, boundAtCap] = [nats, shown.nats_cap, shown.half_at_cap];
  say("half-question", shown.half_question);
  say("half-meaning", sentence(shown.half_meaning));
  say("world-question", shown.world_question);
  say("world-meaning", sentence(shown.world_meaning));
  say("world-guess", `(a guess: ${(100 / shown.worlds).toFixed(2)}\u00a0%)`);
  say("not-bounded", sentence(shown.not_bounded));
}

function showCorpusPromise(shown) {
  [amount, cap, boundAtCap] = [rho, shown.rho_cap, shown.membership_at_cap];
  say("lead", `Each of ${count(shown.worlds)} small models was adapted on a few of the private texts, or on none. Together they move `
    + "the public model by a bounded amount, and every token is drawn at random. The figure says how well someone who knows "
    + "everything else, and saw every answer, can tell whether somebody's texts were there at all.");
  say("cost-measure", "each the same, in ρ (a measure of differential privacy)");
  say("half-question", shown.membership_question);
  const atCap = shown.epsilon_at_cap === null ? "" : ` ${epsilonAtMost(shown.epsilon_at_cap)} at δ = ${shown.delta}, once the whole budget is spent.`;
  say("half-meaning", `${sentence(shown.membership_meaning)} Neighbouring: ${shown.neighbours} (${shown.relation}).${atCap}`);
  say("unbounded-title", "Not covered");
  say("not-bounded", sentence(shown.not_covered));
}

const charged = (privacy) => (isCorpus ? privacy.rho_charged : privacy.nats_charged);

function budgetLeft(deployment) {
  const left = isCorpus ? deployment.rho_left : deployment.nats_left;
  return left === null ? "no cap" : amount(left);
}

function showTotals(own, deployment) {
  const total = deployment ?? own;
  say("totals-title", deployment ? "What all answers to everyone cost" : "What all answers with your key cost");
  say("total-tokens", count(total.tokens_charged));
  say("total-unit", total.tokens_charged === 1 ? "token" : "tokens");
  say("total-nats", amount(charged(total)));
  say("left-title", deployment ? "budget left" : "left for this key");
  say("total-left", deployment
    ? budgetLeft(total)
    : (total.tokens_left === null ? "no quota" : plural(total.tokens_left, "token")));
  byId("no-bound").hidden = deployment !== null;
  byId("own-total").hidden = !(deployment && own);
  if (deployment && own) say("own-total", `Of these, with this key: ${plural(own.tokens_charged, "token")}.`);
  const bound = (isCorpus ? deployment?.membership_success : deployment?.half_bound) ?? boundAtCap;
  say("half-bound", bound === null ? "no limit" : `right at most ${percentAtMost(bound)}`);
  byId("half-guess").hidden = bound === null;
  byId("world").hidden = deployment === null || isCorpus;
  if (deployment && !isCorpus) say("world-bound", `right at most ${percentAtMost(deployment.world_bound)}`);
  say("cap-note", capNote(deployment !== null));
}

function capNote(isOperator) {
  if (boundAtCap === null) return "This deployment has NO CAP: what all answers together can tell grows without limit.";
  return isOperator
    ? `These are the figures as of now. Once the whole budget is spent: ${percentAtMost(boundAtCap)}. Then no private token is written any more.`
    : "This is the figure once the whole budget is spent, whoever asks and however often. Then no private token is written any more.";
}

function showRefusal(refusal) {
  byId("refusal").hidden = false;
  byId("retry").hidden = true;
  say("refusal-heading", refusal.heading);
  say("refusal-text", refusal.message);
}

async function write() {
  if (writing || !byId("ask").reportValidity()) return;
  const current = { id: freshRequestId(), abort: new AbortController(), stopped: false, usage: null, endedBy: null, refusal: null };
  writing = current;
  begin();
  try {
    await stream(current);
    say("progress", ending(current));
  } catch (error) {
    failed(error, current);
  } finally {
    writing = null;
    end();
  }
  if (current.usage === null) await refreshTotals();
}

function failed(error, current) {
  if (current.stopped && error.name === "AbortError") {
    say("progress", "Stopped.");
    return;
  }
  say("progress", byId("answer").textContent === "" ? "Nothing was written." : "Not finished.");
  if (!(error instanceof Refusal)) throw error;
  // The text that came was charged, so it stays.
  showRefusal(error);
  if (error.needsKey) askForKey(error.message);
}

function freshRequestId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return `try-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

async function stream(current) {
  const isChat = byId("mode-chat").checked && !byId("mode").hidden;
  const prompt = byId("prompt").value;
  const body = {
    model,
    max_tokens: Number(byId("length").value),
    stream: true,
    stream_options: { include_usage: true },
    ...(isChat ? { messages: [{ role: "user", content: prompt }] } : { prompt }),
  };
  say("given", isChat ? "" : prompt);
  const response = await post(isChat ? "/v1/chat/completions" : "/v1/completions", body, {
    headers: { "X-Request-Id": current.id },
    signal: current.abort.signal,
  });
  let isDone = false;
  for await (const data of events(response)) {
    if (data === "[DONE]") isDone = true;
    else take(JSON.parse(data), current);
  }
  if (current.refusal) throw current.refusal;
  if (!isDone) throw brokenOff();
}

async function* events(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      throw error.name === "AbortError" ? error : brokenOff();
    }
    if (part.done) return;
    held += decoder.decode(part.value, { stream: true });
    const whole = held.split("\n\n");
    held = whole.pop();
    for (const event of whole) yield event.replace(/^data: /, "");
  }
}

function take(chunk, current) {
  if (chunk.error) {
    current.refusal = refusalOf(chunk.error);
    return;
  }
  for (const choice of chunk.choices) {
    append(choice.text ?? choice.delta?.content ?? "", choice.reticent.source !== "private");
    current.endedBy = choice.reticent.ended_by ?? choice.finish_reason ?? current.endedBy;
  }
  if (chunk.usage) {
    current.usage = chunk.usage;
    showCost(chunk.usage);
  }
}

function append(text, isPublic) {
  if (!text) return;
  byId("text").hidden = false;
  const answer = byId("answer");
  let part = answer.lastElementChild;
  if (!part || (part.className === "public") !== isPublic) {
    part = document.createElement("span");
    part.className = isPublic ? "public" : "";
    answer.append(part);
    if (isPublic) byId("public-note").hidden = false;
  }
  part.append(text);
}

function showCost(usage) {
  const { privacy } = usage;
  say("answer-tokens", count(privacy.tokens_charged));
  const unpaid = usage.completion_tokens - privacy.tokens_charged;
  const unit = privacy.tokens_charged === 1 ? "token" : "tokens";
  say("answer-unit", unpaid ? `${unit}, and ${count(unpaid)} of the public model, not charged` : unit);
  say("answer-nats", amount(charged(privacy)));
  byId("share").hidden = cap === null;
  if (cap !== null) say("answer-share", `${Number((100 * charged(privacy) / cap).toPrecision(2))}\u00a0%`);
  showTotals(privacy.key, privacy.deployment);
}

function ending(current) {
  const tokens = plural(current.usage?.completion_tokens ?? 0, "token");
  if (current.stopped) return `Stopped by you after ${tokens}.`;
  if (current.endedBy === "length") return `Finished: ${tokens}, as many as you allowed.`;
  return `Finished: ${tokens}.`;
}

async function refreshTotals() {
  try {
    const { key: own, deployment } = await (await request("/try/data")).json();
    showTotals(own, deployment);
  } catch { /* The page says already what is wrong. */ }
}

function begin() {
  byId("refusal").hidden = true;
  byId("text").hidden = false;
  byId("answer").replaceChildren();
  byId("answer").setAttribute("aria-busy", "true");
  byId("public-note").hidden = true;
  showNoCost("…", "tokens, counted at the end");
  say("progress", "Writing…");
  byId("stop").hidden = false;
  byId("stop").removeAttribute("aria-disabled");
  byId("write").hidden = true;
  byId("stop").focus();
}

function end() {
  byId("answer").setAttribute("aria-busy", "false");
  if (byId("answer-tokens").textContent === "…") showNoCost("–", "see the totals");
  const hadFocus = document.activeElement === byId("stop");
  byId("stop").hidden = true;
  byId("write").hidden = false;
  if (hadFocus) byId("write").focus();
}

function showNoCost(sign, unit) {
  say("answer-tokens", sign);
  say("answer-unit", unit);
  say("answer-nats", sign);
  byId("share").hidden = true;
}

async function stop() {
  if (!writing || writing.stopped) return;
  const current = writing;
  current.stopped = true;
  say("progress", "Stopping…");
  byId("stop").setAttribute("aria-disabled", "true");
  setTimeout(() => current.abort.abort(), STOP_MILLISECONDS);
  try {
    while (writing === current) {
      if ((await (await post("/try/stop", { request_id: current.id })).json()).stopped) return;
      // The request may not have come as far as its answer.
      await new Promise((resolve) => { setTimeout(resolve, 200); });
    }
  } catch {
    current.abort.abort();
  }
}

function forget() {
  writing?.abort.abort();
  key = "";
  for (const id of ["prompt", "key"]) byId(id).value = "";
  location.reload();
}

byId("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  key = byId("key").value.trim();
  byId("key").value = "";
  byId("key").removeAttribute("aria-invalid");
  byId("refusal").hidden = true;
  load();
});
byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  write();
});
byId("ask").addEventListener("change", () => {
  say("prompt-label", byId("mode-chat").checked ? "Message" : "Beginning of the text");
});
byId("stop").addEventListener("click", stop);
byId("retry").addEventListener("click", () => {
  byId("refusal").hidden = true;
  load();
});
byId("forget").addEventListener("click", forget);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  const writes = event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target === byId("prompt");
  // Writing moves the focus to Stop, which neither this press of Enter nor one that is held may press.
  if (writes || (event.repeat && event.target === byId("stop"))) event.preventDefault();
  if (writes && !event.repeat) write();
});
load();
