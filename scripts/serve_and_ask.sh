#!/usr/bin/env bash
# Serves a run with the `reticent` on PATH, asks it for a few tokens as a client with a key does, and stops it. Used by the
# checks of an installation.
#
#     scripts/serve_and_ask.sh RUN
set -euo pipefail
run=$1
log=$(mktemp)
key=$(reticent keys create "$run" --name check 2>/dev/null)
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
reticent serve "$run" --step-budget 2^-32 --total-budget 2.3e-4 --port "$port" 2>"$log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 300); do
  kill -0 "$server" || { cat "$log" >&2; exit 1; }
  curl -fs "$url/readyz" >/dev/null && break
  sleep 1
done
answer=$(curl -fsS "$url/v1/completions" -H "Authorization: Bearer $key" -H 'Content-Type: application/json' \
  -d "{\"model\": \"$(basename "$run")\", \"prompt\": \"Dear Dr\", \"max_tokens\": 5}")
echo "$answer"
grep -q '"completion_tokens":[1-5]' <<<"$answer"
page=$(curl -fsS "$url/")
for part in $(grep -oE '(src|href)="[^"#:]+\.(js|css|svg)"' <<<"$page" | cut -d'"' -f2); do
  curl -fsS "$url/${part#/}" -o /dev/null
done
kill "$server"
wait "$server"
