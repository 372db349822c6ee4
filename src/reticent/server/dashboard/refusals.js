// Texts for every way in which the server refuses. The heading is ours; the sentence below it is the server's own.

const HEADINGS = {
  insufficient_quota: "Nothing more may be written",
  rate_limit_exceeded: "Too much at once",
  shutting_down: "The server is stopping",
  ledger_unavailable: "The account cannot be written",
  too_many_connections: "The server is busy",
  context_length_exceeded: "The text is too long",
  request_too_large: "The text is too long",
  request_timeout: "Sending took too long",
  model_not_found: "The server has another model now",
  no_chat_template: "This model only goes on from a text",
  invalid_api_key: "The key is not accepted",
  expired_api_key: "The key has expired",
  internal_error: "The server made a mistake",
};
const HEADINGS_BY_STATUS = {
  401: "The key is not accepted",
  403: "Not allowed",
  408: "Sending took too long",
  413: "The text is too long",
  429: "Too much at once",
  500: "The server made a mistake",
  502: "The server cannot be reached",
  503: "The server cannot answer now",
  504: "The server cannot be reached",
};

/** A request that was refused, or an answer that was cut off; `status` is 0 where no status says so. */
export class Refusal extends Error {
  constructor(heading, message, { status = 0, needsKey = false } = {}) {
    super(message);
    Object.assign(this, { heading, status, needsKey });
  }
}

/** The refusal in an error of the server, from a response or an event of a stream. */
export function refusalOf(error, status = 0, retryAfter = null) {
  const heading = HEADINGS[error.code] ?? HEADINGS_BY_STATUS[status] ?? "This was refused";
  const seconds = Math.ceil(Number(retryAfter));
  const wait = seconds > 0 ? ` Worth another try in ${seconds === 1 ? "a second" : `${seconds} seconds`}.` : "";
  const needsKey = status === 401 || status === 403 || ["invalid_api_key", "expired_api_key"].includes(error.code);
  return new Refusal(heading, `${error.message}${wait}`, { status, needsKey });
}

/** The refusal in a response that is not 2xx; also one that a proxy made, which has no JSON of ours. */
export async function refusalIn(response) {
  let error = null;
  try {
    ({ error } = await response.json());
  } catch { /* Not ours. */ }
  const unknown = { message: `Something between this page and the server answered with status ${response.status}.` };
  return refusalOf(error?.message ? error : unknown, response.status, response.headers.get("Retry-After"));
}

export const noConnection = () => new Refusal(
  "No connection",
  "The server cannot be reached. It may be stopped, or the network is down. Try again later.",
);

export const brokenOff = () => new Refusal(
  "The answer broke off",
  "The connection ended in the middle of the answer. What was written until then stays charged; the totals count it.",
);
