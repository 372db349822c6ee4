// Shows /dashboard/data and asks for it again every ten seconds. The key stays in a variable of this page.
import { bearer, byId, count, epsilonAtMost, nats, percentAtMost, plural, rho, say, sentence } from "/dashboard/elements.js";

const REFRESH_MILLISECONDS = 10_000;
const SVG = "http://www.w3.org/2000/svg";

let key = "";
let timer = 0;

function powerOfTwo(value) {
  const exponent = Math.log2(value);
  return Number.isInteger(exponent) ? `2^${exponent} nats` : nats(value);
}

function seconds(value) {
  if (value === null) return "none yet";
  if (value < 1) return `${count(1000 * value)}\u00a0ms`;
  return value < 10 ? `${value.toFixed(2)}\u00a0s` : `${count(value)}\u00a0s`;
}

function duration(hours) {
  if (hours < 1) return "less than an hour";
  if (hours < 48) return plural(hours, "hour");
  if (hours < 24 * 730) return `${count(hours / 24)} days`;
  return `${count(hours / 8766)} years`;
}

async function load() {
  clearTimeout(timer);
  let response;
  try {
    response = await fetch("/dashboard/data", { headers: bearer(key) });
  } catch {
    showStatus(false, "no connection");
    timer = setTimeout(load, REFRESH_MILLISECONDS);
    return;
  }
  if (response.status === 401 || response.status === 403) {
    const tried = key !== "";
    key = "";
    byId("page").hidden = true;
    byId("entry").hidden = false;
    if (tried) {
      say("entry-reason", (await response.json()).error.message);
      byId("entry-reason").className = "problem";
    }
    byId("key").focus();
    return;
  }
  timer = setTimeout(load, REFRESH_MILLISECONDS);
  if (!response.ok) {
    showStatus(false, (await response.json()).error.message);
    return;
  }
  show(await response.json());
}

function showStatus(ready, text) {
  const pill = byId("status");
  pill.hidden = false;
  pill.className = ready ? "pill" : "pill bad";
  pill.textContent = text;
}

function show(data) {
  byId("entry").hidden = true;
  byId("page").hidden = false;
  say("model", data.model);
  say("version", `reticent ${data.version}`);
  showStatus(data.ready, data.ready ? "ready" : data.reason);
  showBudget(data);
  const isCorpus = data.guarantee === "corpus";
  for (const id of ["membership-card", "epsilon-card"]) byId(id).hidden = !isCorpus;
  for (const id of ["half-card", "world-card", "dissent-card"]) byId(id).hidden = isCorpus;
  if (isCorpus) showCorpus(data);
  else showRealisedWorld(data);
  showHours(data.hours);
  say("active", `${data.answers_active} of ${data.max_concurrent}`);
  say("waiting", count(data.answers_waiting));
  say("uptime", duration((data.now - data.started) / 3600));
  say("on-exhausted", data.on_exhausted === "public" ? "the public model goes on" : "requests are refused");
  showDurations(data.durations);
  showRefusals(data.refusals);
  showKeys(data.keys);
  say("updated", `as of ${new Date(data.now * 1000).toLocaleString()}`);
}

function showRealisedWorld(data) {
  say("half-title", data.half_question);
  say("half-meaning", sentence(data.half_meaning));
  say("not-bounded", data.not_bounded);
  say("world-title", data.world_question);
  showBound("half", data.half_bound, data.half_at_cap, 0.5);
  showBound("world", data.world_bound, data.world_at_cap, 1 / data.worlds);
  say("worlds", count(data.worlds));
  say("world-guess", `${(100 / data.worlds).toFixed(2)}\u00a0%`);
  say("dissent", data.dissent_share === null ? "not yet" : `${Math.round(100 * data.dissent_share)}\u00a0%`);
}

function showCorpus(data) {
  say("membership-title", data.membership_question);
  say("membership-meaning", sentence(data.membership_meaning));
  say("not-covered", data.not_covered);
  showBound("membership", data.membership_bound, data.membership_at_cap, 0.5);
  const inBlocks = data.membership_in_blocks;
  say("membership-blocks", inBlocks === null ? "" : `A second, tighter reading, in blocks of tokens: ${percentAtMost(inBlocks)}.`);
  say("epsilon-now", epsilonAtMost(data.epsilon));
  say("delta", String(data.delta));
  say("epsilon-cap", data.epsilon_at_cap === null ? "" : `Once the whole budget is spent: ${epsilonAtMost(data.epsilon_at_cap)}. `);
  say("epsilon-blocks", data.epsilon_in_blocks === null ? "" : `In blocks, now: ${epsilonAtMost(data.epsilon_in_blocks)}.`);
  say("neighbours", `${data.neighbours} (${data.relation})`);
  say("corpus-worlds", count(data.worlds));
  say("constants", `${nats(data.clip)}, ${data.gain}, ${data.temperature}`);
  say("sway", `at most ${nats(data.sway)}`);
}

// What is counted: nats or ρ. Where not every token is charged, the latest spending is at its worst case.
function budgetOf(data) {
  if (data.guarantee === "corpus") {
    return {
      spent: data.rho_spent, cap: data.rho_cap, amount: rho, charge: rho(data.rho_a_token), isWorstCase: false,
      option: "--total-epsilon, --membership-success or --total-rho",
    };
  }
  const isWorstCase = data.charging !== "fixed";
  return {
    spent: data.nats_spent, cap: data.nats_cap, amount: nats, isWorstCase, option: "--total-budget",
    charge: isWorstCase ? `${powerOfTwo(data.step_nats)}, where worlds differ` : powerOfTwo(data.step_nats),
  };
}

