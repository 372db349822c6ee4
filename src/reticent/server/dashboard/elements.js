// What the pages share: finding elements, writing into them, and figures as text.

export const byId = (id) => document.getElementById(id);
export const say = (id, text) => { byId(id).textContent = text; };

const whole = new Intl.NumberFormat("en");
export const count = (value) => whole.format(Math.round(value));
export const plural = (value, noun) => `${count(value)} ${noun}${Math.round(value) === 1 ? "" : "s"}`;
export const nats = (value) => `${Number(value.toPrecision(4))} nats`;
export const rho = (value) => `ρ\u00a0${Number(value.toPrecision(4))}`;
// A bound is rounded up, so that it still bounds.
export const percentAtMost = (chance) => `${(Math.min(100, Math.ceil(chance * 1e4 - 1e-9) / 100)).toFixed(2)}\u00a0%`;
export const epsilonAtMost = (value) => `ε\u00a0≤\u00a0${(Math.ceil(value * 1e4 - 1e-9) / 1e4).toFixed(4)}`;
export const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;
export const bearer = (key) => (key ? { Authorization: `Bearer ${key}` } : {});