function showBudget(data) {
  const { spent, cap, amount, charge, isWorstCase } = budgetOf(data);
  const share = cap === null ? null : spent / cap;
  say("spent-share", share === null ? count(data.tokens_released) : `${(100 * share).toFixed(share < 0.1 ? 2 : 1)}\u00a0%`);
  say("spent-unit", share === null ? "tokens, without a cap" : "spent");
  const bar = byId("budget-bar");
  bar.hidden = share === null;
  bar.className = data.budget_spent ? "bar out" : share > 0.9 ? "bar low" : "bar";
  byId("budget-fill").style.width = `${100 * Math.min(1, share ?? 0)}%`;
  say("spent", amount(spent));
  say("cap", cap === null ? "none" : amount(cap));
  say("tokens-released", count(data.tokens_released));
  const left = data.tokens_left === null ? "no limit" : count(data.tokens_left);
  say("tokens-left", isWorstCase && data.tokens_left !== null ? `at least ${left}` : left);
  say("charge", charge);
  say("pace", `${count(data.tokens_per_hour)} tokens an hour`);
  say("projection", projection(data));
}

function projection(data) {
  const { cap, isWorstCase, option } = budgetOf(data);
  if (cap === null) return `This deployment has NO CAP: what all tokens together can tell grows without limit. Set one with ${option} at the next start.`;
  if (data.budget_spent) return "The budget is spent. It does not come back.";
  if (data.hours_left === null) return "No tokens in the last day, so there is no projection.";
  if (data.hours_left > 24 * 36_500) return "At this pace the budget lasts for more than a century.";
  const end = new Date((data.now + 3600 * data.hours_left) * 1000);
  const day = end.toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric" });
  const atLeast = isWorstCase ? "at least " : "";
  return `At the pace of the last day the budget lasts for ${atLeast}${duration(data.hours_left)}, until ${day}.`;
}

function showBound(name, now, atCap, guess) {
  say(`${name}-now`, percentAtMost(now));
  say(`${name}-cap`, atCap === null ? "" : ` Once the whole budget is spent: ${percentAtMost(atCap)}.`);
  const scale = byId(`${name}-scale`);
  const mark = (className, chance) => {
    const part = document.createElement("div");
    part.className = className;
    part.style.width = `${100 * Math.max(0, (chance - guess) / (1 - guess))}%`;
    return part;
  };
  scale.replaceChildren(mark("later", atCap ?? now), mark("now", now));
}

function showHours(hours) {
  const largest = Math.max(1, ...hours.map((hour) => hour.tokens));
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${hours.length * 10} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Tokens released in each of the last ${hours.length} hours; most: ${count(largest)}`);
  hours.forEach((hour, position) => {
    const bar = document.createElementNS(SVG, "rect");
    const height = hour.tokens ? Math.max(2, (96 * hour.tokens) / largest) : 1;
    const place = { x: position * 10 + 1, y: 100 - height, width: 8, height };
    Object.entries(place).forEach(([attribute, value]) => bar.setAttribute(attribute, value));
    if (!hour.tokens) bar.setAttribute("class", "empty");
    const title = document.createElementNS(SVG, "title");
    title.textContent = `${new Date(hour.start * 1000).toLocaleString()}: ${count(hour.tokens)}`;
    bar.append(title);
    svg.append(bar);
  });
  const axis = document.createElement("div");
  axis.className = "axis";
  const labels = [`${hours.length} hours ago`, `most in an hour: ${count(Math.max(...hours.map((hour) => hour.tokens)))}`, "now"];
  axis.append(...labels.map((text) => Object.assign(document.createElement("span"), { textContent: text })));
  byId("hours").replaceChildren(svg, axis);
}

function showKeys(keys) {
  byId("no-keys").hidden = keys.length > 0;
  byId("keys").closest("table").hidden = keys.length === 0;
  byId("keys").replaceChildren(...keys.map((entry) => {
    const row = document.createElement("tr");
    if (!entry.live) row.className = "ended";
    const until = entry.expires === null ? "" : `, until ${new Date(entry.expires * 1000).toLocaleString()}`;
    const cells = [
      ["", entry.name + until, ""],
      ["id", entry.id, ""],
      ["scopes", entry.scopes.join(", "), ""],
      ["used", count(entry.tokens_used), "number"],
      ["of", entry.total_tokens === null ? "any" : count(entry.total_tokens), "number"],
      ["a minute", entry.tokens_per_minute === null ? "any" : count(entry.tokens_per_minute), "number"],
    ];
    row.append(...tableCells(cells));
    return row;
  }));
}

function tableCells(cells) {
  return cells.map(([label, text, className]) => {
    const cell = document.createElement("td");
    cell.dataset.label = label;
    cell.className = className;
    cell.textContent = text;
    return cell;
  });
}

function fillTable(id, rows) {
  byId(id).replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...tableCells(cells));
    return row;
  }));
}

function showDurations(durations) {
  fillTable("durations", durations.map(({ name, median, ninety_fifth }) => [
    ["", name, ""],
    ["half within", seconds(median), "number"],
    ["95\u00a0% within", seconds(ninety_fifth), "number"],
  ]));
}

function showRefusals(refusals) {
  byId("refusals").closest("table").hidden = refusals.length === 0;
  byId("no-refusals").hidden = refusals.length > 0;
  fillTable("refusals", refusals.map((entry) => [
    ["", entry.reason.replaceAll("_", " "), ""],
    ["times", count(entry.count), "number"],
  ]));
}

byId("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  key = byId("key").value.trim();
  byId("key").value = "";
  load();
});
load();
